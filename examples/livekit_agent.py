"""A LiveKit agent on this gateway, with WAV files in place of a room. Needs `pip install livekit-agents livekit-plugins-openai`.

    python examples/livekit_agent.py question.wav answer.wav [URL [SECONDS_TO_LISTEN]]

A real agent leaves `session.input` and `session.output` alone and starts with `room=ctx.room`. Keep `capacity=http` in the URL: refused
before the upgrade, this client tries four times and gives up; refused after it, it would connect again and again for ever.
"""

import asyncio
import os
import sys
import time
import wave
from pathlib import Path

from livekit import rtc
from livekit.agents import Agent, AgentSession
from livekit.agents.voice import io
from livekit.plugins import openai

RATE = 24_000
CHUNK = RATE // 50  # 20 ms
HEADER_BYTES = 44


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


async def main(question: str, answer: str, url: str = "http://127.0.0.1:8998/v1/realtime?capacity=http", listen_s: str = "8") -> None:
    ear, mouth = Ear(Path(question).read_bytes()[HEADER_BYTES:] + bytes(int(float(listen_s) * RATE) * 2)), Mouth()
    model = openai.realtime.RealtimeModel(base_url=url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    session = AgentSession(llm=model, vad=None, turn_handling={"turn_detection": None})
    session.input.audio, session.output.audio = ear, mouth
    await session.start(Agent(instructions="Your name is Nova."))
    await ear.ended.wait()
    await session.aclose()
    await model.aclose()
    print("".join(item.text_content or "" for item in session.history.items if item.type == "message"))
    with wave.open(answer, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(mouth.said)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
