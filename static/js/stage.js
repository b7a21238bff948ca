// What is seen of a call: sentence, levels, picture, transcript, numbers, and the server in the head of the page. It shows what it is told
// and decides nothing. Drawing waits for the screen: a hidden page costs nothing.

import { $, setText } from "./dom.js";
import { meterShare } from "./meter.js";
import { formatTime, textOf } from "./transcript.js";
import { Waveform } from "./waveform.js";

const HINT_MS = 12_000;
const BLOCKS_PER_BAR = 2; // 20 ms each
const SPARING_BLOCKS = 8; // from one picture to the next while the sound has not enough of the processor
const SPARE_MS = 10_000;
const TELL_MS = 250; // how often a meter tells its level to those who do not see it
const SIDES = ["user", "assistant"];
const HANG_UP = ["asking", "connecting", "queued", "preparing", "live", "waiting"];

export class Stage {
  constructor() {
    this.wave = new Waveform($("wave"));
    this.elements = new Map(); // line of the transcript -> its element
    this.levels = { user: -100, assistant: -100 };
    this.meterParts = Object.fromEntries(SIDES.map((side) => [side, {
      track: $(`meter-${side}`),
      moving: [$(`meter-${side}`).firstElementChild, $("talk").querySelector(`.halo.${side}`)],
    }]));
    this.isDirty = false;
    this.numBlocks = 0;
    this.numDry = 0; // times that the buffer ran dry
    this.sparesUntil = -Infinity;
  }

  clear() {
    this.wave.clear();
    this.elements.clear();
    $("log").replaceChildren($("log-empty"));
    $("log-empty").hidden = false;
    this.hint("");
    for (const id of ["save-wav", "save-text", "save-vtt"]) $(id).disabled = true;
    this._soon();
  }

  restyle() {
    this.wave.restyle();
  }

  phase({ phase, title, detail, isFault = false }) {
    const isCountdown = phase === "waiting" && document.body.dataset.phase === "waiting";
    $("state").parentElement.setAttribute("aria-live", isCountdown ? "off" : "polite"); // it is read out once, not every second
    document.body.dataset.phase = phase;
    document.body.classList.toggle("is-fault", isFault);
    setText($("state"), title);
    setText($("detail"), detail ?? "");
    setText($("talk-label"), phase === "waiting" ? "Stop" : HANG_UP.includes(phase) ? "Hang up" : "Talk");
    if (phase === "live") return;
    this.meters({ user: -100, assistant: -100 });
    this.hint("");
  }

  /** The server in a line: its health first. */
  server(status, { status: health, model, device, load, progress }, host) {
    const isOk = status === 200 && health === "ok";
    const isFull = load?.slots && load.slots.used >= load.slots.total;
    const loading = `starting: ${progress || "the model is loading"}`;
    const words = { loading, degraded: "busy", draining: "shutting down", failed: "failed" };
    $("server").dataset.health = status === 0 || health === "failed" ? "down" : isOk && !isFull ? "ok" : "busy";
    const places = load?.slots ? ` · ${load.slots.used} of ${load.slots.total} places taken` : "";
    if (status === 0) setText($("server-text"), `${host} cannot be reached`);
    else if (status === 401) setText($("server-text"), `${host} asks for a key`);
    else if (status !== 200) setText($("server-text"), `${host} answers ${status}`);
    else setText($("server-text"), isOk ? `${model} on ${device}${places}` : `${host} is ${words[health] ?? health}${places}`);
    if (load) this._load(load);
  }

  block({ at, user, played, levels, numDry }, rate) {
    this.wave.add(at, user, played, rate);
    this.levels = levels;
    $("save-wav").disabled = false;
    this.numBlocks += 1;
    if (numDry > this.numDry) this.sparesUntil = performance.now() + SPARE_MS; // the picture gives way to the sound
    this.numDry = numDry;
    const isSparing = performance.now() < this.sparesUntil;
    if (this.numBlocks % (isSparing ? SPARING_BLOCKS : BLOCKS_PER_BAR) === 0) this._soon(); // between two bars there is nothing to see
  }

  words(line, text, at) {
    this.wave.addWord(text, at);
    $("save-vtt").disabled = $("save-text").disabled = false;
    this._line(line, textOf(line), ""); // the picture has the word with its next bar
  }

  note(line) {
    this.wave.addMark(line.start);
    $("save-text").disabled = false;
    this._line(line, line.text, "event");
  }

  hint(text) {
    clearTimeout(this.hintTimer);
    $("hint").hidden = !text;
    setText($("hint"), text);
    if (text) this.hintTimer = setTimeout(() => this.hint(""), HINT_MS);
  }

  numbers({ roundTripMs, networkMs, buffer, droppedIn, droppedOut, epoch, codec, load }, seconds) {
    const ms = (value) => `${Math.round(value)} ms`;
    this._number("n-trip", roundTripMs === null ? null : ms(roundTripMs), networkMs === null ? "" : `network ${ms(networkMs)}`);
    const dry = buffer?.dry ? `, ran dry ${buffer.dry} ×` : "";
    this._number("n-buffer", buffer ? ms(buffer.fillMs) : null, buffer ? `target ${ms(buffer.targetMs)}${dry}` : "");
    this._number("n-dropped", codec ? `${droppedIn} / ${droppedOut}` : null, "frames");
    this._number("n-codec", codec?.split(",")[0] ?? null, codec?.split(", ")[1] ?? "");
    this._number("n-epoch", epoch === null ? null : String(epoch), "");
    this._number("n-time", seconds ? formatTime(seconds, 0) : null, "");
    if (load) this._load(load);
  }

  /** Show levels in dBFS. Only the parts that move are touched, so that a frame of the screen costs little. */
  meters(levels) {
    const now = performance.now();
    const isTold = levels.user <= -100 || now - (this.toldAt ?? 0) >= TELL_MS;
    if (isTold) this.toldAt = now;
    for (const side of SIDES) {
      const db = levels[side];
      const { track, moving } = this.meterParts[side];
      const share = meterShare(db).toFixed(2);
      for (const part of moving) part.style.setProperty("--level", share);
      if (!isTold) continue;
      track.setAttribute("aria-valuenow", String(Math.round(Math.min(0, Math.max(-60, db)))));
      track.setAttribute("aria-valuetext", db <= -60 ? "silent" : `${Math.round(db)} decibels`);
    }
  }

  // -- Private -----------------------------------------------------------------------------------------------------------------------

  _load({ slots, p95_step_ms: step, frame_ms: frame, queued }) {
    this._number("n-step", step ? `${step.toFixed(0)} ms` : slots ? "idle" : null, frame ? `of ${frame.toFixed(0)} ms` : "");
    this._number("n-slots", slots ? `${slots.used} of ${slots.total}` : null, queued ? `${queued} waiting` : "");
  }

  _number(id, value, small) {
    const element = $(id);
    const text = value === null ? "–" : value;
    if (element.dataset.shown === `${text}|${small}`) return;
    element.dataset.shown = `${text}|${small}`;
    element.replaceChildren(text);
    if (value === null || !small) return;
    const note = document.createElement("small");
    note.textContent = ` ${small}`;
    element.append(note);
  }

  _line(line, text, className) {
    const log = $("log");
    const isAtEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
    $("log-empty").hidden = true;
    let element = this.elements.get(line);
    if (!element) {
      element = document.createElement("p");
      element.className = className;
      const time = document.createElement("time");
      time.textContent = formatTime(line.start);
      element.append(time, document.createElement("span"));
      this.elements.set(line, element);
      log.append(element);
    }
    element.lastChild.textContent = text;
    if (isAtEnd) log.scrollTop = log.scrollHeight;
  }

  _soon() {
    if (this.isDirty) return;
    this.isDirty = true;
    requestAnimationFrame(() => {
      this.isDirty = false;
      this.wave.draw();
      if (document.body.dataset.phase === "live") this.meters(this.levels);
    });
  }
}
