// What the end of a connection means, in plain sentences, and whether to try again. A table for every close code; no DOM, no clock.
//
// The one rule: whoever reads the sentence knows what happened and what to do, and nothing is tried again that cannot go better next time.

const FIRST_S = 2;
const LONGEST_S = 30;
const FULL_S = 5; // a slot may become free at any moment, and asking costs the server little
const MAX_FAULTS = 3; // of the server's own, one after the other

const OUR_FAULT = "Something went wrong inside the server.";

// code -> [title, what it means, how it is tried again]
const CODES = {
  1000: ["The call has ended", "The server has ended the call.", "never"],
  1001: ["The server is shutting down", "Calls will be taken again when it is back.", "always"],
  1002: ["The server did not understand this page", "Reload the page; it may be older than the server.", "never"],
  1003: ["The server did not understand this page", "Reload the page; it may be older than the server.", "never"],
  1005: ["The call has ended", "The connection was closed without a reason.", "never"],
  1006: ["The connection was lost", "The network or the server went away without a word.", "always"],
  1007: ["The server could not decode your audio", "Try the other connection under Connection: raw PCM needs no coder.", "never"],
  1008: ["The server refused the call", "Change what it names and call again.", "never"],
  1009: ["A message was too large", "Reload the page and call again.", "never"],
  1011: ["The server has failed", OUR_FAULT, "fault"],
  1012: ["The server is restarting", "Calls will be taken again when it is back.", "always"],
  1013: ["The server is full", "All places are taken.", "full"],
  1014: ["A proxy got no answer from the server", "The server may be starting.", "always"],
  4000: ["This browser could not code the audio", "Choose raw PCM under Connection.", "never"],
};

// How the server's own sentences begin, and what a person makes of them. Other reasons are shown as they are.
const REASONS = [
  [/^every slot is taken/, "The server is full", "Every place is taken at the moment."],
  [/^no slot became free/, "The server is full", "No place became free while you waited."],
  [/^the model is still loading/, "The server is starting", "The model is still loading."],
  [/too slow for another caller/, "The server is busy", "It could not keep up with another call at the moment."],
  [/^the server is shutting down/, "The server is shutting down", "Calls will be taken again when it is back."],
  [/length limit/, "The call has reached its length limit", "You can call again at once."],
  [/^no audio/, "The call ended for want of audio", "Nothing of your microphone reached the server for a while."],
  [/^nothing was read/, "The connection was too slow", "Your network did not take the audio of the server."],
  [/voice/, "This voice is not there", "Choose another voice."],
  [/persona/, "The persona cannot be used", "Shorten or change it."],
];

/** Say what a close means: `{title, detail}`. `reason` is what the server said. */
export function describeClose(code, reason = "") {
  const known = REASONS.find(([pattern]) => pattern.test(reason));
  const [title, meaning] = CODES[code] ?? ["The call has ended", `The connection was closed with code ${code}.`];
  if (known) return { title: known[1], detail: code === 1008 ? `${known[2]} (“${reason}”)` : known[2] };
  return { title, detail: reason && code !== 1011 && code !== 1006 ? `${meaning} It said: “${reason}”.` : meaning };
}

/** Say a warning of the server (`05` without a close) in plain words. */
export function describeWarning(text) {
  if (/more arrives than the server can take/.test(text)) return "The server is too slow just now: some of what you said was lost.";
  if (/you do not read it fast enough/.test(text)) return "Your network is too slow just now: some of the answer was lost.";
  return `The server says: ${text}.`;
}

/**
 * Decide whether to try again after a close: seconds to wait, or null.
 *
 * `attempt` counts the tries since a call was last live, from 0; `random` is in [0, 1), so that callers do not come back all at once.
 */
export function retryDelay(code, attempt, random) {
  const how = (CODES[code] ?? CODES[1000])[2];
  if (how === "never" || (how === "fault" && attempt >= MAX_FAULTS)) return null;
  const base = how === "full" ? FULL_S * 1.3 ** attempt : FIRST_S * 2 ** attempt;
  return Math.round(Math.min(base, LONGEST_S) * (1 + 0.25 * random));
}

/** The line of the wait: "The server is full, trying again in 5 s". */
export const describeWait = (title, seconds) => `${title}, trying again in ${seconds} s`;

/**
 * A WebSocket that never opened tells a page nothing. What an ordinary request said in the same moment tells more:
 * `{title, detail, needsKey, retries}`. `status` is that of GET /api/config (0: no answer), `config` its body.
 */
export function diagnose(status, config, hasKey) {
  if (status === 0) return { title: "The server cannot be reached", detail: "It may be down, or the network is.", retries: true };
  if (status === 401) {
    const title = hasKey ? "The key was not accepted" : "This server asks for a key";
    return { title, detail: "Enter the key that you were given.", needsKey: true, retries: false };
  }
  if (status === 403) {
    return { title: "This page may not use the server", detail: "Its owner must add this address to --allowed-origins.", retries: false };
  }
  if (status === 429) return { title: "Too many calls with this key", detail: "Wait a minute.", retries: true };
  if (status >= 500) {
    const detail = `It said ${status}: the server may be down, or starting, or the proxy looks for it in the wrong place.`;
    return { title: "A proxy got no answer from the server", detail, retries: true };
  }
  if (status !== 200 || !config.status) {
    const detail = `It said ${status}: a proxy may send the page and the calls to different places.`;
    return { title: "What answers here is not the server", detail, retries: false };
  }
  const { slots, accepts } = config.load ?? {};
  if (config.status === "failed") return { title: "The server has failed", detail: OUR_FAULT, retries: true };
  if (config.status === "loading") return { title: "The server is starting", detail: "The model is still loading.", retries: true };
  if (slots && slots.used >= slots.total) {
    return { title: "The server is full", detail: `All ${slots.total} places are taken.`, retries: true };
  }
  if (accepts === false) return { title: "The server takes no calls now", detail: config.load.why ?? "", retries: true };
  return {
    title: "The call could not be opened",
    detail: "The server answers, but not to a WebSocket: a proxy in between must pass on the headers Upgrade and Connection, "
      + "or this key has too many calls.",
    retries: true,
  };
}
