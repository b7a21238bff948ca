// Sounds and networks for the tests of the page's modules.

export const RATE = 24_000;
export const FRAME = 1920;

/** Part of a sine that goes on for ever. */
export function sine(hz, start, count, { rate = RATE, level = 0.5 } = {}) {
  return Float32Array.from({ length: count }, (_, index) => level * Math.sin((2 * Math.PI * hz * (start + index)) / rate));
}

/** Repeatable numbers in [0, 1). */
export function random(seed = 1) {
  let state = seed;
  return () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state / 0x80000000;
  };
}

/**
 * Play `seconds` of a sine of frames that arrive at `arrival(n)` ms, in order as TCP has it. Returns what was heard and, after every 2.7 ms, what
 * waited.
 */
export function play(buffer, arrival, seconds, hz = 220) {
  const quantum = 64;
  const heard = new Float32Array(seconds * RATE);
  const fills = [];
  let [frame, due] = [0, arrival(0)];
  for (let start = 0; start + quantum <= heard.length; start += quantum) {
    for (; due <= (start * 1000) / RATE; due = Math.max(due, arrival(frame))) {
      buffer.push(sine(hz, frame * FRAME, FRAME), frame);
      frame += 1;
    }
    buffer.pull(heard.subarray(start, start + quantum));
    fills.push((buffer.fill * 1000) / RATE);
  }
  return { heard, fills };
}

/** The largest step from sample to sample. */
export function steepest(samples) {
  let most = 0;
  for (let index = 1; index < samples.length; index += 1) most = Math.max(most, Math.abs(samples[index] - samples[index - 1]));
  return most;
}

export const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
