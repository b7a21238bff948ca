"""Connecting, being refused and being let go, as each client tells it (T01, T02, T23, T27 of specs/realtime.md 5.3)."""

import asyncio
import dataclasses
from pathlib import Path

import aiohttp
import pytest

from protocols.realtime.options import RealtimeOptions
from tests.clients.clients import A, B, C, Client, J, L, N, P, each
from tests.clients.driver import Driver
from tests.clients.hall import FREE_S, hall
from tests.clients.raw import raw
from tests.integration.rig import until

REFUSED = ("refused", "error", "failed", "closed")  # one of these reports tells that there is no call


async def refusal(client: Client, driver: Driver) -> str:
    """Wait until the client tells its user that it was refused; return all that it tells."""
    await driver.seen(lambda report: report["what"] in REFUSED or report.get("status") == "disconnected", timeout_s=60)
    return f"{driver.brief()} {driver.stderr}"


@each(P, B, N, A, J, C, L)
async def test_the_session_is_told_first_and_the_slot_is_free_after_the_client_has_left(client: Client, tmp_path: Path) -> None:
    async with hall(num_slots=1, tls=client.tls(tmp_path)) as place:
        async with client.run(place, tmp_path) as driver:
            await driver.seen("connected", timeout_s=60)
            await until(lambda: bool(place.relay.captures and place.capture.server()), timeout_s=20)
            await asyncio.sleep(0.3)  # let it say what it says at first
            await driver.do("quit")
            async with asyncio.timeout(20):
                await place.capture.ended.wait()
            assert await until(lambda: place.server.is_empty) < FREE_S
        assert place.capture.server()[0]["type"] == "session.created"
        place.check()


@each(P, N, A, J, C, L)
async def test_a_wrong_key_is_refused_before_the_upgrade(client: Client, tmp_path: Path) -> None:
    tls = client.tls(tmp_path)
    async with hall(num_slots=1, tls=tls, api_keys=("right",)) as place, client.run(place, tmp_path, key="wrong") as driver:
        told = await refusal(client, driver)
        assert {handshake.status for handshake in place.relay.handshakes} == {401}
        assert "401" in told or client is L  # which only says that it could not connect
        assert place.server.is_empty


async def test_refusals_have_a_json_body_and_take_no_slot() -> None:
    async with hall(num_slots=1, api_keys=("right",), overflow="http") as place, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{place.server.port}/v1/realtime"
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "A" * 22 + "=="}
        for given, code in (({}, "missing_api_key"), ({"Authorization": "Bearer wrong"}, "invalid_api_key")):
            async with http.get(url, headers={**upgrade, **given}) as reply:
                assert reply.status == 401
                assert (await reply.json())["error"]["code"] == code
        assert place.server.is_empty
        async with raw(place.ws(), headers={"Authorization": "Bearer right"}) as client:
            await client.seen("session.created")
            async with http.get(url, headers={**upgrade, "Authorization": "Bearer right"}) as reply:
                assert reply.status == 503
                assert int(reply.headers["Retry-After"]) >= 1
                assert (await reply.json())["error"]["code"] == "capacity_exceeded"


@each(P, N, A, J, C)
async def test_a_client_that_finds_the_house_full_is_told_so_and_gets_in_when_a_slot_is_free(client: Client, tmp_path: Path) -> None:
    async with hall(num_slots=1, tls=client.tls(tmp_path), overflow="http") as place:
        async with raw(f"http://127.0.0.1:{place.server.port}/v1/realtime") as holder:
            await holder.seen("session.created")
            async with client.run(place, tmp_path) as driver:
                told = await refusal(client, driver)
                assert "503" in told
            assert [handshake.status for handshake in place.relay.handshakes] == [503]
        await place.ended()
        async with client.run(place, tmp_path) as driver:
            await driver.seen("connected", timeout_s=60)
            await until(lambda: bool(place.relay.captures and place.capture.server("session.created")), timeout_s=20)


@pytest.mark.clients
async def test_livekit_gives_up_after_four_handshakes_where_the_url_asks_for_a_refusal_before_the_upgrade(tmp_path: Path) -> None:
    client = dataclasses.replace(L, url=lambda hall: hall.http("/v1/realtime?capacity=http"))
    async with hall(num_slots=1) as place, raw(f"http://127.0.0.1:{place.server.port}/v1/realtime") as holder:
        await holder.seen("session.created")
        async with client.run(place, tmp_path) as driver:
            await driver.seen(lambda report: report["what"] == "error" and report["is_recoverable"] is False, timeout_s=60)
            await asyncio.sleep(2)  # longer than its pauses
        assert [handshake.status for handshake in place.relay.handshakes] == [503] * 4


@each(P, A)
async def test_the_end_of_the_longest_session_is_announced(client: Client, tmp_path: Path) -> None:
    options = RealtimeOptions(max_session_s=2)
    async with hall(num_slots=1, realtime=options, folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen(lambda report: "session_expired" in str(report), timeout_s=60)
        async with asyncio.timeout(20):
            await place.capture.ended.wait()
        assert place.capture.close_codes[False] == 1001
        assert place.capture.server()[-1]["error"]["code"] == "session_expired"
        await place.ended()
    place.check(expected_errors={"session_expired"})
