// The promise of the jitter buffer: no click ever, no gap on a quiet line, and never more than 300 ms behind.

import assert from "node:assert/strict";
import { test } from "node:test";

import { JitterBuffer, MAX_TARGET_MS, MIN_TARGET_MS } from "../../../static/js/jitter.js";
import { FRAME, mean, play, random, RATE, sine, steepest } from "./sound.mjs";

const SLOPE = (0.5 * 2 * Math.PI * 220) / RATE; // of the sine that is played
const BEHIND_MS = 300;
const SPLICE_MS = 11; // a cut waits for the splice that is under way, and for the next samples to be pulled

/** The longest time above the limit in ms. */
function longestBehind(fills) {
  let [longest, run] = [0, 0];
  for (const fill of fills) {
    run = fill > BEHIND_MS ? run + 64 / 24 : 0;
    longest = Math.max(longest, run);
  }
  return longest;
}

function checkSmooth(heard) {
  assert.ok(steepest(heard) < SLOPE * 1.25, `a click: ${steepest(heard)} where a sine has ${SLOPE}`);
}

test("on a quiet line nothing is touched, and half of the 40 to 120 ms that wait is the frame itself", () => {
  const buffer = new JitterBuffer();
  const noise = random();
  const { heard, fills } = play(buffer, (n) => 50 + n * 80 + 3 * noise(), 60);
  checkSmooth(heard);
  const { dry, cutMs, splicedMs, stretchedMs, gapMs, targetMs } = buffer.state;
  assert.deepEqual({ dry, cutMs, splicedMs, stretchedMs, gapMs, targetMs }, { dry: 0, cutMs: 0, splicedMs: 0, stretchedMs: 0, gapMs: 0, targetMs: 40 });
  assert.ok(Math.max(...fills) <= 125 && mean(fills.slice(2000)) < 90);
  const body = heard.subarray(RATE);
  const start = heard.findIndex((sample) => sample !== 0);
  let worst = 0;
  for (let index = 0; index < body.length; index += 1) {
    worst = Math.max(worst, Math.abs(body[index] - 0.5 * Math.sin((2 * Math.PI * 220 * (RATE + index - start + 1)) / RATE)));
  }
  assert.ok(worst < 1e-6, `what is heard is what was sent, sample by sample: ${worst}`);
});

test("jitter of 30 ms is heard by nobody", () => {
  const buffer = new JitterBuffer();
  const noise = random();
  const { heard } = play(buffer, (n) => 50 + n * 80 + 30 * noise(), 60);
  checkSmooth(heard);
  assert.equal(buffer.state.gapMs, 0);
});

test("jitter of 200 ms and stalls of 400 ms never click and never leave anybody 300 ms behind", () => {
  for (const seed of [1, 2, 3]) {
    const buffer = new JitterBuffer();
    const noise = random(seed);
    let stalledTo = 0;
    const { heard, fills } = play(buffer, (n) => {
      if (noise() < 0.02) stalledTo = n * 80 + 400;
      return Math.max(stalledTo, 50 + n * 80 + 200 * noise());
    }, 60);
    checkSmooth(heard);
    assert.ok(longestBehind(fills) <= SPLICE_MS, `${longestBehind(fills)} ms too far behind`);
    assert.ok(buffer.state.targetMs > MIN_TARGET_MS && buffer.state.targetMs <= MAX_TARGET_MS);
    assert.ok(buffer.state.gapMs < 3000, `${buffer.state.gapMs} ms of 60 s were silent`);
  }
});

test("after a stall of two seconds the delay is what it was", () => {
  const buffer = new JitterBuffer();
  const noise = random();
  const { heard, fills } = play(buffer, (n) => (n > 250 && n < 275 ? 275 * 80 + 50 : 50 + n * 80 + 3 * noise()), 60);
  checkSmooth(heard);
  assert.equal(buffer.state.dry, 1);
  assert.ok(longestBehind(fills) <= SPLICE_MS);
  assert.ok(mean(fills.slice(-3000)) < 140, `${mean(fills.slice(-3000))} ms wait at the end`);
});

test("a sound card that is faster or slower than the server is followed", () => {
  for (const pace of [0.995, 1.005]) {
    const buffer = new JitterBuffer();
    const { heard, fills } = play(buffer, (n) => 50 + n * 80 * pace, 60);
    checkSmooth(heard);
    assert.equal(buffer.state.gapMs, 0);
    assert.ok(Math.max(...fills) < 180);
    assert.ok(pace < 1 ? buffer.state.splicedMs > 150 : buffer.state.stretchedMs > 150);
  }
});

test("a frame is told when its first sample is heard", () => {
  const told = [];
  const buffer = new JitterBuffer(RATE, (frame) => told.push([frame, buffer.clock]));
  const { heard } = play(buffer, (n) => 50 + n * 80, 3);
  const start = heard.findIndex((sample) => sample !== 0);
  assert.deepEqual(told.slice(0, 3).map(([frame]) => frame), [0, 1, 2]);
  for (const [frame, clock] of told) assert.ok(Math.abs(clock - (start + frame * FRAME)) <= 64);
});

test("after a reset nothing of the call before is heard", () => {
  const buffer = new JitterBuffer();
  for (let frame = 0; frame < 3; frame += 1) buffer.push(sine(220, frame * FRAME, FRAME), frame);
  buffer.pull(new Float32Array(640));
  buffer.reset();
  const after = new Float32Array(RATE);
  buffer.pull(after);
  assert.ok(after.every((sample) => sample === 0));
  assert.equal(buffer.fill, 0);
});
