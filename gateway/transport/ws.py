"""The way of a WebSocket through the gateway: counted, given a slot if that must be known before the upgrade, upgraded, pumped, closed.

No wire is known here. The one rule: a session is opened before anything is awaited and closed in a `finally`, so a peer that goes, or a
task that is cancelled, at whatever moment of the wait or the upgrade leaves nothing behind. Thread: loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor

from aiohttp import web

from gateway.errors import NoFreeSlot
from gateway.manager import SessionManager
from gateway.outbox import EventStream
from gateway.session import HUNG_UP, Session
from gateway.transport.pump import CANCELLED, POOL_BYTES, Pump, WebSocket
from protocols.codec import Codec
from protocols.events import Failed, Reserve, Reserved

HELD_TIMER_S = 0.2  # how often a peer that waits for its upgrade is looked at
# Small buffers, so that a peer that does not read is noticed while its audio is still PCM and can be dropped; 32 KiB are 4 frames of PCM.
SEND_BUFFER_BYTES = 32 * 1024  # in the kernel
WRITE_BUFFER_BYTES = 16 * 1024  # in this process
RETRY_AFTER_S = "5"  # of a refused connection


class Connections:
    """Counts the WebSockets that are open, whatever their sessions do: strangers cannot take every file descriptor."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_open = 0

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Count one connection.

        Raises:
            HTTPServiceUnavailable: there are too many.
        """
        if self._num_open >= self._limit:
            raise web.HTTPServiceUnavailable(text="too many connections are open", headers={"Retry-After": RETRY_AFTER_S})
        self._num_open += 1
        try:
            yield
        finally:
            self._num_open -= 1


async def serve(
    request: web.Request,
    codec: Codec,
    manager: SessionManager,
    connections: Connections,
    *,
    max_message_bytes: int,
    pool: Executor | None = None,
    pool_bytes: int = POOL_BYTES,
    protocols: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
    subscribe: Callable[[Callable[[], None]], None] | None = None,
    is_overflow_http: bool = False,
) -> web.StreamResponse:
    """Hold one connection from its upgrade to its end.

    Args:
        pool: where the codec's costly work is done; None does it on the loop, for codecs that hardly work.
        pool_bytes: a message, or a frame of audio, of more bytes than these is work for the pool.
        protocols: subprotocols; the first that the client offers too is selected.
        headers: of the answer to the upgrade.
        subscribe: is given a function to be called, on the loop, when the codec has something to hand out that no event brought.
        is_overflow_http: hold a slot before the upgrade, or raise.

    Raises:
        HTTPException: no upgrade: too many connections, or a request that cannot be upgraded.
        NoFreeSlot: no upgrade, for there is no slot; only with `is_overflow_http`.
    """
    with connections.take():
        websocket = WebSocket(max_message_bytes, protocols)
        websocket.headers.update(headers or {})
        if not websocket.can_prepare(request):
            await websocket.prepare(request)  # raises, with what is wrong
        session = manager.open_session(codec.name, codec.faults)
        try:
            events = session.events()
            if not await _upgrade(request, websocket, session, events, is_overflow_http):
                return web.Response(status=400)  # nobody reads it; a WebSocket that was never one cannot be returned
            if subscribe is not None:
                subscribe(events.poke)
            open_s = manager.open_s if is_overflow_http else math.inf
            await Pump(request, websocket, codec, session, events, pool, pool_bytes, open_s=open_s).run()
        finally:
            await session.close(CANCELLED)  # otherwise it has ended by now
    return websocket


# -- Private -------------------------------------------------------------------------------------------------------------------------


async def _upgrade(request: web.Request, websocket: WebSocket, session: Session, events: EventStream, is_overflow_http: bool) -> bool:
    """Upgrade, with a slot in hand if that is asked for; return whether the peer is still there.

    Raises:
        NoFreeSlot: there is no slot.
    """
    try:
        if is_overflow_http:
            await session.push(Reserve())
            await _wait_reserved(request, session, events)
        _limit_buffers(request)
        await websocket.prepare(request)
    except ConnectionError:
        await session.close(HUNG_UP)
        return False
    return True


async def _wait_reserved(request: web.Request, session: Session, events: EventStream) -> None:
    """Wait for the answer to Reserve. aiohttp does not cancel the handler of a peer that goes meanwhile: it is looked for.

    Raises:
        NoFreeSlot: there is no slot.
        ConnectionResetError: nobody waits any more.
    """
    while True:
        match events.take():
            case Reserved():
                return
            case Failed() as failed:
                raise session.refusal or NoFreeSlot(failed.kind, failed.detail)
            case None:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(HELD_TIMER_S):
                        await events.wait()
        if request.transport is None:
            raise ConnectionResetError("the connection is lost")


def _limit_buffers(request: web.Request) -> None:
    """Keep little of what the peer has not read. aiohttp has set TCP_NODELAY already: a frame leaves as soon as it exists."""
    transport = request.transport
    if transport is None:
        return
    transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
    peer: socket.socket | None = transport.get_extra_info("socket")
    if peer is not None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
