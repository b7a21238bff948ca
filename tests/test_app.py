"""The application: health in every state, metrics, voices, draining, and what a failing engine does to it."""

import asyncio
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from gateway import app as gateway_app
from gateway.app import MANAGER, describe_urls, listen, make_app, tls_context
from gateway.config import Config
from gateway.engine.fake import FakeEngine
from gateway.errors import ConfigError, EngineError
from tests.integration.rig import Gateway, PcmCaller, frame, gateway, no_tracebacks, read_chat, until

ROOT = Path(__file__).parent.parent


class SlowToLoad(FakeEngine):
    """Loads when it is told to."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots)
        self.may_load = threading.Event()

    def load(self, progress: Callable[[str], None]) -> None:
        progress("half of the weights")
        self.may_load.wait(5)
        super().load(progress)


async def test_health_tells_loading_from_ready_and_callers_are_told_too() -> None:
    engine = SlowToLoad(2)
    server = Gateway(engine)
    try:
        await until(lambda: server.app[gateway_app.TICKER].progress != "")
        async with server.http.get("/health") as reply:
            assert reply.status == 503
            assert reply.headers["Retry-After"]
            assert await reply.json() == {"status": "loading", "progress": "half of the weights"}
        async with server.http.get("/v1/voices") as reply:
            assert reply.status == 503
        async with server.connect("moshi") as ws:
            _, code, reason = await read_chat(ws)
        assert (code, reason) == (1013, "the model is still loading")
        engine.may_load.set()
        await server.ready()
        async with server.connect("rawpcm") as ws:
            await PcmCaller(ws).open()
            async with server.http.get("/health") as reply:
                assert reply.status == 200
                body = await reply.json()
        assert body["status"] == "ok"
        assert body["model"] == "fake"
        assert body["slots"] == {"total": 2, "used": 1}
    finally:
        engine.may_load.set()
        await server.close()


async def test_a_server_that_is_too_slow_is_degraded_and_admits_nobody() -> None:
    """The frames of this engine last 10 ms and a step takes longer."""
    async with gateway(2, engine={"frame_samples": 240, "step_seconds": 0.012}) as server, server.connect("rawpcm") as ws:
        caller = PcmCaller(ws)
        await caller.open()
        await ws.send_bytes(frame(0.1, 5))  # 40 frames of 240
        await caller.answers(30)
        async with server.http.get("/health") as reply:
            assert reply.status == 200
            assert (await reply.json())["status"] == "degraded"
        async with server.connect("moshi") as other:
            _, code, reason = await read_chat(other)
        assert code == 1013
        assert "too slow" in reason
        assert server.ended("moshi", "refused") == 1


async def test_a_failing_engine_ends_every_call_with_1011_and_the_server_with_an_error() -> None:
    async with gateway(2, engine={"fail_at_step": 6}) as server:
        waiting = await server.connect("moshi")
        await until(lambda: server.engine.num_steps >= 1)
        async with server.connect("rawpcm") as ws:
            caller = PcmCaller(ws)
            await caller.open()
            await ws.send_bytes(frame(0.5, 20))
            code, reason = await caller.end()
            assert (code, reason) == (1011, "internal error")
            assert caller.events[-1]["code"] == "internal"
        messages, code, _ = await read_chat(waiting)
        assert code == 1011
        assert messages[-2] == b"\x05internal error"
        with pytest.raises(EngineError, match="failure injected"):
            await server.running
        assert server.ended("moshi", "failed") == server.ended("rawpcm", "failed") == 1


async def test_health_is_red_when_the_engine_has_failed(aiohttp_client: Callable[..., object]) -> None:
    app = make_app(Config(batch_size=1), FakeEngine(1, load_error=RuntimeError("no such device")))
    client = await aiohttp_client(app)  # type: ignore[misc]
    await app[gateway_app.TICKER].failed.wait()
    reply = await client.get("/health")
    assert reply.status == 503
    assert await reply.json() == {"status": "failed", "reason": "the engine has failed: no such device"}


async def test_draining_lets_calls_finish_refuses_new_ones_and_says_goodbye(caplog: pytest.LogCaptureFixture) -> None:
    async with gateway(3, drain_seconds=1.0) as server:
        patient, finishing = PcmCaller(await server.connect("rawpcm")), PcmCaller(await server.connect("rawpcm"))
        await patient.open()
        await finishing.open()
        server.stop.set()
        await until(lambda: server.app[MANAGER].is_draining)
        async with server.http.get("/health") as reply:
            assert reply.status == 503
            assert (await reply.json())["status"] == "draining"
        async with server.connect("moshi") as late:
            messages, code, reason = await read_chat(late)
        assert (code, reason) == (1001, "the server is shutting down")
        assert messages[0] == b"\x05the server is shutting down"
        await finishing.ws.send_bytes(frame(0.5, 2))
        await finishing.ws.send_json({"type": "close"})
        assert (await finishing.end())[0] == 1000
        assert len(finishing.frames) == 2
        assert (await patient.end())[0] == 1001
        await server.running
        assert server.engine.is_shut_down
        assert server.ended("rawpcm", "shutdown") == 1
        assert server.ended("rawpcm", "finished") == 1
        assert server.ended("moshi", "shutdown") == 1
    no_tracebacks(caplog)


async def test_a_voice_that_the_server_cannot_have_stops_it_at_once() -> None:
    server = Gateway(FakeEngine(1), voice="nobody")
    with pytest.raises(ConfigError, match=r"--voice.*nobody"):
        await server.running
    await server.close()


async def test_metrics_and_voices_are_told() -> None:
    async with gateway(3, persona="You are kind.", voice="tenor") as server, server.connect("moshi") as ws:
        await ws.receive(timeout=5)
        async with server.http.get("/metrics") as reply:
            assert reply.content_type == "text/plain"
            text = await reply.text()
        assert "gateway_slots_used 1.0" in text
        assert "# HELP gateway_tick_seconds" in text
        async with server.http.get("/v1/voices") as reply:
            assert await reply.json() == {"voices": ["alto", "tenor"], "default": "tenor", "persona": None}  # the operator's is not told
        async with server.http.get("/") as reply:
            assert reply.status == 200
            assert "/api/chat" in await reply.text()


async def test_the_http_error_of_a_bug_is_json_without_detail(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(1) as server:
        monkeypatch.setattr(type(server.app[MANAGER]), "health", property(lambda self: 1 / 0))
        async with server.http.get("/health") as reply:
            assert reply.status == 500
            assert "ZeroDivision" not in await reply.text()
        monkeypatch.undo()


def test_urls_name_the_place_and_the_scheme() -> None:
    with listen(Config(port=_free_port())) as listener:
        port = listener.getsockname()[1]
        assert describe_urls(listener, None) == [
            f"http://localhost:{port}/",
            f"ws://localhost:{port}/api/chat",
            f"ws://localhost:{port}/v1/audio/duplex",
            f"ws://localhost:{port}/v1/realtime",
            f"http://localhost:{port}/health",
        ]


def test_a_port_in_use_and_an_address_of_somebody_else_are_named() -> None:
    with listen(Config(port=_free_port())) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            listen(Config(port=port))
    with pytest.raises(ConfigError, match=r"cannot listen on 203\.0\.113\.7"):
        listen(Config(host="203.0.113.7", port=port))


def test_a_certificate_that_is_none_is_refused(tmp_path: Path) -> None:
    assert tls_context(Config()) is None
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("nothing")
    with pytest.raises(ConfigError, match="--ssl"):
        tls_context(Config(ssl=tmp_path))


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
async def test_both_wires_work_over_tls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = ("-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem"))
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", "/CN=localhost", *files],
        check=True,
        capture_output=True,
    )
    async with gateway(1, ssl=tmp_path) as server:
        assert describe_urls(server.listener, tls_context(server.config))[1] == f"wss://localhost:{server.port}/api/chat"
        async with server.connect("rawpcm") as ws:
            caller = PcmCaller(ws)
            await caller.open()
            await ws.send_bytes(frame(0.5, 40))
            await caller.answers(40)
            async with server.connect("moshi") as other:
                messages, code, _ = await read_chat(other)
                assert code == 1013
                assert messages[0].startswith(b"\x05every slot is taken")
            assert ws.get_extra_info("ssl_object") is not None
            await ws.send_json({"type": "close"})
            assert (await caller.end())[0] == 1000
    no_tracebacks(caplog)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


async def test_every_request_passes_the_guard() -> None:
    """It asks for the key; a route beside it would be a hole."""
    server = Gateway(FakeEngine(1))
    try:
        assert [handler.__name__ for handler in server.app.middlewares] == ["guard"]
        assert all(isinstance(route.resource, web.Resource | web.StaticResource) for route in server.app.router.routes())
    finally:
        await server.close()
        await asyncio.sleep(0)
