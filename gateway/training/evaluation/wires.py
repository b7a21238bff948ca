"""The evaluation's own ends of `/v1/audio/duplex` and `/api/chat`.

The one rule: what is evaluated is reached by its wires alone, as any client does it. Not here: what is said (`call`), and the process that
is called (`server`). Thread: loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
from typing import Protocol

import aiohttp
import numpy as np

from gateway.training.evaluation.call import Caller, Record, ScriptOf
from gateway.training.evaluation.signals import FRAME, FRAME_S, RATE, Pcm

ANSWER_S = 60.0  # for one frame, on a machine that has other things to do
_HANDSHAKE, _AUDIO, _TEXT = 0, 1, 2  # tags of /api/chat


class CallError(Exception):
    """The server did not hold a call to its end."""


class FullError(CallError):
    """The server had no slot."""


class Line(Protocol):
    """One open call."""

    async def exchange(self, frame: Pcm, record: Record, ahead: int) -> None:
        """Send a frame and take answers until at most `ahead` are owed."""

    async def finish(self, record: Record) -> None:
        """Take what is still owed and hang up."""


async def hold(line: Line, caller: Caller, script: ScriptOf, background: Pcm | None = None) -> Record:
    """Hold a whole call over an open line.

    Args:
        line: the call.
        caller: who calls.
        script: what they do.
        background: a sound that is heard all the time, again and again.

    Raises:
        CallError: the server ended it.
    """
    for count, frame in enumerate(script(caller)):
        if background is not None:
            frame = frame + np.take(background, range(count * FRAME, (count + 1) * FRAME), mode="wrap")
        await line.exchange(frame, caller.record, caller.ahead)
    await line.finish(caller.record)
    return caller.record


class DuplexLine:
    """A call over /v1/audio/duplex, at the pace of its answers or of `clock`."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse, clock: Metronome | None = None) -> None:
        self._ws = ws
        self._clock = clock
        self._owed = 0
        self._has_ended = False

    async def open(self, voice: str, persona: str, seed: int) -> None:
        """Wait for a model that has read its prompt.

        Raises:
            CallError: it is refused.
        """
        pacing = "live" if self._clock else "script"
        await self._ws.send_json({"type": "open", "voice": voice, "persona": persona, "seed": seed, "pacing": pacing})
        record = Record()
        while await self._take(record) != "ready":
            pass

    async def exchange(self, frame: Pcm, record: Record, ahead: int) -> None:
        """Send a frame and take answers until at most `ahead` are owed."""
        if self._clock:
            await self._clock.wait()
        await self._ws.send_bytes(frame.astype("<f4").tobytes())
        self._owed += 1
        while self._owed > ahead:
            await self._take(record)

    async def finish(self, record: Record) -> None:
        """Take what is still owed and hang up."""
        await self._ws.send_json({"type": "close"})
        while await self._take(record) != "done":
            pass

    async def _take(self, record: Record) -> str:
        message = await self._ws.receive(timeout=ANSWER_S)
        if message.type is aiohttp.WSMsgType.BINARY:
            record.hear(np.frombuffer(message.data, "<f4"))
            self._owed -= 1
            return "audio"
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise (FullError if self._ws.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER else CallError)(f"closed: {self._ws.close_code}")
        event = json.loads(message.data)
        if event["type"] == "text":
            record.read(event["frame"], event["text"])
        elif event["type"] == "error" and event["code"] not in ("capacity", "overloaded"):  # a close with its own code follows those
            raise CallError(event["error"])
        return str(event["type"])


class ChatLine:
    """A call over /api/chat: Ogg-Opus both ways, in real time."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        from protocols import OggOpusReader, OggOpusWriter

        self._ws = ws
        self._clock = Metronome()
        self._writer, self._reader = OggOpusWriter(RATE), OggOpusReader(RATE)
        self._rest: Pcm = np.empty(0, np.float32)
        self._sent = self._answered = 0
        self._listening: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Wait for a model that has read its prompt.

        Raises:
            CallError: it is refused.
        """
        while await self._take(Record()) != _HANDSHAKE:
            pass

    async def exchange(self, frame: Pcm, record: Record, ahead: int) -> None:
        """Send a frame when its time has come; answers are taken as they come."""
        if self._listening is None:
            self._listening = asyncio.create_task(self._listen(record))
        await self._clock.wait()
        await self._ws.send_bytes(bytes([_AUDIO]) + self._writer.encode(frame))
        self._sent += 1
        if self._listening.done():
            self._listening.result()
            raise CallError("closed by the server")

    async def finish(self, record: Record) -> None:
        """Wait a moment for what is still owed, and hang up."""
        started_s = time.monotonic()
        while self._answered < self._sent and time.monotonic() < started_s + 1.0:
            await asyncio.sleep(FRAME_S)
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        await self._ws.close()

    async def _listen(self, record: Record) -> None:
        while True:
            await self._take(record)

    async def _take(self, record: Record) -> int:
        message = await self._ws.receive(timeout=ANSWER_S)
        if message.type is not aiohttp.WSMsgType.BINARY:
            raise (FullError if self._ws.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER else CallError)(f"closed: {self._ws.close_code}")
        tag, payload = message.data[0], message.data[1:]
        if tag == _AUDIO:
            self._answered += 1
            pcm = np.concatenate([self._rest, self._reader.feed(payload, time.monotonic())])
            whole = pcm.size // FRAME * FRAME
            for start in range(0, whole, FRAME):
                record.hear(pcm[start : start + FRAME])
            self._rest = pcm[whole:]
        elif tag == _TEXT:
            record.read(self._answered - 1, payload.decode())
        return int(tag)


class Metronome:
    """Real time, frame by frame, on one grid for all callers: they speak at the same moments, which is when a step has most to do."""

    def __init__(self) -> None:
        self._next_s: float | None = None

    async def wait(self) -> None:
        """Wait until the next frame of a microphone would be complete."""
        if self._next_s is None:
            self._next_s = math.ceil(time.monotonic() / FRAME_S) * FRAME_S
        self._next_s += FRAME_S
        await asyncio.sleep(max(0.0, self._next_s - time.monotonic()))
