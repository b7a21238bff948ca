"""What only one framework does: LiveKit's replies and updates (T14, T39), Pipecat's manual turns with its replayed preroll (T15)."""

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.clients.clients import C, L
from tests.clients.driver import Driver
from tests.clients.hall import hall
from tests.clients.scripted import FRAME, Line
from tests.helpers import tone
from tests.integration.rig import until

pytestmark = pytest.mark.clients
USER = tone(24_000, hz=300)
CANCEL_ERROR = {"response_cancel_not_active"}


def warnings(driver: Driver) -> list[str]:
    """What LiveKit finds worth a warning, without its remark about our loudspeaker."""
    return [log["detail"] for log in driver.all("log") if "resume_false_interruption" not in log["detail"]]


async def test_livekit_replies_and_updates_without_a_timeout(tmp_path: Path) -> None:
    greetings = [Line(440 + 110 * idx, 12, (f" Reply {idx}.",), cue="nudge") for idx in range(3)]
    async with hall(*greetings, folder=tmp_path) as place, L.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        for idx in range(1, 4):
            await driver.do("reply", instructions="Say hello.")
            replied = await driver.seen("replied", idx)
            assert (replied["is_interrupted"], replied["error"]) == (False, "None")
            if idx == 1:
                await driver.do("instructions", text="You are Bea.")
                await driver.do("context", text="My name is Max.")
                await driver.seen("updated", 2, timeout_s=4.5)  # it gives up after 5 s
        await driver.do("history")
        items = (await driver.seen("history"))["items"]
    place.check(expected_errors=CANCEL_ERROR)
    assert warnings(driver) == []
    assert driver.all("error") == []
    said = [item["text_content"] for item in items if item["role"] == "assistant"]
    assert said == ["Reply 0.", "Reply 1.", "Reply 0."]  # the second persona began when nobody spoke, and with it the script
    assert "You are Bea." in place.engine.parts[-1].persona
    assert place.capture.server("session.updated")[-1]["session"]["instructions"] == "You are Bea."
    listed = [event["item"]["role"] for event in place.capture.server("conversation.item.added")]
    assert listed.count("user") == 1


async def test_livekit_knows_the_order_of_the_conversation(tmp_path: Path) -> None:
    async with hall(Line(440, 12, (" One.",)), Line(550, 12, (" Two.",)), folder=tmp_path) as place, L.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        for idx in (1, 2):
            await driver.say(USER)
            await driver.seen(L.is_report(L.ended), idx)
        await asyncio.sleep(0.2)
    place.check(expected_errors=CANCEL_ERROR)
    assert warnings(driver) == []  # an item with a wrong predecessor would be one
    roles = [event["item"]["role"] for event in place.capture.server("conversation.item.added")]
    assert roles == ["user", "assistant", "user", "assistant"]


async def test_livekit_interrupts_and_asks_again_at_once(tmp_path: Path) -> None:
    lines = [Line(440 + 20 * idx, 100, (f" Reply {idx}.",), cue="nudge") for idx in range(4)]
    async with hall(*lines, folder=tmp_path) as place, L.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.do("reply")
        for idx in range(1, 4):
            await driver.seen("agent", 2 * idx, timeout_s=20)  # speaking
            await asyncio.sleep(0.1 * idx)
            await driver.do("interrupt")
            await driver.do("reply")
        await until(lambda: len(place.capture.server("response.done")) >= 3, timeout_s=20)
    place.check(expected_errors=CANCEL_ERROR)
    assert driver.all("error") == []  # and no request was refused because of the answer that was cancelled before it


async def test_livekit_connects_to_a_base_url_without_a_path(tmp_path: Path) -> None:
    client = dataclasses.replace(L, url=lambda hall: hall.http(""))
    async with hall(Line(440, 12), folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen(L.is_report(L.ended))
    place.check(expected_errors=CANCEL_ERROR)
    assert place.capture.handshake.path.startswith("/realtime?model=")


async def test_pipecat_appends_its_model_to_any_query(tmp_path: Path) -> None:
    client = dataclasses.replace(C, url=lambda hall: hall.ws("/v1/realtime?duplex=1"))
    async with hall(Line(440, 12), folder=tmp_path) as place, client.run(place, tmp_path) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen(C.is_report(C.ended))
    place.check()
    assert place.capture.handshake.path == "/v1/realtime?duplex=1?model=gpt-realtime-2.1"
    session = place.capture.server("session.created")[0]["session"]
    assert (session["model"], session["x_duplex"]["client_duplex"]) == ("gpt-realtime-2.1", True)


async def test_pipecat_finds_the_turns_itself_and_replays_what_it_has_cleared(tmp_path: Path) -> None:
    options: dict[str, Any] = {"session": {"audio": {"input": {"turn_detection": False}}}}
    lines = (Line(440, 100, (" A", " long", " one."), cue="nudge"), Line(550, 12, (" Done.",), cue="nudge"))
    async with hall(*lines, folder=tmp_path) as place, C.run(place, tmp_path, options=json.dumps(options)) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.do("run")
        await driver.seen("audio", 10)
        await driver.say(tone(12_000, hz=300))  # speech, which the application notices late
        await asyncio.sleep(0.4)
        await driver.do("user", is_speaking=True)  # clear, the last half second again, cancel, truncate
        await asyncio.sleep(0.6)
        await driver.do("user", is_speaking=False)  # commit, create
        await until(lambda: len(place.capture.server("response.done")) >= 2, timeout_s=20)
        await driver.seen("audio", len(driver.all("audio")))
    place.check(expected_errors=CANCEL_ERROR)
    assert driver.all("error") == []
    assert len(place.capture.server("input_audio_buffer.cleared")) == 1
    heard = place.engine.parts[-1].heard_pcm
    num_spoken = int(np.sum(np.abs(heard) > 1e-4)) / 0.99
    assert abs(num_spoken - 12_000) < FRAME  # once, not twice
    assert len(place.capture.server("input_audio_buffer.committed")) == 1
