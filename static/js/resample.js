// Streaming change of sample rate: a windowed sinc, one row of taps for each phase, so that whole numbers keep the time and nothing drifts.
// The one rule: what `process` is given in pieces comes out as if it had been given whole. No DOM, no clock.

const ZERO_CROSSINGS = 12; // on each side, of the slower rate
const BETA = 8; // Kaiser window: the stop band is about 80 dB down
const ROLL_OFF = 0.94; // the pass band ends a little below half the slower rate

/** Greatest common divisor. */
const gcd = (a, b) => (b ? gcd(b, a % b) : a);

/** Modified Bessel function of order zero, of the Kaiser window. */
function bessel(x) {
  let [sum, term] = [1, 1];
  for (let k = 1; term > sum * 1e-12; k += 1) {
    term *= (x / (2 * k)) ** 2;
    sum += term;
  }
  return sum;
}

/** Taps of every phase: `up` rows of 2 * half. */
function designTaps(up, down, half) {
  const cutOff = ROLL_OFF * Math.min(1, up / down);
  const rows = [];
  for (let phase = 0; phase < up; phase += 1) {
    const row = new Float32Array(2 * half);
    for (let tap = 0; tap < 2 * half; tap += 1) {
      const x = tap - (half - 1) - phase / up; // distance to the output sample, in input samples
      const window = Math.abs(x) < half ? bessel(BETA * Math.sqrt(1 - (x / half) ** 2)) / bessel(BETA) : 0;
      row[tap] = window * cutOff * (x === 0 ? 1 : Math.sin(Math.PI * cutOff * x) / (Math.PI * cutOff * x));
    }
    rows.push(row);
  }
  return rows;
}

export class Resampler {
  /** Rates in Hz, whole numbers. The output is late by `half` input samples, half a millisecond at 48 kHz. */
  constructor(fromHz, toHz) {
    const divisor = gcd(fromHz, toHz);
    this.up = toHz / divisor;
    this.down = fromHz / divisor;
    this.half = Math.ceil(ZERO_CROSSINGS * Math.max(1, this.down / this.up));
    this.taps = this.up === this.down ? null : designTaps(this.up, this.down, this.half);
    this.kept = new Float32Array(2 * this.half - 1); // input that later output needs
    this.phase = 0; // of the next output, in 1 / up input samples after the first of `kept`
  }

  /** Take float32 samples, return those that are complete by now. */
  process(samples) {
    if (!this.taps) return samples.slice();
    const { up, down, half, taps } = this;
    const width = 2 * half;
    const input = new Float32Array(this.kept.length + samples.length);
    input.set(this.kept);
    input.set(samples, this.kept.length);
    const room = input.length - width; // last first-tap that has all its input
    const count = room < 0 ? 0 : Math.max(0, Math.floor(((room + 1) * up - 1 - this.phase) / down) + 1);
    const output = new Float32Array(count);
    const [whole, rest] = [Math.floor(down / up), down % up];
    let phase = this.phase % up; // the place in the input is `start` and `phase`, counted on in whole numbers: this loop is the cost
    let start = (this.phase - phase) / up;
    for (let index = 0; index < count; index += 1) {
      const row = taps[phase];
      let even = 0; // two sums: the processor need not wait for one addition before the next
      let odd = 0;
      for (let tap = 0; tap < width; tap += 2) {
        even += row[tap] * input[start + tap];
        odd += row[tap + 1] * input[start + tap + 1];
      }
      output[index] = even + odd;
      start += whole;
      phase += rest;
      if (phase >= up) {
        phase -= up;
        start += 1;
      }
    }
    const used = Math.min(start, input.length);
    this.kept = input.slice(used);
    this.phase = (start - used) * up + phase;
    return output;
  }
}
