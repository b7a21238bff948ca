// Opus by WebCodecs: samples in, packets out, and the other way round. The one rule: what goes in comes out, in order and as long as it
// was; nothing is trimmed, for on this wire nobody trims. Browsers without WebCodecs are told by `hasOpus`.

import { opusHead, packetSamples } from "./ogg.js";
import { Resampler } from "./resample.js";

export const PACKET_MS = 20;
const BITRATE = 32_000; // what the official pages send, about
const DECODER_RATE = 48_000; // browsers decode to it, whatever was asked for

/** Whether this browser codes and decodes Opus at `rate`. */
export async function hasOpus(rate) {
  if (!globalThis.AudioEncoder || !globalThis.AudioDecoder) return false;
  try {
    const [encoder, decoder] = await Promise.all([
      AudioEncoder.isConfigSupported(encoderConfig(rate)),
      AudioDecoder.isConfigSupported(decoderConfig()),
    ]);
    return encoder.supported && decoder.supported;
  } catch {
    return false;
  }
}

const encoderConfig = (sampleRate) => ({
  codec: "opus", sampleRate, numberOfChannels: 1, bitrate: BITRATE, opus: { frameDuration: PACKET_MS * 1000 },
});
const decoderConfig = () => ({ codec: "opus", sampleRate: DECODER_RATE, numberOfChannels: 1, description: opusHead(DECODER_RATE, 0) });

export class OpusEncoder {
  /** `onPacket(bytes)`, `onError(error)`. */
  constructor(rate, onPacket, onError) {
    this.rate = rate;
    this.count = 0; // samples so far
    this.encoder = new AudioEncoder({
      output: (chunk) => {
        const packet = new Uint8Array(chunk.byteLength);
        chunk.copyTo(packet);
        onPacket(packet);
      },
      error: onError,
    });
    this.encoder.configure(encoderConfig(rate));
  }

  /** Take one block of PACKET_MS. */
  encode(pcm) {
    const timestamp = Math.round((this.count * 1e6) / this.rate);
    const data = new AudioData({
      format: "f32-planar", sampleRate: this.rate, numberOfFrames: pcm.length, numberOfChannels: 1, timestamp, data: pcm,
    });
    this.count += pcm.length;
    this.encoder.encode(data);
    data.close();
  }

  close() {
    if (this.encoder.state !== "closed") this.encoder.close();
  }
}

export class OpusDecoder {
  /** `onSamples(pcm)` at `rate`, `onError(error)`. */
  constructor(rate, onSamples, onError) {
    this.resampler = null; // from the rate that the browser decodes to
    this.rate = rate;
    this.timestamp = 0; // microseconds
    this.decoder = new AudioDecoder({ output: (data) => onSamples(this._take(data)), error: onError });
    this.decoder.configure(decoderConfig());
  }

  decode(packet) {
    this.decoder.decode(new EncodedAudioChunk({ type: "key", timestamp: this.timestamp, data: packet }));
    this.timestamp += Math.round((packetSamples(packet) * 1e6) / DECODER_RATE);
  }

  close() {
    if (this.decoder.state !== "closed") this.decoder.close();
  }

  _take(data) {
    const pcm = new Float32Array(data.numberOfFrames);
    data.copyTo(pcm, { planeIndex: 0, format: "f32-planar" });
    this.resampler ??= new Resampler(data.sampleRate, this.rate);
    data.close();
    return this.resampler.process(pcm);
  }
}
