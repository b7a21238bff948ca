"""Peers that vanish, in every state and in every way: the slot is free within a second, nobody else loses a frame, the log stays calm."""

import asyncio
import json
import logging

import pytest

from gateway.app import MANAGER
from gateway.slots import SlotState
from gateway.state import SessionState
from tests.helpers import MoshiClient, tone
from tests.integration.rig import (
    LONG_PERSONA,
    PATHS,
    WAYS_TO_VANISH,
    Gateway,
    PcmCaller,
    RawPeer,
    frame,
    gateway,
    no_tracebacks,
    until,
)

SLOW_PREFILL = {"prefill_rows": 1, "step_seconds": 0.01}  # 500 rows take 5 s


def _the_session_is(server: Gateway, state: SessionState, num: int = 1) -> bool:
    return sum(session.state is state for session in server.app[MANAGER]._sessions.values()) >= num


async def _arrive(server: Gateway, protocol: str, **fields: str) -> RawPeer:
    """Connect and open a call."""
    query = "&".join(f"{name}={value}" for name, value in fields.items()).replace(" ", "+")
    peer = await RawPeer.connect(server.port, f"{PATHS[protocol]}?{query}")
    if protocol == "rawpcm":
        peer.send(json.dumps({"type": "open"}))
    return peer


@pytest.mark.parametrize("how", WAYS_TO_VANISH)
@pytest.mark.parametrize("protocol", PATHS)
async def test_a_peer_that_vanishes_in_prefill_gives_its_slot_back(protocol: str, how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1, engine=SLOW_PREFILL) as server:
        persona = {"rawpcm": "persona", "moshi": "text_prompt"}[protocol]
        peer = await _arrive(server, protocol, **{persona: LONG_PERSONA})
        await until(lambda: _the_session_is(server, SessionState.PREFILL))
        peer.vanish(how)
        assert await until(lambda: server.is_empty) < 1.0
        assert server.ended(protocol, "caller") == 1
    no_tracebacks(caplog)


@pytest.mark.parametrize("how", WAYS_TO_VANISH)
@pytest.mark.parametrize("protocol", PATHS)
async def test_a_peer_that_vanishes_in_the_queue_or_in_its_call_costs_nobody_a_frame(
    protocol: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with gateway(2, queue_seconds=30) as server, server.connect("rawpcm") as ws:
        other = PcmCaller(ws)
        await other.open(pacing="script")
        live = await _arrive(server, protocol)
        await until(lambda: _the_session_is(server, SessionState.LIVE, 2))
        queued = await _arrive(server, protocol)
        await until(lambda: _the_session_is(server, SessionState.QUEUED))
        await ws.send_bytes(frame(0.5, 4))
        queued.vanish(how)
        assert await until(lambda: not _the_session_is(server, SessionState.QUEUED)) < 1.0
        await ws.send_bytes(frame(0.5, 4))
        live.vanish(how)
        assert await until(lambda: server.slot_states.count(SlotState.IDLE) == 1) < 1.0
        await ws.send_bytes(frame(0.5, 4))
        await other.answers(12)
        await ws.close()
        await until(lambda: server.is_empty)
        assert server.ended(protocol, "caller") == 2 + (protocol == "rawpcm")
    no_tracebacks(caplog)


@pytest.mark.parametrize("how", WAYS_TO_VANISH)
async def test_a_peer_that_vanishes_before_it_opened_leaves_nothing(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        peer = await RawPeer.connect(server.port, PATHS["rawpcm"])
        await until(lambda: server.app[MANAGER].num_sessions == 1)
        peer.vanish(how)
        assert await until(lambda: server.is_empty) < 1.0
    no_tracebacks(caplog)


@pytest.mark.parametrize("how", ["fin", "reset"])
@pytest.mark.parametrize("state", ["queued", "prefill", "live"])
async def test_a_script_that_vanishes_while_its_upload_is_stopped_is_noticed(
    state: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Back-pressure stops the reading of the socket, so its end is not read either; more waits in both kernels than we want to take."""
    slow_step = {"prefill_rows": 1, "step_seconds": 0.02 if state == "prefill" else 0.2}
    async with gateway(1, engine=slow_step if state != "queued" else None, queue_seconds=30) as server:
        first = await _arrive(server, "rawpcm") if state == "queued" else None
        if first is not None:
            await until(lambda: _the_session_is(server, SessionState.LIVE))
        persona = {"persona": LONG_PERSONA} if state == "prefill" else {}
        peer = await _arrive(server, "rawpcm", **persona)
        wanted = {"queued": SessionState.QUEUED, "prefill": SessionState.PREFILL, "live": SessionState.LIVE}[state]
        await until(lambda: _the_session_is(server, wanted))
        for _ in range(80):  # 12 MB: more than aiohttp and the kernels hold for us
            peer.send(frame(0.5, 20))
        await until(lambda: peer.writer.transport.get_write_buffer_size() > 0)
        if how == "reset":
            peer.vanish("reset")
        else:
            peer.writer.transport.abort()  # as a killed process: the kernel closes the socket, what it has not sent still in it
        num_left = 0 if first is None else 1
        assert await until(lambda: server.app[MANAGER].num_sessions == num_left) < 1.0
        if first is not None:
            first.vanish("fin")
        await until(lambda: server.is_empty)
    no_tracebacks(caplog)


async def test_broken_http_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with gateway(1) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET / HTTP/9\x00\r\nbroken\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.0 400")
        writer.close()
    assert [line for line in caplog.messages if line.startswith("refused a broken request: Bad")]
    no_tracebacks(caplog)


async def test_a_chat_that_stops_speaking_is_kept_and_one_that_leaves_is_let_go() -> None:
    """A muted microphone sends nothing, and that is no hang-up."""
    client = MoshiClient()
    async with gateway(1) as server:
        async with server.connect("moshi") as ws:
            while not client.handshakes:
                client.take([await ws.receive_bytes(timeout=5)])
            await ws.send_bytes(client.say(tone(1920 * 3)))
            while client.pcm.size < 1920:
                client.take([await ws.receive_bytes(timeout=5)])
            assert server.slot_states == [SlotState.LIVE]
        assert await until(lambda: server.is_empty) < 1.0
