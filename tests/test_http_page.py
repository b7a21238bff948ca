"""The bundled page over HTTP: where it is mounted, its headers, who may see what, and what `/api/config` and `/api/status` tell."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp.test_utils import make_mocked_request
from yarl import URL

from gateway import config as gateway_config
from gateway.app import MANAGER, TICKER, make_app
from gateway.config import Config
from gateway.engine.fake import DEFAULTS, FakeEngine
from gateway.transport.page import CONTENT_SECURITY_POLICY
from gateway.transport.status import _is_local, _is_loopback
from tests.integration.rig import Gateway, PcmCaller, frame, gateway, until

GOOD = {"Authorization": "Bearer sk-good"}
PRIVATE = "You are the secret agent."


async def get(server: Gateway, path: str, **headers: str) -> tuple[int, dict[str, Any], str]:
    """Status, headers and body of a page, without following redirects."""
    async with server.http.get(path, headers=headers, allow_redirects=False) as reply:
        return reply.status, dict(reply.headers), await reply.text()


async def test_the_page_is_at_the_root_and_under_app_and_its_headers_fence_it_in() -> None:
    async with gateway(1) as server:
        pages = [await get(server, path) for path in ("/", "/app/", "/index.html", "/app/index.html")]
        assert {(status, body) for status, _, body in pages} == {(200, pages[0][2])}
        for path in ("/", "/app/", "/status/", "/js/main.js", "/app/style.css", "/status/js/status.js", "/app"):
            status, headers, _ = await get(server, path)
            assert status in (200, 301)
            assert headers["Content-Security-Policy"] == CONTENT_SECURITY_POLICY, path
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert headers["Cache-Control"] == "no-cache"
        assert "Content-Security-Policy" not in (await get(server, "/health"))[1]
        assert (await get(server, "/js/jitter.js"))[1]["Content-Type"].split(";")[0].endswith("/javascript")


async def test_a_folder_without_its_slash_is_sent_there_relatively_for_there_may_be_a_prefix() -> None:
    async with gateway(1) as server:
        for path in ("/app", "/status"):
            status, headers, _ = await get(server, path)
            assert (status, headers["Location"]) == (301, f"{path[1:]}/")


async def test_nothing_outside_of_the_folder_is_served() -> None:
    async with gateway(1) as server:
        for path in ("/app/../pyproject.toml", "/app/%2e%2e/pyproject.toml", "/app/..%2fpyproject.toml", "/js", "/app/js/", "/nothing.js"):
            url = f"http://127.0.0.1:{server.port}"
            async with aiohttp.ClientSession() as http, http.get(URL(url + path, encoded=True)) as reply:
                assert reply.status in (403, 404), path


async def test_another_client_has_the_root_and_none_of_our_headers(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("theirs")
    (tmp_path / "app.js").write_text("theirs")
    async with gateway(1, static=tmp_path) as server:
        for path in ("/", "/app.js"):
            status, headers, body = await get(server, path)
            assert (status, body) == (200, "theirs")
            assert "Content-Security-Policy" not in headers
        assert (await get(server, "/"))[1]["Cache-Control"] == "no-cache"  # or a new build would show the old one's missing files
        assert "/api/chat" in (await get(server, "/app/"))[2]


async def test_without_a_page_there_is_none_anywhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gateway_config, "BUNDLED_STATIC", tmp_path)  # a wheel
    async with gateway(1) as server:
        assert (await get(server, "/"))[2].startswith("duplex-gateway ")
        assert [(await get(server, path))[0] for path in ("/app/", "/status/")] == [404, 404]
        assert (await get(server, "/api/status"))[0] == 200


async def test_config_tells_voices_defaults_limits_and_load() -> None:
    async with gateway(3, voice="tenor", queue_seconds=7, idle_seconds=9) as server, server.connect("rawpcm") as ws:
        ready = await PcmCaller(ws).open()
        status, headers, text = await get(server, f"/api/config?call={ready['session_id']}")
        body = json.loads(text)
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert body["status"] == "ok"
        assert (body["model"], body["device"], body["sample_rate"], body["frame_samples"]) == ("fake", "cpu", 24_000, 1920)
        assert body["voices"] == ["alto", "tenor"]
        assert body["defaults"]["voice"] == "tenor"
        assert body["defaults"]["sampling"] == {name: value for name, value in dataclasses.asdict(DEFAULTS).items() if value is not None}
        # the engine's 100 000 frames
        assert body["limits"] == {"max_call_s": 8000.0, "idle_s": 9.0, "queue_s": 7.0, "persona_chars": 4000}
        assert body["load"]["slots"] == {"total": 3, "used": 1}
        assert (body["load"]["accepts"], body["load"]["queued"], body["load"]["frame_ms"]) == (True, 0, 80.0)
        assert body["call"]["state"] == "live"
        assert json.loads((await get(server, "/api/config?call=0123"))[2])["call"] is None
        assert "call" not in json.loads((await get(server, "/api/config"))[2])


async def test_config_says_why_nobody_gets_in() -> None:
    async with gateway(1, queue_seconds=30) as server, server.connect("rawpcm") as first, server.connect("rawpcm") as second:
        await PcmCaller(first).open()
        load = json.loads((await get(server, "/api/config"))[2])["load"]
        assert (load["accepts"], load["queued"]) == (True, 0)  # it may wait
        await second.send_json({"type": "open"})
        await PcmCaller(second).event("queued")
        load = json.loads((await get(server, "/api/config"))[2])["load"]
        assert (load["accepts"], load["queued"], load["why"]) == (False, 1, "every slot is taken and the queue is full")
    async with gateway(1) as server, server.connect("rawpcm") as first:
        await PcmCaller(first).open()
        load = json.loads((await get(server, "/api/config"))[2])["load"]
        assert (load["accepts"], load["why"]) == (False, "every slot is taken (1 of 1)")


async def test_config_of_a_model_that_loads_or_has_failed(aiohttp_client: Any) -> None:
    app = make_app(Config(batch_size=1), FakeEngine(1, load_error=RuntimeError("no such device")))
    client = await aiohttp_client(app)
    await app[TICKER].failed.wait()
    body = await (await client.get("/api/config")).json()
    assert (body["status"], body["voices"], body["defaults"], body["load"]["slots"]) == ("failed", None, None, None)
    assert "model" not in body
    body = await (await client.get("/api/status")).json()
    assert body["reason"] == "no such device"


async def test_no_answer_has_a_secret_or_the_operators_persona() -> None:
    async with gateway(1, persona=PRIVATE, api_keys=("sk-good", "sk-other")) as server:
        for path in ("/api/config", "/api/status", "/v1/voices", "/v1/models", "/health"):
            status, _, text = await get(server, path, **GOOD)
            assert status == 200
            assert "sk-" not in text
            assert PRIVATE not in text
        assert json.loads((await get(server, "/api/config", **GOOD))[2])["defaults"]["persona"] is None
        assert json.loads((await get(server, "/v1/voices", **GOOD))[2])["persona"] is None
    async with gateway(1, persona=PRIVATE, realtime={"disclose_default_persona": True}) as server:
        assert json.loads((await get(server, "/api/config"))[2])["defaults"]["persona"] == PRIVATE
    async with gateway(1) as server:
        assert json.loads((await get(server, "/api/config"))[2])["defaults"]["persona"] == ""  # the checkpoint's own
        assert json.loads((await get(server, "/v1/voices"))[2])["persona"] == ""


async def test_status_tells_who_is_on_the_line_without_audio_or_text() -> None:
    async with gateway(2) as server, server.connect("rawpcm") as ws, server.connect("moshi") as other:
        caller = PcmCaller(ws)
        ready = await caller.open(pacing="live", persona=PRIVATE)
        await other.receive(timeout=5)
        await ws.send_bytes(frame(0.5, 3))
        await caller.answers(3)
        text = (await get(server, "/api/status"))[2]
        body = json.loads(text)
        assert PRIVATE not in text
        assert body["slots"] == ["live", "live"]
        mine = next(call for call in body["calls"] if call["id"] == ready["session_id"])
        assert {call["protocol"] for call in body["calls"]} == {"rawpcm", "moshi"}
        assert mine | {"age_s": 0} == {
            "id": ready["session_id"],
            "protocol": "rawpcm",
            "state": "live",
            "age_s": 0,
            "epoch": 1,
            "backlog_frames": 0,
            "ticks_late": 0,
            "frames_in": 3,
            "frames_out": 3,
            "dropped": {"in": {}, "out": {}},
        }
        assert 0 <= mine["age_s"] < 30
        assert body["uptime_s"] >= 0
        await ws.close()
        await until(lambda: len(server.app[MANAGER].calls()) == 1)


async def test_late_ticks_and_dropped_frames_are_counted_for_each_call() -> None:
    async with gateway(2, engine={"frame_samples": 240, "step_seconds": 0.02}, inbox_frames=2) as server, server.connect("rawpcm") as ws:
        caller = PcmCaller(ws)
        ready = await caller.open(pacing="live")
        await ws.send_bytes(frame(0.5, 2))  # 16 frames at once, two fit
        await caller.answers(2)
        call = json.loads((await get(server, f"/api/config?call={ready['session_id']}"))[2])["call"]
        assert call["dropped"]["in"]["backlog"] >= 10
        assert call["ticks_late"] >= 1
        async with server.connect("rawpcm") as later:
            fresh = await PcmCaller(later).open(pacing="live")
            call = json.loads((await get(server, f"/api/config?call={fresh['session_id']}"))[2])["call"]
            assert call["dropped"] == {"in": {}, "out": {}}


async def test_without_keys_the_status_is_for_this_machine_alone() -> None:
    async with gateway(1) as server:
        assert (await get(server, "/api/status"))[0] == (await get(server, "/status/"))[0] == 200
        for headers in ({"X-Forwarded-For": "203.0.113.9"}, {"Forwarded": "for=203.0.113.9"}, {"Host": "rebound.example:8998"}):
            for path in ("/api/status", "/status/", "/status"):
                status, _, text = await get(server, path, **headers)
                assert status == 403, (path, headers)
                assert "GATEWAY_API_KEYS" in json.loads(text)["error"]
            assert (await get(server, "/api/config", **headers))[0] == 200


async def test_with_keys_the_status_needs_one_and_the_page_does_not() -> None:
    async with gateway(1, api_keys=("sk-good",)) as server:
        assert (await get(server, "/api/status"))[0] == (await get(server, "/api/config"))[0] == 401
        assert (await get(server, "/api/status", **GOOD, **{"X-Forwarded-For": "203.0.113.9"}))[0] == 200
        for path in ("/", "/app/", "/status/", "/app/js/main.js"):
            assert (await get(server, path))[0] == 200
        assert (await get(server, "/app/nothing.js"))[0] == 401


@pytest.mark.parametrize(("host", "is_ours"), [
    ("127.0.0.1", True), ("127.8.9.1", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
    ("10.0.0.4", False), ("::ffff:10.0.0.4", False), ("localhost.example", False), ("", False),
])  # fmt: skip
def test_who_is_on_this_machine(host: str, is_ours: bool) -> None:
    assert _is_loopback(host) is is_ours


def test_a_request_without_an_address_is_a_strangers() -> None:
    assert not _is_local(make_mocked_request("GET", "/", headers={"Host": "localhost"}))
