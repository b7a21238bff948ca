// What the page remembers, on this device alone. The one rule: a key is kept for this tab, and longer only where the box was ticked.

const STORE = "duplex-gateway";
const KEY_STORE = "duplex-gateway-key";

const preset = (id, name, text) => ({ id, name, text });

export const PRESETS = [
  preset("server", "The server's own", ""),
  preset("talk", "Good company", "You enjoy having a good conversation."),
  preset("teacher", "Teacher", "You are a patient teacher. You explain things in short, clear sentences."),
  preset("desk", "Front desk", "You work at the front desk of a small hotel. Your name is Nova. You are friendly, brief and helpful."),
  preset("coach", "Interview coach", "You train people for job interviews. You ask one question at a time and comment on each answer."),
  preset("own", "Your own…", null),
];

export const DEFAULTS = {
  theme: "auto",
  preset: "server",
  persona: "",
  voice: "",
  sampling: {}, // only what differs from the server's
  seed: "",
  wire: "auto",
  device: "",
  echoCancellation: true,
  noiseSuppression: true,
  autoGainControl: true,
  halfDuplex: false,
};

export function loadSettings(storage = globalThis.localStorage) {
  try {
    return { ...DEFAULTS, ...JSON.parse(storage.getItem(STORE) ?? "{}") };
  } catch {
    return { ...DEFAULTS };
  }
}

export function saveSettings(settings, storage = globalThis.localStorage) {
  try {
    storage.setItem(STORE, JSON.stringify(settings));
  } catch {
    // a private window may keep nothing
  }
}

export const loadKey = () => sessionStorage.getItem(KEY_STORE) ?? localStorage.getItem(KEY_STORE) ?? "";

export function saveKey(key, isRemembered) {
  sessionStorage.setItem(KEY_STORE, key);
  if (isRemembered) localStorage.setItem(KEY_STORE, key);
  else localStorage.removeItem(KEY_STORE);
}

/** What a call asks the server for: what is left out is the server's own. */
export function callOf(settings) {
  const { text } = PRESETS.find(({ id }) => id === settings.preset) ?? PRESETS[0];
  const persona = (text ?? settings.persona).trim();
  const sampling = Object.fromEntries(Object.entries(settings.sampling).filter(([, value]) => Number.isFinite(value)));
  if (/^\d+$/.test(settings.seed)) sampling.seed = Number(settings.seed);
  return { persona, voice: settings.voice, sampling };
}
