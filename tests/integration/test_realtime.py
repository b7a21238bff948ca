"""The Realtime wire on a real port with a scripted model: random barge-ins, clients that vanish, flood, stall, or come from vLLM-Omni.

T-numbers are those of the conformance plan (specs/realtime.md 5.3); what real clients do is in tests/clients.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import socket
import struct
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.app import MANAGER
from tests.clients import brackets, validate
from tests.clients.raw import RawClient, raw
from tests.clients.record import Record
from tests.clients.scripted import FRAME, RATE, Line, ScriptedEngine, share_at
from tests.integration.rig import WAYS_TO_VANISH, Gateway, RawPeer, no_tracebacks, until

FREE_S = 0.5  # "slot free <= 500 ms" (1.6); a loaded machine is asked for no more than ten times that
PATH = "/v1/realtime"
TALKATIVE = [Line(440, 60, (" one", " two", " three"), cue=0)] + [Line(440 + 220 * (i % 3), 30, (" next",), cue=0) for i in range(1, 40)]


@contextlib.asynccontextmanager
async def house(*lines: Line, num_slots: int = 4, **settings: Any) -> AsyncIterator[Gateway]:
    server = Gateway(ScriptedEngine(num_slots, lines), vad="energy", **settings)
    try:
        await server.ready()
        yield server
    finally:
        await server.close()


def url(server: Gateway, query: str = "") -> str:
    return f"ws://127.0.0.1:{server.port}{PATH}{query}"


def heard(server: Gateway) -> NDArray[np.float32]:
    """What the model has heard of the latest call."""
    engine = server.engine
    assert isinstance(engine, ScriptedEngine)
    return engine.parts[-1].heard_pcm if engine.parts else np.empty(0, np.float32)


def b64(pcm: NDArray[np.float32]) -> str:
    return base64.b64encode((pcm * 32768).astype("<i2").tobytes()).decode()


def voice(seconds: float, hz: float = 300.0) -> NDArray[np.float32]:
    return (0.3 * np.sin(2 * np.pi * hz * np.arange(round(seconds * RATE)) / RATE)).astype(np.float32)


def check(client: RawClient, sent: list[dict[str, Any]], *expected: str) -> None:
    """T30 and T31 over what a client saw."""
    first_s = min(client.times_s)
    both = [(t - first_s, False, event) for t, event in zip(client.times_s, client.events, strict=True)]
    both += [(event.pop("_at") - first_s, True, event) for event in sent]
    records = [Record(line=i, is_client=who, seconds=t, event=e) for i, (t, who, e) in enumerate(sorted(both, key=lambda x: x[0]), start=1)]
    assert validate.complaints(records) == []
    assert brackets.complaints(records, expected_errors=expected) == []


class TestInterruptions:
    """4.6, 4.7: stale audio is impossible."""

    async def test_t09_random_barge_ins_and_slow_readers_never_get_a_stale_frame(self) -> None:
        async def caller(server: Gateway, seed: int) -> None:
            chance = random.Random(seed)
            async with raw(url(server)) as client:
                sent: list[dict[str, Any]] = []

                async def tell(kind: str, **fields: Any) -> None:
                    sent.append({"type": kind, "_at": time.monotonic(), **fields})
                    await client.send(kind, **fields)

                client.listen()
                await client.seen("response.output_audio.delta")
                for _ in range(12):
                    await asyncio.sleep(chance.uniform(0.0, 0.6))
                    if chance.random() < 0.3:
                        time.sleep(0.05)  # everybody is late now and then
                    match chance.choice(("cancel", "talk", "barge in", "truncate", "create", "clear")):
                        case "cancel":
                            await tell("response.cancel")
                        case "talk":
                            client.say(voice(chance.choice((0.2, 1.3))))
                        case "barge in":
                            await tell("barge_in")
                        case "truncate" if (items := client.all("response.output_item.added")):
                            ms = chance.choice((0, 500, 9000))
                            await tell("conversation.item.truncate", item_id=items[-1]["item"]["id"], content_index=0, audio_end_ms=ms)
                        case "create":
                            await tell("response.create")
                        case "clear":
                            await tell("output_audio_buffer.clear")
            # every delta belongs to the response that was open, so no frame came after its end; the checker says so
            check(client, sent, "response_cancel_not_active", "conversation_already_has_active_response")
            for created, done in zip(client.all("response.created"), client.all("response.done"), strict=False):
                sent_ms = done["response"]["x_duplex"]["sent_ms"]
                assert client.pcm(created["response"]["id"]).size * 1000 // RATE == sent_ms

        async with house(*TALKATIVE, num_slots=8) as server:
            await asyncio.gather(*(caller(server, seed) for seed in range(8)))

    async def test_nothing_of_the_old_sentence_follows_its_end(self) -> None:
        """The tone of a sentence tells which one it is: after the cut only the next one is heard."""
        async with house(Line(440, 100, (" long",), cue=0), Line(660, 20, (" other",))) as server, raw(url(server)) as client:
            client.listen()
            await client.seen("response.output_audio.delta", 10)
            client.say(voice(1.4))
            await client.seen("input_audio_buffer.speech_started")
            await client.seen("response.done", 2)
            first, second = (event["response"]["id"] for event in client.all("response.created"))
            cut = client.kinds.index("input_audio_buffer.speech_started")
            assert not [e for e in client.events[cut:] if e["type"].endswith("delta") and e["response_id"] == first]
            assert share_at(client.pcm(second), 660) > 0.9
            assert share_at(client.pcm(second), 440) < 0.01

    async def test_the_cut_comes_within_a_frame_of_its_decision(self) -> None:
        """server_vad decides after two active frames; the third has hardly begun when the last delta is out."""
        async with house(Line(440, 200, (" long",), cue=0)) as server, raw(url(server)) as client:
            detection = {"type": "server_vad"}
            await client.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": detection}}})
            client.listen()
            await client.seen("response.output_audio.delta", 10)
            engine = server.engine
            assert isinstance(engine, ScriptedEngine)
            client.say(voice(1.0))
            await until(lambda: True in engine.parts[0].steered, timeout_s=10)
            onset = next(i for i, frame in enumerate(engine.parts[0].heard) if np.abs(frame).max() > 0.05)
            first_steered = engine.parts[0].steered.index(True)
            assert first_steered - onset <= 3, "two frames to decide, and one that was under way"


class TestVanishing:
    """3.9, T24, T40: whoever leaves, and however, leaves nothing behind."""

    @pytest.mark.parametrize("how", WAYS_TO_VANISH)
    async def test_v47_the_slot_is_free_and_the_others_notice_nothing(self, how: str, caplog: pytest.LogCaptureFixture) -> None:
        async with house(*TALKATIVE, num_slots=2) as server, raw(url(server)) as other:
            other.listen()
            peer = await RawPeer.connect(server.port, PATH)
            for _ in range(4):
                peer.send(json.dumps({"type": "input_audio_buffer.append", "audio": b64(np.zeros(FRAME, np.float32))}))
            await other.seen("response.output_audio.delta", 8)
            while b"output_audio.delta" not in (await peer.message())[1]:
                pass
            peer.vanish(how)
            await until(lambda: server.app[MANAGER].num_sessions == 1, timeout_s=10 * FREE_S)
            num_before = len(other.all("response.output_audio.delta"))
            await other.seen("response.output_audio.delta", num_before + 12)
        no_tracebacks(caplog)

    async def test_t24_hundreds_of_aborted_connections_leak_no_slot(self, caplog: pytest.LogCaptureFixture) -> None:
        chance = random.Random(1)

        async def come_and_go(server: Gateway) -> None:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            head = f"GET {PATH} HTTP/1.1\r\nHost: gateway\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            writer.write((head + "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n").encode())
            if chance.random() < 0.7:
                await asyncio.sleep(chance.choice((0, 0.001, 0.01)))
                audio = json.dumps({"type": "input_audio_buffer.append", "audio": b64(np.zeros(FRAME, np.float32))}).encode()
                with contextlib.suppress(ConnectionError):
                    writer.write(struct.pack("!BBH", 0x81, 0x80 | 126, len(audio)) + bytes(4) + audio)
                    await writer.drain()
                await asyncio.sleep(chance.choice((0, 0.01, 0.2)))
            if chance.random() < 0.5:
                connection = writer.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async with house(*TALKATIVE, num_slots=3) as server:
            for _ in range(25):
                await asyncio.gather(*(come_and_go(server) for _ in range(10)))
            await until(lambda: server.is_empty, timeout_s=10)
            async with raw(url(server)) as client:
                client.listen()
                await client.seen("response.output_audio.delta")
        no_tracebacks(caplog)

    async def test_t40_the_next_caller_hears_nothing_of_the_one_before(self) -> None:
        async with house(Line(440, 200, (" mine",), cue=0), num_slots=1) as server:
            async with raw(url(server)) as client:
                client.listen()
                await client.seen("response.output_audio.delta", 5)
                await client.send("session.close")
                await client.seen("session.closed")
            async with raw(url(server, "?autostart=1")) as second:  # "admitted right after this event" (V37)
                await second.seen("response.created")
                await second.seen("response.output_audio_transcript.delta")
                created, added = second.all("response.created")[0], second.all("conversation.item.added")[0]
                assert added["previous_item_id"] is None
                assert created["response"]["x_duplex"]["epoch"] == 0


class TestPacing:
    """T20, T21, T25, 3.13: files, odd splits, and clients that do not read."""

    async def test_t20_where_a_client_cuts_its_stream_does_not_matter(self) -> None:
        chance = random.Random(3)
        pcm = (0.2 * np.random.default_rng(0).standard_normal(10 * FRAME)).astype(np.float32)
        data = (pcm * 32768).astype("<i2").tobytes()
        async with house(num_slots=2) as server:
            for _ in range(2):
                async with raw(url(server)) as client:
                    at = 0
                    while at < len(data):
                        size = chance.randrange(1, 4000)
                        await client.send("input_audio_buffer.append", audio=base64.b64encode(data[at : at + size]).decode())
                        at += size
                    await until(lambda: len(heard(server)) >= 11 * FRAME, timeout_s=10)
                    np.testing.assert_array_equal(heard(server)[: pcm.size], np.frombuffer(data, "<i2") / np.float32(32768))

    async def test_t21_a_file_in_one_message_is_heard_to_the_last_sample(self) -> None:
        async with house() as server, raw(url(server)) as client:
            pcm = voice(3.0)
            await client.send("input_audio_buffer.append", audio=b64(pcm))
            await client.send("input_audio_buffer.commit")
            await client.seen("input_audio_buffer.committed")
            await until(lambda: len(heard(server)) >= 39 * FRAME, timeout_s=10)
            np.testing.assert_allclose(heard(server)[: pcm.size], pcm, atol=1e-4)

    async def test_t25_a_client_that_does_not_read_harms_itself_alone(self) -> None:
        async with house(*TALKATIVE, num_slots=2) as server, raw(url(server)) as other:
            other.listen()
            peer = await RawPeer.connect(server.port, PATH, receive_buffer=4096)
            silence = json.dumps({"type": "input_audio_buffer.append", "audio": b64(np.zeros(FRAME, np.float32))})
            for _ in range(60):
                peer.send(silence)
                await asyncio.sleep(0.08)
            assert len(other.all("response.output_audio.delta")) > 40
            texts = []
            while "failed" not in str(texts[-1:]):  # what it missed is told once it reads
                texts.append((await peer.message())[1].decode(errors="replace"))
            failed = json.loads(texts[-1])
            assert failed["response"]["status_details"]["error"]["code"] == "output_backpressure"
            peer.vanish("close frame")


class TestBadInput:
    """3.11, T22, T37: nothing that a client sends ends its call, or reaches another one."""

    async def test_t37_noise_is_answered_and_the_call_goes_on(self, caplog: pytest.LogCaptureFixture) -> None:
        chance = random.Random(5)
        seeds = [
            {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": {"type": "server_vad"}}}}},
            {"type": "conversation.item.create", "item": {"type": "message", "role": "user", "content": [{"type": "text", "text": "x"}]}},
            {"type": "response.create", "response": {"metadata": {"a": "b"}, "max_output_tokens": 5}},
            {"type": "input_audio_buffer.append", "audio": "AAAA"},
            {"type": "conversation.item.truncate", "item_id": "x", "content_index": 0, "audio_end_ms": 5},
        ]

        def spoil(value: Any) -> Any:
            match chance.randrange(6):
                case 0:
                    return chance.choice([None, -1, 1e300, "", "x" * 300, [], {}, True, [[[]]]])
                case 1 if isinstance(value, dict) and value:
                    key = chance.choice(list(value))
                    return {**value, key: spoil(value[key])}
                case 2 if isinstance(value, dict) and value:
                    return {key: value[key] for key in list(value)[1:]}
                case _ if isinstance(value, dict):
                    return {key: spoil(item) if chance.random() < 0.3 else item for key, item in value.items()}
            return value

        settings = {"max_protocol_errors": 100_000}
        async with house(*TALKATIVE, realtime=settings) as server, raw(url(server)) as client:
            client.listen()
            for i in range(400):
                message = json.dumps(spoil(chance.choice(seeds)))
                await client.ws.send_str(message[: chance.randrange(len(message))] if i % 5 == 0 else message)
                if i % 40 == 0:
                    await client.ws.send_bytes(bytes(chance.randrange(256) for _ in range(50)))
            await client.send("session.update", session={"type": "realtime"}, event_id="last")
            await client.send("session.heartbeat")
            await client.seen("session.heartbeat_ack")
            assert client.all("error")
            answers = [event for event in client.events if event["type"] != "session.heartbeat_ack"]
            records = [Record(line=i, is_client=False, seconds=0.0, event=event) for i, event in enumerate(answers, start=1)]
            assert validate.complaints(records) == []
        no_tracebacks(caplog)

    async def test_t22_another_call_keeps_its_pace_beside_floods(self) -> None:
        async with house(*TALKATIVE, num_slots=2) as server, raw(url(server)) as calm, raw(url(server)) as wild:
            calm.listen()
            await calm.seen("response.output_audio.delta", 3)
            large = "A" * (4 * 2**20)
            for _ in range(8):
                await wild.send("input_audio_buffer.append", audio=large)
                for _ in range(10):  # fewer than a hundred errors in ten seconds
                    await wild.ws.send_str("{}")
                await asyncio.sleep(0.1)
            first = len(calm.times_s)
            await calm.seen("response.output_audio.delta", len(calm.all("response.output_audio.delta")) + 10)
            gaps = np.diff(calm.times_s[max(0, first - 20) :])
            assert gaps.max() < 1.5, "a close of the wild call would be 1.2 s of the closing silence"


class TestLife:
    """3.9, T26 to T28: how calls end."""

    async def test_t26_a_silent_client_is_hung_up_on(self) -> None:
        async with house(realtime={"idle_timeout_s": 1}) as server, raw(url(server)) as client:
            await client.send("session.heartbeat")
            assert await client.ended() == 1001
            assert client.events[-1]["error"]["code"] == "idle_timeout"

    async def test_t28_sigterm_ends_every_call_with_its_reason(self) -> None:
        async with house(*TALKATIVE, num_slots=3) as server, raw(url(server)) as one, raw(url(server)) as two:
            for client in (one, two):
                client.listen()
                await client.seen("response.output_audio.delta")
            server.stop.set()
            for client in (one, two):
                assert await client.ended() == 1001
                assert client.events[-1]["error"]["code"] == "server_draining"
                assert len(client.all("response.created")) == len(client.all("response.done"))


async def test_t33_calls_do_not_hear_each_other() -> None:
    """Each caller's row plays its own tone: what one gets has no other's energy in it."""
    tones = [400, 700, 1000, 1300, 1600, 1900, 2200, 2500]

    class Choir(ScriptedEngine):
        def step(self, batch: Any) -> Any:
            output = super().step(batch)
            for slot_idx in np.flatnonzero(batch.exec_mask):
                at = np.arange(FRAME) + FRAME * len(self._open[int(slot_idx)].heard)
                output.pcm[slot_idx] = 0.27 * np.sin(2 * np.pi * tones[slot_idx] * at / RATE)
            return output

    server = Gateway(Choir(len(tones), []), vad="energy")
    try:
        await server.ready()

        async def caller() -> float:
            async with raw(url(server)) as client:
                client.listen()
                await client.seen("response.output_audio.delta", 30)
                pcm = client.pcm(client.all("response.created")[0]["response"]["id"])[2 * FRAME :]
                shares = sorted(share_at(pcm, hz) for hz in tones)
                assert shares[-1] > 0.98
                assert sum(shares[:-1]) < 0.01
                return float(np.argmax([share_at(pcm, hz) for hz in tones]))

        assert sorted(await asyncio.gather(*(caller() for _ in tones))) == list(range(len(tones)))
    finally:
        await server.close()


async def test_t34_the_client_of_vllm_omni() -> None:
    """Flat session, float32 input, acknowledgements of playback, heartbeat, close, and at once the next call."""
    async with house(Line(440, 20, (" hi",), cue=0), num_slots=1) as server:
        for _ in range(2):
            async with raw(url(server, "?duplex=1&autostart=0&model=personaplex")) as client:
                session = {
                    "model": "personaplex", "modalities": ["audio", "text"], "input_audio_format": "pcm_f32le", "voice": "NATF0.pt",
                    "output_audio_format": "pcm16", "sample_rate_hz": 24000, "turn_detection": None, "instructions": "p",
                    "x_duplex": {"events": ["playback"], "playback": "ack"},
                }  # fmt: skip
                await client.send("session.update", session=session)
                updated = await client.seen("session.updated")
                assert updated["session"]["x_duplex"]["voice"] == "NATF0"
                for _ in range(5):
                    audio = base64.b64encode(np.zeros(FRAME, "<f4").tobytes()).decode()
                    await client.send("input_audio_buffer.append", audio=audio, duration_ms=80, is_speech=False)
                done = await client.seen("response.done")
                await client.send("playback.ack", response_id=done["response"]["id"], played_ms=400, committed_ms=400)
                acknowledged = await client.seen("playback.acknowledged")
                assert (acknowledged["played_ms"], acknowledged["committed_ms"]) == (400, 400)
                await client.send("session.heartbeat")
                await client.seen("session.heartbeat_ack")
                await client.send("session.close", reason="done")
                await client.seen("session.closed")
                assert await client.ended() == 1000


async def test_the_browser_s_handshake_with_subprotocols() -> None:
    """T03: what a page sends, on every wire; its key is never echoed."""
    async with house() as server, aiohttp.ClientSession() as http:
        for path in (PATH, "/api/chat", "/v1/audio/duplex"):
            offered = ("realtime", "openai-insecure-api-key.sk-1", "openai-beta.realtime-v1")
            async with http.ws_connect(f"ws://127.0.0.1:{server.port}{path}", protocols=offered) as ws:
                assert ws.protocol == "realtime"
