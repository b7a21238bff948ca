"""Ephemeral keys on a real port: made with a key, bound to a session, good for Realtime calls only."""

from __future__ import annotations

import io
import time
from typing import Any

import pytest

from protocols.realtime.handshake import KEY_PREFIX
from tests.integration.rig import Gateway, PcmCaller, gateway, until
from tests.integration.test_keys import GOOD, KEYED, UPGRADE
from tests.integration.test_openai_routes import URL, created, refusal

SESSION = {"type": "realtime", "instructions": "You are kind.", "audio": {"output": {"voice": "tenor"}}}


async def secret(server: Gateway, body: object, path: str = "client_secrets") -> dict[str, Any]:
    async with server.http.post(f"{URL}/{path}", json=body, headers=GOOD) as reply:
        assert reply.status == 200, await reply.text()
        return dict(await reply.json())


async def test_an_ephemeral_key_opens_the_session_it_was_made_for() -> None:
    async with gateway(1, **KEYED) as server:
        made = await secret(server, {"session": SESSION, "expires_after": {"anchor": "created_at", "seconds": 60}})
        assert 55 <= made["expires_at"] - time.time() <= 60
        assert made["session"]["id"].startswith("sess_")
        assert made["session"]["instructions"] == "You are kind."
        for offered in ([KEY_PREFIX + made["value"], "realtime"], ["realtime", KEY_PREFIX + made["value"]]):
            session = await created(server, protocols=offered)
            assert session["instructions"] == "You are kind."
            assert session["audio"]["output"]["voice"] == "tenor"
            await until(lambda: server.is_empty)


async def test_an_ephemeral_key_opens_nothing_else() -> None:
    async with gateway(1, **KEYED) as server:
        value = (await secret(server, {}))["value"]
        for method, path in (("POST", f"{URL}/client_secrets"), ("GET", "/v1/models"), ("GET", "/v1/audio/duplex"), ("GET", "/metrics")):
            async with server.http.request(method, path, headers={"Authorization": f"Bearer {value}"}) as reply:
                assert reply.status == 401, path
        async with server.http.get("/v1/audio/duplex", headers={**UPGRADE, "Authorization": f"Bearer {value}"}) as reply:
            assert reply.status == 401


async def test_an_expired_ephemeral_key_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async with gateway(1, **KEYED) as server:
        value = (await secret(server, {"expires_after": {"seconds": 10}}))["value"]
        unix_s = time.time
        monkeypatch.setattr("gateway.transport.http.time.time", lambda: unix_s() + 11)
        status, error = await refusal(server, Authorization=f"Bearer {value}")
        monkeypatch.undo()
        assert (status, error["code"]) == (401, "ephemeral_key_expired")


async def test_an_ephemeral_key_for_one_use_survives_a_full_server() -> None:
    async with gateway(1, ephemeral_single_use=True, **KEYED) as server:
        headers = {"Authorization": f"Bearer {(await secret(server, {}))['value']}"}
        async with server.http.ws_connect("/v1/audio/duplex", headers=GOOD) as ws:
            await PcmCaller(ws).open()
            assert (await refusal(server, f"{URL}?capacity=http", **headers))[0] == 503
        await until(lambda: server.is_empty)
        await created(server, headers=headers)
        assert (await refusal(server, **headers))[1]["code"] == "invalid_api_key"


async def test_the_beta_form_is_flat() -> None:
    async with gateway(1, **KEYED) as server:
        made = await secret(server, {"voice": "tenor", "modalities": ["audio", "text"], "instructions": "You are kind."}, "sessions")
        assert (made["voice"], made["instructions"]) == ("tenor", "You are kind.")
        assert 590 <= made["client_secret"]["expires_at"] - time.time() <= 600
        offered = ["realtime", KEY_PREFIX + made["client_secret"]["value"], "openai-beta.realtime-v1"]
        session = await created(server, protocols=offered)
        assert (session["voice"], session["instructions"]) == ("tenor", "You are kind.")


BAD_BODIES = [
    (b"{", "invalid_json", None),
    (b"[]", "invalid_json", None),
    (b"[" * 100_000, "invalid_json", None),
    (b'{"session": 1}', "invalid_type", "session"),
    (b'{"session": {"type": "transcription"}}', "invalid_value", "session.type"),
    (b'{"session": {"audio": {"input": {"format": {"type": "mp3"}}}}}', "invalid_value", "session.audio.input.format.type"),
    (b'{"expires_after": 600}', "invalid_type", "expires_after"),
    (b'{"expires_after": {"anchor": "first_use"}}', "invalid_value", "expires_after.anchor"),
    (b'{"expires_after": {"seconds": 9}}', "invalid_value", "expires_after.seconds"),
    (b'{"expires_after": {"seconds": 7201}}', "invalid_value", "expires_after.seconds"),
    (b'{"expires_after": {"seconds": "60"}}', "invalid_type", "expires_after.seconds"),
    (b'{"expires_after": {"seconds": 60.5}}', "invalid_type", "expires_after.seconds"),
    (b'{"expires_after": {"seconds": NaN}}', "invalid_json", None),
    (b'{"expires_after": {"seconds": true}}', "invalid_type", "expires_after.seconds"),
]


async def test_a_body_that_cannot_be_is_refused_by_name() -> None:
    async with gateway(1) as server:
        for body, code, param in BAD_BODIES:
            async with server.http.post(f"{URL}/client_secrets", data=body) as reply:
                assert reply.status == 400, body
                error = (await reply.json())["error"]
            assert (error["code"], error["type"]) == (code, "invalid_request_error"), body
            assert param is None or error["param"] in (param, param.removesuffix(".type")), body
        async with server.http.post(f"{URL}/client_secrets", data=io.BytesIO(b" " * 2**21)) as reply:
            assert (reply.status, (await reply.json())["error"]["code"]) == (413, "request_too_large")
