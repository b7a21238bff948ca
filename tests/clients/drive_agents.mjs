// Drive openai-agents' JavaScript realtime session over a plain WebSocket. Arguments: the WebSocket URL, the key. Orders: `interrupt`,
// `message` with `text`, `history`, `send` with `event`.
import { RealtimeAgent, RealtimeSession } from '@openai/agents-realtime';
import { report, reportAudio, run } from './stage.mjs';

const [url, apiKey] = process.argv.slice(2);
const agent = new RealtimeAgent({ name: 'Ada', instructions: 'You are Ada.' });
const session = new RealtimeSession(agent, { transport: 'websocket' });

session.on('transport_event', (event) => {
  if (event.type !== 'response.output_audio.delta') report('event', { type: event.type });
});
session.on('audio', (event) => reportAudio(event.data, { response_id: event.responseId }));
session.on('audio_interrupted', () => report('audio_interrupted'));
session.on('agent_start', () => report('turn_started'));
session.on('agent_end', (_context, _agent, text) => report('turn_ended', { text }));
session.on('audio_stopped', () => report('audio_stopped'));
session.on('error', ({ error }) => report('error', { detail: error?.message ?? JSON.stringify(error) }));
session.transport.on('connection_change', (status) => report('connection', { status }));

function history() {
  const texts = (item) => (item.content ?? []).map((part) => part.transcript ?? part.text ?? null);
  return session.history.map((item) => ({ item_id: item.itemId, role: item.role, status: item.status, texts: texts(item) }));
}

try {
  await session.connect({ apiKey, url });
} catch (error) {
  report('refused', { detail: String(error.message ?? error.error?.message ?? error) });
  process.exit(0);
}
report('connected');
run({
  send: (pcm) => session.transport.status === 'connected' && session.sendAudio(new Uint8Array(pcm).buffer),
  act: (order) => {
    if (order.do === 'interrupt') session.interrupt();
    else if (order.do === 'message') session.sendMessage(order.text);
    else if (order.do === 'history') report('history', { items: history() });
    else if (order.do === 'send') session.transport.sendEvent(order.event);
  },
  close: () => session.close(),
});
