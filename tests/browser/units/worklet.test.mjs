// The audio node, driven as a browser drives it, at the server's own rate, so that every sample can be told again.

import assert from "node:assert/strict";
import { test } from "node:test";

const RATE = 24_000;
const BLOCK = 480; // 20 ms
const FRAME = 1920;

/** A node: `tell` it something, `run` it for a quantum, see what it `told`. */
async function node() {
  let Processor;
  Object.assign(globalThis, {
    sampleRate: RATE,
    currentTime: 0,
    AudioWorkletProcessor: class {
      constructor() {
        this.port = { told: [], postMessage(message) { this.told.push(structuredClone(message)); } };
      }
    },
    registerProcessor: (name, processor) => { Processor = processor; },
  });
  await import(`../../../static/js/duplex.worklet.js?${Math.random()}`); // registered anew for each test
  const processor = new Processor({ processorOptions: { rate: RATE } });
  const tell = (message) => processor.port.onmessage({ data: message });
  /** Give it a quantum of the microphone (null: none is connected); returns what goes to the loudspeakers. */
  const run = (microphone, size = microphone?.length ?? 128) => {
    const output = [new Float32Array(size), new Float32Array(size)];
    processor.process([microphone ? [microphone] : []], [output]);
    globalThis.currentTime += size / RATE;
    return output;
  };
  const told = (type) => processor.port.told.filter((message) => message.type === type);
  return { tell, run, told };
}

const ramp = (start, size) => Float32Array.from({ length: size }, (_, index) => Math.sin((start + index) / 50) / 2);
const joined = (blocks, side) => blocks.flatMap((block) => [...block[side]]);

for (const size of [128, 441, 5000]) { // what browsers ask for, an odd number, and more than the queues begin with
  test(`what was said and heard is told in blocks on one axis, sample by sample (${size} at once)`, async () => {
    const { tell, run, told } = await node();
    tell({ type: "begin" });
    const [heard, total] = [[], 3 * RATE];
    let frame = 0;
    for (let at = 0; at < total; at += size) {
      for (; frame * FRAME < at + size + 3 * FRAME; frame += 1) tell({ type: "audio", pcm: ramp(frame * FRAME, FRAME), frame });
      const [left, right] = run(ramp(at, size));
      assert.deepEqual(left, right);
      heard.push(...left);
    }
    const blocks = told("block");
    assert.ok(blocks.length * BLOCK > total - 2 * BLOCK);
    assert.deepEqual(blocks.map(({ at }) => at), blocks.map((_, index) => index * BLOCK));
    assert.ok(blocks.every(({ user, played }) => user.length === BLOCK && played.length === BLOCK));
    assert.deepEqual(joined(blocks, "user"), [...ramp(0, blocks.length * BLOCK)]);
    assert.deepEqual(joined(blocks, "played").slice(0, heard.length), heard.slice(0, blocks.length * BLOCK));
    assert.ok(heard.some((sample) => Math.abs(sample) > 0.3), "there was sound");
    assert.ok(told("frame").length > 5);
  });
}

test("before the call nothing is told, and after it nothing more", async () => {
  const { tell, run, told } = await node();
  for (let turn = 0; turn < 20; turn += 1) run(ramp(0, 128));
  assert.deepEqual(told("block"), []);
  tell({ type: "begin" });
  for (let turn = 0; turn < 20; turn += 1) run(ramp(turn * 128, 128));
  const count = told("block").length;
  assert.equal(count, 5);
  tell({ type: "end" });
  tell({ type: "audio", pcm: ramp(0, FRAME), frame: 0 });
  for (let turn = 0; turn < 20; turn += 1) assert.ok(run(ramp(0, 128))[0].every((sample) => sample === 0));
  assert.equal(told("block").length, count);
});

test("muted, or without a microphone, silence is said, and the axis goes on", async () => {
  const { tell, run, told } = await node();
  tell({ type: "begin" });
  tell({ type: "mute", isMuted: true });
  for (let turn = 0; turn < 15; turn += 1) run(ramp(0, 128));
  tell({ type: "mute", isMuted: false });
  for (let turn = 0; turn < 15; turn += 1) run(null);
  for (let turn = 0; turn < 15; turn += 1) run(ramp(turn * 128, 128));
  const said = joined(told("block"), "user");
  assert.equal(said.length, 45 * 128);
  assert.ok(said.slice(0, 30 * 128).every((sample) => sample === 0));
  assert.deepEqual(said.slice(30 * 128), [...ramp(0, 15 * 128)]);
});

test("half-duplex: silence is said while the assistant is heard, and 0.3 s longer", async () => {
  const { tell, run, told } = await node();
  tell({ type: "begin" });
  tell({ type: "gate", isOn: true });
  tell({ type: "audio", pcm: new Float32Array(FRAME).fill(0.5), frame: 0 });
  tell({ type: "audio", pcm: new Float32Array(FRAME).fill(0.5), frame: 1 });
  let lastLoud = 0;
  for (let turn = 0; turn < 250; turn += 1) {
    if (run(new Float32Array(128).fill(0.25))[0].some((sample) => sample > 0.02)) lastLoud = turn;
  }
  const said = joined(told("block"), "user");
  assert.ok(lastLoud > 10);
  assert.ok(said.slice(20 * 128, lastLoud * 128).every((sample) => sample === 0));
  const opensAt = said.indexOf(0.25, (lastLoud + 1) * 128);
  assert.ok(Math.abs(opensAt - (lastLoud * 128 + 0.3 * RATE)) < 3 * 128, `${opensAt} after ${lastLoud * 128}`);
});
