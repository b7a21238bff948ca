"""A gateway process with the real engine and the tiny model, and callers who say a WAV file to it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray
from prometheus_client.parser import text_string_to_metric_families

from examples.wav import RATE, read_wav
from tests.helpers import MoshiClient
from tests.integration.rig import PATHS, own_environ

ROOT = Path(__file__).parent.parent.parent
FRAME = 1920
FRAME_S = FRAME / RATE
START_S = 240.0  # the first import of torch and vLLM on a cold disk; 10 s on a warm one
ANSWER_S = 60.0  # for one message, on a machine that has other things to do

Pcm = NDArray[np.float32]


def hello(seconds: float) -> Pcm:
    """A spoken "Hello.", then silence, `seconds` in all."""
    speech = read_wav(str(ROOT / "tests" / "data" / "hello.wav"))
    return np.concatenate([speech, np.zeros(round(seconds * RATE) - speech.size, np.float32)])


class RealGateway:
    """The process, its port and its log."""

    def __init__(self, log: Path, *flags: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = int(probe.getsockname()[1])
        self._log = log
        self.process = spawn(*flags, "--port", str(self.port), log=log)

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def wait_for(self, text: str, timeout_s: float = START_S) -> None:
        """Wait until the log has `text`."""
        deadline_s = time.monotonic() + timeout_s
        while text not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline_s, self.log
            time.sleep(0.05)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def url(self, protocol: str) -> str:
        return f"ws://127.0.0.1:{self.port}{PATHS[protocol]}"

    @contextlib.asynccontextmanager
    async def connect(self, protocol: str, **query: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        async with aiohttp.ClientSession() as http, http.ws_connect(self.url(protocol), params=query, max_msg_size=0) as ws:
            yield ws

    async def get(self, path: str) -> str:
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{self.port}{path}") as reply:
            return await reply.text()

    async def slots_used(self) -> int:
        return int(json.loads(await self.get("/health"))["slots"]["used"])

    async def wait_empty(self, num_used: int = 0) -> float:
        """Wait until only so many slots are taken; return how long it took."""
        started_s = time.monotonic()
        async with asyncio.timeout(ANSWER_S):
            while await self.slots_used() > num_used:
                await asyncio.sleep(0.01)
        return time.monotonic() - started_s

    async def frames_dropped(self) -> dict[tuple[str, str], float]:
        """The drop counters by (direction, reason)."""
        families = text_string_to_metric_families(await self.get("/metrics"))
        samples = (sample for family in families for sample in family.samples if sample.name == "gateway_frames_dropped_total")
        return {(sample.labels["direction"], sample.labels["reason"]): sample.value for sample in samples}


def spawn(*flags: str, log: Path) -> subprocess.Popen[bytes]:
    """Start `python -m gateway` with both its streams in `log`."""
    with log.open("wb") as file:
        return subprocess.Popen([sys.executable, "-m", "gateway", *flags], cwd=ROOT, env=own_environ(), stdout=file, stderr=file)


def running(log: Path, *flags: str) -> Iterator[RealGateway]:
    """Body of a module's fixture: a gateway with the tiny model, ready; at the end its log must be clean."""
    gateway = RealGateway(log, "--model", "tiny", *flags)
    try:
        gateway.wait_for("ready: ")
        yield gateway
        assert "Traceback" not in gateway.log
        assert " ERROR " not in gateway.log
    finally:
        gateway.kill()


# -- The PCM wire --------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Call:
    """What a caller of `/v1/audio/duplex` has been told."""

    frames: list[Pcm] = dataclasses.field(default_factory=list)
    events: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    code: int | None = None

    @property
    def pcm(self) -> Pcm:
        return np.concatenate([np.empty(0, np.float32), *self.frames])

    @property
    def text(self) -> str:
        return "".join(event["text"] for event in self.events if event["type"] == "text")

    @property
    def errors(self) -> list[str]:
        return [str(event) for event in self.events if event["type"] in ("error", "warning")]

    async def read(self, ws: aiohttp.ClientWebSocketResponse) -> str:
        """Take one message; return its type: an event's, "audio" or "close"."""
        message = await ws.receive(timeout=ANSWER_S)
        match message.type:
            case aiohttp.WSMsgType.BINARY:
                self.frames.append(np.frombuffer(message.data, "<f4"))
                return "audio"
            case aiohttp.WSMsgType.TEXT:
                self.events.append(json.loads(message.data))
                return str(self.events[-1]["type"])
            case aiohttp.WSMsgType.CLOSE:
                self.code = message.data
        return "close"

    async def open(self, ws: aiohttp.ClientWebSocketResponse, **fields: Any) -> dict[str, Any]:
        """Open the call; return `ready`."""
        await ws.send_json({"type": "open", **fields})
        while (kind := await self.read(ws)) != "ready":
            assert kind != "close", self
        return self.events[-1]

    async def say(self, ws: aiohttp.ClientWebSocketResponse, pcm: Pcm, *, is_paced: bool = False) -> None:
        """Say everything, in real time if paced, and listen to the end."""

        async def send() -> None:
            started_s = time.monotonic()
            for start in range(0, pcm.size, FRAME):
                if is_paced:
                    await asyncio.sleep(started_s + start / RATE + FRAME_S - time.monotonic())
                await ws.send_bytes(pcm[start : start + FRAME].tobytes())
            await ws.send_json({"type": "close"})

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            while await self.read(ws) != "close":
                pass


async def converse(gateway: RealGateway, pcm: Pcm, **fields: Any) -> Call:
    """Hold one whole script call, alone."""
    await gateway.wait_empty()  # whose step times would count against this caller as long as they are there
    call = Call()
    async with gateway.connect("rawpcm") as ws:
        await call.open(ws, **fields)
        await call.say(ws, pcm)
    assert (call.code, call.errors) == (1000, [])
    return call


# -- The Moshi wire ------------------------------------------------------------------------------------------------------------------


class ChatCall:
    """A caller of `/api/chat` and what came, message by message."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.client = MoshiClient()
        self.num_audio = 0  # messages, that is frames
        self.code: int | None = None

    async def read(self) -> bool:
        """Take one message; return whether it was not the end."""
        message = await self.ws.receive(timeout=ANSWER_S)
        if message.type is not aiohttp.WSMsgType.BINARY:
            self.code = message.data if message.type is aiohttp.WSMsgType.CLOSE else self.ws.close_code
            return False
        self.num_audio += message.data[:1] == b"\x01"
        self.client.take([message.data])
        return True

    async def open(self) -> None:
        """Wait for the handshake."""
        while not self.client.handshakes:
            assert await self.read(), self.client.errors

    async def say(self, pcm: Pcm) -> None:
        """Say everything in real time, and listen until every frame is answered."""
        num_frames = pcm.size // FRAME

        async def send() -> None:
            started_s = time.monotonic()
            for idx in range(num_frames):
                await asyncio.sleep(started_s + (idx + 1) * FRAME_S - time.monotonic())
                await self.ws.send_bytes(self.client.say(pcm[idx * FRAME : (idx + 1) * FRAME]))

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            while self.num_audio < num_frames:
                assert await self.read(), self.client.errors
