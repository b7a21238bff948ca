"""A LiveKit agent on this gateway, with WAV files in place of a room. Needs `pip install livekit-agents livekit-plugins-openai`.

    python examples/livekit_agent.py question.wav answer.wav

A real agent leaves `session.input` and `session.output` alone and starts with `room=ctx.room`. Keep `capacity=http` in the URL: refused
before the upgrade, this client tries four times and gives up; refused after it, it would connect again and again for ever.
"""

import argparse
import asyncio
import os
import time
import wave

from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice import io
from livekit.plugins import openai

RATE = 24_000
CHUNK = RATE // 50  # 20 ms


class Ear(io.AudioInput):
    """Hears the WAV file at its own pace."""

    def __init__(self, pcm: bytes) -> None:
        super().__init__(label="file")
        self._pcm, self._at, self._started_s, self.ended = pcm, 0, time.monotonic(), asyncio.Event()

    async def __anext__(self) -> rtc.AudioFrame:
        chunk = self._pcm[self._at : self._at + 2 * CHUNK]
        if len(chunk) < 2 * CHUNK:
            self.ended.set()
            raise StopAsyncIteration
        self._at += 2 * CHUNK
        await asyncio.sleep(self._started_s + self._at / 2 / RATE - time.monotonic())
        return rtc.AudioFrame(chunk, RATE, 1, CHUNK)


class Mouth(io.AudioOutput):
    """Plays into memory; what was given counts as played at once."""

    def __init__(self) -> None:
        super().__init__(label="memory", capabilities=io.AudioOutputCapabilities(pause=False), sample_rate=RATE)
        self.said, self._segment_s = b"", 0.0

    async def capture_frame(self, frame: rtc.AudioFrame) -> None:
        await super().capture_frame(frame)
        self.said, self._segment_s = self.said + bytes(frame.data), self._segment_s + frame.duration

    def flush(self) -> None:
        super().flush()
        played_s, self._segment_s = self._segment_s, 0.0
        if played_s:
            self.on_playback_finished(playback_position=played_s, interrupted=False)

    clear_buffer = flush


async def main(args: argparse.Namespace) -> None:
    with wave.open(args.input) as file:
        ear = Ear(file.readframes(file.getnframes()) + bytes(int(args.listen_seconds * RATE) * 2))
    mouth = Mouth()
    model = openai.realtime.RealtimeModel(base_url=args.url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    session = AgentSession(llm=model, vad=None, turn_handling={"turn_detection": None})
    session.on("conversation_item_added", lambda event: print(f"{event.item.role}: {event.item.text_content}"))
    session.input.audio, session.output.audio = ear, mouth
    await session.start(Agent(instructions="Your name is Nova."))
    await ear.ended.wait()
    await session.aclose()
    await model.aclose()
    with wave.open(args.output, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(mouth.said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Say a WAV file to a LiveKit agent, write its answer.")
    parser.add_argument("input", help="WAV to say: 16-bit, mono, 24 kHz")
    parser.add_argument("output", help="WAV to write")
    parser.add_argument("--url", default="http://127.0.0.1:8998/v1/realtime?capacity=http")
    parser.add_argument("--listen-seconds", type=float, default=8.0, help="silence after the WAV")
    asyncio.run(main(parser.parse_args()))
