"""Whole conversations with every client: two turns and an interruption, bit-exact and in order (T05, T06, T08, T29, T30, T31)."""

from pathlib import Path

import numpy as np

from tests.clients.clients import A, B, C, Client, J, L, N, P, each
from tests.clients.driver import Driver
from tests.clients.hall import Hall, hall
from tests.clients.scripted import FRAME, Line
from tests.clients.tls import tls_server
from tests.helpers import tone

PREROLL = 2 * FRAME  # samples before the onset
CLOSING = 10 * FRAME  # samples of silence that end a response
SCRIPT = (
    Line(440, 15, (" The", " first", " answer.")),
    Line(550, 250, (" An", " answer", " of", " twenty", " seconds.")),
    Line(660, 12, (" The", " last", " one.")),
)
USER = tone(24_000, hz=300)  # a second of "speech"


async def hold(client: Client, folder: Path, *, interrupt_after: int) -> tuple[Hall, Driver]:
    """The user speaks, is answered, speaks, interrupts the answer after so many frames, and is answered again."""
    async with hall(*SCRIPT, tls=tls_server(folder) if client.needs_tls else None) as place, client.run(place, folder) as driver:
        await driver.seen("connected", timeout_s=60)
        await driver.say(USER)
        await driver.seen(client.is_report(client.ended))
        await driver.say(USER)
        await driver.seen(client.is_report(client.started), 2)
        await driver.seen("audio", len(driver.all("audio")) + interrupt_after)
        await driver.say(tone(48_000, hz=300))
        await driver.seen(client.is_report(client.interrupted), interruptions(client))
        await driver.seen(client.is_report(client.started), 3)
        await driver.seen(client.is_report(client.ended), 3)
        if client in (A, C, J, L):
            await driver.do("history")
            await driver.seen("history")
    await place.ended()
    place.check(expected_errors={"response_cancel_not_active"} if client.sends_cancel else (), folder=folder)
    return place, driver


def interruptions(client: Client) -> int:
    """Which of its reports is the interruption: some clients report every beginning of the user's speech."""
    return 3 if client.interrupted.startswith("event") or client is C else 1


def whole(line: Line) -> np.ndarray:
    """A response as it is sent: what came before the onset, the sentence, the silence that ends it."""
    return np.concatenate([np.zeros(PREROLL, np.int16), line.pcm16, np.zeros(CLOSING, np.int16)])


def check_sound(driver: Driver) -> None:
    """The first answer is complete, the second a beginning, the third complete; not a sample of another sentence in between."""
    heard, first, last = driver.pcm(), whole(SCRIPT[0]), whole(SCRIPT[2])
    assert np.array_equal(heard[: first.size], first)
    assert np.array_equal(heard[-last.size :], last)
    middle = heard[first.size : -last.size]
    assert np.array_equal(middle, whole(SCRIPT[1])[: middle.size])
    assert middle.size > PREROLL


@each(P, B, N, A, J, C, L)
async def test_two_turns_and_an_interruption(client: Client, tmp_path: Path) -> None:
    place, driver = await hold(client, tmp_path, interrupt_after=12)
    check_sound(driver)
    assert [client.count(driver, kind) for kind in (client.started, client.ended)] == [3, 3]
    said = client.text(driver.reports)
    assert said.startswith("The first answer.")
    assert said.endswith("The last one.")
    assert driver.all("error") == []
    assert driver.all("exception") == []
    done = [event["response"] for event in place.capture.server("response.done")]
    assert [response["status"] for response in done] == ["completed", "cancelled", "completed"]
    assert done[1]["status_details"]["reason"] == "turn_detected"
