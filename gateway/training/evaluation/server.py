"""The gateway that is evaluated: a process started for it, or one that runs somewhere; its calls and its step times.

The one rule: a call that the server refuses because it is full or slow is placed again, whatever else it refuses is an error: the figures
must not depend on how busy the machine is. Thread: loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import math
import os
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Literal

import aiohttp
import numpy as np
from prometheus_client.parser import text_string_to_metric_families

from gateway.training.evaluation.call import Caller, Record, ScriptOf
from gateway.training.evaluation.signals import Pcm
from gateway.training.evaluation.wires import CallError, ChatLine, DuplexLine, FullError, Metronome, hold

START_S = 300.0  # the first import of torch and vLLM on a cold disk
FULL_S = 300.0  # how long a call may be refused for want of a slot
_RETRY_S = 0.5
TICKS = "gateway_tick_seconds"

Wire = Literal["duplex", "live", "chat"]  # /v1/audio/duplex at the pace of the answers, in real time; /api/chat


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """One call that is to be held.

    Attributes:
        kind: which measure it serves.
        persona: text prompt.
        voice: voice prompt.
        script: what the caller does.
        wire: how it is held.
        background: what is heard all the time.
    """

    kind: str
    persona: str
    voice: str
    script: ScriptOf
    wire: Wire = "duplex"
    background: Pcm | None = None


class Server:
    """A running gateway by its address."""

    def __init__(self, http: aiohttp.ClientSession, url: str) -> None:
        self._http = http
        self._url = url.rstrip("/")

    async def is_ready(self) -> bool:
        """Tell whether it takes calls, however slowly."""
        try:
            async with self._http.get(f"{self._url}/health") as reply:
                return reply.status == 200
        except aiohttp.ClientConnectionError:
            return False

    async def voices(self) -> list[str]:
        """Return the names of its voices."""
        async with self._http.get(f"{self._url}/v1/voices") as reply:
            return list((await reply.json())["voices"])

    async def ticks(self) -> dict[float, float]:
        """Return how many ticks took at most so many seconds, cumulative, by the upper bounds of the histogram."""
        async with self._http.get(f"{self._url}/metrics") as reply:
            families = text_string_to_metric_families(await reply.text())
        samples = (sample for family in families for sample in family.samples if sample.name == f"{TICKS}_bucket")
        return {float(sample.labels["le"]): sample.value for sample in samples}

    async def call(self, plan: Plan, seed: int) -> Record:
        """Hold one call; its seed decides what the model samples and what the caller leaves to chance.

        Raises:
            CallError: the server ended it, or stayed full.
        """
        deadline_s = time.monotonic() + FULL_S
        while True:
            try:
                return await self._hold(plan, seed)
            except FullError:
                if time.monotonic() > deadline_s:
                    raise
                await asyncio.sleep(_RETRY_S)

    async def _hold(self, plan: Plan, seed: int) -> Record:
        caller = Caller(np.random.default_rng(seed))
        is_chat = plan.wire == "chat"
        path = "/api/chat" if is_chat else "/v1/audio/duplex"
        query = {"voice_prompt": plan.voice, "text_prompt": plan.persona, "seed": str(seed)} if is_chat else {}
        async with self._http.ws_connect(self._url + path, params=query, max_msg_size=0) as ws:
            if is_chat:
                chat_line = ChatLine(ws)
                await chat_line.open()
                return await hold(chat_line, caller, plan.script, plan.background)
            line = DuplexLine(ws, Metronome() if plan.wire == "live" else None)
            await line.open(plan.voice, plan.persona, seed)
            return await hold(line, caller, plan.script, plan.background)


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Server]:
    """A gateway that runs already, or will soon.

    Raises:
        CallError: it did not become ready.
    """
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None, sock_connect=10)) as http:
        server = Server(http, url)
        deadline_s = time.monotonic() + START_S
        while not await server.is_ready():
            if time.monotonic() > deadline_s:
                raise CallError(f"{url} did not become ready")
            await asyncio.sleep(_RETRY_S)
        yield server


@contextlib.asynccontextmanager
async def started(model: str, log: Path) -> AsyncIterator[Server]:
    """A gateway of our own on a free port, its output in `log`, stopped at the end.

    Raises:
        CallError: it did not become ready.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    command = [sys.executable, "-m", "gateway", "--model", model, "--port", str(port), "--batch-size", "4"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environ, stdout=file, stderr=file)
    try:
        deadline_s = time.monotonic() + START_S
        while b"ready: " not in log.read_bytes():
            if process.poll() is not None or time.monotonic() > deadline_s:
                raise CallError(f"the gateway did not start; see {log}")
            await asyncio.sleep(0.1)
        async with connected(f"http://127.0.0.1:{port}") as server:
            yield server
    finally:
        process.terminate()
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def percentile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> tuple[float, int]:
    """Return the time that `share` of the ticks between two readings stayed below, in seconds, and their number.

    It is interpolated between the bounds of the histogram, and infinite beyond the last finite one.
    """
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = counts[math.inf]
    wanted = share * total
    low, below = 0.0, 0.0
    for bound, count in counts.items():
        if count >= wanted and count > below:
            return (math.inf if math.isinf(bound) else low + (bound - low) * (wanted - below) / (count - below)), int(total)
        low, below = bound, count
    return math.inf, int(total)
