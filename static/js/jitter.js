// The buffer between a network that delivers when it can and a loudspeaker that wants a sample now: it neither clicks nor lets latency
// grow.
//
// Frames of 80 ms arrive; samples are pulled. The *margin* is what is left in the buffer just before a frame arrives: at 0 it runs dry. How
// late frames are against their own median tells what margin is needed: 40 ms on a quiet line, up to 200 ms on a bad one. Towards that
// target the sound is made a little shorter or longer, by splices of 5 to 15 ms; more than 300 ms in all is never kept: what a burst after
// a stall brings beyond that is cut at once. When it runs dry it fades out, waits until it has its margin again, and fades in.
//
// The one rule: time is the number of samples that were pulled; nothing here reads a clock, and nothing here knows the DOM.

import { fadeIn, findLag } from "./splice.js";

export const MIN_TARGET_MS = 40;
export const MAX_TARGET_MS = 200;
export const MAX_FILL_MS = 290; // of everything that waits, the frame that has just come included

const SAFETY_MS = 20; // on top of the lateness that was seen: the loudspeaker takes its samples in blocks
const TOLERANCE_MS = 20; // no splice for less
const MIN_ROOM_MS = 100; // however early some frames come: others have been lost, perhaps, and will not come any more
const ARRIVALS = 125; // 10 s of frames, whose lateness counts
const MARGINS = 25; // 2 s of frames, whose margin counts
const LATE_SHARE = 0.98; // of the frames come in time for the target
const DRY_PENALTY_MS = 20; // each time it runs dry, for as long as that is in the window
const SPLICE_PAUSE = 2; // frames from one splice to the next: at most 9 % faster or slower
const HURRY_MS = 60; // so much too much: a splice with every frame
const CUT_MS = 10; // a cut goes so far below the limit, or the next frame would need another

/** The value below which a share of the sorted copy of `values` lies. */
function quantile(values, share) {
  const sorted = Float64Array.from(values).sort();
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))];
}

export class JitterBuffer {
  /** `rate` in Hz. `onFrame(frame)` is called when the first sample of a frame is pulled. */
  constructor(rate = 24_000, onFrame = () => {}) {
    this.rate = rate;
    this.onFrame = onFrame;
    this.ring = new Float32Array(2 ** 17); // 5 s, most of it the past
    this.fade = Math.round(0.01 * rate); // samples of a fade to or from silence
    this.width = Math.round(0.005 * rate); // samples of the fade within a splice
    this.clock = 0; // samples pulled since the beginning
    this.longestGap = 0;
    this.counts = { dry: 0, cut: 0, spliced: 0, stretched: 0, gap: 0 }; // times; samples cut away, spliced out, put in, and of silence
    this.reset();
  }

  /** Forget what waits: another call begins. */
  reset() {
    [this.end, this.at] = [this.end ?? 0, this.end ?? 0]; // absolute positions: written up to, read up to
    this.marks = []; // {at, frame} of frames that were not begun yet
    this.arrivals = []; // clock minus position, of the last frames: how late they are but for a constant
    this.margins = []; // samples that were left when they came
    this.dryAt = []; // number of arrivals when it ran dry
    this.numArrivals = 0;
    this.splice = null; // {jump, steps, step}: under way
    this.spliceAfter = 0; // number of arrivals before the next one
    this.target = this._samples(MIN_TARGET_MS);
    this.isPlaying = false;
    this.primedAt = null; // clock when the first frame after silence came
    this.gain = 0;
    this.gap = 0; // samples of silence since it ran dry
    this.hasPlayed = false;
  }

  /** Samples that wait, after the splice that is under way. */
  get fill() {
    return this.end - this.at - (this.splice ? this.splice.jump : 0);
  }

  /** What a person may want to know, in milliseconds. */
  get state() {
    const ms = (samples) => Math.round((samples * 1000) / this.rate);
    return {
      fillMs: ms(this.fill),
      targetMs: ms(this.target),
      marginMs: this.margins.length ? ms(quantile(this.margins, 0.5)) : 0,
      dry: this.counts.dry,
      cutMs: ms(this.counts.cut),
      splicedMs: ms(this.counts.spliced),
      stretchedMs: ms(this.counts.stretched),
      gapMs: ms(this.counts.gap),
      longestGapMs: ms(this.longestGap),
    };
  }

  /** Take the samples of one frame, float32 at `rate`. */
  push(samples, frame = null) {
    this.frameSamples = samples.length;
    this._note();
    for (let index = 0; index < samples.length; index += 1) this.ring[(this.end + index) & (this.ring.length - 1)] = samples[index];
    if (frame !== null) this.marks.push({ at: this.end, frame });
    this.end += samples.length;
    if (this.primedAt === null) this.primedAt = this.clock;
    if (this.isPlaying) this._steer();
  }

  /** Fill `output` with the next samples, or with silence. */
  pull(output) {
    const start = this.clock;
    if (!this.splice && this.fill > this._samples(MAX_FILL_MS)) this._cut();
    if (!this.isPlaying && this._hasMargin()) this._begin();
    for (let index = 0; index < output.length; index += 1) output[index] = this._next();
    this.clock = start + output.length;
    if (!this.isPlaying && this.hasPlayed) {
      this.gap += output.length;
      this.counts.gap += output.length;
      this.longestGap = Math.max(this.longestGap, this.gap);
    }
  }

  // -- Private -----------------------------------------------------------------------------------------------------------------------

  _samples(ms) {
    return Math.round((ms * this.rate) / 1000);
  }

  _read(position) {
    return this.ring[position & (this.ring.length - 1)];
  }

  /** Note when a frame came, and choose the target anew. */
  _note() {
    this.numArrivals += 1;
    this.arrivals.push(this.clock - this.end);
    if (this.arrivals.length > ARRIVALS) this.arrivals.shift();
    if (this.isPlaying) this.margins.push(this.fill);
    if (this.margins.length > MARGINS) this.margins.shift();
    this.dryAt = this.dryAt.filter((arrival) => this.numArrivals - arrival < ARRIVALS);
    const middle = quantile(this.arrivals, 0.5);
    const late = quantile(this.arrivals, LATE_SHARE) - middle;
    const early = middle - quantile(this.arrivals, 1 - LATE_SHARE);
    const wanted = late + this._samples(SAFETY_MS + DRY_PENALTY_MS * this.dryAt.length);
    // a larger margin would be cut away with the next early frames
    const room = Math.max(this._samples(MAX_FILL_MS) - this.frameSamples - early, this._samples(MIN_ROOM_MS));
    this.target = Math.max(Math.min(wanted, room, this._samples(MAX_TARGET_MS)), this._samples(MIN_TARGET_MS));
  }

  /** Whether to begin after silence: the first frame has waited for the target, or more than that has come at once. */
  _hasMargin() {
    if (this.primedAt === null || this.fill <= this.fade) return false;
    return this.clock - this.primedAt >= this.target || this.fill >= this.target + this.frameSamples;
  }

  _begin() {
    this.isPlaying = true;
    this.hasPlayed = true;
    this.gap = 0;
    this.margins = [];
  }

  /** Bring the margin nearer to the target, a splice at a time. */
  _steer() {
    if (this.splice || this.margins.length < 3 || this.numArrivals < this.spliceAfter) return;
    const surplus = quantile(this.margins, 0.5) - this.target;
    if (Math.abs(surplus) < this._samples(TOLERANCE_MS)) return;
    const sign = Math.sign(surplus);
    const [minLag, maxLag] = [this._samples(5), this._samples(15)];
    if (sign > 0 ? this.fill < maxLag + 2 * this.width + this.fade : !this._canStretch(maxLag)) return;
    const lag = findLag((position) => this._read(position), this.at, { minLag, maxLag, width: this.width, sign });
    this._jump(sign * lag);
    this.spliceAfter = this.numArrivals + (surplus > this._samples(HURRY_MS) ? 1 : SPLICE_PAUSE);
    this.counts[sign > 0 ? "spliced" : "stretched"] += lag;
  }

  /** Whether the past reaches back so far, the present lasts for a fade, and more would not be cut away again. */
  _canStretch(lag) {
    const past = Math.min(this.at, this.ring.length - this.fill);
    return past >= lag && this.fill >= this.width + this.fade && this.fill + lag < this._samples(MAX_FILL_MS);
  }

  /** Throw away what would make the listener wait too long, the oldest first; what is left too much is spliced out bit by bit. */
  _cut() {
    const surplus = this.fill - this._samples(MAX_FILL_MS - CUT_MS);
    const minLag = Math.max(this.width, surplus - this._samples(15));
    const lag = findLag((position) => this._read(position), this.at, { minLag, maxLag: surplus, width: this.width, sign: 1 });
    this.counts.cut += lag;
    if (this.gain > 0) this._jump(lag);
    else this.at += lag;
  }

  /** Begin to fade from here to `distance` samples further. */
  _jump(distance) {
    this.splice = { jump: distance, steps: this.width, step: 0 };
    this.margins = this.margins.map((margin) => margin - distance);
  }

  _next() {
    const wanted = this.isPlaying && this.fill > this.fade ? 1 : 0;
    if (this.gain !== wanted) this.gain = Math.min(1, Math.max(0, this.gain + (wanted ? 1 : -1) / this.fade));
    if (!wanted && this.gain === 0) {
      if (this.isPlaying) this._runDry();
      return 0;
    }
    return this.gain * this._advance();
  }

  /** Read one sample and go on, through a splice if one is under way. */
  _advance() {
    let sample = this._read(this.at);
    const { splice } = this;
    if (splice) {
      const weight = fadeIn(splice.step, splice.steps);
      sample = sample * (1 - weight) + this._read(this.at + splice.jump) * weight;
      splice.step += 1;
    }
    this.at += 1;
    if (splice && splice.step === splice.steps) {
      this.at += splice.jump;
      this.splice = null;
    }
    while (this.marks.length && this.marks[0].at < this.at) this.onFrame(this.marks.shift().frame);
    return sample;
  }

  _runDry() {
    this.isPlaying = false;
    this.primedAt = null;
    this.splice = null;
    this.gap = 0;
    this.counts.dry += 1;
    this.dryAt.push(this.numArrivals);
  }
}
