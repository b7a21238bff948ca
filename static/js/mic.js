// What can go wrong with a microphone, and what to do about it. The table of sentences has no DOM; `openMicrophone` asks the browser.

const REFUSALS = {
  insecure: [
    "The browser gives no microphone to this address",
    "It does so only on https and on localhost. Open the page by https (start the server with --ssl DIR), or through a tunnel: "
    + "ssh -L 8998:localhost:8998 HOST.",
  ],
  unsupported: ["This browser cannot do calls", "A current Chrome, Edge, Firefox or Safari can."],
  NotAllowedError: [
    "The microphone is blocked",
    "Allow it for this page: click the symbol to the left of the address, set Microphone to Allow, and call again. On a phone or a Mac the "
    + "browser itself needs the permission, too (system settings, privacy, microphone).",
  ],
  NotFoundError: ["No microphone was found", "Connect one (or a headset), check that the system sees it, and call again."],
  NotReadableError: ["The microphone is busy", "Another program or tab holds it. Close that one and call again."],
  OverconstrainedError: ["The chosen microphone is gone", "Choose another one under Audio."],
  AbortError: ["The microphone did not start", "Unplug it, plug it in again, and call again."],
};

/** The sentences for a refusal: `{title, detail}`. `name` is a key above, or the name of the browser's error. */
export function describeRefusal(name, message = "") {
  const aliases = { SecurityError: "NotAllowedError", DevicesNotFoundError: "NotFoundError", TrackStartError: "NotReadableError" };
  const known = REFUSALS[aliases[name] ?? name];
  if (known) return { title: known[0], detail: known[1] };
  return { title: "The microphone could not be opened", detail: message || name };
}

/** What this browser lacks, as a key of the table; null where calls can be made. */
export function missingHere(scope = globalThis) {
  if (!scope.isSecureContext) return "insecure";
  if (!scope.navigator?.mediaDevices?.getUserMedia || !scope.AudioWorkletNode) return "unsupported";
  return null;
}

/** The wishes for a microphone by the switches of the page. */
export const constraints = ({ device, echoCancellation, noiseSuppression, autoGainControl }) => ({
  audio: {
    ...(device ? { deviceId: { exact: device } } : {}),
    channelCount: 1,
    echoCancellation,
    noiseSuppression,
    autoGainControl,
  },
});

/** Open the microphone; raises the browser's error. */
export const openMicrophone = (wishes) => navigator.mediaDevices.getUserMedia(constraints(wishes));

/** "granted", "denied" or "prompt", as far as the browser tells. */
export async function permission() {
  try {
    return (await navigator.permissions.query({ name: "microphone" })).state;
  } catch {
    return "prompt";
  }
}

/** The microphones, named once the permission is given. */
export async function listMicrophones() {
  const devices = (await navigator.mediaDevices?.enumerateDevices?.()) ?? [];
  return devices
    .filter(({ kind, deviceId }) => kind === "audioinput" && deviceId)
    .map(({ deviceId, label }, index) => ({ id: deviceId, label: label || `Microphone ${index + 1}` }));
}
