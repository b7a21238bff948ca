"""What every Python driver has: a microphone in real time, orders on standard input, reports on standard output.

A driver runs in its client's own environment, so this module needs the standard library only, 3.11 and up. An order is a JSON line with a
`do`; `say` with a WAV file is the microphone's (it sends silence otherwise), `quit` ends the driver, all others are the driver's own. A
report is a JSON line with a `what`: what the client's own API told its user. Thread: loop.
"""

from __future__ import annotations

import array
import asyncio
import base64
import contextlib
import json
import sys
import time
import wave
from collections.abc import Awaitable, Callable
from typing import Any

RATE = 24_000
CHUNK_S = 0.04
CHUNK_BYTES = int(RATE * CHUNK_S) * 2

Order = dict[str, Any]


def report(what: str, **fields: Any) -> None:
    """Tell the test one thing."""
    print(json.dumps({"what": what, **fields}), flush=True)


def report_audio(pcm: bytes, **fields: Any) -> None:
    """Tell the test that the client has handed out audio."""
    report("audio", pcm=base64.b64encode(pcm).decode(), **fields)


def read_pcm(path: str) -> bytes:
    """16-bit mono PCM of a WAV file at the microphone's rate."""
    with wave.open(path, "rb") as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (RATE, 1, 2), path
        return file.readframes(file.getnframes())


def resampled(pcm: bytes, rate: int) -> bytes:
    """The nearest samples at another rate, for clients whose microphone has one of its own."""
    samples = array.array("h", pcm)
    return array.array("h", (samples[idx * RATE // rate] for idx in range(len(samples) * rate // RATE))).tobytes()


class Stage:
    """The microphone and the orders of one run."""

    def __init__(self) -> None:
        self._speech = bytearray()
        self._is_muted = False
        self._ended = asyncio.Event()

    async def microphone(self, send: Callable[[bytes], Awaitable[Any]]) -> None:
        """Hand 40 ms of PCM at a time to `send`, in real time, for ever."""
        due_s = time.monotonic()
        while True:
            chunk = bytes(self._speech[:CHUNK_BYTES])
            del self._speech[:CHUNK_BYTES]
            if not self._is_muted:
                await send(chunk.ljust(CHUNK_BYTES, b"\0"))
            due_s += CHUNK_S
            await asyncio.sleep(due_s - time.monotonic())

    async def orders(self, act: Callable[[Order], Awaitable[Any]]) -> None:
        """Carry out the orders until `quit` or the end of standard input."""
        reader = asyncio.StreamReader(limit=2**24)
        await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while line := await reader.readline():
            order = json.loads(line)
            match order["do"]:
                case "quit":
                    return
                case "say":
                    self._speech += read_pcm(order["file"])
                case "mute":
                    self._is_muted = order["is_muted"]
                case _:
                    await act(order)

    async def run(self, *works: Awaitable[Any], act: Callable[[Order], Awaitable[Any]], send: Callable[[bytes], Awaitable[Any]]) -> None:
        """Run the client's own work, the microphone and the orders; the first of them that ends or fails ends all, reported."""
        tasks = [asyncio.ensure_future(work) for work in (*works, self.microphone(send), self.orders(act))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if error := task.exception():
                    report("failed", error=type(error).__name__, detail=str(error), code=_close_code(error))
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*tasks, return_exceptions=True)


def _close_code(error: BaseException) -> int | None:
    received = getattr(error, "rcvd", None)  # of the websockets package
    return getattr(received, "code", None)


def refusal(error: BaseException) -> None:
    """Report that the client did not connect, with the HTTP status if it tells one."""
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None) or getattr(error, "status", None)
    report("refused", error=type(error).__name__, detail=str(error), status=status)
