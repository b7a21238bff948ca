// The recording of a call as a stereo WAV file: the user left, the assistant right, 16 bits. Made here, sent nowhere. The one rule: a
// sample of the axis is written once, and both sides at the same place. No DOM but Blob, no clock.

const PART_SAMPLES = 24_000 * 10; // 10 s, then a part becomes a Blob, which browsers may move to the disk
const HEADER_BYTES = 44;
const LONGEST_S = 4 * 3600;

/** Float to 16 bits, clipped. */
const toInt16 = (sample) => Math.max(-32768, Math.min(32767, Math.round(sample * 32767)));

/** The header of a stereo file of 16 bits with so many samples on each side. */
export function wavHeader(rate, numSamples) {
  const bytes = new Uint8Array(HEADER_BYTES);
  const view = new DataView(bytes.buffer);
  const text = (place, letters) => bytes.set([...letters].map((letter) => letter.charCodeAt(0)), place);
  text(0, "RIFF");
  view.setUint32(4, HEADER_BYTES - 8 + numSamples * 4, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // PCM
  view.setUint16(22, 2, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, rate * 4, true);
  view.setUint16(32, 4, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, numSamples * 4, true);
  return bytes;
}

export class Recording {
  constructor(rate) {
    this.rate = rate;
    this.parts = []; // Blobs
    this.part = new Int16Array(2 * PART_SAMPLES);
    this.filled = 0; // samples of `part`
    this.numSamples = 0;
  }

  get seconds() {
    return this.numSamples / this.rate;
  }

  /** Add a block: two lists of the same length. */
  add(user, assistant) {
    if (this.seconds >= LONGEST_S) return;
    for (let index = 0; index < user.length; index += 1) {
      this.part[2 * this.filled] = toInt16(user[index]);
      this.part[2 * this.filled + 1] = toInt16(assistant[index]);
      this.filled += 1;
      if (this.filled === PART_SAMPLES) this._finishPart();
    }
    this.numSamples += user.length;
  }

  /** The file so far. */
  toBlob() {
    const rest = this.part.slice(0, 2 * this.filled);
    return new Blob([wavHeader(this.rate, this.numSamples), ...this.parts, rest], { type: "audio/wav" });
  }

  _finishPart() {
    this.parts.push(new Blob([this.part]));
    this.part = new Int16Array(2 * PART_SAMPLES);
    this.filled = 0;
  }
}
