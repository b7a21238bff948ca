"""The page behind proxies: one that puts a prefix before everything, and some that are set up wrongly, each fault with its own sentence."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from tests.browser.visitor import chromium, visiting
from tests.integration.rig import Gateway, PcmCaller, gateway

Socket = web.WebSocketResponse | aiohttp.ClientWebSocketResponse
KEPT_HEADERS = ("Content-Type", "Location")


class Proxy:
    """Passes on what comes under `prefix` to a gateway, but for its faults.

    Attributes:
        passes_upgrade: whether it passes on that a WebSocket is asked for.
        is_lost: it looks for the server at a port where nobody is, except for the files of the page.
    """

    def __init__(self, server: Gateway, prefix: str) -> None:
        self.passes_upgrade = True
        self.is_lost = False
        self.port = 0
        self._target = f"http://127.0.0.1:{server.port}"
        self._http = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_get(prefix + "{rest:.*}", self._forward)
        self._runner = web.AppRunner(app)

    async def open(self) -> None:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.port = self._runner.addresses[0][1]

    async def close(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        rest = request.match_info["rest"]
        if self.is_lost and rest.startswith(("api/", "v1/")):
            return web.Response(status=502, text="<h1>Bad gateway</h1>", content_type="text/html")
        if request.headers.get("Upgrade") and self.passes_upgrade:
            near = web.WebSocketResponse()
            await near.prepare(request)
            async with self._http.ws_connect(f"{self._target}/{rest}", params=request.query) as far:
                await _join(near, far)
            return near
        async with self._http.get(f"{self._target}/{rest}", params=request.query, allow_redirects=False) as reply:
            kept = {name: reply.headers[name] for name in KEPT_HEADERS if name in reply.headers}
            return web.Response(status=reply.status, body=await reply.read(), headers=kept)


@contextlib.asynccontextmanager
async def proxied(server: Gateway, prefix: str = "/") -> AsyncIterator[Proxy]:
    proxy = Proxy(server, prefix)
    await proxy.open()
    try:
        yield proxy
    finally:
        await proxy.close()


async def _join(near: Socket, far: Socket) -> None:
    """Carry messages both ways until one side ends; the end of the far side is told to the near one."""

    async def carry(source: Socket, sink: Socket) -> None:
        async for message in source:
            if message.type is aiohttp.WSMsgType.BINARY:
                await sink.send_bytes(message.data)
            elif message.type is aiohttp.WSMsgType.TEXT:
                await sink.send_str(message.data)

    tasks = [asyncio.create_task(carry(near, far)), asyncio.create_task(carry(far, near))]
    _, rest = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    if far.closed and not near.closed:
        await near.close(code=far.close_code or 1011)


async def test_with_a_prefix_everything_is_found() -> None:
    async with (
        gateway(1) as server,
        proxied(server, "/voice/") as proxy,
        chromium() as browser,
        visiting(f"http://127.0.0.1:{proxy.port}", browser) as visitor,
    ):
        for path in ("/voice/", "/voice/app"):
            await visitor.open(path)
            await visitor.until("server-text", "fake on cpu")
            await visitor.talk()
            await visitor.until("log", "hello")
            await visitor.hang_up()
        assert all("/voice/api/chat" in url for url in visitor.sockets)
        await visitor.page.click("#status-link")
        await visitor.until("health-text", "not shown here|Healthy")


@pytest.mark.parametrize("wire", ["opus", "pcm"])
async def test_no_upgrade_no_server_and_a_full_server_are_told_apart(wire: str) -> None:
    async with (
        gateway(1) as server,
        proxied(server) as proxy,
        chromium() as browser,
        visiting(f"http://127.0.0.1:{proxy.port}", browser) as visitor,
    ):
        await visitor.open()
        await visitor.until("server-text", "fake on cpu")
        await visitor.choose(wire=wire)

        proxy.passes_upgrade = False
        await visitor.page.click("#talk")
        await visitor.until("state", "The call could not be opened, trying again in")
        assert "headers Upgrade and Connection" in await visitor.text("detail")
        await visitor.hang_up()
        proxy.passes_upgrade = True

        proxy.is_lost = True
        await visitor.page.click("#talk")
        await visitor.until("state", "A proxy got no answer from the server, trying again in")
        assert "502" in await visitor.text("detail")
        await visitor.hang_up()
        proxy.is_lost = False

        async with server.connect("rawpcm") as ws:
            await PcmCaller(ws).open()
            await visitor.page.click("#talk")
            await visitor.until("state", "The server is full, trying again in")
            await visitor.hang_up()
        visitor.forgive("502|WebSocket")
