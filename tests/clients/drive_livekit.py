"""Drive LiveKit's OpenAI realtime model inside an AgentSession, with a microphone and a loudspeaker of our own in place of a room.

Arguments: the base URL, the key, a JSON object of further arguments of the model (`turn_detection`, `voice`). Orders: `reply` with
`instructions`, `instructions` with `text` (update_instructions), `context` with `text` (update_chat_ctx), `interrupt`, `history`, `send`
with `event`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from typing import Any

from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice import io
from livekit.plugins import openai

from tests.clients.stage import RATE, Order, Stage, report, report_audio


class Microphone(io.AudioInput):
    """Frames of the stage's microphone."""

    def __init__(self) -> None:
        super().__init__(label="microphone")
        self._frames: asyncio.Queue[rtc.AudioFrame] = asyncio.Queue()

    async def hear(self, pcm: bytes) -> None:
        await self._frames.put(rtc.AudioFrame(data=pcm, sample_rate=RATE, num_channels=1, samples_per_channel=len(pcm) // 2))

    async def __anext__(self) -> rtc.AudioFrame:
        return await self._frames.get()


class Loudspeaker(io.AudioOutput):
    """Plays in real time, silently, and tells the session how far it got."""

    def __init__(self) -> None:
        super().__init__(label="loudspeaker", capabilities=io.AudioOutputCapabilities(pause=False), sample_rate=RATE)
        self._started_s: float | None = None
        self._given_s = 0.0
        self._playing: asyncio.Task[None] | None = None

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        report_audio(bytes(frame.data))
        if self._started_s is None:
            self._started_s = time.monotonic()
            self.on_playback_started(created_at=time.time())
        self._given_s += frame.duration

    def flush(self) -> None:
        super().flush()
        if self._started_s is not None and self._playing is None:
            self._playing = asyncio.create_task(self._finish())

    def clear_buffer(self) -> None:
        if self._playing is not None:
            self._playing.cancel()
        if self._started_s is not None:
            self._end(min(self._given_s, time.monotonic() - self._started_s), is_interrupted=True)

    async def _finish(self) -> None:
        assert self._started_s is not None
        await asyncio.sleep(self._started_s + self._given_s - time.monotonic())
        self._end(self._given_s, is_interrupted=False)

    def _end(self, position_s: float, *, is_interrupted: bool) -> None:
        self._started_s, self._given_s, self._playing = None, 0.0, None
        report("interrupted" if is_interrupted else "played", seconds=position_s)
        self.on_playback_finished(playback_position=position_s, interrupted=is_interrupted)


class Complaints(logging.Handler):
    """What the framework itself finds worth a warning."""

    def emit(self, record: logging.LogRecord) -> None:
        error = repr(record.exc_info[1]) if record.exc_info else None
        report("log", level=record.levelname, detail=record.getMessage(), error=error)


def watch(session: AgentSession[None]) -> None:
    """Report the session's events."""
    session.on("agent_state_changed", lambda event: report("agent", state=event.new_state))
    session.on("user_state_changed", lambda event: report("user", state=event.new_state))
    session.on("error", lambda event: report("error", detail=str(event.error), is_recoverable=getattr(event.error, "recoverable", None)))
    session.on("close", lambda event: report("closed", reason=str(event.reason)))
    session.on("conversation_item_added", lambda event: report("item", **_item(event.item)))


def _item(item: Any) -> dict[str, Any]:
    return {name: getattr(item, name, None) for name in ("id", "type", "role", "text_content", "interrupted")}


async def main(url: str, key: str, options: str = "{}") -> None:
    logging.getLogger("livekit").addHandler(Complaints(logging.WARNING))
    model = openai.realtime.RealtimeModel(base_url=url, api_key=key, **json.loads(options))
    session: AgentSession[None] = AgentSession(llm=model, vad=None, turn_handling={"turn_detection": None})
    agent = Agent(instructions="You are Ada.")
    microphone = Microphone()
    session.input.audio, session.output.audio = microphone, Loudspeaker()
    watch(session)
    await session.start(agent)
    report("connected")

    async def act(order: Order) -> None:
        match order["do"]:
            case "reply":
                handle = session.generate_reply(instructions=order.get("instructions", ""))
                handle.add_done_callback(lambda done: report("replied", is_interrupted=done.interrupted, error=repr(done.exception())))
            case "instructions":
                await agent.update_instructions(order["text"])
                report("updated")
            case "context":
                context = agent.chat_ctx.copy()
                context.add_message(role="user", content=order["text"])
                await agent.update_chat_ctx(context)
                report("updated")
            case "interrupt":
                await session.interrupt()
            case "history":
                report("history", items=[_item(item) for item in session.history.items])
            case "send":
                agent.realtime_llm_session.send_event(order["event"])

    await Stage().run(act=act, send=microphone.hear)
    await session.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
