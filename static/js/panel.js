// The settings of the page: filled from what is remembered and from what the server offers, read back on every change. The one rule:
// `settings` is the truth, the form shows it.

import { $ } from "./dom.js";
import { listMicrophones } from "./mic.js";
import { DEFAULTS, PRESETS } from "./settings.js";

const SAMPLING = [
  "text_temperature", "audio_temperature", "text_topk", "audio_topk", "repetition_penalty", "repetition_penalty_context", "pad_mult",
];
const SWITCHES = ["echoCancellation", "noiseSuppression", "autoGainControl", "halfDuplex"];

function option(value, text) {
  const element = document.createElement("option");
  element.value = value;
  element.textContent = text;
  return element;
}

export class Panel {
  /** `onChange(name)` is called after each change with the name of the field. */
  constructor(settings, onChange) {
    this.settings = settings;
    this.onChange = onChange;
    $("preset").replaceChildren(...PRESETS.map(({ id, name }) => option(id, name)));
    this.show();
    $("settings").addEventListener("input", ({ target }) => this._read(target));
    $("settings").addEventListener("submit", (event) => event.preventDefault());
    $("reset-sampling").addEventListener("click", () => {
      Object.assign(this.settings, { sampling: {}, seed: "" });
      this.show();
      this.onChange("sampling");
    });
  }

  show() {
    const { settings } = this;
    $("preset").value = PRESETS.some(({ id }) => id === settings.preset) ? settings.preset : DEFAULTS.preset;
    $("persona").value = settings.persona;
    $("voice").value = settings.voice;
    $("seed").value = settings.seed;
    $("wire").value = settings.wire;
    for (const name of SAMPLING) $(name).value = settings.sampling[name] ?? "";
    for (const name of SWITCHES) $(name).checked = settings[name];
    this._showPersona();
  }

  /** Show what the server offers. */
  offer(config) {
    this.config = config;
    if (config.voices) {
      const own = config.defaults?.voice ? `The server's own (${withoutEnding(config.defaults.voice)})` : "The server's own";
      $("voice").replaceChildren(option("", own), ...config.voices.map((name) => option(name, withoutEnding(name))));
      if (!config.voices.includes(this.settings.voice)) this.settings.voice = "";
      $("voice").value = this.settings.voice;
      $("voice").disabled = !config.voices.length;
    }
    for (const name of SAMPLING) $(name).placeholder = config.defaults?.sampling?.[name] ?? "";
    if (config.limits?.persona_chars) $("persona").maxLength = config.limits.persona_chars;
    this._showPersona();
  }

  /** List the microphones; they have names once the permission is given. */
  async listDevices() {
    const devices = await listMicrophones();
    $("device").replaceChildren(option("", "The system's choice"), ...devices.map(({ id, label }) => option(id, label)));
    if (!devices.some(({ id }) => id === this.settings.device)) {
      if (devices.length) this.settings.device = "";
    }
    $("device").value = this.settings.device;
  }

  get wishes() {
    const { device, echoCancellation, noiseSuppression, autoGainControl } = this.settings;
    return { device, echoCancellation, noiseSuppression, autoGainControl };
  }

  _read(field) {
    const { settings } = this;
    const { id } = field;
    if (SAMPLING.includes(id)) {
      if (!field.validity.valid) return; // it is marked; the last good value stays
      const value = field.value === "" ? undefined : Number(field.value);
      settings.sampling = { ...settings.sampling, [id]: value };
      this.onChange("sampling");
      return;
    }
    settings[id] = SWITCHES.includes(id) ? field.checked : field.value;
    if (id === "preset" && field.value === "own" && !settings.persona) $("persona").value = settings.persona = "You are ";
    this._showPersona();
    this.onChange(id);
  }

  _showPersona() {
    const preset = PRESETS.find(({ id }) => id === $("preset").value) ?? PRESETS[0];
    const isOwn = preset.text === null;
    $("persona-box").hidden = !isOwn;
    const servers = this.config?.defaults?.persona ?? "";
    $("persona-text").textContent = isOwn ? "" : preset.text || servers;
  }
}

const withoutEnding = (name) => name.replace(/\.(pt|wav|flac|ogg|mp3)$/, "");
