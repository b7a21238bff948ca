"""Bad input gets a clear error on its own wire and costs nobody else a frame."""

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

from gateway.config import Config
from tests.helpers import MoshiClient, capture, tone
from tests.integration.rig import PATHS, Gateway, PcmCaller, RawPeer, frame, gateway, no_tracebacks, read_chat, until

PATH_LIKE = ["../alto", "/etc/passwd", "..%2f..%2fetc%2fpasswd", "..\\alto", "al\0to", "a" * 5000, ".", "voices/alto"]
BAD_QUERIES = [{"text_temperature": "warm"}, {"audio_topk": "1.5"}, {"seed": "-2"}, {"text_temperature": "nan"}, {"max_frames": "0"}]


async def test_an_unknown_voice_is_refused_on_both_wires(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        async with server.connect("moshi", voice_prompt="nobody.pt") as ws:
            messages, code, reason = await read_chat(ws)
        assert code == 1008
        assert messages[0].startswith(b"\x05unknown voice")
        assert reason.startswith("unknown voice")
        async with server.connect("rawpcm") as ws:
            await ws.send_json({"type": "open", "voice": "nobody"})
            caller = PcmCaller(ws)
            assert (await caller.end())[0] == 1008
            assert caller.events[0]["code"] == "bad_parameter"
        await until(lambda: server.is_empty)
        assert server.ended("moshi", "client_error") == server.ended("rawpcm", "client_error") == 1
    no_tracebacks(caplog)


@pytest.mark.parametrize("voice", PATH_LIKE)
async def test_a_voice_that_looks_like_a_path_is_refused_without_a_hint(voice: str, caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        for protocol in PATHS:
            async with server.connect(protocol, voice_prompt=voice) as ws:
                messages, code, reason = await read_chat(ws) if protocol == "moshi" else ([], *await PcmCaller(ws).end())
            assert code == 1008, protocol
            assert reason == "the voice must be the bare name of one of this server's voices"
            assert not any(voice.encode() in message for message in messages)
        async with server.connect("rawpcm") as ws:
            await ws.send_str(json.dumps({"type": "open", "voice": voice}))
            assert (await PcmCaller(ws).end())[0] == 1008
    no_tracebacks(caplog)


@pytest.mark.parametrize("query", BAD_QUERIES)
async def test_a_malformed_number_is_refused_by_name_and_never_with_1006(query: dict[str, str]) -> None:
    (name,) = query
    async with gateway(1) as server:
        async with server.connect("moshi", **query) as ws:
            messages, code, _ = await read_chat(ws)
        assert code == 1008
        assert messages[0][0] == 5
        assert name in messages[0].decode()
        async with server.connect("rawpcm", **query) as ws:
            caller = PcmCaller(ws)
            assert (await caller.end())[0] == 1008
            assert name in caller.events[0]["error"]


async def _is_served(server: Gateway, caller: PcmCaller) -> None:
    """The neighbour gets an answer for each frame."""
    before = len(caller.frames)
    await caller.ws.send_bytes(frame(0.25, 5))
    await caller.answers(before + 5)


async def test_garbage_instead_of_ogg_ends_its_own_call_only(caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    async with gateway(2) as server, server.connect("rawpcm") as other:
        neighbour = PcmCaller(other)
        await neighbour.open()
        async with server.connect("moshi") as ws:
            for _ in range(60):
                await ws.send_bytes(b"\x01" + rng.bytes(300))
            await _is_served(server, neighbour)
            messages, code, reason = await read_chat(ws)
        assert code == 1007
        assert reason in messages[-2].decode()
        await _is_served(server, neighbour)
        await until(lambda: server.ended("moshi", "client_error") == 1)
    no_tracebacks(caplog)


async def test_half_pages_and_garbage_between_them_are_survived() -> None:
    client = MoshiClient()
    async with gateway(1) as server, server.connect("moshi") as ws:
        while not client.handshakes:
            client.take([await ws.receive_bytes(timeout=5)])
        stream = client.say(tone(1920 * 10))[1:]
        for start in range(0, len(stream), 100):
            await ws.send_bytes(b"\x01" + stream[start : start + 100])
        await ws.send_bytes(b"\x01" + b"\xff" * 500)
        await ws.send_bytes(capture("hostile_zero_length_packet"))
        for odd in (b"", b"\x03\x07", b"\x99?", b"\x00"):
            await ws.send_bytes(odd)
        await ws.send_str("text has no place here")
        await ws.send_bytes(client.say(tone(1920 * 4)))
        while client.pcm.size < 1920 * 12:
            client.take([await ws.receive_bytes(timeout=5)])
        assert client.errors == []


async def test_bad_pcm_is_refused_message_by_message_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        caller = PcmCaller(ws)
        await caller.open()
        for bad in (b"\0" * 7, np.array([0, np.nan], "<f4").tobytes(), np.array([np.inf], "<f4").tobytes(), "{", '"open"', '{"type":1}'):
            await (ws.send_bytes(bad) if isinstance(bad, bytes) else ws.send_str(bad))
            assert (await caller.event("error"))["code"] in ("bad_audio", "bad_request")
            caller.events.clear()
        await _is_served(server, caller)
    no_tracebacks(caplog)


@pytest.mark.parametrize("protocol", PATHS)
async def test_a_message_of_five_megabytes_is_refused_with_1009_and_a_reason(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with gateway(2) as server, server.connect("rawpcm") as other:
        neighbour = PcmCaller(other)
        await neighbour.open()
        async with server.connect(protocol) as ws:
            if protocol == "rawpcm":
                await PcmCaller(ws).open()
            sending = asyncio.create_task(ws.send_bytes(bytes(5 * 1024 * 1024)))
            await _is_served(server, neighbour)
            if protocol == "moshi":
                messages, code, reason = await read_chat(ws)
                assert messages[-2] == b"\x05" + reason.encode()
            else:
                caller = PcmCaller(ws)
                code, reason = await caller.end()
                assert caller.events[-1]["code"] == "too_big"
            await asyncio.wait([sending])
            if not sending.cancelled():
                sending.exception()
        assert code == 1009
        assert "exceeds limit" in reason
        await _is_served(server, neighbour)
        await until(lambda: server.ended(protocol, "client_error") == 1)
    assert len([line for line in caplog.messages if "too_big" in line]) == 1
    no_tracebacks(caplog)


async def test_a_peer_that_goes_on_sending_its_big_message_can_still_read_why_it_was_refused() -> None:
    """To close a socket with unread input resets the connection, and the peer then finds that instead of our words."""
    async with gateway(1) as server:
        peer = await RawPeer.connect(server.port, PATHS["rawpcm"])
        peer.send(bytes(1000), claim=5 * 1024 * 1024)
        for _ in range(20):
            peer.writer.write(bytes(50_000))
            await asyncio.sleep(0.005)  # the pace of an uplink
        assert json.loads((await peer.message())[1])["code"] == "too_big"
        opcode, payload = await peer.message()
        assert (opcode, int.from_bytes(payload[:2], "big")) == (8, 1009)
        peer.vanish("fin")


async def test_broken_framing_is_refused_with_1002(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        peer = await RawPeer.connect(server.port, PATHS["moshi"])
        peer.send(b"?", opcode=3)  # RFC 6455 section 5.2: reserved
        codes = []
        while True:
            opcode, payload = await peer.message()
            if opcode == 8:
                break
            codes.append(payload[0])
        assert int.from_bytes(payload[:2], "big") == 1002
        assert codes[-2:] == [5, 2]
        peer.vanish("fin")
        await until(lambda: server.is_empty)
    no_tracebacks(caplog)


async def test_a_get_without_upgrade_says_what_is_missing() -> None:
    async with gateway(1) as server:
        for path in PATHS.values():
            async with server.http.get(path) as reply:
                assert reply.status == 426
                assert reply.headers["Upgrade"] == "websocket"
                assert "an upgrade is needed" in (await reply.json())["error"]
            bad = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "short"}
            async with server.http.get(path, headers=bad) as reply:
                assert reply.status == 400
                assert "error" in await reply.json()
        assert server.is_empty
        async with server.http.get("/nowhere") as reply:
            assert reply.status == 404
            assert "error" in await reply.json()
        async with server.http.post("/health") as reply:
            assert reply.status == 405


async def test_static_files_are_served_and_nothing_else(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (site / "assets").mkdir(parents=True)
    (site / "index.html").write_text("<p>page</p>")
    (site / "assets" / "decoderWorker.min.wasm").write_bytes(b"\0asm")
    (tmp_path / "secret").write_text("secret")
    (site / "link").symlink_to(tmp_path / "secret")
    assert Config(static=site).static == site
    async with gateway(1, static=site) as server:
        async with server.http.get("/") as reply:
            assert (reply.status, reply.content_type) == (200, "text/html")
            assert await reply.text() == "<p>page</p>"
        async with server.http.get("/assets/decoderWorker.min.wasm") as reply:
            assert (reply.status, reply.content_type) == (200, "application/wasm")
        async with server.http.get("/health") as reply:
            assert (await reply.json())["status"] == "ok"
        for path in ("/../secret", "/%2e%2e/secret", "/..%2fsecret", "/assets/../../secret", "/link", "/assets", "//etc/passwd"):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
            answer = await reader.read()
            assert answer.split(b" ")[1] in (b"403", b"404"), path
            assert b"secret" not in answer.partition(b"\r\n\r\n")[2]
            writer.close()
