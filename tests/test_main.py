"""The process: exit statuses, what is said on which stream, signals."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest

from gateway import __main__ as entry
from gateway.config import Config
from gateway.engine.fake import FakeEngine
from gateway.errors import ConfigError
from tests.integration.rig import PcmCaller, frame, own_environ

ROOT = Path(__file__).parent.parent


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeEngine]:
    """Engines that `main` makes; logging stays as pytest has it."""
    engines: list[FakeEngine] = []

    def make_engine(config: Config) -> FakeEngine:
        engines.append(FakeEngine(config.batch_size))
        return engines[-1]

    monkeypatch.setattr(entry, "make_engine", make_engine)
    monkeypatch.setattr(entry, "setup_logging", lambda level: None)
    for name in [name for name in os.environ if name.startswith("GATEWAY_")]:
        monkeypatch.delenv(name)
    return engines


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_a_bad_flag_is_one_line_and_status_2(made: list[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--port", "many"]) == 2
    assert capsys.readouterr().err.startswith("gateway: --port: ")
    assert not made


def test_a_port_in_use_is_status_2_before_an_engine_is_made(made: list[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert entry.main(["--port", str(port)]) == 2
    error = capsys.readouterr().err
    assert f"port {port} is in use" in error
    assert error.count("\n") == 1
    assert not made


def test_a_file_of_keys_that_cannot_be_read_is_status_2_before_an_engine_is_made(
    made: list[FakeEngine], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for flag in ([], ["--check"]):
        assert entry.main(["--api-keys-file", str(tmp_path / "keys"), *flag]) == 2
        assert capsys.readouterr().err.startswith("gateway: --api-keys-file: ")
    assert not made


def test_check_loads_the_engine_and_says_what_fits(made: list[FakeEngine], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry.main(["--check", "--batch-size", "3"]) == 0
    assert capsys.readouterr().out == "ok: fake on cpu, 3 slots\n"
    assert made[0].is_shut_down
    assert entry.main(["--check", "--voice", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err


@pytest.mark.parametrize(("error", "status"), [(ConfigError("tensor x is missing"), 2), (RuntimeError("device lost"), 1)])
def test_an_engine_that_does_not_load_sets_the_status(
    made: list[FakeEngine],
    error: Exception,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(entry, "make_engine", lambda config: FakeEngine(1, load_error=error))
    assert entry.main(["--batch-size", "1", "--port", str(free_port())]) == status
    assert capsys.readouterr().err == ("gateway: tensor x is missing\n" if status == 2 else "")
    assert sum(bool(record.exc_info) for record in caplog.records) == (status == 1)  # one traceback where it helps, none elsewhere


def test_listening_to_the_world_without_keys_is_one_loud_line(made: list[FakeEngine], caplog: pytest.LogCaptureFixture) -> None:
    entry._warn_when_open(Config(host="127.0.0.1"))
    entry._warn_when_open(Config(host="0.0.0.0", api_keys=("sk-good",)))
    assert not caplog.messages
    entry._warn_when_open(Config(host="0.0.0.0"))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "ANYBODY who can reach 0.0.0.0 port 8998" in caplog.messages[0]
    assert "--api-keys-file" in caplog.messages[0]


def test_auto_is_tiny_where_there_is_no_gpu_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    def chosen(free_gib: int, *, has_gpu: bool = True) -> str:
        cuda = SimpleNamespace(is_available=lambda: has_gpu, mem_get_info=lambda: (free_gib * 2**30, 141 * 2**30))
        monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))  # type: ignore[arg-type]
        return entry.choose_model("auto")

    assert entry.choose_model("kyutai/moshiko-pytorch-bf16") == "kyutai/moshiko-pytorch-bf16"
    assert chosen(0, has_gpu=False) == "tiny"
    assert chosen(8) == "tiny"
    assert chosen(140) == "nvidia/personaplex-7b-v1"


def test_importing_the_gateway_imports_no_torch() -> None:
    code = "import sys, gateway.app, gateway.config, gateway.__main__; print([m for m in ('torch', 'vllm') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=own_environ(), capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


class Process:
    """A gateway process with a FakeEngine."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.port = port
        self.log = ""

    @classmethod
    async def start(cls, *flags: str, **engine: Any) -> "Process":
        port = free_port()
        script = str(ROOT / "tests" / "fake_gateway.py")
        process = await asyncio.create_subprocess_exec(
            sys.executable, script, json.dumps(engine), "--port", str(port), *flags, env=own_environ(), stderr=subprocess.PIPE
        )
        started = cls(process, port)
        await started.wait_for("ready: ")
        return started

    async def wait_for(self, text: str) -> None:
        assert self.process.stderr is not None
        async with asyncio.timeout(30):
            while text not in self.log:
                line = await self.process.stderr.readline()
                assert line, self.log
                self.log += line.decode()

    async def status(self) -> int:
        assert self.process.stderr is not None
        async with asyncio.timeout(15):
            self.log += (await self.process.stderr.read()).decode()
            return await self.process.wait()


async def test_sigterm_drains_says_goodbye_with_1001_and_exits_0() -> None:
    gateway = await Process.start("--drain-seconds", "0.3")
    assert f"ws://localhost:{gateway.port}/api/chat" in gateway.log
    async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://127.0.0.1:{gateway.port}/v1/audio/duplex") as ws:
        caller = PcmCaller(ws)
        await caller.open()
        gateway.process.send_signal(signal.SIGTERM)
        await gateway.wait_for("draining: 1 calls")
        await ws.send_bytes(frame(0.5))
        await caller.answers(1)
        assert await caller.end() == (1001, "the server is shutting down")
    assert await gateway.status() == 0
    assert "Traceback" not in gateway.log


async def test_a_second_signal_ends_the_process_at_once() -> None:
    gateway = await Process.start("--drain-seconds", "600")
    async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://127.0.0.1:{gateway.port}/v1/audio/duplex") as ws:
        await PcmCaller(ws).open()
        gateway.process.send_signal(signal.SIGINT)
        await gateway.wait_for("draining")
        gateway.process.send_signal(signal.SIGTERM)
        assert await gateway.status() == -signal.SIGTERM


async def test_an_engine_that_fails_ends_the_process_with_1() -> None:
    gateway = await Process.start(fail_at_step=5)
    async with aiohttp.ClientSession() as http, http.ws_connect(f"ws://127.0.0.1:{gateway.port}/v1/audio/duplex") as ws:
        caller = PcmCaller(ws)
        await caller.open()
        await ws.send_bytes(frame(0.5, 10))
        assert (await caller.end())[0] == 1011
    assert await gateway.status() == 1
    assert gateway.log.count("Traceback") == 1
