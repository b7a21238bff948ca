"""The pump with a codec that keeps a queue, wants things at its own time and is told of them by others."""

import asyncio
import contextlib
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import aiohttp
import pytest
from aiohttp import web

from gateway.app import CONNECTIONS, MANAGER
from gateway.engine.fake import FakeEngine
from gateway.transport import ws as transport
from protocols.codec import Close, CodecState, Message
from protocols.errors import CloseCode, ErrorKind
from protocols.events import AudioOut, Cancel, ClientEvent, Clock, Ended, Failed, HangUp, Heard, Open, Reprime, Reserve, ServerEvent
from tests.integration.rig import Gateway, no_tracebacks, until

POOL_BYTES = 1000


class QueueCodec:
    """Says what it is told, one message at a time, and does what its caller's messages say."""

    name: ClassVar[str] = "queue"
    refusal_delay_s: ClassVar[float] = 0.0

    def __init__(self) -> None:
        self.state = CodecState.OPENING
        self.queue: deque[Message | ClientEvent] = deque()
        self.at: list[tuple[float, Message | ClientEvent]] = []
        self.seen: list[ServerEvent] = []
        self.threads: dict[str, str] = {}
        self.num_due = 0
        self.breaks = ""

    @property
    def due_s(self) -> float:
        return -math.inf if self.queue or self.breaks else min((at for at, _ in self.at), default=math.inf)

    def connect(self, query: Mapping[str, str]) -> list[ClientEvent]:
        self.queue.append("connected")
        return [Reserve()]

    def receive(self, message: bytes | str, now: float) -> list[ClientEvent]:
        assert isinstance(message, str)
        word, _, rest = message.partition(" ")
        self.threads[word] = threading.current_thread().name
        match word:
            case "say":
                self.queue.extend(rest.split())
            case "later":
                self.at.append((now + float(rest), "now"))
            case "hang-up-later":
                self.at.append((now + float(rest), HangUp(kind=ErrorKind.IDLE, detail="it is late")))
            case "cut":
                self.queue.extend([Cancel(steer_frames=2), "cut"])
            case "open":
                return [Open(clock=Clock.REALTIME)]
            case "illegal":
                self.queue.append(Reprime())
            case "break":
                self.breaks = rest
        return []

    def send(self, event: ServerEvent, now: float) -> list[Message]:
        if self.breaks == "send" and not isinstance(event, Failed):
            raise ZeroDivisionError
        self.seen.append(event)
        if isinstance(event, AudioOut):
            self.threads["audio"] = threading.current_thread().name
        if isinstance(event, Ended | Failed):
            self.state = CodecState.CLOSED
            self.queue.extend(["goodbye", Close(CloseCode.GOING_AWAY, "goodbye")])
        elif not isinstance(event, AudioOut | Heard):
            self.queue.append(type(event).__name__)
        return []

    def due(self, now: float) -> list[Message | ClientEvent]:
        self.num_due += 1
        if self.breaks == "due":
            self.breaks = ""
            raise ZeroDivisionError
        self.queue.extend(wish for at, wish in self.at if at <= now)
        self.at = [(at, wish) for at, wish in self.at if at > now]
        return [self.queue.popleft()] if self.queue else []

    def faults(self) -> Mapping[str, int]:
        return {}


class Line:
    """A gateway with one route for such codecs, and the codec of its last connection."""

    def __init__(self, num_slots: int, **options: Any) -> None:
        self.server = Gateway(FakeEngine(num_slots))
        self.server.app.router.add_get("/queue", self._serve)
        self.pool = ThreadPoolExecutor(1, thread_name_prefix="pool")
        self.options = options
        self.codec = QueueCodec()
        self.wake: Callable[[], None] | None = None

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        self.codec = QueueCodec()
        app = self.server.app
        return await transport.serve(
            request,
            self.codec,
            app[MANAGER],
            app[CONNECTIONS],
            max_message_bytes=100_000,
            pool=self.pool,
            pool_bytes=POOL_BYTES,
            subscribe=lambda wake: setattr(self, "wake", wake),
            **self.options,
        )

    def connect(self, **options: Any) -> Any:
        return self.server.http.ws_connect("/queue", **options)


@contextlib.asynccontextmanager
async def line(num_slots: int = 1, **options: Any) -> AsyncIterator[Line]:
    held = Line(num_slots, **options)
    try:
        await held.server.ready()
        yield held
    finally:
        await held.server.close()
        held.pool.shutdown()


async def words(ws: aiohttp.ClientWebSocketResponse, num_words: int) -> list[str]:
    return [await ws.receive_str(timeout=5) for _ in range(num_words)]


async def close_of(ws: aiohttp.ClientWebSocketResponse) -> tuple[int | None, list[str]]:
    """Read to the close: its code, and what came before."""
    said: list[str] = []
    while (message := await ws.receive(timeout=5)).type is aiohttp.WSMsgType.TEXT:
        said.append(message.data)
    return (message.data if message.type is aiohttp.WSMsgType.CLOSE else ws.close_code), said


async def test_what_a_codec_queues_is_written_in_order_without_any_event(caplog: pytest.LogCaptureFixture) -> None:
    async with line() as held, held.connect() as ws:
        assert await words(ws, 2) == ["connected", "Reserved"]
        await ws.send_str("say one two three four")
        assert await words(ws, 4) == ["one", "two", "three", "four"]
        await ws.send_str("open")
        assert await words(ws, 1) == ["Ready"]
        await until(lambda: any(isinstance(event, Heard) for event in held.codec.seen))
    no_tracebacks(caplog)


async def test_a_codec_is_asked_at_its_time_and_not_before() -> None:
    async with line() as held, held.connect() as ws:
        await words(ws, 2)
        await ws.send_str("later 0.15")
        await until(lambda: bool(held.codec.at))
        due_s = held.codec.due_s
        assert await words(ws, 1) == ["now"]
        assert asyncio.get_running_loop().time() > due_s - 1e-3
        await asyncio.sleep(0.05)  # until nothing is left to do
        num_due = held.codec.num_due
        await asyncio.sleep(0.5)
        assert held.codec.num_due == num_due  # nobody polls


async def test_what_a_codec_wants_of_the_session_at_its_time_is_pushed(caplog: pytest.LogCaptureFixture) -> None:
    async with line() as held, held.connect() as ws:
        await ws.send_str("open")
        await words(ws, 3)
        await ws.send_str("cut")
        assert await words(ws, 1) == ["cut"]
        await until(lambda: any(isinstance(event, AudioOut) for event in held.codec.seen))
        first = next(event for event in held.codec.seen if isinstance(event, AudioOut))
        assert first.epoch == 2  # claimed, and cut before its first frame
        await ws.send_str("hang-up-later 0.05")
        assert await close_of(ws) == (1001, ["goodbye"])
        assert held.codec.seen[-1] == Failed(kind=ErrorKind.IDLE, detail="it is late")
        await until(lambda: held.server.is_empty)
    no_tracebacks(caplog)


async def test_others_can_wake_the_pump() -> None:
    async with line() as held, held.connect() as ws:
        await words(ws, 2)
        held.codec.queue.append("found")
        assert held.wake is not None
        held.wake()
        assert await words(ws, 1) == ["found"]


async def test_what_is_large_is_work_for_the_pool() -> None:
    async with line() as held, held.connect() as ws:
        await ws.send_str("small")
        await ws.send_str("large " + "x" * POOL_BYTES)
        await ws.send_str("open")
        await until(lambda: "audio" in held.codec.threads)
        assert held.codec.threads["small"] == "MainThread"
        assert held.codec.threads["large"].startswith("pool")
        assert held.codec.threads["audio"].startswith("pool")  # a frame has 7680 bytes


async def test_a_subprotocol_is_selected_and_headers_are_added() -> None:
    async with line(protocols=("realtime",), headers={"X-Request-Id": "r1"}) as held:
        async with held.connect(protocols=("other", "realtime")) as ws:
            assert ws.protocol == "realtime"
            assert ws._response.headers["X-Request-Id"] == "r1"
        async with held.connect() as ws:
            assert ws.protocol is None


@pytest.mark.parametrize("what", ["break due", "break send", "illegal"])
async def test_a_codec_that_breaks_ends_its_call_as_our_fault(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async with line() as held, held.connect() as ws:
        await words(ws, 2)
        await ws.send_str(what)
        with contextlib.suppress(ConnectionError):
            await ws.send_str("open")
        _, said = await close_of(ws)
        assert said[-1] == "goodbye"
        assert isinstance(held.codec.seen[-1], Failed)
        assert held.codec.seen[-1].kind is ErrorKind.INTERNAL
        await until(lambda: held.server.is_empty)
    assert [record.getMessage() for record in caplog.records if record.exc_info] != []
