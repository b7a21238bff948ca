"""Peers that do not read: audio is dropped while it is PCM, then the call ends; they can still be told why, and they can vanish."""

import asyncio
import socket

import pytest
from aiohttp import web

from gateway import app as gateway_app
from gateway.transport import pump
from gateway.transport import ws as transport
from tests.helpers import MoshiClient, make_page, tone
from tests.integration.rig import PATHS, Gateway, RawPeer, frame, gateway, no_tracebacks, until


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "SEND_BUFFER_BYTES", 2048)
    monkeypatch.setattr(transport, "WRITE_BUFFER_BYTES", 512)


async def _stuck_chat(server: Gateway) -> RawPeer:
    """A chat whose peer does not read, with so much in the buffers that audio is dropped."""
    peer = await RawPeer.connect(server.port, PATHS["moshi"], receive_buffer=2048)
    client = MoshiClient()
    async with asyncio.timeout(10):
        while not server.count("gateway_frames_dropped_total", direction="out", reason="slow_reader"):
            peer.send(client.say(tone(1920)))
            await asyncio.sleep(0.002)
    return peer


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_peer_that_does_not_read_is_ended(protocol: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(pump, "SLOW_READER_S", 0.5)
    async with gateway(1) as server:
        if protocol == "moshi":
            peer = await _stuck_chat(server)
        else:
            peer = await RawPeer.connect(server.port, PATHS["rawpcm"], receive_buffer=2048)
            for _ in range(60):
                peer.send(frame(0.5))
        await until(lambda: server.ended(protocol, "slow_reader") == 1)
        await until(lambda: server.is_empty)
        peer.writer.transport.abort()
    no_tracebacks(caplog)


@pytest.mark.parametrize("how", ["fin", "reset"])
async def test_a_peer_that_vanishes_while_it_does_not_read_gives_its_slot_back(how: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        peer = await _stuck_chat(server)
        peer.vanish(how)
        assert await until(lambda: server.is_empty) < 1.0
        assert server.ended("moshi", "caller") == 1
    no_tracebacks(caplog)


async def test_what_waited_to_be_sent_does_not_hide_the_reason_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    """The codec is broken by then and words nothing but the failure."""
    page = make_page([b"no packet"])
    async with gateway(1) as server:
        peer = await _stuck_chat(server)
        for _ in range(60):
            peer.send(b"\x01" + page[:-1] + b"?")  # its checksum is wrong
        await until(lambda: server.ended("moshi", "client_error") == 1)
        tags = bytearray()
        while True:
            opcode, payload = await peer.message()
            if opcode == 8:
                break
            tags.append(payload[0])
        assert int.from_bytes(payload[:2], "big") == 1007
        assert tags.endswith(b"\x05\x02")
        peer.vanish("fin")
    no_tracebacks(caplog)


async def test_the_socket_of_a_peer_that_says_goodbye_and_reads_nothing_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    sockets: list[socket.socket] = []
    limit_buffers = transport._limit_buffers

    def look(request: web.Request) -> None:
        limit_buffers(request)
        sockets.append(request.get_extra_info("socket"))

    monkeypatch.setattr(transport, "_limit_buffers", look)
    monkeypatch.setattr(pump, "SLOW_READER_S", 0.3)
    async with gateway(1) as server:
        peer = await _stuck_chat(server)
        peer.send(b"\x03\xe8", opcode=8)
        await until(lambda: server.is_empty)
        await until(lambda: sockets[0].fileno() == -1, timeout_s=2)
        peer.writer.transport.abort()


async def test_a_peer_that_does_not_read_does_not_keep_the_server_from_stopping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_app, "FINISH_S", 0.2)
    async with gateway(1) as server:
        peer = await _stuck_chat(server)
        server.stop.set()
        async with asyncio.timeout(2):
            await server.running
        peer.writer.transport.abort()
