"""Run a driver script in its client's environment, give it orders and read its reports. Thread: loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import subprocess
import wave
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).parents[2]
ANSWER_S = 30.0  # for one report, on a machine that has other things to do
START_S = 60.0  # imports of a large framework on a cold disk

Report = dict[str, Any]


class Driver:
    """One running client."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.reports: list[Report] = []
        self.stderr = ""
        self._process = process
        self._folder = folder
        self._changed = asyncio.Event()
        self._readers = [asyncio.create_task(self._read()), asyncio.create_task(self._read_errors())]

    async def do(self, what: str, **fields: Any) -> None:
        """Give an order."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": what, **fields}).encode() + b"\n")
        await self._process.stdin.drain()

    async def say(self, pcm: NDArray[np.float32]) -> None:
        """Speak into the client's microphone."""
        path = self._folder / f"say-{len(list(self._folder.glob('say-*')))}.wav"
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(24_000)
            file.writeframes((np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes())
        await self.do("say", file=str(path))

    async def seen(self, what: str | Callable[[Report], bool], count: int = 1, *, timeout_s: float = ANSWER_S) -> Report:
        """Wait for the `count`th report of a kind, or that passes a test; return it."""
        is_meant = what if callable(what) else lambda report: report["what"] == what
        try:
            async with asyncio.timeout(timeout_s):
                while len(found := [report for report in self.reports if is_meant(report)]) < count:
                    assert not self._readers[0].done(), f"the client ended: {self.brief()}\n{self.stderr}"
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{what} did not come {count} times: {self.brief()}\n{self.stderr}") from None
        return found[count - 1]

    async def event(self, kind: str, count: int = 1, **options: Any) -> Report:
        """Wait for the `count`th report of a server event of a type."""
        return await self.seen(lambda report: report["what"] == "event" and report["type"] == kind, count, **options)

    def all(self, what: str) -> list[Report]:
        """Every report of a kind so far."""
        return [report for report in self.reports if report["what"] == what]

    def pcm(self, **fields: Any) -> NDArray[np.int16]:
        """The audio that the client has handed out, int16, of the reports with these fields."""
        chunks = [report["pcm"] for report in self.all("audio") if all(report.get(name) == value for name, value in fields.items())]
        return np.frombuffer(b"".join(base64.b64decode(chunk) for chunk in chunks), "<i2")

    def brief(self) -> list[Report]:
        """The reports, without their sound."""
        return [{name: value for name, value in report.items() if name != "pcm"} for report in self.reports]

    async def ended(self) -> int:
        """Wait for the client's end."""
        async with asyncio.timeout(ANSWER_S):
            await asyncio.gather(*self._readers)
            return await self._process.wait()

    async def stop(self) -> None:
        """Ask it to end; insist after a while."""
        with contextlib.suppress(ConnectionError, TimeoutError):
            await self.do("quit")
            async with asyncio.timeout(10):
                await self._process.wait()
        if self._process.returncode is None:
            self._process.kill()
        await asyncio.gather(*self._readers)

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if line.startswith(b"{"):  # frameworks print greetings
                self.reports.append(json.loads(line))
            self._changed.set()
        self._changed.set()

    async def _read_errors(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self.stderr += line.decode(errors="replace")


@contextlib.asynccontextmanager
async def driving(command: Sequence[str], *arguments: str, folder: Path) -> AsyncIterator[Driver]:
    """Start `command` (an interpreter and a script) with these arguments."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GATEWAY_", "OPENAI_", "PYTHON"))}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    environ["PYTHONPATH"] = str(ROOT)
    process = await asyncio.create_subprocess_exec(*command, *arguments, cwd=ROOT, env=environ, limit=2**24, **pipes)
    driver = Driver(process, folder)
    try:
        yield driver
    finally:
        await driver.stop()
