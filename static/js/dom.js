// Small things around elements that both pages need: finding them, colours, the box that asks for a key.

import { isKey } from "./place.js";
import { loadKey, saveKey } from "./settings.js";

export const $ = (id) => document.getElementById(id);

/** Show a text, only where it differs: screen readers announce changes. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** The colour of a variable of the style sheet, as a canvas wants it: `light-dark()` is known to the sheet alone. */
export function colour(name) {
  const probe = document.createElement("i");
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

const THEMES = { auto: ["◐", "Colours: as the system"], light: ["☀", "Colours: light"], dark: ["☾", "Colours: dark"] };

/** Let the button go round the themes; `settings.theme` is the present one, `onChange` is called after a change. */
export function setUpTheme(settings, onChange) {
  const show = () => {
    const [sign, label] = THEMES[settings.theme] ?? THEMES.auto;
    document.documentElement.dataset.theme = settings.theme;
    $("theme-sign").textContent = sign;
    $("theme").setAttribute("aria-label", label);
    $("theme").title = label;
  };
  $("theme").addEventListener("click", () => {
    const names = Object.keys(THEMES);
    settings.theme = names[(names.indexOf(settings.theme) + 1) % names.length];
    show();
    onChange();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", onChange);
  show();
}

/** Ask for a key; resolves with it, or with null where there is none. */
export function askKey(title, detail) {
  const box = $("key-box");
  $("key-title").textContent = title;
  $("key-detail").textContent = detail;
  $("key").value = loadKey();
  $("key").setCustomValidity("");
  $("key-remember").checked = Boolean(localStorage.getItem("duplex-gateway-key"));
  return new Promise((resolve) => {
    $("key").oninput = () => $("key").setCustomValidity("");
    $("key-cancel").onclick = () => box.close("");
    $("key-form").onsubmit = (event) => {
      const key = $("key").value.trim();
      if (key && !isKey(key)) {
        event.preventDefault();
        $("key").setCustomValidity("A key has letters, digits and !#$%&'*+-.^_`|~ only.");
        $("key").reportValidity();
      }
    };
    box.onclose = () => {
      if (box.returnValue !== "use") {
        resolve(null);
        return;
      }
      const key = $("key").value.trim();
      saveKey(key, $("key-remember").checked);
      resolve(key);
    };
    box.returnValue = "";
    if (!box.open) box.showModal();
  });
}
