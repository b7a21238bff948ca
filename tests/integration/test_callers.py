"""Callers on both wires, on a real port: who is served, who is refused, and how calls end."""

import asyncio
import socket
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from aiohttp import web

from gateway.engine.fake import expected_audio
from gateway.transport import pump
from gateway.transport import ws as transport
from protocols import moshi
from tests.helpers import MoshiClient, rms, tone
from tests.integration.rig import PATHS, Gateway, PcmCaller, RawPeer, frame, gateway, no_tracebacks, read_chat, until

SILENCE = np.zeros(1920, np.float32)


async def test_four_pcm_callers_each_get_their_own_answer_and_a_fifth_is_refused_with_1013(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(4) as server:
        callers = [PcmCaller(await server.connect("rawpcm")) for _ in range(4)]
        readies = [await caller.open(seed=100 * idx) for idx, caller in enumerate(callers)]
        assert len({ready["session_id"] for ready in readies}) == 4
        async with server.connect("rawpcm") as fifth:
            await fifth.send_json({"type": "open"})
            refused = PcmCaller(fifth)
            code, reason = await refused.end()
        assert code == 1013
        assert reason == refused.events[0]["error"] == "every slot is taken (4 of 4)"
        assert refused.events[0]["code"] == "capacity"

        for idx, caller in enumerate(callers):
            await caller.ws.send_bytes(frame(0.1 * (idx + 1), 3))
        for idx, caller in enumerate(callers):
            voice = np.full(1920, 0.1 * (idx + 1), np.float32)
            answers = await caller.answers(3)
            np.testing.assert_array_equal(answers[0], expected_audio(voice, SILENCE, 100 * idx))
            np.testing.assert_array_equal(answers[2], expected_audio(voice, voice, 100 * idx))
        for caller in callers:
            await caller.ws.send_json({"type": "close"})
            code, reason = await caller.end()
            assert code == 1000
            assert caller.events[-1] == {"type": "done", "reason": "finished"}
        await until(lambda: server.is_empty)
        assert server.ended("rawpcm", "finished") == 4
        assert server.ended("rawpcm", "refused") == 1
    no_tracebacks(caplog)


async def _chat(server: Gateway, num_frames: int) -> MoshiClient:
    client = MoshiClient()
    async with server.connect("moshi", text_prompt="You are kind.", seed="0") as ws:
        while not client.handshakes:
            client.take([await ws.receive_bytes(timeout=5)])
        for start in range(0, num_frames * 1920, 1920):
            await ws.send_bytes(client.say(tone(num_frames * 1920)[start : start + 1920]))
            num_pcm = client.pcm.size
            while start >= 1920 and client.pcm.size == num_pcm:  # in step, so that nothing is dropped
                client.take([await ws.receive_bytes(timeout=5)])
        await ws.close()
    return client


async def test_four_chat_callers_hear_their_echo_and_a_fifth_is_refused_with_1013(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(4) as server:
        waiting = [await server.connect("moshi") for _ in range(4)]
        for ws in waiting:
            assert (await ws.receive_bytes(timeout=5))[:1] == b"\x04"
        async with server.connect("moshi") as fifth:
            messages, code, reason = await read_chat(fifth)
        assert (code, reason) == (1013, "every slot is taken (4 of 4)")
        assert messages == [b"\x05every slot is taken (4 of 4)", b"\x02 [every slot is taken (4 of 4)]"]
        for ws in waiting:
            await ws.close()
        await until(lambda: server.is_empty)

        for client in await asyncio.gather(*(_chat(server, 12) for _ in range(4))):
            assert client.handshakes == 1
            assert client.metadata[0]["text_seed"] == 0
            assert client.errors == []
            assert 0.1 < rms(client.pcm[-1920 * 4 :]) < 0.2  # 0.75 of a tone of 0.27, a little off by Opus
            assert client.text.startswith(" hello there")
        await until(lambda: server.is_empty)
        assert server.ended("moshi", "caller") == 8
        assert server.ended("moshi", "refused") == 1
    no_tracebacks(caplog)


async def test_a_caller_waits_in_the_queue_and_is_told_its_place() -> None:
    async with gateway(1, queue_seconds=5) as server:
        first, second = PcmCaller(await server.connect("rawpcm")), PcmCaller(await server.connect("rawpcm"))
        await first.open()
        opening = asyncio.create_task(second.open())
        await until(lambda: bool(second.events))
        assert second.events[0] == {"type": "queued", "position": 1}
        await first.ws.close()
        assert (await opening)["type"] == "ready"


async def test_a_codec_is_never_entered_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is called on a pool, from the receiver and from the sender of its connection."""
    inside: list[str] = []
    overlaps: list[str] = []

    def watched(name: str) -> Callable[..., Any]:
        method = getattr(moshi.MoshiCodec, name)

        def call(self: moshi.MoshiCodec, *args: Any) -> Any:
            overlaps.extend(f"{name} in {other}" for other in inside)
            inside.append(name)
            time.sleep(0.003)
            try:
                return method(self, *args)
            finally:
                inside.remove(name)

        return call

    for name in ("receive", "send", "due"):
        monkeypatch.setattr(moshi.MoshiCodec, name, watched(name))
    client = MoshiClient()
    async with gateway(1, opus_threads=4) as server, server.connect("moshi") as ws:
        while client.pcm.size < 1920 * 8:
            if client.handshakes:
                await ws.send_bytes(client.say(tone(1920)))
            client.take([await ws.receive_bytes(timeout=5)])
    assert overlaps == []


async def test_a_silent_chat_gets_a_ping_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moshi, "KEEP_ALIVE_S", 0.1)
    async with gateway(1) as server, server.connect("moshi") as ws:
        tags = [(await ws.receive_bytes(timeout=5))[0] for _ in range(4)]
        assert tags == [4, 0, 6, 6]


async def test_a_peer_that_answers_no_ping_is_gone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    for name, value in {"TIMER_S": 0.02, "PING_S": 0.1, "PONG_S": 1.0}.items():
        monkeypatch.setattr(pump, name, value)
    async with gateway(1) as server:
        async with server.connect("moshi") as ws:  # this client answers pings by itself, while it reads
            for _ in range(2):
                await ws.receive(timeout=5)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ws.receive(), 1.5)
            assert not server.is_empty
        dead = await RawPeer.connect(server.port, PATHS["moshi"])
        await until(lambda: not server.is_empty)
        await until(lambda: server.is_empty)
        opcodes = await dead.opcodes_to_the_end()
        assert 9 in opcodes
        assert 8 not in opcodes  # nobody is there to be told
        dead.writer.close()
    no_tracebacks(caplog)


async def test_a_ping_of_the_peer_is_answered() -> None:
    async with gateway(1) as server:
        peer = await RawPeer.connect(server.port, PATHS["rawpcm"])
        peer.send(b"are you there", opcode=9)
        assert await peer.message() == (10, b"are you there")
        peer.vanish("fin")


async def test_frames_leave_without_delay_and_little_is_buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    peers: list[socket.socket] = []
    limit_buffers = transport._limit_buffers

    def look(request: web.Request) -> None:
        limit_buffers(request)
        peers.append(request.get_extra_info("socket"))

    monkeypatch.setattr(transport, "_limit_buffers", look)
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        await PcmCaller(ws).open()
        assert peers[0].getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert peers[0].getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) <= 2 * transport.SEND_BUFFER_BYTES  # the kernel doubles it


async def test_a_call_ends_at_the_limit_that_its_caller_asked_for() -> None:
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        caller = PcmCaller(ws)
        await caller.open(max_frames=3)
        await ws.send_bytes(frame(0.5, 10))
        code, _ = await caller.end()
        assert code == 1000
        assert caller.events[-1] == {"type": "done", "reason": "limit"}
        assert len(caller.frames) == 3
        await until(lambda: server.ended("rawpcm", "limit") == 1)


async def test_a_caller_that_says_nothing_is_sent_home() -> None:
    async with gateway(1, idle_seconds=0.2) as server, server.connect("moshi") as ws:
        messages, code, _ = await read_chat(ws)
        assert code == 1008
        assert messages[-2][:1] == b"\x05"
        await until(lambda: server.ended("moshi", "idle") == 1)
