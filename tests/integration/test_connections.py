"""Connections beside their calls: how many there may be, how long one may wait, and when a refused peer can hear why."""

import asyncio
import logging
import time

import aiohttp
import numpy as np
import pytest

from gateway import app as gateway_app
from gateway.session import Session
from protocols.events import ClientEvent, Rejected
from protocols.moshi import REFUSAL_DELAY_S
from tests.helpers import capture
from tests.integration.rig import PATHS, PcmCaller, RawPeer, frame, gateway, no_tracebacks, read_chat, until


@pytest.mark.parametrize("query", [{}, {"voice_prompt": "nobody"}, {"seed": "-2"}], ids=["full", "unknown voice", "bad number"])
async def test_a_refused_chat_hears_why_when_its_page_listens_and_holds_nothing_meanwhile(query: dict[str, str]) -> None:
    """The official web page attaches its listeners after a rendering: what comes right after the upgrade it never shows."""
    async with gateway(1) as server:
        holder = await server.connect("moshi") if not query else None
        if holder is not None:
            assert (await holder.receive_bytes(timeout=5))[:1] == b"\x04"
        async with server.connect("moshi", **query) as ws:
            upgraded_s = time.monotonic()
            await until(lambda: server.ended("moshi", "client_error" if query else "refused") == 1)
            assert time.monotonic() - upgraded_s < REFUSAL_DELAY_S / 2
            assert server.is_empty or holder is not None
            await ws.send_bytes(capture("web_audio_40ms"))  # nobody is hurt by a peer that talks meanwhile
            messages, code, _ = await read_chat(ws)
            assert time.monotonic() - upgraded_s > 0.9 * REFUSAL_DELAY_S
        assert [message[:1] for message in messages] == [b"\x05", b"\x02"]
        assert code in (1008, 1013)


async def test_an_admitted_chat_and_a_refused_script_do_not_wait() -> None:
    async with gateway(1) as server:
        started_s = time.monotonic()
        async with server.connect("moshi") as ws:
            assert [(await ws.receive_bytes(timeout=5))[:1] for _ in range(2)] == [b"\x04", b"\x00"]
            async with server.connect("rawpcm") as other:
                await other.send_json({"type": "open"})
                assert (await PcmCaller(other).end())[0] == 1013
        assert time.monotonic() - started_s < REFUSAL_DELAY_S


@pytest.mark.parametrize("how", ["close frame", "reset"])
async def test_a_peer_that_vanishes_before_it_is_refused_leaves_nothing_behind(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        peer = await RawPeer.connect(server.port, f"{PATHS['moshi']}?voice_prompt=nobody")
        await until(lambda: server.ended("moshi", "client_error") == 1)
        peer.vanish(how)
        await until(lambda: server.app[gateway_app.CONNECTIONS]._num_open == 0, timeout_s=2)
    no_tracebacks(caplog)


async def test_too_many_connections_are_refused_before_the_upgrade(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_app, "SPARE_CONNECTIONS", 1)
    async with gateway(1) as server:
        opened = [await server.connect("rawpcm") for _ in range(3)]  # one slot, one that may wait, one to spare
        for protocol in PATHS:
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await server.connect(protocol)
            assert refused.value.status == 503
            assert refused.value.headers is not None
            assert int(refused.value.headers["Retry-After"]) > 0
        async with server.http.get(PATHS["moshi"], headers={"Upgrade": "websocket"}) as reply:
            assert await reply.json() == {"error": "too many connections are open"}
        async with server.http.get("/health") as reply:
            assert reply.status == 200
        await opened.pop().close()
        bad = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "short"}
        for _ in range(3):  # what is not upgraded is not counted for long
            async with server.http.get(PATHS["moshi"], headers=bad) as reply:
                assert reply.status == 400
        caller = PcmCaller(await server.connect("rawpcm"))
        await caller.open()
        for ws in (*opened, caller.ws):
            await ws.close()


async def test_a_socket_that_opens_no_call_is_let_go_with_a_reason() -> None:
    async with gateway(1, idle_seconds=0.2) as server, server.connect("rawpcm") as ws:  # below the 10 s that it has otherwise
        caller = PcmCaller(ws)
        assert await caller.end() == (1008, "no call was opened within 0.2 s")
        assert caller.events == [{"type": "error", "error": "no call was opened within 0.2 s", "code": "idle_timeout"}]
        await until(lambda: server.ended("rawpcm", "idle") == 1)


async def test_a_live_caller_that_sends_minutes_at_once_gets_through_what_its_inbox_holds(caplog: pytest.LogCaptureFixture) -> None:
    """Each message of 4 MiB used to be cut into 546 frames, 20 ms of the loop in one go."""
    message = frame(0.5, 500)
    async with gateway(2) as server, server.connect("rawpcm", pacing="live") as ws:
        await PcmCaller(ws).open()
        for _ in range(5):
            await ws.send_bytes(message)
        await until(lambda: server.count("gateway_frames_dropped_total", direction="in", reason="backlog") >= 5 * (500 - 12))
        (session,) = server.app[gateway_app.MANAGER]._sessions.values()
        assert session.frames_in == 5 * 12
    no_tracebacks(caplog)


async def test_others_have_their_turn_between_two_messages_of_a_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = 0
    turns_at: list[int] = []
    push = Session.push

    async def watched(self: Session, event: ClientEvent) -> None:
        if isinstance(event, Rejected):
            turns_at.append(turns)
        await push(self, event)

    monkeypatch.setattr(Session, "push", watched)
    async with gateway(1) as server:
        peer = await RawPeer.connect(server.port, PATHS["rawpcm"])
        for _ in range(50):
            peer.send("{")
        while len(turns_at) < 50:
            turns += 1
            await asyncio.sleep(0)
        assert len(set(turns_at)) == 50
        peer.vanish("fin")


async def test_what_a_chat_sent_that_could_not_be_used_is_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.session")
    async with gateway(1) as server, server.connect("moshi") as ws:
        for _ in range(2):
            await ws.receive_bytes(timeout=5)
        await ws.send_bytes(capture("web_audio_40ms"))
        await ws.send_bytes(b"\x01" + np.random.default_rng(0).bytes(300))
        await ws.close()
        await until(lambda: server.is_empty)
    (line,) = [message for message in caplog.messages if message.startswith("closed")]
    assert line.endswith("dropped none, 300 discarded bytes")
