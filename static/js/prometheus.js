// Reading /metrics: the text format of Prometheus, as far as the status page wants it. No DOM, no clock.

/** Samples by name: a list of {labels, value}. */
export function parseMetrics(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const match = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/.exec(line);
    if (!match) continue;
    const labels = Object.fromEntries([...(match[2] ?? "").matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value]));
    if (!samples.has(match[1])) samples.set(match[1], []);
    samples.get(match[1]).push({ labels, value: Number(match[3].replace("Inf", "Infinity")) });
  }
  return samples;
}

/** Sum of every sample of that name; 0 where there is none. */
export const total = (samples, name) => (samples.get(name) ?? []).reduce((sum, { value }) => sum + value, 0);

/**
 * What happened between two readings of a histogram: `{count, mean, slowest}`, where `slowest` is the bound of the bucket that the largest
 * value fell into. Null where nothing happened, or the server was restarted.
 */
export function between(before, after, name) {
  const count = total(after, `${name}_count`) - total(before, `${name}_count`);
  if (count <= 0) return null;
  const mean = (total(after, `${name}_sum`) - total(before, `${name}_sum`)) / count;
  const bounds = (samples) => new Map((samples.get(`${name}_bucket`) ?? []).map(({ labels, value }) => [labels.le, value]));
  const [old, fresh] = [bounds(before), bounds(after)];
  let [slowest, below] = [0, 0];
  for (const [bound, value] of fresh) {
    const grown = value - (old.get(bound) ?? 0);
    if (grown > below) [slowest, below] = [Number(bound.replace("+Inf", "Infinity")), grown];
  }
  return { count, mean, slowest };
}
