// The one audio node of the page: the microphone goes in, the assistant comes out, and both are told to the page in blocks of 20 ms on one
// time axis, sample by sample as they were said and heard. Rates of the sound card are changed to the server's and back here.
//
// From the page: {type: "audio", pcm, frame}, "begin" (a call is live: the axis starts, or goes on), "end", "mute" {isMuted}, "gate" {isOn}
// (half-duplex: silent while the assistant speaks). To the page: {type: "block", at, user, played}, {type: "frame", frame, at}, {type:
// "state", ...}. `at` is a sample of the axis. The one rule: nothing here waits, and nothing is kept that the page does not take.

import { JitterBuffer } from "./jitter.js";
import { Resampler } from "./resample.js";

const PULL = 48; // samples pulled at once: 2 ms
const STATE_MS = 200;
const GATE_LEVEL = 0.01; // -40 dBFS: the assistant speaks
const GATE_HOLD_S = 0.3; // a room answers for so long

/** Samples that wait to be taken, in one piece of memory that is used again and again: this thread must not wait for a clean-up. */
class Queue {
  constructor() {
    this.samples = new Float32Array(4096);
    this.clear();
  }

  clear() {
    this.start = this.end = 0;
  }

  get length() {
    return this.end - this.start;
  }

  put(more) {
    if (this.end + more.length > this.samples.length) this._makeRoom(more.length);
    this.samples.set(more, this.end);
    this.end += more.length;
  }

  /** Fill `target` with the oldest samples, of which there must be as many; returns it. */
  take(target) {
    target.set(this.samples.subarray(this.start, this.start + target.length));
    this.start += target.length;
    return target;
  }

  _makeRoom(count) {
    const { samples, length } = this;
    if (2 * (length + count) > samples.length) this.samples = new Float32Array(2 * (samples.length + count));
    this.samples.set(samples.subarray(this.start, this.end));
    [this.start, this.end] = [0, length];
  }
}

class DuplexProcessor extends AudioWorkletProcessor {
  constructor({ processorOptions: { rate } }) {
    super();
    this.rate = rate;
    this.block = rate / 50; // 20 ms
    this.jitter = new JitterBuffer(rate, (frame) => this._began(frame));
    this.fromMicrophone = new Resampler(sampleRate, rate);
    this.toSpeaker = new Resampler(rate, sampleRate);
    [this.user, this.played, this.speaker] = [new Queue(), new Queue(), new Queue()];
    this.pulled = new Float32Array(PULL);
    this.silence = new Float32Array(0); // as long as what the browser asks for
    this.at = 0; // of the first sample of `played`
    this.isLive = false;
    this.isMuted = false;
    this.isGated = false;
    this.spokeAt = -Infinity;
    this.toldAt = 0;
    this.port.onmessage = ({ data }) => this._obey(data);
  }

  process([input], [output]) {
    const speaker = output[0];
    while (this.speaker.length < speaker.length) {
      const { pulled } = this;
      this.jitter.pull(pulled);
      if (this.isLive) this.played.put(pulled);
      if (this.isGated && pulled.some((sample) => Math.abs(sample) > GATE_LEVEL)) this.spokeAt = currentTime;
      this.speaker.put(this.toSpeaker.process(pulled));
    }
    this.speaker.take(speaker);
    for (let channel = 1; channel < output.length; channel += 1) output[channel].set(speaker);
    const isSilent = this.isMuted || (this.isGated && currentTime - this.spokeAt < GATE_HOLD_S);
    if (this.silence.length !== speaker.length) this.silence = new Float32Array(speaker.length);
    const heard = isSilent || !input.length ? this.silence : input[0];
    const user = this.fromMicrophone.process(heard);
    if (this.isLive) this.user.put(user);
    this._tell();
    return true;
  }

  _tell() {
    while (this.user.length >= this.block && this.played.length >= this.block) {
      const user = this.user.take(new Float32Array(this.block)); // given away with the message
      const played = this.played.take(new Float32Array(this.block));
      this.port.postMessage({ type: "block", at: this.at, user, played }, [user.buffer, played.buffer]);
      this.at += this.block;
    }
    if (this.isLive && (currentTime - this.toldAt) * 1000 >= STATE_MS) {
      this.toldAt = currentTime;
      this.port.postMessage({ type: "state", ...this.jitter.state });
    }
  }

  /** The first sample of a frame is the next one that is put into `played`. */
  _began(frame) {
    this.port.postMessage({ type: "frame", frame, at: this.at + this.played.length });
  }

  _obey(message) {
    switch (message.type) {
      case "audio":
        if (this.isLive) this.jitter.push(message.pcm, message.frame);
        break;
      case "begin":
        this.isLive = true;
        this.jitter.reset();
        this.user.clear();
        this.played.clear();
        break;
      case "end":
        this.isLive = false;
        this.jitter.reset();
        break;
      case "mute":
        this.isMuted = message.isMuted;
        break;
      case "gate":
        this.isGated = message.isOn;
        break;
    }
  }
}

registerProcessor("duplex", DuplexProcessor);
