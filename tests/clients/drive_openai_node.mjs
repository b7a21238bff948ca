// Drive openai-node's Realtime connection (the `ws` one). Arguments: the https base URL, the key. Orders: `send` with `event`.
import OpenAI from 'openai';
import { OpenAIRealtimeWS } from 'openai/realtime/ws';
import { report, reportAudio, run } from './stage.mjs';

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ apiKey, baseURL });
const realtime = new OpenAIRealtimeWS({ model: 'm', options: { rejectUnauthorized: false } }, client);

realtime.on('event', (event) => {
  if (event.type === 'response.output_audio.delta') {
    reportAudio(Buffer.from(event.delta, 'base64'), { response_id: event.response_id, item_id: event.item_id });
  } else {
    report('event', { type: event.type, event });
  }
});
realtime.on('error', (error) => report('error', { detail: String(error.message), code: error.error?.code ?? null }));
realtime.socket.on('close', (code) => report('closed', { code }));
realtime.socket.on('open', () => {
  report('connected');
  run({
    send: (pcm) => realtime.socket.readyState === 1 && realtime.send({ type: 'input_audio_buffer.append', audio: pcm.toString('base64') }),
    act: (order) => realtime.send(order.event),
    close: () => realtime.close(),
  });
});
