// The assistant's words with the times at which they were heard, as lines of a conversation, as text and as WebVTT. A line ends at a pause,
// or when it is long. Times are seconds of the call's time axis, which the recording has, too. The one rule: a word is never shown before
// it is heard. No DOM, no clock.

const PAUSE_S = 0.8; // "quiet of the model that ends a response", as on the Realtime wire
const LONG_LINE_CHARS = 160; // then it ends at the next sentence
const LAST_WORD_S = 0.6; // a word has no end of its own

export class Transcript {
  constructor() {
    this.lines = []; // {kind: "words", start, end, pieces: [{text, at}]} or {kind: "note", start, text}
  }

  /** Add a piece of text that was heard at `at`; returns its line. A piece with a leading space begins a word. */
  add(text, at) {
    let line = this.lines.at(-1);
    if (line?.kind !== "words" || at - line.end > PAUSE_S || (isLong(line) && /^\s/.test(text))) {
      line = { kind: "words", start: at, end: at, pieces: [] };
      this.lines.push(line);
    }
    line.pieces.push({ text, at });
    line.end = at;
    return line;
  }

  /** Note something that happened at `at`, such as a new call. */
  note(text, at) {
    const line = { kind: "note", start: at, text };
    this.lines.push(line);
    return line;
  }

  get hasWords() {
    return this.lines.some(({ kind }) => kind === "words");
  }

  /** The whole as plain text; `head` are lines to put before it. */
  toText(head = []) {
    const body = this.lines.map((line) => (line.kind === "note"
      ? `${formatTime(line.start)}  — ${line.text}`
      : `${formatTime(line.start)}  Assistant: ${textOf(line)}`));
    return [...head, ...(head.length ? [""] : []), ...body, ""].join("\n");
  }

  /** The words as WebVTT, a cue for each line, with a time for each word. */
  toVtt() {
    const cues = this.lines.filter(({ kind }) => kind === "words").map((line, index, lines) => {
      const next = lines[index + 1]?.start ?? Infinity;
      const end = Math.max(line.start + 0.1, Math.min(line.end + LAST_WORD_S, next));
      const words = line.pieces.map(({ text, at }, place) => (place && /^\s/.test(text) && at > line.start
        ? `<${stamp(at)}>${escapeVtt(text)}` : escapeVtt(text)));
      return `${index + 1}\n${stamp(line.start)} --> ${stamp(end)}\n<v Assistant>${words.join("").trim().replace(/\s+/g, " ")}`;
    });
    return `${["WEBVTT", ...cues].join("\n\n")}\n`;
  }
}

const isLong = (line) => {
  const text = textOf(line);
  return text.length > LONG_LINE_CHARS && /[.!?…]$/.test(text);
};

/** The words of a line as one string. */
export const textOf = (line) => line.pieces.map(({ text }) => text).join("").trim();

/** 75.3 -> "1:15.3" */
export function formatTime(seconds, digits = 1) {
  const shown = Math.max(0, seconds);
  const minutes = Math.floor(shown / 60);
  const rest = (shown - minutes * 60).toFixed(digits);
  if (Number(rest) >= 60) return formatTime((minutes + 1) * 60, digits);
  return `${minutes}:${rest.padStart(digits ? digits + 3 : 2, "0")}`;
}

function stamp(seconds) {
  const ms = Math.round(Math.max(0, seconds) * 1000);
  const two = (value) => String(value).padStart(2, "0");
  const [hours, minutes, rest] = [Math.floor(ms / 3_600_000), Math.floor(ms / 60_000) % 60, Math.floor(ms / 1000) % 60];
  return `${two(hours)}:${two(minutes)}:${two(rest)}.${String(ms % 1000).padStart(3, "0")}`;
}

const escapeVtt = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/-->/g, "→");
