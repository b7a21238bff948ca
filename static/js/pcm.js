// The wire of /v1/audio/duplex: JSON in text messages, little-endian float32 in binary ones. For browsers without WebCodecs, and for
// networks where every byte may count but no coder's delay may.

import { Wire } from "./wire.js";

const ACK_FRAMES = 12; // the server is told about once a second what was heard

export class PcmWire extends Wire {
  /** `call` {voice, persona, sampling}: what is left out is the server's. */
  constructor(call, options, on) {
    super("v1/audio/duplex", {}, options, on);
    this.call = call;
    this.bytesPerSecond = options.rate * 4;
    this.playedFrames = 0;
  }

  get codec() {
    return "PCM, /v1/audio/duplex";
  }

  opened() {
    const { voice, persona, sampling } = this.call;
    const open = { type: "open", pacing: "live", ...sampling };
    if (voice) open.voice = voice;
    if (persona) open.persona = persona;
    this.socket.send(JSON.stringify(open));
  }

  received(data) {
    if (data instanceof ArrayBuffer) {
      this.audio(new Float32Array(data), this.receivedFrames);
      this.receivedFrames += 1;
      return;
    }
    const message = JSON.parse(data);
    switch (message.type) {
      case "queued":
        this.on.onQueued(message.position);
        break;
      case "ready": {
        const { session_id: session, voice, model, sampling } = message;
        this.ready({ session, voice, model, sampling });
        break;
      }
      case "text":
        this.on.onText(message.text, this.receivedFrames - 1);
        break;
      case "warning":
        this.on.onWarning(message.warning);
        break;
      case "error":
        this.reason = message.error;
        this.on.onWarning(message.error);
        break;
    }
  }

  sendBlock(pcm) {
    this.socket.send(pcm);
  }

  /** A frame has begun to be heard. */
  played(frame) {
    if (frame - this.playedFrames < ACK_FRAMES || this.socket.readyState !== WebSocket.OPEN) return;
    this.playedFrames = frame;
    this.socket.send(JSON.stringify({ type: "played", ms: Math.round((frame * this.options.frameSamples * 1000) / this.options.rate) }));
  }
}
