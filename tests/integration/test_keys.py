"""Keys, origins and limits on every route of a gateway on a real port: what is refused is refused before an upgrade."""

from __future__ import annotations

import logging
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.transport.http import REALTIME_PATHS
from protocols.realtime.handshake import KEY_PREFIX
from tests.integration.rig import Gateway, PcmCaller, gateway, no_tracebacks, until

UPGRADE = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}
GOOD, BAD = {"Authorization": "Bearer sk-good"}, {"Authorization": "Bearer sk-bad"}
SOCKETS = ("/api/chat", "/v1/audio/duplex", *REALTIME_PATHS)
OPENAI = ("/v1/realtime", "/realtime", "/openai", "/v1/models")
OPEN = {"/", "/health"}
KEYED: dict[str, Any] = {"api_keys": ("sk-good", "sk-other")}


def routes(server: Gateway) -> list[tuple[str, str]]:
    """Every route of the application, also one that is added tomorrow."""
    found = set()
    for route in server.app.router.routes():
        if route.resource is not None and not isinstance(route.resource, web.StaticResource) and route.method != "HEAD":
            found.add((route.method, route.resource.canonical.replace("{kind}", "translations").replace("{rest}", "x")))
    return sorted(found)


async def status(server: Gateway, method: str, path: str, headers: dict[str, str]) -> int:
    """The status of the answer; the connection is dropped whatever it is."""
    url = f"http://127.0.0.1:{server.port}{path}"
    async with aiohttp.ClientSession() as http, http.request(method, url, headers=headers) as reply:
        return reply.status


async def test_every_route_asks_for_a_key() -> None:
    """Another gateway checked the key on all its HTTP routes and forgot the socket."""
    async with gateway(1, **KEYED) as server:
        found = routes(server)
        assert {path for _, path in found} >= {*SOCKETS, *OPEN, "/metrics", "/v1/voices", "/v1/models", "/v1/realtime/client_secrets"}
        for method, path in found:
            upgrade = UPGRADE if path in SOCKETS else {}
            for headers in ({}, BAD, {"Authorization": "Bearer ek_" + "0" * 40}, {"X-API-Key": "sk-goo"}):
                refused = await status(server, method, path, {**upgrade, **headers})
                assert refused == (200 if path in OPEN else 401), (method, path, headers)
            for headers in (GOOD, {"api-key": "sk-other"}):
                assert await status(server, method, path, {**upgrade, **headers}) not in (401, 403, 404), (method, path)
        assert await status(server, "GET", "/nowhere", {}) == 401
        assert await status(server, "GET", "/nowhere", GOOD) == 404


async def test_a_refusal_says_which_header_to_send_in_the_shape_of_its_route() -> None:
    async with gateway(1, **KEYED) as server:
        for path in ("/v1/realtime", "/v1/models", "/openai/realtime", "/api/chat", "/metrics"):
            for headers, code in (({}, "missing_api_key"), (BAD, "invalid_api_key")):
                async with server.http.get(path, headers={**UPGRADE, **headers}) as reply:
                    assert (reply.status, reply.headers["WWW-Authenticate"]) == (401, "Bearer")
                    error = (await reply.json())["error"]
                if path.startswith(OPENAI):
                    assert {**error, "message": ""} == {"message": "", "type": "invalid_request_error", "code": code, "param": None}
                    error = error["message"]
                assert "Authorization: Bearer <key>" in error
                assert "sk-" not in error


async def test_a_socket_that_is_refused_never_was_a_session() -> None:
    async with gateway(1, **KEYED) as server:
        for protocol in ("moshi", "rawpcm"):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await server.connect(protocol)
            assert refused.value.status == 401
        assert server.is_empty
        assert server.ended("moshi", "client_error") == server.ended("rawpcm", "client_error") == 0


@pytest.mark.parametrize("path", ["/api/chat", "/v1/audio/duplex", "/v1/realtime"])
async def test_a_browser_sends_its_key_as_a_subprotocol_and_it_is_not_told_back(path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    offered = ["realtime", KEY_PREFIX + "sk-good", "openai-beta.realtime-v1"]
    async with gateway(1, **KEYED) as server:
        async with server.http.ws_connect(path, protocols=offered) as ws:
            assert ws.protocol == "realtime"
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await server.http.ws_connect(path, protocols=["realtime", KEY_PREFIX + "sk-bad"])
        assert refused.value.status == 401
        async with server.http.get(path, headers={**UPGRADE, "Sec-WebSocket-Protocol": KEY_PREFIX + "sk-good"}) as reply:
            assert reply.status == 101
            assert "Sec-WebSocket-Protocol" not in reply.headers
        await until(lambda: server.is_empty)
    assert "sk-" not in caplog.text.replace("(2 keys)", "")
    no_tracebacks(caplog)


async def test_a_key_of_the_url_needs_permission() -> None:
    for is_allowed in (False, True):
        async with gateway(1, allow_query_key=is_allowed, **KEYED) as server:
            for path in ("/v1/voices?api_key=sk-good", "/v1/models?api_key=sk-good?model=x"):
                assert await status(server, "GET", path, {}) == (200 if is_allowed else 401)
            assert await status(server, "GET", "/v1/voices?api_key=sk-bad", {}) == 401
            assert await status(server, "GET", "/v1/realtime?api_key=sk-good?model=x", UPGRADE) == (101 if is_allowed else 401)


async def test_health_tells_strangers_its_status_and_nothing_else() -> None:
    async with gateway(2, **KEYED) as server:
        for headers in ({}, BAD, {"Origin": "https://evil.example"}):
            async with server.http.get("/health", headers=headers) as reply:
                assert (reply.status, await reply.json()) == (200, {"status": "ok"})
        async with server.http.get("/health", headers=GOOD) as reply:
            assert (await reply.json())["slots"] == {"total": 2, "used": 0}
    async with gateway(2) as server, server.http.get("/health") as reply:  # without keys nobody is a stranger
        assert (await reply.json())["model"] == "fake"


async def test_pages_of_other_origins_are_kept_out_of_every_route() -> None:
    async with gateway(2, allowed_origins=("https://app.example.com",)) as server:
        for method, path in routes(server):
            upgrade = UPGRADE if path in SOCKETS else {}
            refused = await status(server, method, path, {**upgrade, "Origin": "https://evil.example"})
            assert refused == (200 if path in OPEN else 403), (method, path)
        for origin in ("https://app.example.com", f"http://127.0.0.1:{server.port}"):
            assert await status(server, "GET", "/v1/voices", {"Origin": origin}) == 200
            async with server.http.ws_connect("/v1/audio/duplex", origin=origin) as ws:
                await PcmCaller(ws).open()
        assert await status(server, "GET", "/v1/voices", {}) == 200  # no browser
        async with server.http.get("/v1/realtime", headers={**UPGRADE, "Origin": "null"}) as reply:
            assert (await reply.json())["error"]["code"] == "origin_not_allowed"


async def test_the_origin_comes_before_the_key() -> None:
    async with gateway(1, allowed_origins=("https://app.example.com",), **KEYED) as server:
        assert await status(server, "GET", "/v1/realtime", {**UPGRADE, "Origin": "https://evil.example"}) == 403
        assert await status(server, "GET", "/v1/realtime", {**UPGRADE, "Origin": "https://app.example.com"}) == 401


async def test_static_files_are_open_and_their_socket_is_not(tmp_path: Any) -> None:
    (tmp_path / "index.html").write_text("<p>page</p>")
    (tmp_path / "page.js").write_text("1")
    async with gateway(1, static=tmp_path, **KEYED) as server:
        for path in ("/", "/index.html", "/page.js"):
            assert await status(server, "GET", path, {}) == 200
        assert await status(server, "GET", "/missing.js", {}) == 404
        assert await status(server, "GET", "/api/chat", UPGRADE) == 401
        assert await status(server, "POST", "/page.js", {}) == 401


async def test_a_key_that_holds_its_calls_gets_no_more_and_other_keys_do() -> None:
    async with gateway(4, max_sessions_per_key=1, **KEYED) as server:
        url = "/v1/audio/duplex"
        async with server.http.ws_connect(url, headers=GOOD) as ws:
            await PcmCaller(ws).open()
            for path in SOCKETS:
                async with server.http.get(path, headers={**UPGRADE, **GOOD}) as reply:
                    assert reply.status == 429
                    assert int(reply.headers["Retry-After"]) > 0
                    error = (await reply.json())["error"]
                    assert not path.startswith(OPENAI) or (error["code"], error["type"]) == ("rate_limit_exceeded", "rate_limit_error")
            async with server.http.ws_connect(url, headers={"api-key": "sk-other"}) as other:
                await PcmCaller(other).open()
        async with server.http.ws_connect(url, headers=GOOD) as ws:
            await PcmCaller(ws).open()


async def test_a_client_that_loops_is_told_when_to_come_back() -> None:
    """One framework reconnects ten times a second without end when a full server accepts it and closes."""
    async with gateway(1, handshakes_per_minute_per_key=3, **KEYED) as server:
        statuses = [await status(server, "GET", "/v1/audio/duplex", {**UPGRADE, **GOOD}) for _ in range(5)]
        assert statuses == [101, 101, 101, 429, 429]
        async with server.http.get("/v1/realtime", headers={**UPGRADE, **GOOD}) as reply:
            assert 50 < int(reply.headers["Retry-After"]) <= 60
        assert await status(server, "GET", "/v1/voices", GOOD) == 200  # it knocks at sockets that are counted


async def test_without_keys_nothing_is_counted_by_key() -> None:
    async with gateway(2, handshakes_per_minute_per_key=1, max_sessions_per_key=1) as server:
        for _ in range(3):
            async with server.connect("rawpcm") as ws:
                await PcmCaller(ws).open()
