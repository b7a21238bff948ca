"""Drive openai-python's Realtime connection, GA (openai 3.57.0) or with `--beta` that of openai 1.99.9.

Arguments: the base URL, the key, a JSON object of extra query parameters. Orders: `send` with `event`, a client event.
"""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from typing import Any

from openai import AsyncOpenAI

from tests.clients.stage import Order, Stage, refusal, report, report_audio

AUDIO = ("response.output_audio.delta", "response.audio.delta")


async def listen(connection: Any) -> None:
    """Report each event as the client has parsed it."""
    async for event in connection:
        if event.type in AUDIO:
            report_audio(base64.b64decode(event.delta), response_id=event.response_id, item_id=event.item_id)
        else:
            report("event", type=event.type, parsed_as=type(event).__name__, event=event.to_dict())
    report("closed")


async def main(url: str, key: str, query: str = "{}", *flags: str) -> None:
    client = AsyncOpenAI(api_key=key, base_url=url, websocket_base_url=url.replace("http", "ws", 1), max_retries=0)
    realtime = client.beta.realtime if "--beta" in flags else client.realtime
    stage = Stage()
    try:
        async with realtime.connect(model="m", extra_query=json.loads(query)) as connection:
            report("connected")

            async def act(order: Order) -> None:
                await connection.send(order["event"])

            async def send(pcm: bytes) -> None:
                await connection.input_audio_buffer.append(audio=base64.b64encode(pcm).decode())

            await stage.run(listen(connection), act=act, send=send)
    except Exception as error:
        refusal(error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
