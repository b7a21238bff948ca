"""OpenAI's routes on a real port: the handshake of /v1/realtime, what a full, loading or leaving server says, ephemeral keys, models."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import aiohttp
import pytest

from gateway.app import MANAGER, METRICS, TICKER
from gateway.config import REALTIME_DEFAULTS
from gateway.engine.fake import FakeEngine
from gateway.errors import ConfigError
from gateway.transport import openai
from gateway.transport.http import REALTIME_PATHS
from protocols.realtime.codec import RealtimeCodec
from protocols.realtime.detector import EnergyDetector
from tests.integration.rig import FRAME, Gateway, PcmCaller, RawPeer, gateway, read_chat, until
from tests.integration.test_keys import GOOD, KEYED, UPGRADE
from tests.test_app import SlowToLoad

URL = "/v1/realtime"
FULL = {"error": {"message": "All realtime slots are in use.", "type": "server_error", "code": "capacity_exceeded", "param": None}}
STRICT = REALTIME_DEFAULTS.model_copy(update={"strict_model": True, "model_aliases": ("gpt-realtime",)})


async def created(server: Gateway, url: str = URL, **options: Any) -> dict[str, Any]:
    """Connect, and return the session of the first message."""
    async with server.http.ws_connect(url, **options) as ws:
        message = await ws.receive_json(timeout=5)
    assert message["type"] == "session.created"
    session: dict[str, Any] = message["session"]
    return session


async def refusal(server: Gateway, url: str = URL, **headers: str) -> tuple[int, dict[str, Any]]:
    """What is answered to an upgrade request: status and error."""
    async with server.http.get(url, headers={**UPGRADE, **headers}) as reply:
        return reply.status, (await reply.json())["error"]


# -- The handshake -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", REALTIME_PATHS)
async def test_every_path_is_the_same_endpoint(path: str) -> None:
    async with gateway(1) as server:
        assert (await created(server, f"{path}?model=m"))["model"] == "m"
        async with server.http.get(path) as reply:
            assert (reply.status, reply.headers["Upgrade"]) == (426, "websocket")
            assert (await reply.json())["error"]["code"] == "websocket_upgrade_required"


async def test_queries_of_unmodified_clients(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(1) as server:
        mangled = await created(server, f"{URL}?duplex=1?model=gpt-realtime-2.1")  # V40
        assert (mangled["model"], mangled["x_duplex"]["client_duplex"]) == ("gpt-realtime-2.1", True)
        assert (await created(server))["model"] == "fake"
        assert (await created(server, "/openai/realtime?deployment=d&api-version=2025"))["model"] == "d"
        assert "modalities" in await created(server, f"{URL}?dialect=beta")
        assert "modalities" in await created(server, headers={"OpenAI-Beta": "realtime=v1"})


async def test_a_query_that_cannot_be_is_refused_before_the_upgrade() -> None:
    async with gateway(1) as server:
        refused = {"intent=transcription": "unsupported_intent", "call_id=x": "unsupported_parameter", "dialect=x": "invalid_value"}
        for query, code in refused.items():
            status, error = await refusal(server, f"{URL}?{query}")
            assert (status, error["code"], error["param"]) == (400, code, query.partition("=")[0])
        assert server.app[MANAGER].num_sessions == 0


async def test_a_strict_server_serves_its_names_only() -> None:
    async with gateway(1, realtime=STRICT) as server:
        status, error = await refusal(server, f"{URL}?model=gpt-4o")
        assert (status, error["code"]) == (404, "model_not_found")
        for model in ("fake", "gpt-realtime"):
            assert (await created(server, f"{URL}?model={model}"))["model"] == model


async def test_the_request_id_is_told_back_in_every_answer() -> None:
    async with gateway(1, **KEYED) as server:
        for headers in ({**UPGRADE, **GOOD}, GOOD, {}):
            async with server.http.get(URL, headers={**headers, "X-Request-Id": "mine-1"}) as reply:
                assert reply.headers["X-Request-Id"] == "mine-1"
            async with server.http.get(URL, headers=headers) as reply:
                assert reply.headers["X-Request-Id"].startswith("req_")
        async with server.http.get("/health") as reply:
            assert "X-Request-Id" not in reply.headers


async def test_nothing_is_compressed() -> None:
    async with gateway(1) as server, server.http.ws_connect(URL, compress=15) as ws:
        assert not ws.compress


async def test_handshakes_are_counted_by_status_and_calls_by_close_code() -> None:
    async with gateway(1, **KEYED) as server:
        await refusal(server)
        await refusal(server, f"{URL}?call_id=x", **GOOD)
        await created(server, headers=GOOD)
        await until(lambda: server.count("gateway_realtime_calls_total", code="1000") == 1)
        for status in ("401", "400", "101"):
            assert server.count("gateway_realtime_handshakes_total", status=status) == 1


async def test_a_call_that_its_peer_ends_is_counted_under_the_peer_s_code() -> None:
    async with gateway(1) as server:
        async with server.http.ws_connect(URL) as ws:
            await ws.receive_json(timeout=5)
            await ws.close(code=1001)
        await until(lambda: server.count("gateway_realtime_calls_total", code="1001") == 1)
        peer = await RawPeer.connect(server.port, URL)
        await peer.message()
        peer.vanish("reset")
        await until(lambda: server.count("gateway_realtime_calls_total", code="1006") == 1)


# -- A full server -------------------------------------------------------------------------------------------------------------------


async def test_a_full_server_says_503_to_those_who_ask_for_it() -> None:
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        await PcmCaller(ws).open()
        async with server.http.get(f"{URL}?capacity=http", headers=UPGRADE) as reply:  # V38
            assert (reply.status, reply.headers["Retry-After"], await reply.json()) == (503, "2", FULL)
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.http.ws_connect(f"{URL}?capacity=http")
        assert refused.value.status == 503
        assert server.app[MANAGER].num_sessions == 1


async def test_a_full_server_accepts_tells_and_closes_otherwise() -> None:
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        await PcmCaller(ws).open()
        for url in (URL, f"{URL}?capacity=event"):  # V39
            async with server.http.ws_connect(url) as other:
                message = await other.receive_json(timeout=5)
                assert message["type"] == "error"
                assert {**message["error"], "message": ""} == {
                    "type": "server_error",
                    "code": "capacity_exceeded",
                    "message": "",
                    "param": None,
                    "event_id": None,
                }
                assert message["x_duplex"] == {"retry_after_s": 2, "fatal": True}
                assert (await other.receive(timeout=5)).type is aiohttp.WSMsgType.CLOSE
                assert other.close_code == 1013
        await until(lambda: server.count("gateway_realtime_calls_total", code="1013") == 2)


async def test_overflow_http_is_503_on_every_wire_before_the_upgrade() -> None:
    async with gateway(1, overflow="http") as server, server.connect("rawpcm") as ws:
        await PcmCaller(ws).open()
        for protocol in ("moshi", "rawpcm"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await server.connect(protocol)
            assert refused.value.status == 503
        async with server.http.get("/api/chat", headers=UPGRADE) as reply:
            assert int(reply.headers["Retry-After"]) > 0
            assert await reply.json() == {"error": "every slot is taken (1 of 1)"}
        assert await refusal(server) == (503, FULL["error"])
        async with server.http.ws_connect(f"{URL}?capacity=event") as other:  # a browser cannot read a status
            assert (await other.receive_json(timeout=5))["error"]["code"] == "capacity_exceeded"


async def test_overflow_http_lets_callers_in_when_there_is_room() -> None:
    async with gateway(1, overflow="http") as server:
        for _ in range(3):
            async with server.connect("rawpcm") as ws:
                await PcmCaller(ws).open()
            await until(lambda: server.is_empty)
            await created(server)
            await until(lambda: server.is_empty)


async def test_a_slow_server_is_not_called_full(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(2) as server:
        monkeypatch.setattr(type(server.app[TICKER]), "is_degraded", True)
        status, error = await refusal(server, f"{URL}?capacity=http")
        assert status == 503
        assert "too slow" in error["message"]


async def test_overflow_ws_is_1013_on_the_old_wires() -> None:
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        await PcmCaller(ws).open()
        async with server.connect("moshi") as other:
            assert (await read_chat(other))[1] == 1013


async def test_a_server_that_loads_is_not_called_full() -> None:
    """Another server said that it was full whenever anything was wrong."""
    engine = SlowToLoad(1)
    server = Gateway(engine)
    try:
        status, error = await refusal(server, f"{URL}?capacity=http")
        assert (status, error["code"]) == (503, "model_loading")
        async with server.http.ws_connect(URL) as ws:
            assert (await ws.receive_json(timeout=5))["error"]["code"] == "model_loading"
            await ws.receive(timeout=5)
            assert ws.close_code == 1013
        async with server.http.post(f"{URL}/client_secrets") as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (503, "model_loading")
        async with server.http.get("/v1/models") as reply:
            assert reply.status == 503
    finally:
        engine.may_load.set()
        await server.close()


async def test_a_server_that_leaves_says_so_before_it_asks_for_a_key() -> None:
    async with gateway(2, drain_seconds=5, **KEYED) as server, server.http.ws_connect("/v1/audio/duplex", headers=GOOD) as ws:
        await PcmCaller(ws).open()
        server.stop.set()
        await until(lambda: server.app[MANAGER].is_draining)
        async with server.http.get(URL, headers=UPGRADE) as reply:
            assert (reply.status, reply.headers["Retry-After"]) == (503, "5")
            assert (await reply.json())["error"]["code"] == "server_draining"


# -- The rest ------------------------------------------------------------------------------------------------------------------------


async def test_models_are_listed_under_every_name() -> None:
    async with gateway(1, realtime=STRICT) as server, server.http.get("/v1/models") as reply:
        body = await reply.json()
    assert [model["id"] for model in body["data"]] == ["fake", "gpt-realtime"]
    assert body["object"] == "list"
    assert {(model["object"], type(model["created"])) for model in body["data"]} == {("model", int)}


ABSENT = ["calls", "transcription_sessions", "translations/calls", "translations/client_secrets", "calls/rtc_1/accept"]


@pytest.mark.parametrize("path", ABSENT)
async def test_what_is_not_here_is_501(path: str) -> None:
    async with gateway(1) as server, server.http.post(f"{URL}/{path}", data=b"v=0") as reply:
        assert reply.status == 501
        assert (await reply.json())["error"]["code"] == "not_implemented"


async def test_wrong_methods_and_paths_have_openai_s_body() -> None:
    async with gateway(1) as server:
        refused = [("GET", f"{URL}/nowhere", 404, "not_found"), ("DELETE", "/v1/models", 405, "method_not_allowed")]
        for method, path, status, code in refused:
            async with server.http.request(method, path) as reply:
                assert (reply.status, (await reply.json())["error"]["code"]) == (status, code)
        async with server.http.get("/nowhere") as reply:
            assert isinstance((await reply.json())["error"], str)


# -- Speech detection ----------------------------------------------------------------------------------------------------------------


async def test_what_speech_detection_lacks_is_named_when_the_server_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    def lacks(sample_rate: int) -> None:
        raise ConfigError("onnxruntime is missing")

    monkeypatch.setattr(openai, "VoiceActivity", lacks)
    server = Gateway(FakeEngine(1), vad="silero")
    with pytest.raises(ConfigError, match=r"--vad: onnxruntime is missing \(or choose --vad energy\)"):
        await server.running
    await server.close()
    async with gateway(1, vad="energy") as server:
        await created(server)


async def test_the_network_is_loaded_once_for_all_callers_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Activity] = []

    class Activity:
        def __init__(self, sample_rate: int) -> None:
            self.sample_rate, self.num_streams, self.is_stopped = sample_rate, 0, False
            made.append(self)

        def stream(self, wake: object) -> EnergyDetector:
            self.num_streams += 1
            return EnergyDetector()

        def stop(self) -> None:
            self.is_stopped = True

    monkeypatch.setattr(openai, "VoiceActivity", Activity)
    async with gateway(2, vad="silero") as server:
        for num_callers in (1, 2):
            await created(server)
            assert [(one.sample_rate, one.num_streams, one.is_stopped) for one in made] == [(24000, num_callers, False)]
    assert made[0].is_stopped


async def test_a_late_result_wakes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the detector is slower than the model, nothing else may happen for a while after its result."""
    looked: list[float] = []
    due = RealtimeCodec.due
    wakes: list[Any] = []

    class Activity:
        def __init__(self, sample_rate: int) -> None:
            pass

        def stream(self, wake: object) -> EnergyDetector:
            wakes.append(wake)
            return EnergyDetector()

        def stop(self) -> None:
            pass

    def watched(self: RealtimeCodec, now: float) -> Any:
        looked.append(now)
        return due(self, now)

    monkeypatch.setattr(openai, "VoiceActivity", Activity)
    monkeypatch.setattr(RealtimeCodec, "due", watched)
    async with gateway(1, vad="silero") as server, server.http.ws_connect(URL) as ws:
        await ws.receive_json(timeout=5)
        await asyncio.sleep(0.05)
        before = len(looked)
        wakes[0]()
        await until(lambda: len(looked) > before, timeout_s=0.15)


async def test_audio_goes_both_ways() -> None:
    """Appended audio reaches the model, and what it says comes back."""
    async with gateway(1) as server, server.http.ws_connect(URL) as ws:
        audio = base64.b64encode(b"\x00\x20" * FRAME).decode()
        seen = set()
        for _ in range(30):
            await ws.send_json({"type": "input_audio_buffer.append", "audio": audio})
        while "response.output_audio.delta" not in seen:
            seen.add(json.loads((await ws.receive(timeout=10)).data)["type"])
        assert "response.created" in seen
        assert server.app[METRICS].registry.get_sample_value("gateway_realtime_created_seconds_count") == 1
