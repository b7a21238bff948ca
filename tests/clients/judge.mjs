// As judge.py, with the schemas of openai-agents' JavaScript. Argument: the capture.
import { readFileSync } from 'node:fs';
import { realtimeServerEventSchema } from './node_modules/@openai/agents-realtime/dist/openaiRealtimeEvents.mjs';

let numRead = 0;
for (const line of readFileSync(process.argv[2], 'utf8').trim().split('\n')) {
  const { is_client: isClient, event } = JSON.parse(line);
  if (isClient || !event) continue;
  const { success, error } = realtimeServerEventSchema.safeParse(event);
  if (success) numRead += 1;
  else console.log(`${event.type}: ${error.message.replace(/\s+/g, ' ').slice(0, 400)}`);
}
console.log(numRead);
