"""What clients ask for in mid-call: cancel, truncate, greet, commit, change the voice (T10 to T13, T16, T17, T19, T38, T39)."""

import asyncio
import base64
import random
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.clients import A, C, Client, J, L, N, P, each
from tests.clients.hall import Hall, hall
from tests.clients.raw import RawClient, raw
from tests.clients.scripted import FRAME, RATE, Line, share_at
from tests.helpers import rms, tone
from tests.integration.rig import until

LONG = Line(550, 250, (" A", " long", " answer."))
SHORT = Line(660, 12, (" Short.",))
GREETING = Line(440, 12, (" Good", " day."), cue="nudge")
USER = tone(24_000, hz=300)


async def speaking(place: Hall, client: RawClient, *, num_deltas: int = 10) -> tuple[str, str]:
    """Ask aloud, wait for so much of the answer; return response and item."""
    client.listen()
    client.say(USER)
    await client.seen("response.output_audio.delta", num_deltas)
    delta = client.all("response.output_audio.delta")[-1]
    return delta["response_id"], delta["item_id"]


# -- Cancel --------------------------------------------------------------------------------------------------------------------------


@each(P, N, C)
async def test_a_client_cancels_while_the_model_speaks_waits_and_is_silent(client: Client, tmp_path: Path) -> None:
    async with hall(LONG, SHORT, tls=client.tls(tmp_path), folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen("audio", 10)
        await driver.do("send", event={"type": "response.cancel"})
        await driver.seen(client.is_report(client.ended))
        await driver.do("send", event={"type": "response.create"})
        await driver.do("send", event={"type": "response.cancel"})  # pending: nothing was said yet
        await driver.do("send", event={"type": "response.cancel", "event_id": "c3"})  # nothing is open
        await driver.say(USER)  # and the client lives
        await until(lambda: len(place.capture.server("response.done")) == 3, timeout_s=20)
    place.check(expected_errors={"response_cancel_not_active"})
    done = [event["response"] for event in place.capture.server("response.done")]
    assert [response["status"] for response in done] == ["cancelled", "cancelled", "completed"]
    assert [len(response["output"]) for response in done] == [1, 0, 1]
    assert [response["status_details"]["reason"] for response in done[:2]] == ["client_cancelled"] * 2
    errors = [event["error"] for event in place.capture.server("error")]
    assert [error["event_id"] for error in errors] == ["c3"]
    assert errors[0]["message"].startswith("Cancellation failed")


async def test_cancel_and_create_in_one_packet_are_never_refused() -> None:
    lines = [Line(440, 40, (" Yes.",), cue="nudge")] * 50
    chance = random.Random(0)
    async with hall(*lines) as place, raw(f"http://127.0.0.1:{place.server.port}/v1/realtime") as client:
        wire = client.ws.get_extra_info("socket")
        client.listen()
        await client.send("response.create")
        for idx in range(1, 51):
            await client.seen("response.created", idx)
            await asyncio.sleep(chance.choice((0, 0, 0.05, 0.2, 0.8)))
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 1)
            await client.send("response.cancel")
            await client.send("response.create")
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_CORK, 0)
        await client.seen("response.created", 51)
    place.check()
    statuses = [event["response"]["status"] for event in client.all("response.done")]
    assert statuses == ["cancelled"] * 50
    assert {len(event["response"]["output"]) for event in client.all("response.done")} == {0, 1}  # waiting ones and speaking ones


# -- Truncate ------------------------------------------------------------------------------------------------------------------------


async def test_truncate_in_the_middle_too_far_twice_at_zero_and_of_nothing() -> None:
    async with hall(LONG, SHORT) as place, raw(place.ws()) as client:
        _, item_id = await speaking(place, client, num_deltas=20)
        await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=800)  # open: cancels it
        truncated = await client.seen("conversation.item.truncated")
        assert (truncated["item_id"], truncated["audio_end_ms"]) == (item_id, 800)
        await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=400)
        assert (await client.seen("conversation.item.truncated", 2))["audio_end_ms"] <= 800
        await client.send("conversation.item.truncate", item_id="item_unknown", content_index=0, audio_end_ms=1, event_id="t1")
        error = (await client.seen("error"))["error"]
        assert (error["code"], error["event_id"]) == ("item_truncate_invalid_item_id", "t1")
        client.say(USER)
        done = await client.seen("response.done", 2)
        second = done["response"]["output"][0]["id"]
        sent_ms = client.pcm(done["response"]["id"]).size * 1000 // RATE
        await client.send("conversation.item.truncate", item_id=second, content_index=0, audio_end_ms=99_000)  # a telephone bridge's clock
        assert (await client.seen("conversation.item.truncated", 3))["audio_end_ms"] == sent_ms
    place.check(expected_errors={"item_truncate_invalid_item_id"})
    assert [event["response"]["status"] for event in client.all("response.done")] == ["cancelled", "completed"]


@each(A, J)
async def test_both_agents_kits_truncate_and_read_the_item_again(client: Client, tmp_path: Path) -> None:
    async with hall(LONG, SHORT, folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen("audio", 20)
        await driver.do("interrupt")
        await driver.event("conversation.item.retrieved")
        await driver.say(USER)
        await driver.seen(client.is_report(client.ended), 2)
        await driver.do("history")
        items = (await driver.seen("history"))["items"]
    place.check(expected_errors={"response_cancel_not_active"})
    sent = place.capture.client("conversation.item.truncate")
    done = place.capture.server("conversation.item.truncated")
    assert [event["item_id"] for event in sent] == [event["item_id"] for event in done]
    assert [item["role"] for item in items if item["role"] == "assistant"] == ["assistant"] * 2
    assert items[-1]["texts"] == ["Short."]


# -- A greeting, push to talk, the voice ---------------------------------------------------------------------------------------------


@each(P, A, C, L)
async def test_the_model_greets_when_it_is_asked_to(client: Client, tmp_path: Path) -> None:
    orders: dict[str, dict[str, Any]] = {
        P.name: {"what": "send", "event": {"type": "response.create", "response": {"metadata": {"k": "v"}}}},
        A.name: {"what": "send", "event": {"type": "response.create"}},
        C.name: {"what": "run"},
        L.name: {"what": "reply"},
    }
    async with hall(GREETING, Line(550, 12), folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.do("mute", is_muted=True)
        order = dict(orders[client.name])
        await driver.do(order.pop("what"), **order)
        await driver.seen(client.is_report(client.ended), 1)
        await driver.seen("audio", 12)
        await driver.do("mute", is_muted=False)
        await driver.say(USER)
        await driver.seen("audio", 12 + 24)
    place.check(expected_errors={"response_cancel_not_active"} if client.sends_cancel else ())
    created = [event["response"] for event in place.capture.server("response.created")]
    asked = [event.get("response", {}).get("metadata") for event in place.capture.client("response.create")]
    assert created[0]["metadata"] == asked[0]
    assert created[1]["metadata"] is None
    delays = _delays(place, "response.create", "response.created")
    assert delays[0] < 0.25  # 50 ms of the specification, and a busy machine
    assert share_at(driver.pcm()[: GREETING.num_frames * FRAME], 440) > 0.9


def _delays(place: Hall, asked: str, answered: str) -> list[float]:
    """Seconds from each client event to the first server event of a type after it."""
    records = [record for record in place.capture.records if record.event is not None]
    asked_s = [record.seconds for record in records if record.is_client and record.event["type"] == asked]  # type: ignore[index]
    answered_s = [record.seconds for record in records if not record.is_client and record.event["type"] == answered]  # type: ignore[index]
    return [min((answer for answer in answered_s if answer >= ask), default=1e9) - ask for ask in asked_s]


@pytest.mark.parametrize("is_faster", [True, False], ids=["the model was faster", "the model waits"])
@each(P, A)
async def test_push_to_talk(client: Client, is_faster: bool, tmp_path: Path) -> None:
    answer = Line(440, 20, (" Here.",), cue="reply" if is_faster else "nudge")
    turn_detection_off = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
    async with hall(answer, folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.do("send", event={"type": "session.update", "session": turn_detection_off})
        await asyncio.sleep(0.3)
        await driver.say(USER)
        await asyncio.sleep(1.2)
        if is_faster:
            await driver.seen("audio", 3)
        await driver.do("send", event={"type": "input_audio_buffer.commit"})
        await driver.do("send", event={"type": "response.create"})
        await driver.seen(client.is_report(client.ended))
    place.check(expected_errors={"conversation_already_has_active_response"})
    assert len(place.capture.server("input_audio_buffer.committed")) == 1
    assert len(place.capture.server("error")) == (is_faster and client is P)  # the other waits until it may ask
    assert place.capture.server("input_audio_buffer.speech_started") == []
    assert share_at(driver.pcm(), 440) > 0.9


async def test_the_voice_is_fixed_once_the_model_was_heard() -> None:
    def voice(name: str) -> dict[str, Any]:
        return {"type": "realtime", "audio": {"output": {"voice": name}}}

    async with hall(Line(440, 12), Line(550, 12)) as place, raw(place.ws()) as client:
        await client.send("session.update", session=voice("NATM1"))
        assert (await client.seen("session.updated"))["session"]["audio"]["output"]["voice"] == "NATM1"
        client.listen()
        client.say(USER)
        await client.seen("response.done")
        await client.send("session.update", session=voice("NATM2"), event_id="v1")
        error = (await client.seen("error"))["error"]
        assert (error["code"], error["param"], error["event_id"]) == ("cannot_update_voice", "session.audio.output.voice", "v1")
        await client.send("session.update", session=voice("NATM1"))  # the same is no change
        await client.seen("session.updated", 2)
        client.say(USER)
        await client.seen("response.done", 2)
    place.check(expected_errors={"cannot_update_voice"})
    assert place.engine.parts[-1].prompt.voice_prompt == "NATM1"


# -- What a client sends that means nothing here, and what it must not notice --------------------------------------------------------


@each(A, J, C, L)
async def test_a_backchannel_interrupts_nobody(client: Client, tmp_path: Path) -> None:
    async with hall(Line(440, 60, (" On", " and", " on.")), folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen("audio", 10)
        before = client.count(driver, client.interrupted)
        await driver.say(tone(7200, hz=300))  # 300 ms
        await driver.seen(client.is_report(client.ended))
        assert client.count(driver, client.interrupted) == before
    place.check()
    assert len(place.capture.server("input_audio_buffer.speech_started")) == 1
    assert [event["response"]["status"] for event in place.capture.server("response.done")] == ["completed"]
    assert len(place.capture.server("response.output_audio.delta")) == 2 + 60 + 10


@each(A, J, C, L)
async def test_harmless_wishes_are_no_errors(client: Client, tmp_path: Path) -> None:
    tool = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
    hearing = {"transcription": {"model": "gpt-4o-mini-transcribe"}, "noise_reduction": {"type": "near_field"}}
    audio = {"input": hearing, "output": {"speed": 1.25}}
    wishes = {"type": "realtime", "tools": [tool], "tool_choice": "auto", "tracing": "auto", "temperature": 0.7, "audio": audio}
    image = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    item = {"type": "message", "role": "user", "content": [image, {"type": "input_text", "text": "What is this?"}]}
    async with hall(Line(440, 12), folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.do("send", event={"type": "session.update", "session": wishes})
        await driver.do("send", event={"type": "session.update", "session": {"type": "realtime", "audio": {"output": {"voice": "fable"}}}})
        await driver.do("send", event={"type": "conversation.item.create", "item": item})
        await driver.say(USER)
        await driver.seen(client.is_report(client.ended))
    place.check()
    assert place.capture.server("error") == []
    ignored = place.capture.server("session.updated")[-1]["session"]["x_duplex"]["ignored"]
    assert "audio.output.voice" in ignored
    tools = [event["session"]["tools"] for event in place.capture.server("session.updated")]
    assert any(shown and shown[0]["name"] == "f" for shown in tools)


FORMATS = [({"type": "audio/pcm", "rate": rate}, rate, "<i2") for rate in (8000, 16_000, 24_000, 48_000)] + [("pcm_f32le", RATE, "<f4")]


@pytest.mark.parametrize(("audio_format", "rate", "dtype"), FORMATS, ids=lambda value: str(value) if isinstance(value, int) else "")
async def test_a_tone_keeps_its_pitch_at_every_rate(audio_format: Any, rate: int, dtype: str) -> None:
    async with hall() as place, raw(place.ws()) as client:
        if isinstance(audio_format, dict):
            await client.send("session.update", session={"type": "realtime", "audio": {"input": {"format": audio_format}}})
        else:
            await client.send("session.update", session={"input_audio_format": audio_format})
        await client.seen("session.updated")
        sound = 0.27 * np.sin(2 * np.pi * 440 * np.arange(rate) / rate)
        data = (sound * (32768 if dtype == "<i2" else 1)).astype(dtype).tobytes()
        for start in range(0, len(data), len(data) // 25):
            await client.send("input_audio_buffer.append", audio=base64.b64encode(data[start : start + len(data) // 25]).decode())
        await until(lambda: bool(place.engine.parts) and len(place.engine.parts[0].heard) >= 16, timeout_s=20)  # it, and some silence
        heard = place.engine.parts[0].heard_pcm
    place.check()
    loud = np.flatnonzero(np.abs(heard) > 0.05)
    heard = heard[loud[0] : loud[-1]]
    assert abs(heard.size / RATE - 1) < 0.05
    assert share_at(heard, 440) > 0.97
    assert abs(rms(heard) / (0.27 / np.sqrt(2)) - 1) < 0.05


