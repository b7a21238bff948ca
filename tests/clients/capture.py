"""A proxy between real clients and a gateway that writes down what passes, both ways, with times (specs/realtime.md 5.4).

It forwards the path, the query, the headers that the gateway reads and the subprotocols, relays the answer to the handshake, and ends one
side as the other ended. It changes nothing and invents nothing, so a capture is what the client and the gateway said. Thread: loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import yarl
from aiohttp import web

from tests.clients.record import Record

FORWARDED = ("Authorization", "api-key", "X-API-Key", "OpenAI-Beta", "Origin", "User-Agent", "X-OpenAI-Agents-SDK")
ABNORMAL = 1006  # no close frame came


@dataclasses.dataclass
class Handshake:
    """One attempt to connect."""

    seconds: float  # since the proxy was started
    path: str  # with the query
    status: int
    headers: dict[str, str]


@dataclasses.dataclass
class Capture:
    """What passed on one connection, in order."""

    handshake: Handshake
    started_s: float
    records: list[Record] = dataclasses.field(default_factory=list)
    ended: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)

    def note(self, *, is_client: bool, message: aiohttp.WSMessage | None = None, close_code: int | None = None) -> None:
        """Write one message down, or the end of a direction."""
        event = data = None
        if message is not None:
            text = message.data if message.type is aiohttp.WSMsgType.TEXT else None
            with contextlib.suppress(ValueError):
                event = json.loads(text) if text is not None else None
            if not isinstance(event, dict):
                event, data = None, text if text is not None else message.data.hex()
        seconds = time.monotonic() - self.started_s
        line = len(self.records) + 1
        self.records.append(Record(line=line, is_client=is_client, seconds=seconds, event=event, data=data, close_code=close_code))

    def server(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events of the gateway, of one type if given."""
        return self._events(False, kind)

    def client(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Events of the client, of one type if given."""
        return self._events(True, kind)

    @property
    def close_codes(self) -> dict[bool, int]:
        """is_client -> how that side ended."""
        return {record.is_client: record.close_code for record in self.records if record.close_code is not None}

    def save(self, path: Path) -> None:
        path.write_text("".join(f"{record.dumps()}\n" for record in self.records), encoding="utf-8")

    def _events(self, is_client: bool, kind: str | None) -> list[dict[str, Any]]:
        events = [record.event for record in self.records if record.is_client is is_client and record.event is not None]
        return [event for event in events if kind is None or event.get("type") == kind]


class Proxy:
    """Where the clients connect to, and all that has passed."""

    def __init__(self, upstream: str) -> None:
        self.upstream = yarl.URL(upstream)
        self.port = 0
        self.handshakes: list[Handshake] = []
        self.captures: list[Capture] = []
        self._started_s = time.monotonic()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Connect to the gateway, then to the client, and pump until both have ended."""
        url = self.upstream.join(yarl.URL(request.raw_path, encoded=True))
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        handshake = Handshake(time.monotonic() - self._started_s, request.raw_path, 0, dict(request.headers))
        self.handshakes.append(handshake)
        offered = [name.strip() for name in request.headers.get("Sec-WebSocket-Protocol", "").split(",") if name.strip()]
        async with aiohttp.ClientSession() as http:
            try:
                server = await http.ws_connect(url, headers=headers, protocols=offered, max_msg_size=0, autoping=True)
            except aiohttp.WSServerHandshakeError as error:
                handshake.status = error.status
                kept = {name: value for name, value in (error.headers or {}).items() if name in ("Retry-After", "WWW-Authenticate")}
                return web.json_response({"error": {"message": "refused", "code": None}}, status=error.status, headers=kept)
            handshake.status = 101
            client = web.WebSocketResponse(protocols=[server.protocol] if server.protocol else (), compress=False, max_msg_size=0)
            await client.prepare(request)
            capture = Capture(handshake, time.monotonic())
            self.captures.append(capture)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(_pump(client, server, capture, is_client=True))
                    group.create_task(_pump(server, client, capture, is_client=False))
            finally:
                capture.ended.set()
            return client


async def _pump(source: Any, sink: Any, capture: Capture, *, is_client: bool) -> None:
    async for message in source:
        capture.note(is_client=is_client, message=message)
        with contextlib.suppress(ConnectionError):  # the other pump tells how it ended
            await (sink.send_str(message.data) if message.type is aiohttp.WSMsgType.TEXT else sink.send_bytes(message.data))
    code = source.close_code or ABNORMAL
    if not sink.closed:  # this side ended first
        capture.note(is_client=is_client, close_code=code)
    await sink.close(code=code if code != ABNORMAL else aiohttp.WSCloseCode.GOING_AWAY)


@contextlib.asynccontextmanager
async def proxy(upstream: str, *, tls: ssl.SSLContext | None = None) -> AsyncIterator[Proxy]:
    """A proxy in front of `upstream` ("http://127.0.0.1:PORT"); with `tls` it speaks https and wss to the clients."""
    relay = Proxy(upstream)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", relay.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert site._server is not None
    relay.port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    try:
        yield relay
    finally:
        await runner.cleanup()
