"""Slots that are held before the upgrade: a full server answers with HTTP, and whoever goes meanwhile leaves nothing behind."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.app import CONNECTIONS, MANAGER
from gateway.engine.fake import FakeEngine
from gateway.errors import NoFreeSlot
from gateway.slots import SlotState
from gateway.state import SessionState
from gateway.transport import ws as transport
from protocols import moshi, rawpcm
from tests.integration.rig import Gateway, PcmCaller, RawPeer, frame, gateway, no_tracebacks, until
from tests.integration.test_cancellation import CancelAt, _stepping

CODECS = {"moshi": moshi.MoshiCodec, "rawpcm": rawpcm.RawPcmCodec}


async def _serve(request: web.Request) -> web.StreamResponse:
    app = request.app
    codec = CODECS[request.match_info["wire"]]()
    try:
        return await transport.serve(
            request, codec, app[MANAGER], app[CONNECTIONS], max_message_bytes=2**22, is_overflow_http=request.query.get("overflow") != "ws"
        )
    except NoFreeSlot as error:
        return web.json_response({"error": str(error)}, status=error.kind.http_status, headers={"Retry-After": str(error.retry_after_s)})


@contextlib.asynccontextmanager
async def held(num_slots: int = 1, *, middlewares: Any = (), is_ready: bool = True, **settings: Any) -> AsyncIterator[Gateway]:
    server = Gateway(FakeEngine(num_slots), middlewares=middlewares, **settings)
    server.app.router.add_get("/held/{wire}", _serve)
    try:
        if is_ready:
            await server.ready()
        yield server
    finally:
        await server.close()


def connect(server: Gateway, wire: str, **query: str) -> Any:
    return server.http.ws_connect(f"/held/{wire}", params=query)


def states(server: Gateway) -> list[SessionState]:
    return [session.state for session in server.app[MANAGER]._sessions.values()]


async def ask(server: Gateway) -> RawPeer:
    """Ask for an upgrade and do not wait for it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(
        b"GET /held/rawpcm HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    return RawPeer(reader, writer)


async def test_a_full_server_refuses_before_the_upgrade_and_says_when_to_come_again(caplog: pytest.LogCaptureFixture) -> None:
    async with held() as server, connect(server, "rawpcm") as ws:
        assert server.slot_states == [SlotState.PREFILL]  # from the upgrade on, before anything was asked for
        for wire in CODECS:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await connect(server, wire)
            assert refused.value.status == 503
            assert refused.value.headers is not None
            assert refused.value.headers["Retry-After"] == "5"
        assert server.ended("rawpcm", "refused") == 1
        caller = PcmCaller(ws)
        await caller.open(seed=3)
        await ws.send_bytes(frame(0.5))
        assert len(await caller.answers(1)) == 1
    no_tracebacks(caplog)


async def test_a_chat_finds_its_slot_and_is_told_nothing_of_it() -> None:
    async with held() as server, connect(server, "moshi") as ws:
        tags = [(await ws.receive_bytes(timeout=5))[0] for _ in range(2)]
        assert tags == [4, 0]


async def test_a_caller_may_wait_for_its_upgrade() -> None:
    async with held(queue_seconds=30) as server:
        async with connect(server, "rawpcm", overflow="ws") as first:
            await PcmCaller(first).open()
            waiting = asyncio.ensure_future(asyncio.shield(server.http._ws_connect("/held/rawpcm")))
            await until(lambda: SessionState.RESERVING in states(server))
            assert not waiting.done()
            await first.close()
            second = await waiting
        await PcmCaller(second).open()
        await second.close()


async def test_one_who_waits_too_long_is_refused() -> None:
    async with held(queue_seconds=0.1) as server, connect(server, "rawpcm", overflow="ws") as first:
        await PcmCaller(first).open()
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await connect(server, "rawpcm")
        assert refused.value.status == 503


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_peer_that_vanishes_while_it_waits_for_its_upgrade_is_noticed(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with held(queue_seconds=30) as server, connect(server, "rawpcm", overflow="ws") as first:
        await PcmCaller(first).open()
        peer = await ask(server)
        await until(lambda: SessionState.RESERVING in states(server))
        peer.vanish(how)
        assert await until(lambda: len(states(server)) == 1) < 1.0
        assert not server.app[MANAGER]._queue
        assert server.ended("rawpcm", "caller") == 1
        await until(lambda: server.app[CONNECTIONS]._num_open == 1)
    no_tracebacks(caplog)


async def test_a_slot_that_nobody_uses_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    async with held(idle_seconds=0.3) as server, connect(server, "rawpcm") as ws:
        caller = PcmCaller(ws)
        assert await caller.end() == (1008, "no call was opened within 0.3 s")
        assert await until(lambda: server.is_empty) < 1.0
        assert server.ended("rawpcm", "idle") == 1


async def test_a_server_that_stops_lets_those_go_who_wait() -> None:
    async with held(queue_seconds=30) as server, connect(server, "rawpcm", overflow="ws") as first:
        await PcmCaller(first).open()
        peer = await ask(server)
        await until(lambda: SessionState.RESERVING in states(server))
        server.stop.set()
        head = await peer.reader.readuntil(b"\r\n\r\n")
        assert b" 503 " in head
        peer.writer.close()


async def test_a_request_that_cannot_be_upgraded_takes_no_slot() -> None:
    async with held() as server:
        bad = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "short"}
        async with server.http.get("/held/rawpcm", headers=bad) as reply:
            assert reply.status == 400
        assert server.is_empty
        assert server.count("gateway_sessions_total", protocol="rawpcm", outcome="caller") == 0


async def test_a_handler_cancelled_at_any_await_of_its_upgrade_gives_its_slot_back(caplog: pytest.LogCaptureFixture) -> None:
    cancel = CancelAt()

    @web.middleware
    async def fault(request: web.Request, handler: Any) -> web.StreamResponse:
        return await _stepping(handler(request), cancel)

    async with held(middlewares=[fault]) as server:
        for at in range(200):
            cancel.arm(at)
            with contextlib.suppress(aiohttp.ClientError):
                async with connect(server, "rawpcm") as ws:
                    await ws.send_json({"type": "open"})
                    await ws.send_bytes(frame(0.5))
                    await ws.send_json({"type": "close"})
                    await PcmCaller(ws).end()
            await until(lambda: server.is_empty, timeout_s=2)
            if cancel.num_steps <= at:
                break
        assert 3 < at < 199
    no_tracebacks(caplog)


async def test_the_setting_holds_for_the_wires_of_the_gateway() -> None:
    async with gateway(1, overflow="http") as server, server.connect("rawpcm") as ws:
        assert server.slot_states == [SlotState.PREFILL]
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.connect("moshi")
        assert refused.value.status == 503
        await PcmCaller(ws).open()
