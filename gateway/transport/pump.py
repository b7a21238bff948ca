"""One pump for every WebSocket codec: messages -> codec -> session, and session -> codec -> messages. No wire is known here.

Three loops serve a connection: `receive` reads and pushes, `send` words and writes, `watch` looks after a peer that `receive` cannot see
because its push waits. `send` sleeps until the session has an event, somebody pokes it, or the codec's time has come; it alone writes
messages, one by one as the codec hands them out, and it pushes what the codec wants of the session without being asked. (Nothing of that
waits inside `push`, so it does no harm that `receive` may be pushing at the same time.) The one rule: whatever happens ends the *session*,
and the session's last event ends the connection; so a slot is free as soon as anybody knows that the call is over, and there is one way
out. Thread: loop; costly work of a codec is done on a pool, one call at a time for each codec.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeVar

from aiohttp import WebSocketError, WSCloseCode, WSMessage, WSMsgType, web

from gateway.errors import SessionGone
from gateway.logs import SessionAdapter
from gateway.outbox import EventStream
from gateway.session import HUNG_UP, Session
from gateway.state import SessionState
from protocols.codec import Close, Codec, CodecState, Message
from protocols.errors import CloseCode, ErrorKind, RemoteProtocolError
from protocols.events import AudioOut, ClientEvent, Ended, Failed, Reserve, ServerEvent

logger = logging.getLogger(__name__)

T = TypeVar("T")

SLOW_READER_S = 10.0  # a message that the peer has not made room for by then ends the call (DESIGN.md section 3)
CLOSE_S = 2.0  # for the close handshake, and for a peer to read our last words
TIMER_S = 0.2  # how often stuck pushes, silent peers and slots that nobody uses are looked at
PING_S, PONG_S = 20.0, 10.0  # silence after which we ping ("~20 s", specs/moshi-protocol.md section 9), and how long the answer may take
POOL_BYTES = 128  # less is encoded or decoded in less time than a hop to the pool takes

CANCELLED = Failed(kind=ErrorKind.SHUTDOWN, detail="the server is shutting down")  # nobody else cancels our tasks
_INTERNAL = Failed(kind=ErrorKind.INTERNAL, detail="internal error")


class WebSocket(web.WebSocketResponse):
    """aiohttp closes by itself when the peer breaks RFC 6455, before anybody could say why. Here the pump does."""

    _pump_closes = frozenset({WSCloseCode.PROTOCOL_ERROR, WSCloseCode.INVALID_TEXT, WSCloseCode.MESSAGE_TOO_BIG})

    def __init__(self, max_message_bytes: int, protocols: Sequence[str]) -> None:
        super().__init__(  # with a writer_limit of 0 every send waits for room
            timeout=CLOSE_S, autoping=False, compress=False, max_msg_size=max_message_bytes, writer_limit=0, protocols=protocols
        )

    async def close(self, *, code: int = WSCloseCode.OK, message: bytes = b"", drain: bool = True) -> bool:
        """Close, as aiohttp does on its own account."""
        return False if code in self._pump_closes else await super().close(code=code, message=message, drain=drain)

    async def finish(self, close: Close) -> None:
        """Close as the codec wishes, and read on until the peer has answered: unread input would reset the connection under our words."""
        await super().close(code=close.code, message=close.reason.encode())


class Pump:
    """One connection, from its upgrade on.

    Args:
        events: of the session; the slot that was reserved before the upgrade is not told again.
        pool_bytes: more of a message, or of a frame of audio, is work for the pool.
        open_s: seconds after which a slot that was reserved for a codec that cannot know is let go, if no call was opened.
    """

    def __init__(
        self,
        request: web.Request,
        websocket: WebSocket,
        codec: Codec,
        session: Session,
        events: EventStream,
        pool: Executor | None = None,
        pool_bytes: int = POOL_BYTES,
        *,
        open_s: float = math.inf,
    ) -> None:
        self._request = request
        self._websocket = websocket
        self._codec = codec
        self._session = session
        self._events = events
        self._pool = pool
        self._pool_bytes = pool_bytes
        self._log = SessionAdapter(logger, session.session_id, codec.name)
        self._loop = asyncio.get_running_loop()
        self._codec_lock = asyncio.Lock()
        self._write_lock = asyncio.Lock()  # aiohttp lets several writers wait on one future, which a time-out of one would cancel for all
        self._is_connected = False  # the codec has been told of its connection
        self._is_gone = False  # the peer hears nothing any more
        self._is_unreadable = False  # the peer broke the framing: nothing more can be read
        self._has_failed = False  # the codec let us down: only Failed is worded any more
        self._upgraded_s = self._heard_s = self._loop.time()
        self._open_s = open_s
        self._push_started_s: float | None = None
        self._wake_s = math.inf  # when the send loop looks at the codec by itself
        self._close = Close(CloseCode.INTERNAL, "internal error")  # what is said should the codec find no end

    async def run(self) -> None:
        """Pump until the session has said its last word and the connection is closed."""
        async with asyncio.TaskGroup() as group:
            helpers = [group.create_task(self._receive_loop()), group.create_task(self._watch_loop())]
            await self._send_loop()
            for helper in helpers:
                helper.cancel()  # before the close: aiohttp skips the peer's answer while somebody else reads
        await self._finish()

    # -- Receiving -------------------------------------------------------------------------------------------------------------------

    async def _receive_loop(self) -> None:
        try:
            await self._receive()
        except RemoteProtocolError as error:
            self._log.info("! %s", error)
            await self._session.close(Failed(kind=error.kind, detail=error.detail))
        except SessionGone:
            pass  # its last event says why
        except Exception:
            self._log.exception("receiving failed")
            await self._session.close(_INTERNAL)
        finally:
            await self._session.close(HUNG_UP if self._is_gone else CANCELLED)  # nobody listens to the caller any more

    async def _receive(self) -> None:
        self._is_connected = True
        opening = self._codec.connect(_query(self._request))
        if any(isinstance(event, Reserve) for event in opening):
            self._open_s = math.inf  # this codec knows what it holds
        await self._push_all(opening)
        while not self._is_gone:
            message = await self._websocket.receive()
            self._heard_s = self._loop.time()
            match message.type:
                case WSMsgType.BINARY | WSMsgType.TEXT:
                    is_costly = len(message.data) > self._pool_bytes
                    await self._push_all(await self._call(partial(self._codec.receive, message.data), is_costly=is_costly))
                    await asyncio.sleep(0)  # a peer that sends without a pause is read without one otherwise: others have their turn
                case WSMsgType.PING:
                    await self._write(message)
                case WSMsgType.PONG:
                    pass  # it was heard
                case WSMsgType.ERROR if isinstance(message.data, WebSocketError):
                    self._is_unreadable = True
                    raise _violation(message.data)
                case _:
                    self._is_gone = True

    async def _push_all(self, events: Iterable[ClientEvent]) -> None:
        if self._codec.due_s < self._wake_s:  # the codec has an answer; most audio has none
            self._events.poke()
        self._push_started_s = self._loop.time()
        try:
            for event in events:
                await self._session.push(event)
        finally:
            self._push_started_s = None
            self._heard_s = self._loop.time()  # while it waited nobody could hear the peer

    # -- Sending ---------------------------------------------------------------------------------------------------------------------

    async def _send_loop(self) -> None:
        while not self._is_gone:
            if not await self._hand_out():
                return
            event = self._events.take()
            if event is None:
                if self._events.is_over:
                    return
                await self._sleep()
                continue
            if isinstance(event, Failed):
                await self._let_peer_listen()
            if not self._is_gone and not await self._write_all(await self._word(event)):
                return

    async def _hand_out(self) -> bool:
        """Push and write what the codec has by now; return whether the connection goes on."""
        while self._is_connected and not self._is_gone and (self._events.is_over or not self._has_failed):
            try:
                due = await self._call(self._codec.due)
                for wish in due:  # before anything is written: until then the session does what it must not any more
                    if not isinstance(wish, Message):
                        await self._session.push(wish)
            except SessionGone:
                pass  # its last event says why
            except Exception:
                await self._fail("handing out")
                return True
            if not due:
                break
            if not await self._write_all(wish for wish in due if isinstance(wish, Message)):
                return False
        return True

    async def _sleep(self) -> None:
        """Wait for an event, a poke or the codec's time."""
        self._wake_s = self._codec.due_s if self._is_connected else math.inf
        if self._wake_s == math.inf:
            await self._events.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(max(self._loop.time(), self._wake_s)):
                await self._events.wait()

    async def _let_peer_listen(self) -> None:
        """Wait until this wire's clients hear what they are told. The session is over: neither it nor a slot is held meanwhile."""
        await asyncio.sleep(self._upgraded_s + self._codec.refusal_delay_s - self._loop.time())

    async def _word(self, event: ServerEvent) -> list[Message]:
        is_costly = isinstance(event, AudioOut) and event.pcm.nbytes > self._pool_bytes
        try:
            return await self._call(partial(self._send_if_legal, event), is_costly=is_costly)
        except Exception:
            if self._has_failed:
                return [self._close]
            await self._fail(f"wording {type(event).__name__}")
            return []

    async def _fail(self, what: str) -> None:
        self._log.exception("%s failed", what)
        self._has_failed = True
        await self._session.close(_INTERNAL)

    def _send_if_legal(self, event: ServerEvent, now: float) -> list[Message]:
        """Word an event; one that was on its way when the codec broke is dropped, its Failed will follow."""
        is_over = self._has_failed or self._codec.state is CodecState.ERROR
        return [] if is_over and not isinstance(event, Failed) else self._codec.send(event, now)

    async def _write_all(self, messages: Iterable[Message]) -> bool:
        """Write messages; return whether none of them was the end."""
        for message in messages:
            if isinstance(message, Close):
                self._close = message
                return False
            await self._write(message)
        return True

    async def _write(self, message: Message | WSMessage) -> None:
        """Send one message, or answer a ping; nothing when the peer is gone."""
        if self._is_gone:
            return
        try:
            async with asyncio.timeout(SLOW_READER_S), self._write_lock:
                match message:
                    case bytes():
                        await self._websocket.send_bytes(message)
                    case str():
                        await self._websocket.send_str(message)
                    case WSMessage():
                        await self._websocket.pong(message.data)
        except TimeoutError:
            await self._hang_up(Failed(kind=ErrorKind.SLOW_READER, detail=f"nothing was read for {SLOW_READER_S:g} s"))
        except ConnectionError:
            await self._hang_up(HUNG_UP)

    # -- Watching --------------------------------------------------------------------------------------------------------------------

    async def _watch_loop(self) -> None:
        """Notice a peer that is gone though nobody reads its socket, and one that is gone without a word."""
        pinged_s = 0.0
        while not self._is_gone:
            await asyncio.sleep(TIMER_S)
            now = self._loop.time()
            if self._session.state is SessionState.RESERVED and now - self._upgraded_s > self._open_s:
                await self._session.close(Failed(kind=ErrorKind.IDLE, detail=f"no call was opened within {self._open_s:g} s"))
            started_s = self._push_started_s
            if started_s is not None and now - started_s >= TIMER_S:
                await self._ping()  # the kernel of a dead peer answers with a reset, and that ends the transport
            elif now - self._heard_s > PING_S + PONG_S:
                self._log.info("! no answer to a ping for %g s", PONG_S)
                await self._hang_up(HUNG_UP)
            elif now - self._heard_s > PING_S and now - pinged_s > PING_S:
                pinged_s = now
                await self._ping()

    async def _ping(self) -> None:
        """Send a ping, unless something waits to be sent, which does the same; notice a transport that has ended."""
        try:
            if self._request.transport is None:
                raise ConnectionResetError("the connection is lost")
            if not self._request.protocol.writing_paused:
                await self._websocket.ping()
        except ConnectionError:
            await self._hang_up(HUNG_UP)

    async def _hang_up(self, last: Ended | Failed) -> None:
        """End the call of a peer that cannot be told anything any more."""
        self._is_gone = True
        await self._session.close(last)
        if self._request.transport is not None:
            self._request.transport.abort()

    # -- Both ways -------------------------------------------------------------------------------------------------------------------

    async def _call(self, function: Callable[[float], T], *, is_costly: bool = False) -> T:
        """Call the codec with the time, never twice at once; on the pool when it has much to do."""
        async with self._codec_lock:
            if is_costly and self._pool is not None:
                return await self._loop.run_in_executor(self._pool, function, self._loop.time())
            return function(self._loop.time())

    async def _finish(self) -> None:
        if self._is_gone:
            return
        try:
            async with asyncio.timeout(2 * CLOSE_S):
                if self._is_unreadable:
                    await self._finish_unread()
                else:
                    await self._websocket.finish(self._close)
        except (TimeoutError, ConnectionError):
            if self._request.transport is not None:
                self._request.transport.abort()

    async def _finish_unread(self) -> None:
        """Say goodbye to a peer whose input cannot be parsed: let it read that before the connection goes."""
        payload = self._close.code.to_bytes(2, "big") + self._close.reason.encode()
        await self._websocket.send_frame(payload, WSMsgType.CLOSE)
        while self._request.transport is not None:  # aiohttp throws away what comes in, and lets go when the peer does
            await asyncio.sleep(0.02)


# -- Private -------------------------------------------------------------------------------------------------------------------------


def _query(request: web.Request) -> Mapping[str, str]:
    return dict(request.query)


def _violation(error: WebSocketError) -> RemoteProtocolError:
    kinds: dict[int, ErrorKind] = {WSCloseCode.MESSAGE_TOO_BIG: ErrorKind.TOO_BIG, WSCloseCode.INVALID_TEXT: ErrorKind.BAD_TEXT}
    kind = kinds.get(error.code, ErrorKind.BAD_REQUEST)
    return RemoteProtocolError(kind, str(error.args[1]))  # aiohttp's own words: sizes or bits, nothing of what was sent
