// Numbers that people look at.

import assert from "node:assert/strict";
import { test } from "node:test";

import { correlation, EchoWatch, levelDb, meterShare, RoundTrip } from "../../../static/js/meter.js";
import { between, parseMetrics, total } from "../../../static/js/prometheus.js";
import { random, sine } from "./sound.mjs";

test("the round trip is from a frame to its answer, and survives lost frames", () => {
  const trip = new RoundTrip();
  assert.equal(trip.ms, null);
  for (let frame = 0; frame < 20; frame += 1) {
    trip.send(frame * 80);
    trip.receive(frame, frame * 80 + 35);
  }
  assert.equal(trip.ms, 35);
  trip.lost = 3; // frames 20 to 22 never come back
  for (let frame = 20; frame < 60; frame += 1) {
    trip.send(frame * 80);
    if (frame >= 23) trip.receive(frame - 3, frame * 80 + 50);
  }
  assert.equal(trip.ms, 50);
});

test("levels in decibels, and their place on the meter", () => {
  assert.equal(levelDb(new Float32Array(480)), -100);
  assert.ok(Math.abs(levelDb(sine(1000, 0, 480, { level: 1 })) + 3.01) < 0.05);
  assert.deepEqual([-100, -60, -33, -6, 0].map(meterShare), [0, 0, 0.5, 1, 1]);
});

/** Levels of somebody who speaks in bursts. */
function bursts(seed, blocks) {
  const noise = random(seed);
  let [level, left] = [-70, 0];
  return Array.from({ length: blocks }, () => {
    if (left-- <= 0) [level, left] = [level > -50 ? -70 : -20, 20 + Math.floor(40 * noise())];
    return level + 6 * noise();
  });
}

test("a microphone that hears the assistant is noticed, one that hears a person is not", () => {
  const assistant = bursts(1, 1500);
  const watch = (user) => {
    const echo = new EchoWatch();
    return user.some((db, block) => echo.push(db, assistant[block]));
  };
  const late = 6;
  const noise = random(5);
  assert.ok(watch(assistant.map((_, block) => (assistant[block - late] ?? -70) - 15 + 3 * noise())), "an echo at -15 dB");
  assert.ok(!watch(bursts(9, 1500)), "a person");
  assert.ok(!watch(assistant.map(() => -90)), "silence");
  assert.ok(!watch(assistant.map((_, block) => (assistant[block - late] ?? -70) - 45)), "an echo at -45 dB harms nobody");
});

test("correlation", () => {
  assert.ok(correlation([1, 2, 3, 4], [2, 4, 6, 8]) > 0.999);
  assert.ok(correlation([1, 2, 3, 4], [8, 6, 4, 2]) < -0.999);
  assert.ok(Math.abs(correlation([1, 1, 1], [1, 2, 3])) < 1e-3);
});

const METRICS = (count, sum, fast, slow) => `# HELP gateway_step_seconds The engine step inside a tick.
# TYPE gateway_step_seconds histogram
gateway_step_seconds_bucket{le="0.02"} ${fast}
gateway_step_seconds_bucket{le="0.08"} ${slow}
gateway_step_seconds_bucket{le="+Inf"} ${count}
gateway_step_seconds_count ${count}
gateway_step_seconds_sum ${sum}
gateway_frames_dropped_total{direction="in",reason="backlog"} 3.0
gateway_frames_dropped_total{direction="out",reason="a \\"quoted\\" one"} 4.0
`;

test("metrics are read, and a histogram tells what happened in between", () => {
  const [before, after] = [parseMetrics(METRICS(10, 0.2, 8, 10)), parseMetrics(METRICS(22, 0.68, 9, 21))];
  assert.equal(total(after, "gateway_frames_dropped_total"), 7);
  assert.equal(total(after, "nothing"), 0);
  const { count, mean, slowest } = between(before, after, "gateway_step_seconds");
  assert.equal(count, 12);
  assert.ok(Math.abs(mean - 0.04) < 1e-9);
  assert.equal(slowest, Infinity);
  assert.equal(between(after, after, "gateway_step_seconds"), null);
  assert.equal(between(after, before, "gateway_step_seconds"), null, "the server was restarted");
});
