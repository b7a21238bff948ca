// The round trip of a call, and levels. A frame that goes to the server comes back as one frame, in order; so the time from the last sample
// of frame n to the arrival of frame n is what the network, the queue and the model take together. No DOM; time is an argument.

const KEPT = 250; // frames on their way: 20 s

export class RoundTrip {
  constructor() {
    this.sent = []; // {frame, ms}
    this.numSent = 0;
    this.lost = 0; // frames that never come back: the server has dropped them, one way or the other
    this.recent = []; // ms of the last second
  }

  /** The last sample of the next frame has been sent. */
  send(nowMs) {
    this.sent.push({ frame: this.numSent, ms: nowMs });
    this.numSent += 1;
    if (this.sent.length > KEPT) this.sent.shift();
  }

  /** A frame has come, the `index`-th of this call. */
  receive(index, nowMs) {
    const frame = index + this.lost;
    while (this.sent.length && this.sent[0].frame < frame) this.sent.shift();
    if (this.sent[0]?.frame !== frame) return;
    this.recent.push(nowMs - this.sent.shift().ms);
    if (this.recent.length > 13) this.recent.shift();
  }

  /** Median of the last second in ms; null while there is none. */
  get ms() {
    if (!this.recent.length) return null;
    return [...this.recent].sort((a, b) => a - b)[this.recent.length >> 1];
  }
}

/** Root mean square of samples in dBFS, -100 for silence. */
export function levelDb(pcm) {
  let sum = 0;
  for (const sample of pcm) sum += sample * sample;
  return Math.max(-100, 10 * Math.log10(sum / Math.max(1, pcm.length) + 1e-10));
}

/** Place of a level on a meter from -60 to -6 dBFS: 0 to 1. */
export const meterShare = (db) => Math.min(1, Math.max(0, (db + 60) / 54));

const ECHO_BLOCKS = 250; // 5 s of 20 ms
const ECHO_LAG_BLOCKS = 20; // a loudspeaker is heard up to 400 ms later
const ECHO_CORRELATION = 0.75;
const ECHO_LEVEL_DB = -55; // of the microphone while the assistant speaks: below that an echo does no harm

/** Notices that the microphone hears the assistant: its level follows the other's, a little later. */
export class EchoWatch {
  constructor() {
    this.user = [];
    this.assistant = [];
  }

  /** Take the levels of one block in dBFS; return whether there is an echo, looked at once a second. */
  push(userDb, assistantDb) {
    this.user.push(Math.max(userDb, -70));
    this.assistant.push(Math.max(assistantDb, -70));
    if (this.user.length < ECHO_BLOCKS) return false;
    const hasEcho = this._hasEcho();
    this.user.splice(0, 50);
    this.assistant.splice(0, 50);
    return hasEcho;
  }

  _hasEcho() {
    const spoken = this.assistant.filter((db) => db > -40).length;
    const silent = this.assistant.filter((db) => db < -55).length;
    const heard = this.user.filter((db) => db > ECHO_LEVEL_DB).length;
    if (spoken < 50 || silent < 25 || heard < 50) return false; // nothing to compare
    for (let lag = 0; lag <= ECHO_LAG_BLOCKS; lag += 1) {
      const count = this.user.length - lag;
      if (correlation(this.user.slice(lag), this.assistant.slice(0, count)) > ECHO_CORRELATION) return true;
    }
    return false;
  }
}

/** Pearson's correlation of two equally long lists. */
export function correlation(a, b) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [meanA, meanB] = [mean(a), mean(b)];
  let [product, energyA, energyB] = [0, 1e-9, 1e-9];
  for (let index = 0; index < a.length; index += 1) {
    product += (a[index] - meanA) * (b[index] - meanB);
    energyA += (a[index] - meanA) ** 2;
    energyB += (b[index] - meanB) ** 2;
  }
  return product / Math.sqrt(energyA * energyB);
}
