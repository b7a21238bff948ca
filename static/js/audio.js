// The sound of a call: microphone and loudspeaker around one audio worklet. What is said and heard is told in blocks on one time axis. The
// one rule: whatever was opened here is closed by `close`, whoever fails in between.

import { missingHere, openMicrophone } from "./mic.js";

export class CallAudio {
  /** `on` {onBlock(block), onFrame({frame, at}), onState(state), onLost()}. Call `open` next. */
  constructor(rate, on) {
    this.rate = rate;
    this.on = on;
  }

  /** Ask for the microphone and start the worklet. Raises what the browser raises, or an Error whose `name` is a reason of `mic.js`. */
  async open(wishes) {
    const missing = missingHere();
    if (missing) throw Object.assign(new Error(missing), { name: missing });
    this.context = new AudioContext({ latencyHint: "interactive" }); // first: within the click, or it would stay silent
    try {
      await this.useMicrophone(wishes);
      await this.context.audioWorklet.addModule(new URL("./duplex.worklet.js", import.meta.url));
      this.node = new AudioWorkletNode(this.context, "duplex", {
        numberOfInputs: 1, numberOfOutputs: 1, outputChannelCount: [2], channelCount: 1, channelCountMode: "explicit",
        processorOptions: { rate: this.rate },
      });
      this.node.port.onmessage = ({ data }) => this._told(data);
      this.node.connect(this.context.destination);
      this._connect();
      await this.context.resume();
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Change to the microphone of these wishes, in mid-call as well. */
  async useMicrophone(wishes) {
    const stream = await openMicrophone(wishes);
    if (this.isClosed) {
      for (const track of stream.getTracks()) track.stop(); // somebody hung up meanwhile: nothing listens on
      return;
    }
    this._drop();
    this.stream = stream;
    const [track] = stream.getAudioTracks();
    track.onended = () => this.on.onLost();
    this._connect();
  }

  /** What the browser has really switched on: names of constraints. */
  get settings() {
    return this.stream?.getAudioTracks()[0]?.getSettings() ?? {};
  }

  begin() {
    this._tell({ type: "begin" });
    this.context.resume();
  }

  end() {
    this._tell({ type: "end" });
  }

  mute(isMuted) {
    this._tell({ type: "mute", isMuted });
  }

  gate(isOn) {
    this._tell({ type: "gate", isOn });
  }

  /** Put a frame of the assistant into the buffer. */
  play(pcm, frame) {
    this.node?.port.postMessage({ type: "audio", pcm, frame }, [pcm.buffer]);
  }

  resume() {
    if (this.context?.state !== "running") this.context?.resume();
  }

  close() {
    this.isClosed = true;
    this._drop();
    this.node?.disconnect();
    if (this.context && this.context.state !== "closed") this.context.close();
    this.node = null;
  }

  // -- Private -----------------------------------------------------------------------------------------------------------------------

  _connect() {
    if (!this.node || !this.stream) return;
    this.source = this.context.createMediaStreamSource(this.stream);
    this.source.connect(this.node);
  }

  _drop() {
    this.source?.disconnect();
    for (const track of this.stream?.getTracks() ?? []) {
      track.onended = null;
      track.stop();
    }
    this.source = this.stream = null;
  }

  _tell(message) {
    this.node?.port.postMessage(message);
  }

  _told({ type, ...message }) {
    if (this.isClosed) return;
    if (type === "block") this.on.onBlock(message);
    else if (type === "frame") this.on.onFrame(message);
    else this.on.onState(message);
  }
}
