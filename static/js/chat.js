// The wire of /api/chat: one tag byte and a payload in each message, Ogg-Opus for audio both ways. The table of tags is in the server's
// README.

import { OggReader, OggWriter } from "./ogg.js";
import { OpusDecoder, OpusEncoder } from "./opus.js";
import { Wire } from "./wire.js";

const [READY, AUDIO, TEXT, METADATA, ERROR] = [0, 1, 2, 4, 5];
const PACKETS_PER_PAGE = 2; // 40 ms, as the official pages send

export class ChatWire extends Wire {
  /** `call` {voice, persona, sampling}: what is left out is the server's. */
  constructor(call, options, on) {
    const query = { ...call.sampling };
    if (call.voice) query.voice_prompt = call.voice;
    if (call.persona) query.text_prompt = call.persona;
    super("api/chat", query, options, on);
    this.bytesPerSecond = 8192; // 32 kbit/s and what is around it
    this.details = {};
    this.decodedSamples = 0;
    this.block = new Float32Array(0); // decoded samples of a frame that is not whole yet
    this.reader = new OggReader();
    this.writer = new OggWriter(options.rate, crypto.getRandomValues(new Uint32Array(1))[0]);
    this.packets = []; // of the page that is being filled
    const fail = (error) => this._over(4000, error.message);
    this.encoder = new OpusEncoder(options.rate, (packet) => this._packet(packet), fail);
    this.decoder = new OpusDecoder(options.rate, (pcm) => this._decoded(pcm), fail);
  }

  get codec() {
    return "Opus, /api/chat";
  }

  received(data) {
    const bytes = new Uint8Array(data);
    const payload = bytes.subarray(1);
    switch (bytes[0]) {
      case READY:
        for (const page of this.writer.headers()) this._sendPage(page);
        this.ready(this.details);
        break;
      case AUDIO:
        this.receivedFrames += 1;
        for (const packet of this.reader.read(payload)) this.decoder.decode(packet);
        break;
      case TEXT:
        if (this.isReady) this.on.onText(decode(payload), this.receivedFrames - 1);
        break;
      case METADATA:
        this.details = readMetadata(decode(payload));
        break;
      case ERROR:
        this.reason = decode(payload);
        this.on.onWarning(this.reason);
        break;
    }
  }

  sendBlock(pcm) {
    this.encoder.encode(pcm);
  }

  released() {
    this.encoder?.close();
    this.decoder?.close();
  }

  _packet(packet) {
    this.packets.push(packet);
    if (this.packets.length < PACKETS_PER_PAGE) return;
    this._sendPage(this.writer.page(this.packets));
    this.packets = [];
  }

  _sendPage(page) {
    if (this.socket.readyState !== WebSocket.OPEN) return;
    const message = new Uint8Array(1 + page.length);
    message[0] = AUDIO;
    message.set(page, 1);
    this.socket.send(message);
  }

  /** Cut what is decoded into frames again. */
  _decoded(pcm) {
    const joined = new Float32Array(this.block.length + pcm.length);
    joined.set(this.block);
    joined.set(pcm, this.block.length);
    let place = 0;
    for (; place + this.options.frameSamples <= joined.length; place += this.options.frameSamples) {
      this.audio(joined.slice(place, place + this.options.frameSamples), this.decodedSamples / this.options.frameSamples);
      this.decodedSamples += this.options.frameSamples;
    }
    this.block = joined.slice(place);
  }
}

const decode = (bytes) => new TextDecoder().decode(bytes);

function readMetadata(text) {
  try {
    const { session_id: session, voice_prompt: voice, lm_model_file: model, ...sampling } = JSON.parse(text);
    return { session, voice, model, sampling };
  } catch {
    return {};
  }
}
