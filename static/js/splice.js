// Making a stretch of sound shorter or longer by a few milliseconds so that nobody hears it: jump by a distance at which the sound
// resembles itself, and fade from one place to the other. The one rule: a jump is a whole number of periods where there is a pitch. No DOM,
// no clock.

const QUIET_RMS = 0.004; // -48 dBFS: anything may be cut out of silence

/** Root mean square of `count` samples read with `at(index)`. */
function rms(at, start, count) {
  let sum = 0;
  for (let index = start; index < start + count; index += 1) sum += at(index) ** 2;
  return Math.sqrt(sum / count);
}

/**
 * Find the best distance of a jump from `start`: the one in [minLag, maxLag] at which `width` samples look most like those at `start`.
 *
 * `at(index)` reads a sample, `sign` is 1 for a jump forwards (shorter) and -1 for one backwards (longer). In silence it is `maxLag`.
 */
export function findLag(at, start, { minLag, maxLag, width, sign }) {
  if (rms(at, start, width) < QUIET_RMS && rms(at, start + sign * maxLag, width) < QUIET_RMS) return maxLag;
  let [best, bestScore] = [maxLag, -Infinity];
  for (let lag = minLag; lag <= maxLag; lag += 1) {
    let [product, energy] = [0, 1e-9];
    for (let index = start; index < start + width; index += 2) { // every second sample is enough to compare by
      const other = at(index + sign * lag);
      product += at(index) * other;
      energy += other * other;
    }
    const score = product / Math.sqrt(energy);
    if (score > bestScore) [best, bestScore] = [lag, score];
  }
  return best;
}

/** Weight of the new place at `step` of `steps` of a fade. */
export const fadeIn = (step, steps) => 0.5 - 0.5 * Math.cos((Math.PI * (step + 1)) / (steps + 1));
