"""Whole conversations with every client: two turns and an interruption, bit-exact and in order (T05, T06, T08, T29, T30, T31)."""

import asyncio
from pathlib import Path

import numpy as np

from tests.clients.clients import A, B, C, Client, J, L, N, P, each
from tests.clients.driver import Driver, Report
from tests.clients.hall import Hall, hall
from tests.clients.scripted import FRAME, Line
from tests.helpers import tone
from tests.integration.rig import until

PREROLL = 2 * FRAME  # samples before the onset
CLOSING = 10 * FRAME  # samples of silence that end a response
SCRIPT: tuple[Line, ...] = (
    Line(440, 15, (" The", " first", " answer.")),
    *(Line(hz, 250, (" An", " answer", " of", " twenty", " seconds.")) for hz in (550, 880, 990)),
    Line(660, 12, (" The", " last", " one.")),
)
USER = tone(24_000, hz=300)  # a second of "speech"
INTERRUPT_AFTER = (4, 38, 125)  # frames of an answer that the user has heard: 0.3 s, 3 s, 10 s


async def history(driver: Driver) -> list[Report]:
    """The conversation as the client has it now."""
    await driver.do("history")
    return (await driver.seen("history", len(driver.all("history")) + 1))["items"]


def assistants(items: list[Report]) -> list[Report]:
    return [item for item in items if item["role"] == "assistant"]


async def hold(client: Client, folder: Path) -> tuple[Hall, Driver]:
    """The user asks and is answered; asks and interrupts, three times; and is answered to the end."""
    async with hall(*SCRIPT, tls=client.tls(folder), folder=folder) as place, client.run(place, folder) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen(client.is_report(client.ended))
        await driver.say(USER)
        for idx, num_frames in enumerate(INTERRUPT_AFTER, start=1):
            await driver.seen(client.is_report(client.started), idx + 1)
            await driver.seen("audio", len(driver.all("audio")) + num_frames)
            num_interruptions = client.count(driver, client.interrupted)
            await driver.say(tone(48_000, hz=300))
            await driver.seen(client.is_report(client.interrupted), num_interruptions + 1)
        await until(lambda: len(place.capture.server("response.done")) == len(SCRIPT), timeout_s=30)
        await driver.seen(client.is_report(client.ended), 1 if client is C else len(SCRIPT))  # which may tell an interruption twice
        async with asyncio.timeout(20):
            while client in (A, C, J, L) and len(assistants(await history(driver))) < len(SCRIPT):
                await asyncio.sleep(0.2)  # some play their audio to the end before they write it down
    await place.ended()
    place.check(expected_errors={"response_cancel_not_active"} if client.sends_cancel else ())
    return place, driver


def whole(line: Line) -> np.ndarray:
    """A response as it is sent: what came before the onset, the sentence, the silence that ends it."""
    return np.concatenate([np.zeros(PREROLL, np.int16), line.pcm16, np.zeros(CLOSING, np.int16)])


def check_sound(driver: Driver) -> None:
    """The answers as the client has handed them out: the first and the last complete, the others beginnings, nothing in between."""
    heard, last = driver.pcm(), whole(SCRIPT[-1])
    assert np.array_equal(heard[-last.size :], last)
    at = 0
    for line, num_frames in zip(SCRIPT[:-1], (None, *INTERRUPT_AFTER), strict=True):
        expected = whole(line)
        rest = heard[at : heard.size - last.size][: expected.size]
        same = np.flatnonzero(rest != expected[: rest.size])
        num_samples = int(same[0]) if same.size else rest.size
        if num_frames is None:
            assert num_samples == expected.size
        else:
            num_samples = num_samples // FRAME * FRAME  # what follows it begins with silence, as it does
            assert num_samples >= num_frames * FRAME
        at += num_samples
    assert at == heard.size - last.size


@each(P, B, N, A, J, C, L)
async def test_turns_and_interruptions(client: Client, tmp_path: Path) -> None:
    place, driver = await hold(client, tmp_path)
    check_sound(driver)
    assert client.count(driver, client.started) == len(SCRIPT)
    assert client.count(driver, client.ended) == len(SCRIPT) or client is C
    said = client.text(driver.reports)
    assert said.startswith("The first answer.")
    assert said.endswith("The last one.")
    assert driver.all("error") == []
    assert driver.all("exception") == []
    done = [event["response"] for event in place.capture.server("response.done")]
    assert [response["status"] for response in done] == ["completed", *["cancelled"] * len(INTERRUPT_AFTER), "completed"]
    assert {response["status_details"]["reason"] for response in done[1:-1]} == {"turn_detected"}
    if client in (A, J):
        items = driver.all("history")[-1]["items"]
        assert [item["role"] for item in items] == ["user", "assistant"] * len(SCRIPT)
        assert items[-1]["texts"] == ["The last one."]
    if client in (A, C, J, L):
        truncated = {event["item_id"] for event in place.capture.server("conversation.item.truncated")}
        assert truncated >= {response["output"][0]["id"] for response in done[1:-1]}
