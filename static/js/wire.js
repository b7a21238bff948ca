// The two wires to the server behind one face. A wire is given samples of the microphone and tells what comes back:
//
//   onQueued(position)  onReady({session, voice, sampling})  onAudio(pcm, frame)  onText(text, frame)  onWarning(text)
//   onClose({code, reason})
//
// `frame` counts the frames of 80 ms that were received, from 0; the text of a frame comes after its audio. The one rule: nothing waits
// here for a network that takes nothing: while half a second is on its way already, what comes from the microphone is dropped and counted.

import { protocolsWith, socketUrl } from "./place.js";

const HANDSHAKE_S = 30; // for the upgrade
const SILENCE_S = 12; // without any message of the server: it is gone
export const MAX_UNSENT_S = 0.5;

export class Wire {
  /** `path` of the server; `options` {key, rate, frameSamples}; `on` the six functions above. */
  constructor(path, query, options, on) {
    this.options = options;
    this.on = on;
    this.sentSamples = 0; // since ready
    this.droppedSamples = 0; // that the network did not take
    this.receivedFrames = 0;
    this.isReady = false;
    this.reason = ""; // the last words of the server, which may come before the close
    this.heardAt = performance.now();
    this.socket = new WebSocket(socketUrl(path, query), protocolsWith(options.key));
    this.socket.binaryType = "arraybuffer";
    this.socket.onopen = () => this.opened();
    this.socket.onmessage = ({ data }) => {
      this.heardAt = performance.now();
      this.received(data);
    };
    this.socket.onclose = ({ code, reason }) => this._over(code, reason);
    this.timer = setInterval(() => this._watch(), 1000);
  }

  /** Send a block of 20 ms. Before `onReady` it goes nowhere. */
  send(pcm) {
    if (!this.isReady || this.socket.readyState !== WebSocket.OPEN) return;
    if (this.socket.bufferedAmount > this.bytesPerSecond * MAX_UNSENT_S) {
      this.droppedSamples += pcm.length;
      return;
    }
    this.sentSamples += pcm.length;
    this.sendBlock(pcm);
  }

  /** Hang up. `onClose` is not called. */
  close() {
    this.isClosed = true;
    clearInterval(this.timer);
    this.released();
    this.socket.onclose = this.socket.onmessage = null;
    this.socket.close(1000);
  }

  // -- For the wires -----------------------------------------------------------------------------------------------------------------

  opened() {}

  released() {}

  ready(details) {
    this.isReady = true;
    this.on.onReady(details);
  }

  /** The audio of the next frame has come. */
  audio(pcm, frame) {
    if (!this.isClosed) this.on.onAudio(pcm, frame);
  }

  // -- Private -----------------------------------------------------------------------------------------------------------------------

  _watch() {
    const silentS = (performance.now() - this.heardAt) / 1000;
    if (this.socket.readyState === WebSocket.CONNECTING && silentS > HANDSHAKE_S) this._over(1006, "");
    if (this.isReady && silentS > SILENCE_S) this._over(1006, "");
  }

  _over(code, reason) {
    if (this.isClosed) return;
    this.close();
    this.on.onClose({ code, reason: reason || this.reason });
  }
}
