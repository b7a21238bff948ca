// What every JavaScript driver has, as stage.py for Python: a microphone in real time, orders on standard input (a JSON line with a `do`),
// reports on standard output (a JSON line with a `what`).
import { readFileSync } from 'node:fs';
import { createInterface } from 'node:readline';

const CHUNK_MS = 40;
const CHUNK_BYTES = 24 * CHUNK_MS * 2; // 24 kHz, 16 bit
const WAV_HEADER_BYTES = 44; // as Python's wave module writes it

export function report(what, fields = {}) {
  process.stdout.write(JSON.stringify({ what, ...fields }) + '\n');
}

export function reportAudio(pcm, fields = {}) {
  report('audio', { pcm: Buffer.from(pcm).toString('base64'), ...fields });
}

// Hand 40 ms of PCM at a time to `send`, carry out the orders with `act`, and end with `close` at `quit` or the end of standard input.
export function run({ send, act, close }) {
  let speech = Buffer.alloc(0);
  let isMuted = false;
  const started = performance.now();
  let numChunks = 0;
  const microphone = setInterval(() => {
    while (numChunks * CHUNK_MS <= performance.now() - started) {
      const chunk = Buffer.alloc(CHUNK_BYTES);
      speech.copy(chunk);
      speech = speech.subarray(CHUNK_BYTES);
      numChunks += 1;
      if (!isMuted) send(chunk);
    }
  }, CHUNK_MS / 2);
  const lines = createInterface({ input: process.stdin });
  lines.on('line', (line) => {
    const order = JSON.parse(line);
    if (order.do === 'quit') lines.close();
    else if (order.do === 'say') speech = Buffer.concat([speech, readFileSync(order.file).subarray(WAV_HEADER_BYTES)]);
    else if (order.do === 'mute') isMuted = order.is_muted;
    else act(order);
  });
  lines.on('close', () => {
    clearInterval(microphone);
    close();
    setTimeout(() => process.exit(0), 300);
  });
}
