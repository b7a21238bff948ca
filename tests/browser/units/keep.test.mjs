// What is kept of a call: transcript, WebVTT, WAV, settings.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Recording, wavHeader } from "../../../static/js/recording.js";
import { callOf, DEFAULTS, loadSettings, PRESETS, saveSettings } from "../../../static/js/settings.js";
import { formatTime, textOf, Transcript } from "../../../static/js/transcript.js";

function spoken() {
  const transcript = new Transcript();
  for (const [text, at] of [[" Hello", 1.2], [",", 1.28], [" how", 1.44], [" are", 1.6], [" you?", 1.76], [" Fine", 4], [" <b>", 4.24]]) {
    transcript.add(text, at);
  }
  return transcript;
}

test("a line ends at a pause, and its words keep their times", () => {
  const { lines } = spoken();
  assert.deepEqual(lines.map(textOf), ["Hello, how are you?", "Fine <b>"]);
  assert.deepEqual(lines.map(({ start, end }) => [start, end]), [[1.2, 1.76], [4, 4.24]]);
});

test("a long line ends at the next sentence", () => {
  const transcript = new Transcript();
  for (let word = 0; word < 60; word += 1) transcript.add(word % 10 === 9 ? " end." : " word", word * 0.2);
  assert.ok(transcript.lines.length > 1);
  assert.ok(transcript.lines.every((line) => textOf(line).endsWith("end.")));
});

test("as text, with what happened in between", () => {
  const transcript = spoken();
  transcript.note("The connection was lost.", 5);
  transcript.add(" Again", 5.1);
  assert.equal(
    transcript.toText(["Call x"]),
    "Call x\n\n0:01.2  Assistant: Hello, how are you?\n0:04.0  Assistant: Fine <b>\n0:05.0  — The connection was lost.\n0:05.1  Assistant: Again\n",
  );
});

test("as WebVTT: cues in order that do not overlap, words with times, nothing that could be a tag", () => {
  assert.equal(
    spoken().toVtt(),
    "WEBVTT\n\n1\n00:00:01.200 --> 00:00:02.360\n<v Assistant>Hello,<00:00:01.440> how<00:00:01.600> are<00:00:01.760> you?\n\n"
    + "2\n00:00:04.000 --> 00:00:04.840\n<v Assistant>Fine<00:00:04.240> &lt;b&gt;\n",
  );
});

test("times", () => {
  assert.deepEqual([0, 9.94, 59.96, 75.3, 3601].map((seconds) => formatTime(seconds)), ["0:00.0", "0:09.9", "1:00.0", "1:15.3", "60:01.0"]);
  assert.deepEqual([0, 65].map((seconds) => formatTime(seconds, 0)), ["0:00", "1:05"]);
});

test("a recording is a stereo file: the user left, the assistant right, clipped and not wrapped", async () => {
  const recording = new Recording(24_000);
  const seconds = 25; // over two parts
  for (let block = 0; block < seconds * 50; block += 1) recording.add(new Float32Array(480).fill(0.5), new Float32Array(480).fill(-2));
  assert.equal(recording.seconds, seconds);
  const bytes = new Uint8Array(await recording.toBlob().arrayBuffer());
  assert.deepEqual(bytes.slice(0, 44), wavHeader(24_000, seconds * 24_000));
  const samples = new Int16Array(bytes.buffer, 44);
  assert.equal(samples.length, 2 * seconds * 24_000);
  assert.ok(samples.every((sample, index) => sample === (index % 2 ? -32768 : 16384)));
});

test("settings come back, and rubbish is the defaults", () => {
  const store = new Map();
  const storage = { getItem: (name) => store.get(name) ?? null, setItem: (name, value) => store.set(name, value) };
  assert.deepEqual(loadSettings(storage), DEFAULTS);
  saveSettings({ ...DEFAULTS, voice: "tenor" }, storage);
  assert.equal(loadSettings(storage).voice, "tenor");
  store.set([...store.keys()][0], "{");
  assert.deepEqual(loadSettings(storage), DEFAULTS);
  saveSettings(DEFAULTS, { setItem() { throw new Error("private window"); } });
});

test("a call asks for what was chosen and leaves the rest to the server", () => {
  assert.deepEqual(callOf(DEFAULTS), { persona: "", voice: "", sampling: {} });
  const chosen = { ...DEFAULTS, preset: "own", persona: " You are kind. ", voice: "alto", seed: "7", sampling: { text_topk: 5, audio_topk: undefined } };
  assert.deepEqual(callOf(chosen), { persona: "You are kind.", voice: "alto", sampling: { text_topk: 5, seed: 7 } });
  assert.equal(callOf({ ...DEFAULTS, preset: "teacher" }).persona, PRESETS.find(({ id }) => id === "teacher").text);
});
