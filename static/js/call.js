// One conversation, from the click to the last word: microphone, wire, retries, transcript, recording. No DOM; what is to be shown is told:
//
//   onPhase({phase, title, detail, ...})  onWords(line, text, at)  onNote(line)  onHint(text)
//   onBlock({at, user, played, levels, numDry})  onNumbers(numbers)  onServer(status, config)  onMicrophone()
//
// phase: idle -> asking -> connecting -> queued -> preparing -> live -> over; waiting (for the next try) comes back to connecting
// The one rule: `_enter` is the only way from phase to phase, and `hangUp` works in each of them.

import { CallAudio } from "./audio.js";
import { ChatWire } from "./chat.js";
import { EchoWatch, levelDb, RoundTrip } from "./meter.js";
import { describeRefusal } from "./mic.js";
import { hasOpus } from "./opus.js";
import { PcmWire } from "./pcm.js";
import { get } from "./place.js";
import { describeClose, describeWait, describeWarning, diagnose, retryDelay } from "./policy.js";
import { Recording } from "./recording.js";
import { Transcript } from "./transcript.js";

const POLL_MS = 2000;
const QUEUED_MS = 400; // after the upgrade: by then a caller who must wait is in the queue, and should be told so
const CALL_IDS = 1e7; // frames of one call: ids of frames are never used twice
const NO_CALL = { epoch: null, dropped: { in: {}, out: {} }, ticks_late: 0 };

const sum = (counts) => Object.values(counts).reduce((total, count) => total + count, 0);

export class Call {
  /** `format` {rate, frameSamples} of the server, `options` {key, call, wire, wishes, isMuted, halfDuplex}. */
  constructor(format, options, on) {
    this.format = format;
    this.options = options;
    this.on = on;
    this.phase = "idle";
    this.transcript = new Transcript();
    this.recording = new Recording(format.rate);
    this.echo = new EchoWatch();
    this.attempt = 0; // tries since a call was live
    this.numCalls = 0;
    this.at = 0; // seconds on the axis
    this.droppedHere = 0; // frames that the network did not take
    this.buffer = null; // state of the jitter buffer
    this.audio = new CallAudio(format.rate, {
      onBlock: (block) => this._onBlock(block),
      onFrame: ({ frame, at }) => this._onFrame(frame, at),
      onState: (state) => { this.buffer = state; },
      onLost: () => this._onMicrophoneLost(),
    });
  }

  /** Ask for the microphone and call. */
  async start() {
    this._enter("asking", { title: "Waiting for your microphone", detail: "Allow it in the box that the browser shows." });
    try {
      await this.audio.open(this.options.wishes);
    } catch (error) {
      if (this.phase === "asking") this._enter("over", { ...describeRefusal(error.name, error.message), isFault: true });
      return;
    }
    if (this.phase !== "asking") return;
    this.audio.mute(this.options.isMuted);
    this.audio.gate(this.options.halfDuplex);
    this.on.onMicrophone?.();
    await this.connect();
  }

  /** Open the wire: the first time, and after each wait. */
  async connect() {
    clearTimeout(this.retryTimer);
    this._enter("connecting", { title: "Connecting", detail: "" });
    const { rate } = this.format;
    const usesOpus = this.options.wire === "auto" ? await hasOpus(rate) : this.options.wire === "opus";
    if (this.phase !== "connecting") return;
    if (usesOpus && !(await hasOpus(rate))) {
      this._finish({ title: "This browser has no Opus coder", detail: "Choose automatic or raw PCM under Connection.", isFault: true });
      return;
    }
    const Wire = usesOpus ? ChatWire : PcmWire;
    this.wire = new Wire(this.options.call, { ...this.format, key: this.options.key }, {
      onQueued: (position) => this._enter("queued", { title: `Number ${position} in the queue`, detail: "All places are taken." }),
      onReady: (details) => this._onReady(details),
      onAudio: (pcm, frame) => this._onAudio(pcm, frame),
      onText: (text, frame) => this._onText(text, frame),
      onWarning: (text) => { if (this.phase === "live") this.on.onHint(describeWarning(text)); },
      onClose: (close) => this._onClose(close),
    });
    this.wasOpen = false;
    this.wire.socket.addEventListener("open", () => this._onOpen());
    this._poll();
  }

  mute(isMuted) {
    this.options.isMuted = isMuted;
    this.audio.mute(isMuted);
  }

  gate(isOn) {
    this.options.halfDuplex = isOn;
    this.audio.gate(isOn);
  }

  hangUp() {
    this._finish({ title: "You hung up", detail: this.at ? "Keep the call with the buttons beside the transcript, or talk again." : "" });
  }

  // -- Private: the wire -------------------------------------------------------------------------------------------------------------

  _onOpen() {
    this.wasOpen = true;
    if (this.phase !== "connecting") return;
    this._enter("preparing", { title: "Getting ready", detail: "The model reads its persona and hears its voice." });
    this._pollIn(QUEUED_MS);
  }

  _onReady(details) {
    this.numCalls += 1;
    this.attempt = 0;
    this.details = details;
    this.texts = []; // that wait for their frame to be heard
    this.starts = new Map(); // frame -> seconds at which it was heard
    this.roundTrip = new RoundTrip();
    this.sentSamples = 0;
    this.callInfo = NO_CALL;
    if (this.numCalls > 1) this._note("A new call: the model remembers nothing of the one before.");
    this.audio.begin();
    this._enter("live", { title: "Connected", detail: "Just talk.", details });
    this._poll();
  }

  _onAudio(pcm, frame) {
    if (this.phase !== "live") return;
    this.roundTrip.receive(frame, performance.now());
    this.audio.play(pcm, this._id(frame));
  }

  _onText(text, frame) {
    if (this.phase !== "live") return;
    this.texts.push({ text, frame: this._id(frame) });
    this._sayTexts();
  }

  async _onClose({ code, reason }) {
    const { wasOpen } = this;
    const wasLive = this.phase === "live";
    this.audio.end();
    let said = describeClose(code, reason);
    let delay = retryDelay(code, this.attempt, Math.random());
    if (code === 1006 && !wasOpen) {
      const { status, body } = await get("api/config", this.options.key);
      if (this.phase === "over") return;
      const found = diagnose(status, body, Boolean(this.options.key));
      said = found;
      if (!found.retries) delay = null;
    }
    if (wasLive) this._note(`${said.title}.`);
    if (delay === null) {
      this._finish({ ...said, isFault: code !== 1000, code });
      return;
    }
    this.attempt += 1;
    this._wait(said, delay);
  }

  /** Count down to the next try. */
  _wait({ title, detail }, seconds) {
    if (seconds <= 0) {
      this.connect();
      return;
    }
    this._enter("waiting", { title: describeWait(title, seconds), detail, seconds });
    this.retryTimer = setTimeout(() => this._wait({ title, detail }, seconds - 1), 1000);
  }

  _finish(said) {
    clearTimeout(this.retryTimer);
    clearTimeout(this.pollTimer);
    this.wire?.close();
    this.audio.end();
    this.audio.close();
    this._enter("over", said);
  }

  _enter(phase, said) {
    this.phase = phase;
    this.on.onPhase({ phase, ...said });
  }

  // -- Private: sound ----------------------------------------------------------------------------------------------------------------

  _onBlock({ at, user, played }) {
    this.at = (at + user.length) / this.format.rate;
    this.recording.add(user, played);
    const levels = { user: levelDb(user), assistant: levelDb(played) };
    if (this.echo.push(levels.user, levels.assistant)) {
      this.on.onHint("Your microphone hears the assistant. Use headphones, or switch on half-duplex under Audio.");
    }
    this.on.onBlock({ at: at / this.format.rate, user, played, levels, numDry: this.buffer?.dry ?? 0 });
    if (this.phase !== "live") return;
    this.wire.send(user);
    this.sentSamples += user.length;
    if (this.sentSamples % this.format.frameSamples < user.length) this.roundTrip.send(performance.now());
  }

  _onFrame(frame, at) {
    this.starts?.set(frame, at / this.format.rate);
    if (this.starts?.size > 500) this.starts.delete(this.starts.keys().next().value);
    this.wire?.played?.(frame % CALL_IDS);
    this._sayTexts();
  }

  /** Tell the words whose frames are heard by now. */
  _sayTexts() {
    while (this.texts?.length && this.starts.has(this.texts[0].frame)) {
      const { text, frame } = this.texts.shift();
      const at = this.starts.get(frame);
      this.on.onWords(this.transcript.add(text, at), text, at);
    }
  }

  async _onMicrophoneLost() {
    if (this.phase === "over") return;
    try {
      await this.audio.useMicrophone({ ...this.options.wishes, device: "" });
      this.on.onHint("The microphone went away; another one is used now.");
    } catch (error) {
      if (this.phase !== "over") this._finish({ ...describeRefusal(error.name, error.message), isFault: true });
    }
  }

  _note(text) {
    this.on.onNote(this.transcript.note(text, this.at));
  }

  _id(frame) {
    return this.numCalls * CALL_IDS + frame;
  }

  // -- Private: numbers --------------------------------------------------------------------------------------------------------------

  /** Ask the server how it is and how this call is, again and again until the call is over. */
  async _poll() {
    this._pollIn(POLL_MS);
    const { key } = this.options;
    const session = this.phase === "live" ? this.details.session : null;
    const { status, body, ms } = await get(session ? `api/config?call=${session}` : "api/config", key);
    if (this.phase === "over") return;
    if (status === 200) [this.config, this.networkMs] = [body, ms];
    if (body.call && session === this.details.session) {
      this.callInfo = body.call;
      this.roundTrip.lost = sum(body.call.dropped.in) + sum(body.call.dropped.out);
    }
    this.on.onServer(status, body);
    const isWaiting = this.phase === "preparing" && this.config?.load?.queued > 0;
    if (isWaiting && !session) {
      this._enter("preparing", { title: "Waiting for a free place", detail: `${this.config.load.queued} in the queue.` });
    }
    this.on.onNumbers(this.numbers());
  }

  _pollIn(ms) {
    clearTimeout(this.pollTimer);
    this.pollTimer = setTimeout(() => this._poll(), ms);
  }

  /** The live numbers; what is not known yet is null. */
  numbers() {
    const { config, callInfo = NO_CALL, wire } = this;
    const isLive = this.phase === "live";
    const unsent = (wire?.droppedSamples ?? 0) / this.format.frameSamples;
    return {
      roundTripMs: isLive ? this.roundTrip.ms : null,
      networkMs: this.networkMs ?? null,
      buffer: isLive ? this.buffer : null,
      droppedIn: sum(callInfo.dropped.in) + Math.ceil(unsent),
      droppedOut: sum(callInfo.dropped.out),
      ticksLate: callInfo.ticks_late,
      epoch: isLive ? callInfo.epoch : null,
      codec: wire?.codec ?? null,
      load: config?.load ?? null,
    };
  }
}
