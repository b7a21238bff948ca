"""A real gateway on a real port around a FakeEngine, and peers that behave, misbehave and vanish."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import aiohttp
import numpy as np
from numpy.typing import NDArray

from gateway.app import MANAGER, METRICS, SLOTS, make_app, run_app, tls_context
from gateway.config import Config
from gateway.engine.fake import FakeEngine
from gateway.manager import Health
from gateway.slots import SlotState

PATHS = {"moshi": "/api/chat", "rawpcm": "/v1/audio/duplex"}
FRAME = 1920
LONG_PERSONA = " ".join(["word"] * 500)  # 500 rows of prompt


class Gateway:
    """The application, its engine and what a test asks of them."""

    def __init__(self, engine: FakeEngine, *, middlewares: Sequence[Any] = (), **settings: Any) -> None:
        self.engine = engine
        self.config = Config(batch_size=engine._info.num_slots, drain_seconds=settings.pop("drain_seconds", 0), **settings)
        self.app = make_app(self.config, engine)
        self.app.middlewares.extend(middlewares)
        self.stop = asyncio.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        scheme, tls = ("http", True) if self.config.ssl is None else ("https", False)  # of a certificate that nobody has signed
        self.http = aiohttp.ClientSession(f"{scheme}://127.0.0.1:{self.port}", connector=aiohttp.TCPConnector(ssl=tls))
        self.running = asyncio.create_task(run_app(self.app, self.listener, self.stop, tls=tls_context(self.config)))

    async def ready(self) -> None:
        await until(lambda: self.app[MANAGER].health is not Health.LOADING or self.running.done(), timeout_s=20)
        if self.running.done():
            await self.running

    async def close(self) -> None:
        self.stop.set()
        await self.http.close()
        with contextlib.suppress(Exception):
            await self.running

    def connect(self, protocol: str, **query: str) -> Any:
        """A well-behaved WebSocket client, as an async context manager."""
        return self.http.ws_connect(PATHS[protocol], params=query, max_msg_size=0)

    def count(self, name: str, **labels: str) -> float:
        """Value of a metric."""
        return self.app[METRICS].registry.get_sample_value(name, labels) or 0.0

    def ended(self, protocol: str, outcome: str) -> float:
        """Number of sessions that ended so."""
        return self.count("gateway_sessions_total", protocol=protocol, outcome=outcome)

    @property
    def slot_states(self) -> list[SlotState]:
        return [slot.state for slot in self.app[SLOTS].slots]

    @property
    def is_empty(self) -> bool:
        """No session, and every slot free."""
        return self.app[MANAGER].num_sessions == 0 and set(self.slot_states) == {SlotState.IDLE}


@contextlib.asynccontextmanager
async def gateway(
    num_slots: int = 4, *, engine: dict[str, Any] | None = None, is_ready: bool = True, **settings: Any
) -> AsyncIterator[Gateway]:
    """A gateway, ready for callers unless told otherwise."""
    server = Gateway(FakeEngine(num_slots, **(engine or {})), **settings)
    try:
        if is_ready:
            await server.ready()
        yield server
    finally:
        await server.close()


async def until(is_true: Callable[[], bool], *, timeout_s: float = 5.0) -> float:
    """Wait for a fact; return how long it took."""
    started_s = time.monotonic()
    async with asyncio.timeout(timeout_s):
        while not is_true():
            await asyncio.sleep(0.005)
    return time.monotonic() - started_s


# -- The PCM wire --------------------------------------------------------------------------------------------------------------------


class PcmCaller:
    """A client of `/v1/audio/duplex` that remembers what it is told."""

    def __init__(self, ws: aiohttp.ClientWebSocketResponse) -> None:
        self.ws = ws
        self.frames: list[NDArray[np.float32]] = []
        self.events: list[dict[str, Any]] = []

    async def open(self, **fields: Any) -> dict[str, Any]:
        """Open the call; return `ready`."""
        await self.ws.send_json({"type": "open", **fields})
        return await self.event("ready")

    async def event(self, kind: str) -> dict[str, Any]:
        """Read up to an event of this kind."""
        while True:
            await self.read()
            if self.events and self.events[-1]["type"] == kind:
                return self.events[-1]

    async def answers(self, num_frames: int) -> list[NDArray[np.float32]]:
        """Read up to so many frames in all."""
        while len(self.frames) < num_frames:
            await self.read()
        return self.frames

    async def read(self) -> None:
        """Take one message, which must not be the end."""
        message = await self.ws.receive(timeout=5)
        if message.type is aiohttp.WSMsgType.BINARY:
            self.frames.append(np.frombuffer(message.data, "<f4"))
        else:
            assert message.type is aiohttp.WSMsgType.TEXT, message
            self.events.append(json.loads(message.data))

    async def end(self) -> tuple[int | None, str]:
        """Read to the close; return its code and reason."""
        while True:
            message = await self.ws.receive(timeout=5)
            if message.type is aiohttp.WSMsgType.CLOSE:
                return message.data, message.extra or ""
            if message.type is aiohttp.WSMsgType.TEXT:
                self.events.append(json.loads(message.data))
            elif message.type is aiohttp.WSMsgType.BINARY:
                self.frames.append(np.frombuffer(message.data, "<f4"))
            else:
                return self.ws.close_code, ""


async def read_chat(ws: aiohttp.ClientWebSocketResponse) -> tuple[list[bytes], int | None, str]:
    """Read `/api/chat` to its close: messages, code, reason."""
    messages: list[bytes] = []
    while True:
        message = await ws.receive(timeout=5)
        if message.type is aiohttp.WSMsgType.BINARY:
            messages.append(message.data)
        elif message.type is aiohttp.WSMsgType.CLOSE:
            return messages, message.data, message.extra or ""
        else:
            return messages, ws.close_code, ""


def frame(value: float, num_frames: int = 1) -> bytes:
    """Constant audio as the PCM wire wants it."""
    return np.full(FRAME * num_frames, value, "<f4").tobytes()


# -- A peer without manners ----------------------------------------------------------------------------------------------------------


class RawPeer:
    """A WebSocket client of one's own making, on a plain socket: it can be rude."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, target: str, *, receive_buffer: int | None = None) -> RawPeer:
        peer = socket.socket()
        if receive_buffer is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=peer, limit=4096)
        writer.write(
            f"GET {target} HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        head = await reader.readuntil(b"\r\n\r\n")
        assert b" 101 " in head, head
        return cls(reader, writer)

    def send(self, payload: bytes | str, *, opcode: int | None = None, claim: int | None = None) -> None:
        """Send one message, or the beginning of one that claims to have `claim` bytes."""
        data = payload.encode() if isinstance(payload, str) else payload
        opcode = opcode if opcode is not None else 1 if isinstance(payload, str) else 2
        length = len(data) if claim is None else claim
        head = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, length) if length > 125 else bytes([0x80 | opcode, 0x80 | length])
        self.writer.write(head + bytes(4) + data)  # a mask of zeros

    async def message(self) -> tuple[int, bytes]:
        """Read one message of the server: opcode, payload."""
        first, length = await self.reader.readexactly(2)
        if length == 126:
            (length,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif length == 127:
            (length,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return first & 15, await self.reader.readexactly(length)

    async def opcodes_to_the_end(self) -> list[int]:
        """Read messages until the connection is cut."""
        opcodes: list[int] = []
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                opcodes.append((await self.message())[0])
        return opcodes

    def vanish(self, how: str) -> None:
        """Go in one of the ways in which peers go."""
        match how:
            case "close frame":
                self.send(struct.pack("!H", 1001), opcode=8)
                self.writer.close()
            case "fin":
                self.writer.close()
            case "reset":
                peer = self.writer.get_extra_info("socket")
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.writer.transport.abort()
            case "half a frame":
                self.send(b"\x01abc", claim=1000)
                self.writer.close()


WAYS_TO_VANISH = ("close frame", "fin", "reset", "half a frame")


def no_tracebacks(caplog: Any) -> None:
    """Assert that the log has no traceback and nothing that somebody must act on."""
    assert [record.getMessage() for record in caplog.records if record.exc_info or record.levelname in ("ERROR", "CRITICAL")] == []


def own_environ() -> dict[str, str]:
    """This process's environment without the gateway's settings, and with the repository on the path."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GATEWAY_")}
    return {**kept, "PYTHONPATH": os.pathsep.join([root, os.path.join(root, "tests")])}
