"""A bare Realtime client on aiohttp: it sends what it is told to and keeps what it gets (R in specs/realtime.md 5.3). Thread: loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

CHUNK = 960  # 40 ms
RATE = 24_000
ANSWER_S = 20.0

Event = dict[str, Any]


class RawClient:
    """One connection."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.events: list[Event] = []
        self.times_s: list[float] = []  # when each event came
        self._speech = np.empty(0, np.float32)
        self._changed = asyncio.Event()
        self._reading = asyncio.create_task(self._read())
        self._speaking: asyncio.Task[None] | None = None

    async def send(self, kind: str, **fields: Any) -> None:
        await self.ws.send_json({"type": kind, **fields})

    def listen(self) -> None:
        """Open the microphone: silence, or what is said, in real time."""
        self._speaking = asyncio.create_task(self._microphone())

    def say(self, pcm: NDArray[np.float32]) -> None:
        self._speech = np.concatenate([self._speech, pcm])

    def all(self, kind: str) -> list[Event]:
        return [event for event in self.events if event["type"] == kind]

    async def seen(self, kind: str, count: int = 1, *, timeout_s: float = ANSWER_S) -> Event:
        """Wait for the `count`th event of a type."""
        await self.until(lambda: len(self.all(kind)) >= count, f"{kind} number {count}", timeout_s=timeout_s)
        return self.all(kind)[count - 1]

    async def until(self, is_true: Callable[[], bool], what: str, *, timeout_s: float = ANSWER_S) -> None:
        """Wait for a fact about the events."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true():
                    assert not self._reading.done(), f"closed with {self.ws.close_code} before {what}: {self.kinds[-20:]}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{what} did not come: {self.kinds[-20:]}") from None

    @property
    def kinds(self) -> list[str]:
        return [event["type"] for event in self.events]

    def pcm(self, response_id: str) -> NDArray[np.int16]:
        """The audio of one response."""
        deltas = [event["delta"] for event in self.all("response.output_audio.delta") if event["response_id"] == response_id]
        return np.frombuffer(b"".join(base64.b64decode(delta) for delta in deltas), "<i2")

    async def ended(self) -> int | None:
        """Read to the close; return its code."""
        async with asyncio.timeout(ANSWER_S):
            await self._reading
        return self.ws.close_code

    async def close(self) -> None:
        for task in (self._speaking, self._reading):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await task
        await self.ws.close()

    async def _read(self) -> None:
        async for message in self.ws:
            self.events.append(message.json())
            self.times_s.append(time.monotonic())
            self._changed.set()
        self._changed.set()

    async def _microphone(self) -> None:
        due_s = time.monotonic()
        while True:
            chunk, self._speech = self._speech[:CHUNK], self._speech[CHUNK:]
            samples = (np.pad(chunk, (0, CHUNK - chunk.size)) * 32768).astype("<i2")
            await self.send("input_audio_buffer.append", audio=base64.b64encode(samples.tobytes()).decode())
            due_s += CHUNK / RATE
            await asyncio.sleep(due_s - time.monotonic())


@contextlib.asynccontextmanager
async def raw(url: str, **options: Any) -> AsyncIterator[RawClient]:
    """Connect; `options` are those of aiohttp's `ws_connect`."""
    async with aiohttp.ClientSession() as http, http.ws_connect(url, max_msg_size=0, **options) as ws:
        client = RawClient(ws)
        try:
            yield client
        finally:
            await client.close()
