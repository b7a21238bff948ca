// The picture of a call: both sides on one time axis that scrolls, the assistant's words where they were heard. After the call, and during
// it, it can be dragged, or moved with the arrow keys. The one rule: it draws what it was told, at the time it was told, and keeps the
// whole call.

import { colour } from "./dom.js";
import { formatTime } from "./transcript.js";

const PEAK_S = 0.04; // of one bar
const PIXELS_PER_S = 84;
const AXIS = 20; // pixels at the bottom
const ROWS = 2; // of words that would overlap
const ROW = 18;
const AHEAD_S = 0.9; // room to the right of the present, for the word that is just being said
const SHIFT = 70; // pixels that a word may be moved to the right, so that a sentence stays in one row

export class Waveform {
  /** Call `draw` whenever there is something new, and `restyle` after a change of colours. */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.clear();
    new ResizeObserver(() => this._fit()).observe(canvas);
    canvas.addEventListener("pointerdown", (event) => this._drag(event));
    canvas.addEventListener("keydown", (event) => this._key(event));
    canvas.tabIndex = 0;
    this.restyle();
    this._fit();
  }

  clear() {
    this.peaks = { user: [], assistant: [] };
    this.words = [];
    this.marks = [];
    this.end = 0; // seconds
    this.back = 0; // seconds that the view is behind the end
  }

  restyle() {
    this.colours = Object.fromEntries(["user", "assistant", "soft", "line", "ink"].map((name) => [name, colour(name)]));
    this.draw();
  }

  /** Take a block of both sides that began at `at` seconds. */
  add(at, user, assistant, rate) {
    const place = Math.floor(at / PEAK_S + 1e-6);
    for (const [side, samples] of [["user", user], ["assistant", assistant]]) {
      let peak = this.peaks[side][place] ?? 0;
      for (const sample of samples) peak = Math.max(peak, Math.abs(sample));
      this.peaks[side][place] = peak;
    }
    this.end = at + user.length / rate;
  }

  addWord(text, at) {
    const last = this.words.at(-1);
    if (last && !/^\s/.test(text) && at - last.at < 0.5) Object.assign(last, { text: last.text + text, width: null }); // the rest of a word
    else this.words.push({ text: text.trim(), at, width: null });
  }

  addMark(at) {
    this.marks.push(at);
  }

  draw() {
    const { context, width, height, colours } = this;
    if (!width) return;
    context.clearRect(0, 0, width, height);
    const seconds = width / PIXELS_PER_S;
    const left = Math.max(0, this.end - this.back + AHEAD_S - seconds);
    const lanes = height - AXIS - ROWS * ROW - 5;
    this._grid(left, seconds, height - AXIS);
    for (const share of [0.25, 0.75]) this._line(0, lanes * share, lanes * share, width);
    this._lane("user", left, seconds, lanes * 0.25, lanes * 0.24);
    this._lane("assistant", left, seconds, lanes * 0.75, lanes * 0.24);
    context.strokeStyle = colours.soft;
    context.setLineDash([3, 4]);
    for (const mark of this.marks) this._line((mark - left) * PIXELS_PER_S, 0, height - AXIS);
    context.setLineDash([]);
    this._words(left, seconds, lanes);
  }

  // -- Private -----------------------------------------------------------------------------------------------------------------------

  _fit() {
    const scale = devicePixelRatio || 1;
    const { width, height } = this.canvas.getBoundingClientRect();
    [this.width, this.height] = [width, height];
    [this.canvas.width, this.canvas.height] = [Math.round(width * scale), Math.round(height * scale)];
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.draw();
  }

  _grid(left, seconds, bottom) {
    const { context, colours } = this;
    context.font = "11px system-ui, sans-serif";
    context.strokeStyle = colours.line;
    context.fillStyle = colours.soft;
    context.textAlign = "center";
    for (let second = Math.ceil(left); second <= left + seconds; second += 1) {
      const x = (second - left) * PIXELS_PER_S;
      this._line(x, second % 5 ? bottom - 4 : 0, bottom);
      if (second % 5 === 0 && x > 12 && x < this.width - 12) context.fillText(formatTime(second, 0), x, bottom + 14);
    }
    this._line(0, bottom, bottom, this.width);
  }

  _line(x, top, bottom, toX = x) {
    this.context.beginPath();
    this.context.moveTo(Math.round(x) + 0.5, Math.round(top) + 0.5);
    this.context.lineTo(Math.round(toX) + 0.5, Math.round(bottom) + 0.5);
    this.context.stroke();
  }

  /** Bars around a middle line; the square root shows quiet speech, too. */
  _lane(side, left, seconds, middle, half) {
    const { context } = this;
    const first = Math.floor(left / PEAK_S);
    const last = Math.min(this.peaks[side].length - 1, Math.ceil((left + seconds) / PEAK_S));
    const bar = PEAK_S * PIXELS_PER_S;
    context.fillStyle = this.colours[side];
    for (let place = first; place <= last; place += 1) {
      const tall = Math.max(0.75, Math.sqrt(Math.min(1, this.peaks[side][place] ?? 0)) * half);
      context.fillRect((place * PEAK_S - left) * PIXELS_PER_S, middle - tall, bar - 0.7, 2 * tall);
    }
  }

  /** Words begin where they were heard, or as soon as the one before has room; what would be moved too far goes a row down. */
  _words(left, seconds, top) {
    const { context } = this;
    context.font = "13px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillStyle = this.colours.ink;
    const free = Array(ROWS).fill(-Infinity);
    let first = this.words.length; // from the end: a call may be hours long, and the present is looked at
    while (first > 0 && this.words[first - 1].at >= left - 6) first -= 1;
    for (const word of this.words.slice(first)) {
      const { text, at } = word;
      if (at > left + seconds) break;
      word.width ??= context.measureText(text).width;
      const x = (at - left) * PIXELS_PER_S;
      let row = free.findIndex((end) => end - x < SHIFT);
      if (row < 0) row = free.indexOf(Math.min(...free));
      const start = Math.max(x, free[row]);
      free[row] = start + word.width + 5;
      context.fillText(text, start, top + 15 + row * ROW);
    }
  }

  _drag(event) {
    const { back } = this;
    this.canvas.setPointerCapture(event.pointerId);
    this.canvas.onpointermove = ({ clientX }) => this._look(back + (clientX - event.clientX) / PIXELS_PER_S);
    this.canvas.onpointerup = this.canvas.onpointercancel = () => { this.canvas.onpointermove = null; };
  }

  _key(event) {
    const steps = { ArrowLeft: 1, ArrowRight: -1, Home: Infinity, End: -Infinity };
    if (!(event.key in steps)) return;
    event.preventDefault();
    this._look(this.back + steps[event.key]);
  }

  _look(back) {
    this.back = Math.min(Math.max(0, back), Math.max(0, this.end + AHEAD_S - this.width / PIXELS_PER_S));
    this.draw();
  }
}
