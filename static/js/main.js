// The page: what is clicked becomes a call, and what a call tells becomes visible. Decisions are made elsewhere: `call.js` (phases),
// `panel.js` (settings), `policy.js` and `mic.js` (sentences). The one rule: every phase has a sentence, and the focus is where the next
// key belongs.

import { Call } from "./call.js";
import { $, askKey, setUpTheme } from "./dom.js";
import { describeRefusal, missingHere, permission } from "./mic.js";
import { get, host, httpUrl } from "./place.js";
import { Panel } from "./panel.js";
import { callOf, loadKey, loadSettings, saveSettings } from "./settings.js";
import { Stage } from "./stage.js";
import { MuteKey } from "./mute.js";

const CONFIG_MS = 5000;
const FORMAT = { rate: 24_000, frameSamples: 1920 }; // until the server says otherwise

const settings = loadSettings();
const stage = new Stage();
const panel = new Panel(settings, (name) => changed(name));
const mute = new MuteKey($("mute"), (isMuted) => call?.mute(isMuted));
let call = null;
let config = {};
let key = loadKey();
let asksForKey = false;

const isBusy = () => call !== null && !["idle", "over"].includes(call.phase);

function changed(name) {
  saveSettings(settings);
  if (!isBusy()) return;
  if (name === "halfDuplex") call.gate(settings.halfDuplex);
  else if (["device", "echoCancellation", "noiseSuppression", "autoGainControl"].includes(name)) changeMicrophone();
  else $("applies").hidden = false;
}

async function changeMicrophone() {
  call.options.wishes = panel.wishes;
  try {
    await call.audio.useMicrophone(panel.wishes);
  } catch (error) {
    stage.hint(describeRefusal(error.name, error.message).detail);
  }
}

// -- the server ------------------------------------------------------------------------------------------------------------------------

/** Ask the server what it offers; ask for a key where it wants one. */
async function lookAtServer() {
  const { status, body } = await get("api/config", key);
  if (status === 200) {
    config = body;
    panel.offer(body);
  }
  stage.server(status, status === 200 ? body : {}, host);
  if (status === 401 && !asksForKey && !isBusy()) await changeKey(key ? "The key was not accepted" : "This server asks for a key");
}

async function changeKey(title) {
  asksForKey = true;
  const entered = await askKey(title, "Enter the key that you were given. It stays on this device.");
  if (entered !== null) {
    key = entered;
    asksForKey = false;
    await lookAtServer();
  }
}

async function watchServer() {
  if (!document.hidden && !isBusy()) await lookAtServer();
  setTimeout(watchServer, CONFIG_MS);
}

// -- the call --------------------------------------------------------------------------------------------------------------------------

function startCall() {
  $("applies").hidden = true;
  stage.clear();
  const format = config.sample_rate ? { rate: config.sample_rate, frameSamples: config.frame_samples } : FORMAT;
  const options = {
    key, call: callOf(settings), wire: settings.wire, wishes: panel.wishes, isMuted: mute.isMuted, halfDuplex: settings.halfDuplex,
  };
  const mine = new Call(format, options, {
    onPhase: (said) => { if (call === mine) showPhase(said); },
    onWords: (line, text, at) => stage.words(line, text, at),
    onNote: (line) => stage.note(line),
    onBlock: (block) => stage.block(block, format.rate),
    onNumbers: (numbers) => stage.numbers(numbers, mine.at),
    onServer: (status, body) => stage.server(status, body, host),
    onHint: (text) => stage.hint(text),
    onMicrophone: () => panel.listDevices(),
  });
  call = mine;
  mine.start();
}

async function showPhase(said) {
  const { phase } = said;
  const hadFocus = [$("talk"), document.body, $("retry"), $("mute")].includes(document.activeElement);
  stage.phase(said);
  $("mute").hidden = !["live", "connecting", "queued", "preparing"].includes(phase);
  $("retry").hidden = phase !== "waiting";
  if (phase === "live" && hadFocus) $("mute").focus({ preventScroll: true });
  if (phase === "over" && hadFocus) $("talk").focus({ preventScroll: true });
  if (phase === "over") {
    stage.numbers(call.numbers(), call.at);
    if (said.needsKey) await changeKey(said.title);
    lookAtServer();
  }
}

function toggleCall() {
  if (isBusy()) call.hangUp();
  else startCall();
}

// -- keeping ---------------------------------------------------------------------------------------------------------------------------

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

const fileName = (ending) => `call-${new Date().toISOString().slice(0, 19).replace(/[:T]/g, "-")}.${ending}`;

function head() {
  const { model, voice, session } = call.details ?? {};
  return [`Call ${session ?? ""} on ${host}, ${new Date().toLocaleString()}`, `Model ${model ?? "?"}, voice ${voice ?? "none"}`];
}

$("save-wav").addEventListener("click", () => save(call.recording.toBlob(), fileName("wav")));
$("save-text").addEventListener("click", () => save(new Blob([call.transcript.toText(head())], { type: "text/plain" }), fileName("txt")));
$("save-vtt").addEventListener("click", () => save(new Blob([call.transcript.toVtt()], { type: "text/vtt" }), fileName("vtt")));

// -- the page --------------------------------------------------------------------------------------------------------------------------

$("status-link").href = httpUrl("status/");
$("talk").addEventListener("click", toggleCall);
$("retry").addEventListener("click", () => call.connect());
$("call-again").addEventListener("click", () => {
  call.hangUp();
  startCall();
});
$("change-key").addEventListener("click", () => changeKey("The key of this server"));
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) call?.audio.resume(); // phones stop the sound of a page that is not seen
});
navigator.mediaDevices?.addEventListener?.("devicechange", () => panel.listDevices());
addEventListener("beforeunload", (event) => {
  if (isBusy() && call.phase === "live") event.preventDefault();
});
setUpTheme(settings, () => {
  saveSettings(settings);
  stage.restyle();
});

/** Say what will be asked before it is asked, and what cannot work before it is tried. */
async function greet() {
  const missing = missingHere();
  const state = missing ? "" : await permission();
  if (missing || state === "denied") {
    stage.phase({ phase: "idle", ...describeRefusal(missing ?? "NotAllowedError"), isFault: true });
  } else if (state === "granted") {
    stage.phase({ phase: "idle", title: "Ready when you are", detail: "Press Talk, then speak as you would to a person." });
  }
  $("talk").disabled = Boolean(missing);
  if (state === "granted") panel.listDevices();
}

stage.meters({ user: -100, assistant: -100 });
greet();
watchServer();
