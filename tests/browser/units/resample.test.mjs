// Changing rates: the same sound, at the right time, whatever the pieces.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Resampler } from "../../../static/js/resample.js";
import { sine } from "./sound.mjs";

for (const [from, to] of [[48_000, 24_000], [24_000, 48_000], [44_100, 24_000], [24_000, 44_100], [16_000, 24_000], [24_000, 24_000]]) {
  test(`${from} to ${to} Hz`, () => {
    const input = sine(1000, 0, from, { rate: from });
    const resampler = new Resampler(from, to);
    const whole = resampler.process(input);
    assert.equal(whole.length, to);
    const late = from === to ? 0 : resampler.half / from;
    for (let index = 2000; index < to; index += 1) {
      const expected = 0.5 * Math.sin(2 * Math.PI * 1000 * (index / to - late));
      assert.ok(Math.abs(whole[index] - expected) < 1e-4);
    }
    const piecewise = new Resampler(from, to);
    const pieces = [];
    for (let start = 0; start < from; start += 128) pieces.push(...piecewise.process(input.slice(start, start + 128)));
    assert.deepEqual(Float32Array.from(pieces), whole);
  });
}

test("what the slower rate cannot carry is gone", () => {
  const output = new Resampler(48_000, 24_000).process(sine(15_000, 0, 48_000, { rate: 48_000 }));
  assert.ok(output.slice(100).every((sample) => Math.abs(sample) < 1e-3));
});
