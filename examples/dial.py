"""Connect to a WebSocket of the gateway, with a key if it asks for one, and say why it refuses."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp


@contextlib.asynccontextmanager
async def dial(url: str, key: str | None, **options: Any) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
    """A connection; `options` are those of aiohttp's `ws_connect`."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(headers=headers) as http:
        try:
            ws = await http.ws_connect(url, max_msg_size=0, **options)
        except aiohttp.WSServerHandshakeError as error:
            if error.status == 200:
                raise SystemExit(f"{url} is a page, not a call: its path must be one of the README's") from None
            async with http.get(url.replace("ws", "http", 1)) as reply:  # its answer to the same request without an upgrade has a body
                reason = (await reply.text()).strip() if reply.status == error.status else error.message
            raise SystemExit(f"refused with HTTP {error.status}: {reason}") from None
        async with ws:
            yield ws
