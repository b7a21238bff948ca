"""A person at the page, in a real headless Chromium with a WAV file as the microphone: what they do and what they see.

The browser is Debian's, driven by playwright, which is installed under `.venv-clients/browser` by `install.sh` and imported from there. The
one rule: whatever a page prints to the console, raises or asks other hosts for is kept, and a test fails over it unless it said otherwise.
Thread: loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.browser.microphone import microphone_file

HERE = Path(__file__).parent
SITE = HERE.parents[1] / ".venv-clients" / "browser"
INSTALL_S = 900
WAIT_S = 60.0  # for anything to appear, on a machine that has other things to do
FLAGS = ("--use-fake-device-for-media-stream", "--autoplay-policy=no-user-gesture-required", "--disable-gpu")

# Keeps what the worklet tells the page about its buffer, and how late the page's own timers are; the page itself does not know.
SPY = """
globalThis.bufferStates = [];
globalThis.timerLags = [];
let ticked = performance.now();
setInterval(() => {
  timerLags.push(performance.now() - ticked - 20);
  ticked = performance.now();
}, 20);
const Node = globalThis.AudioWorkletNode;
if (Node) globalThis.AudioWorkletNode = class extends Node {
  constructor(...parts) {
    super(...parts);
    this.port.addEventListener("message", ({ data }) => { if (data.type === "state") bufferStates.push(data); });
  }
};
"""


@functools.cache
def _problem() -> str:
    """Install what is missing; why it could not be, or nothing."""
    environment = {**os.environ, "PYTHON": sys.executable}
    made = subprocess.run(
        ["bash", str(HERE / "install.sh")], capture_output=True, text=True, timeout=INSTALL_S, check=False, env=environment
    )
    return (made.stderr.strip().splitlines() or ["no message"])[-1] if made.returncode else ""


def needs_browser() -> None:
    """Skip the test where no browser can be had; fail it in CI."""
    if reason := _problem():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(f"no browser: {reason}")
    if str(SITE) not in sys.path:
        sys.path.append(str(SITE))  # at the end: the tests' own packages win


class Visitor:
    """One page.

    Attributes:
        page: playwright's.
        troubles: console errors and warnings, exceptions, requests to other hosts.
        received: binary messages of each WebSocket of the page, by the order in which they were opened.
    """

    def __init__(self, page: Any, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.troubles: list[str] = []
        self.received: list[list[bytes]] = []
        self.sockets: list[str] = []
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.troubles.append(f"exception: {error}"))
        page.on("request", self._on_request)
        page.on("websocket", self._on_websocket)

    async def open(self, path: str = "/") -> None:
        await self.page.goto(self.origin + path)

    async def choose(self, **fields: str | bool) -> None:
        """Set fields of the settings, as a person would whose sections are open."""
        for name, value in fields.items():
            await self.page.evaluate("id => { const d = document.getElementById(id).closest('details'); if (d) d.open = true; }", name)
            if isinstance(value, bool):
                await self.page.set_checked(f"#{name}", value)
            elif await self.page.evaluate("id => document.getElementById(id).tagName", name) == "SELECT":
                await self.page.select_option(f"#{name}", value)
            else:
                await self.page.fill(f"#{name}", value)

    async def talk(self) -> None:
        """Press the big button and wait until the call is live."""
        await self.page.click("#talk")
        await self.phase("live")

    async def hang_up(self) -> None:
        await self.page.click("#talk")
        await self.phase("over")

    async def phase(self, *wanted: str, timeout_s: float = WAIT_S) -> str:
        """Wait for a phase of the call; return it."""
        deadline_s = time.monotonic() + timeout_s
        while (phase := await self.page.get_attribute("body", "data-phase")) not in wanted:
            assert time.monotonic() < deadline_s, f"still {phase} ({await self.text('state')}), not {wanted}; {self.troubles}"
            await asyncio.sleep(0.05)
        return str(phase)

    async def text(self, name: str) -> str:
        """What an element says."""
        return str(await self.page.inner_text(f"#{name}"))

    async def until(self, name: str, pattern: str, timeout_s: float = WAIT_S) -> str:
        """Wait until an element says something; return it."""
        return await self.wait(lambda: self.text(name), lambda text: re.search(pattern, text) is not None, f"{name}: {pattern}", timeout_s)

    async def wait(self, read: Callable[[], Any], is_right: Callable[[Any], bool], what: str, timeout_s: float = WAIT_S) -> Any:
        deadline_s = time.monotonic() + timeout_s
        while not is_right(value := await read()):
            assert time.monotonic() < deadline_s, f"{what} did not come; last: {str(value)[-300:]}; {self.troubles}"
            await asyncio.sleep(0.1)
        return value

    async def buffer_states(self) -> list[dict[str, Any]]:
        """What the jitter buffer has told since the page was opened."""
        states: list[dict[str, Any]] = await self.page.evaluate("bufferStates")
        return states

    async def worst_lag_s(self) -> float:
        """How late a timer of the page was at most, since this was last asked: a machine that is busy elsewhere."""
        return float(await self.page.evaluate("Math.max(0, ...timerLags.splice(0))")) / 1000

    async def download(self, button: str) -> bytes:
        """Press a button that keeps something; return the file."""
        async with self.page.expect_download() as waiting:
            await self.page.click(f"#{button}")
        kept = await waiting.value
        return Path(await kept.path()).read_bytes()

    def sent_pcm(self, socket_idx: int = 0) -> NDArray[np.float32]:
        """The audio that the server sent on a raw PCM wire."""
        return np.frombuffer(b"".join(self.received[socket_idx]), "<f4")

    def forgive(self, pattern: str) -> None:
        """Take troubles away that a test has made itself; there must have been some."""
        kept = [trouble for trouble in self.troubles if not re.search(pattern, trouble)]
        assert len(kept) < len(self.troubles), f"nothing like {pattern} in {self.troubles}"
        self.troubles = kept

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.troubles.append(f"{message.type}: {message.text} {message.location.get('url', '')}")

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self.origin, "blob:", "data:")):
            self.troubles.append(f"external: {request.url}")

    def _on_websocket(self, socket: Any) -> None:
        messages: list[bytes] = []
        self.received.append(messages)
        self.sockets.append(socket.url)
        socket.on("framereceived", lambda payload: messages.append(payload) if isinstance(payload, bytes) else None)


@contextlib.asynccontextmanager
async def chromium(*flags: str, mic: bool = True, is_asked: bool = False) -> AsyncIterator[Any]:
    """The browser. Without `mic` there is no microphone at all; with `is_asked` nobody answers its question for the permission with yes."""
    needs_browser()
    from playwright.async_api import async_playwright

    asks = "--deny-permission-prompts" if is_asked else "--use-fake-ui-for-media-stream"
    device = (*FLAGS, f"--use-file-for-fake-audio-capture={microphone_file()}") if mic else FLAGS[1:]
    async with async_playwright() as driver:
        browser = await driver.chromium.launch(executable_path="/usr/bin/chromium", args=[*device, asks, *flags])
        try:
            yield browser
        finally:
            await browser.close()


@contextlib.asynccontextmanager
async def visiting(origin: str, browser: Any, *, width: int = 1280, height: int = 900, **options: Any) -> AsyncIterator[Visitor]:
    """A page of its own, without memory; nothing may have gone wrong on it by the end."""
    context = await browser.new_context(viewport={"width": width, "height": height}, **options)
    try:
        await context.add_init_script(SPY)
        visitor = Visitor(await context.new_page(), origin)
        yield visitor
        assert visitor.troubles == []
    finally:
        await context.close()
