"""The clients under test: how each is started and what its reports mean (specs/realtime.md 5.1 and the columns of 5.3).

The rule: a client is the published package, unmodified, pinned by version; only URL, key and TLS trust are configured.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.driver import Driver, Report, driving
from tests.clients.hall import Hall
from tests.clients.tls import tls_server

HERE = Path(__file__).parent
HOME = HERE.parents[1] / ".venv-clients"
INSTALL_S = 900


def environment(name: str) -> Path:
    """The folder of one environment of `install.sh`, made if it is missing; the test is skipped where that cannot be done."""
    if reason := _problem(name):
        if os.environ.get("CI"):
            pytest.fail(f"the environment {name!r} cannot be made: {reason}")
        pytest.skip(f"the environment {name!r} cannot be made (no network?): {reason}")
    return HOME / name


@functools.cache
def _problem(name: str) -> str:
    """Make an environment; why it could not be made, or nothing."""
    made = subprocess.run(["bash", str(HERE / "install.sh"), name], capture_output=True, text=True, timeout=INSTALL_S, check=False)
    return (made.stderr.strip().splitlines() or ["no message"])[-1] if made.returncode else ""


def python(name: str) -> list[str]:
    return [str(environment(name) / "bin" / "python")]


def node(script: str) -> list[str]:
    """Run a script beside the packages that it imports."""
    folder = environment("node")
    for path in (*HERE.glob("*.mjs"), *(HERE.parents[1] / "examples").glob("*.mjs")):
        there = folder / path.name
        if not there.exists() or there.read_bytes() != path.read_bytes():
            fresh = folder / f".{path.name}.{os.getpid()}"
            shutil.copy(path, fresh)
            fresh.replace(there)  # whole or not at all: another test may be starting it
    return ["node", str(folder / script)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Client:
    """One column of the matrix."""

    name: str
    command: Callable[[], list[str]]
    url: Callable[[Hall], str]
    started: str  # report of a turn's beginning: its `what`, or for "event ..." the event's type
    ended: str
    interrupted: str
    text: Callable[[list[Report]], str]  # all that the model said, as the client tells it
    flags: tuple[str, ...] = ()
    needs_tls: bool = False
    is_light: bool = False  # runs in the tests' own environment
    sends_cancel: bool = False  # after an interruption, which finds nothing to cancel

    @contextlib.asynccontextmanager
    async def run(self, hall: Hall, folder: Path, *, key: str = "k", options: str = "{}") -> AsyncIterator[Driver]:
        """Start it."""
        async with driving(self.command(), self.url(hall), key, options, *self.flags, folder=folder) as driver:
            yield driver

    def tls(self, folder: Path) -> ssl.SSLContext | None:
        """What the proxy must speak for this client."""
        return tls_server(folder) if self.needs_tls else None

    @staticmethod
    def is_report(kind: str) -> Callable[[Report], bool]:
        what, _, event = kind.partition(" ")
        return lambda report: report["what"] == what and event in ("", report.get("type"), report.get("state"), report.get("role"))

    def count(self, driver: Driver, kind: str) -> int:
        return sum(map(self.is_report(kind), driver.reports))


def _joined(reports: list[Report], what: str, *path: str) -> str:
    found = []
    for report in reports:
        if report["what"] == what:
            value: Any = report
            for step in path:
                value = value.get(step) if isinstance(value, dict) else None
            found.append(value or "")
    return "".join(found)


def _event_text(reports: list[Report]) -> str:
    deltas = [report for report in reports if "transcript.delta" in report.get("type", "")]
    return _joined(deltas, "event", "event", "delta")


EVENTS = {"started": "event response.created", "ended": "event response.done", "interrupted": "event input_audio_buffer.speech_started"}

P = Client(
    name="openai-python",
    command=lambda: [sys.executable, "-m", "tests.clients.drive_openai"],
    url=lambda hall: hall.http(),
    text=_event_text,
    is_light=True,
    **EVENTS,  # type: ignore[arg-type]
)
B = dataclasses.replace(
    P, name="openai-python-beta", command=lambda: [*python("beta"), "-m", "tests.clients.drive_openai"], flags=("--beta",), is_light=False
)
N = dataclasses.replace(P, name="openai-node", command=lambda: node("drive_openai_node.mjs"), needs_tls=True, is_light=False)
A = Client(
    name="openai-agents-python",
    command=lambda: [*python("agents"), "-m", "tests.clients.drive_agents"],
    url=lambda hall: hall.ws("/v1/realtime?model=m"),
    started="turn_started",
    ended="turn_ended",
    interrupted="audio_interrupted",
    text=lambda reports: _joined(reports, "text", "text"),
)
J = Client(
    name="openai-agents-js",
    command=lambda: node("drive_agents.mjs"),
    url=lambda hall: hall.ws("/v1/realtime?model=m"),
    started="turn_started",
    ended="turn_ended",
    interrupted="audio_interrupted",
    text=lambda reports: _joined(reports, "turn_ended", "text"),
)
C = Client(
    name="pipecat",
    command=lambda: [*python("pipecat"), "-m", "tests.clients.drive_pipecat"],
    url=lambda hall: hall.ws(),
    started="turn_started",
    ended="response_ended",
    interrupted="interrupted",
    text=lambda reports: _joined(reports, "text", "text"),
)
L = Client(
    name="livekit",
    command=lambda: [*python("livekit"), "-m", "tests.clients.drive_livekit"],
    url=lambda hall: hall.http(),
    started="agent speaking",
    ended="item assistant",
    interrupted="interrupted",
    text=lambda reports: _joined([report for report in reports if report.get("role") == "assistant"], "item", "text_content"),
    sends_cancel=True,
)


def each(*clients: Client) -> Any:
    """Parametrise a test over clients; those with an environment of their own are in the group `clients`."""
    cases = [pytest.param(client, id=client.name, marks=[] if client.is_light else [pytest.mark.clients]) for client in clients]
    return pytest.mark.parametrize("client", cases)
