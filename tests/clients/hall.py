"""A gateway with a scripted engine on a real port, a capture proxy in front of it, and the verdict on all that passed. Thread: loop."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

from tests.clients import brackets, validate
from tests.clients.capture import Capture, Proxy, proxy
from tests.clients.scripted import Line, ScriptedEngine
from tests.integration.rig import Gateway, until

FREE_S = 0.5  # from the end of a socket to a free slot (specs/realtime.md 1.6)


class Hall:
    """Where clients and the gateway meet."""

    def __init__(self, server: Gateway, engine: ScriptedEngine, relay: Proxy, *, is_secure: bool) -> None:
        self.server = server
        self.engine = engine
        self.relay = relay
        self._secure = "s" if is_secure else ""

    def http(self, path: str = "/v1") -> str:
        """A URL for clients that want an http one."""
        return f"http{self._secure}://127.0.0.1:{self.relay.port}{path}"

    def ws(self, path: str = "/v1/realtime") -> str:
        """A URL for clients that want a WebSocket one."""
        return f"ws{self._secure}://127.0.0.1:{self.relay.port}{path}"

    @property
    def capture(self) -> Capture:
        """The only connection."""
        assert len(self.relay.captures) == 1, [handshake.path for handshake in self.relay.handshakes]
        return self.relay.captures[0]

    async def ended(self) -> None:
        """Wait until no slot is in use."""
        await until(lambda: self.server.is_empty, timeout_s=10)

    def check(self, *, expected_errors: Iterable[str] = ()) -> None:
        """Assert that every event was one that strict clients accept, and in its place (T30, T31)."""
        for capture in self.relay.captures:
            found = [*validate.complaints(capture.records), *brackets.complaints(capture.records, expected_errors=expected_errors)]
            assert found == [], [text[:300] for text in found[:10]]


@contextlib.asynccontextmanager
async def hall(
    *lines: Line, num_slots: int = 2, tls: ssl.SSLContext | None = None, folder: Path | None = None, **settings: Any
) -> AsyncIterator[Hall]:
    """A gateway whose model plays `lines`; with `tls` the proxy speaks https and wss; the captures are left in `folder`."""
    engine = ScriptedEngine(num_slots, lines)
    server = Gateway(engine, vad="energy", **settings)
    try:
        await server.ready()
        async with proxy(f"http://127.0.0.1:{server.port}", tls=tls) as relay:
            try:
                yield Hall(server, engine, relay, is_secure=tls is not None)
            finally:
                for idx, capture in enumerate(relay.captures if folder is not None else []):
                    capture.save(folder / f"capture-{idx}.jsonl")
    finally:
        await server.close()
