// Say a WAV file (16-bit, mono, 24 kHz) to the model with OpenAI's own JavaScript client and write what it answers.
// Needs `npm install openai ws`.
//
//     node examples/openai_realtime.mjs question.wav answer.wav https://localhost:8998/v1
//
// This client speaks TLS only, whatever the URL says: start the gateway with `--ssl FOLDER` (cert.pem and key.pem). A certificate that
// nobody has signed is accepted below by `rejectUnauthorized: false`, which is for trying things out on one machine; leave it away elsewhere.
import { readFileSync, writeFileSync } from 'node:fs';
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';

const [input, output, baseURL = 'https://localhost:8998/v1', listenSeconds = '8'] = process.argv.slice(2);
const RATE = 24000;
const CHUNK_MS = 40;
const CHUNK_BYTES = (RATE / 1000) * CHUNK_MS * 2;
const HEADER_BYTES = 44;

const speech = readFileSync(input).subarray(HEADER_BYTES);
const microphone = Buffer.concat([speech, Buffer.alloc(Number(listenSeconds) * RATE * 2)]);
const answer = [];

const client = new OpenAI({ apiKey: process.env.OPENAI_API_KEY ?? 'none', baseURL });
const realtime = new OpenAIRealtimeWS({ model: 'gateway', options: { rejectUnauthorized: false } }, client);

realtime.socket.on('open', () => {
  realtime.send({ type: 'session.update', session: { type: 'realtime', instructions: 'Your name is Nova.' } });
  speak();
});
realtime.on('response.output_audio.delta', (event) => answer.push(Buffer.from(event.delta, 'base64')));
realtime.on('response.output_audio_transcript.delta', (event) => process.stdout.write(event.delta));
realtime.on('response.done', (event) => console.log(` [${event.response.status}]`));
realtime.on('input_audio_buffer.speech_started', () => console.log('[you]')); // an application with a loudspeaker empties it here
realtime.on('error', (error) => {
  console.error(`! ${error.message}`);
  if (realtime.socket.readyState !== 1) process.exit(1);
});
realtime.socket.on('close', () => writeFileSync(output, wav(Buffer.concat(answer))));

// Send the microphone's audio, 40 ms at a time, when it would have been recorded; then hang up.
function speak() {
  const started = performance.now();
  let at = 0;
  const timer = setInterval(() => {
    while (at < microphone.length && (at / CHUNK_BYTES) * CHUNK_MS <= performance.now() - started) {
      realtime.send({ type: 'input_audio_buffer.append', audio: microphone.subarray(at, at + CHUNK_BYTES).toString('base64') });
      at += CHUNK_BYTES;
    }
    if (at < microphone.length) return;
    clearInterval(timer);
    realtime.close();
  }, CHUNK_MS / 2);
}

function wav(pcm) {
  const header = Buffer.alloc(HEADER_BYTES);
  header.write('RIFF', 0);
  header.writeUInt32LE(36 + pcm.length, 4);
  header.write('WAVEfmt ', 8);
  header.writeUInt32LE(16, 16);
  header.writeUInt16LE(1, 20); // PCM
  header.writeUInt16LE(1, 22); // channels
  header.writeUInt32LE(RATE, 24);
  header.writeUInt32LE(RATE * 2, 28);
  header.writeUInt16LE(2, 32);
  header.writeUInt16LE(16, 34);
  header.write('data', 36);
  header.writeUInt32LE(pcm.length, 40);
  return Buffer.concat([header, pcm]);
}
