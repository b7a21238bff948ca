"""Drive openai-agents' Python realtime session.

Arguments: the WebSocket URL, the key, a JSON object of model settings. Orders: `interrupt`, `message` with `text`, `commit`, `history`,
`send` with `event` (a raw client event). The session reckons by the clock what was played, as it does for an application that says nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from agents.realtime import RealtimeAgent, RealtimeModelSendRawMessage, RealtimeRunner, RealtimeSession

from tests.clients.stage import Order, Stage, refusal, report, report_audio


async def listen(session: RealtimeSession) -> None:
    """Report each event of the session."""
    async for event in session:
        match event.type:
            case "audio":
                report_audio(event.audio.data, response_id=event.audio.response_id, item_id=event.item_id)
            case "raw_model_event":
                _report_raw(event.data)
            case "error":
                report("error", detail=str(event.error))
            case "history_added" | "history_updated":
                pass  # asked for with the order `history`
            case _:
                report(event.type, item_id=getattr(event, "item_id", None))
    report("closed")


def _report_raw(data: Any) -> None:
    match data.type:
        case "turn_started" | "turn_ended":
            report(data.type)
        case "transcript_delta":
            report("text", text=data.delta, item_id=data.item_id)
        case "exception":
            report("exception", detail=f"{data.context}: {data.exception!r}")
        case "connection_status":
            report("connection", status=data.status)
        case "raw_server_event" if data.data.get("type") != "response.output_audio.delta":
            report("event", type=data.data.get("type"))


def history(session: RealtimeSession) -> list[dict[str, Any]]:
    """Items of the session's own history: role and text."""
    kept = []
    for item in session._history:
        texts = [getattr(part, "transcript", None) or getattr(part, "text", None) for part in getattr(item, "content", [])]
        facts = {name: getattr(item, name, None) for name in ("role", "status")}
        kept.append({"item_id": item.item_id, "texts": texts, **facts})
    return kept


async def main(url: str, key: str, settings: str = "{}") -> None:
    agent = RealtimeAgent(name="Ada", instructions="You are Ada.")
    runner = RealtimeRunner(agent, config={"model_settings": json.loads(settings)})
    stage = Stage()
    try:
        async with await runner.run(model_config={"url": url, "api_key": key}) as session:
            report("connected")

            async def act(order: Order) -> None:
                match order["do"]:
                    case "interrupt":
                        await session.interrupt()
                    case "message":
                        await session.send_message(order["text"])
                    case "commit":
                        await session.send_audio(b"\0\0", commit=True)
                    case "history":
                        report("history", items=history(session))
                    case "send":
                        event = dict(order["event"])
                        await session.model.send_event(
                            RealtimeModelSendRawMessage(message={"type": event.pop("type"), "other_data": event})
                        )

            await stage.run(listen(session), act=act, send=session.send_audio)
    except Exception as error:
        refusal(error)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
