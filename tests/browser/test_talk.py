"""A real conversation: Chromium, the real engine with the bundled model, a synthetic voice at the microphone. What was kept lines up.

The server has one place and is shared by all tests; the last one kills it.
"""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from numpy.typing import NDArray

from tests.browser.microphone import RATE, align, loudest, microphone_pcm, rms
from tests.browser.visitor import Visitor, chromium, visiting
from tests.integration.real import START_S, Call, RealGateway, running, spawn

TALK_S = 20.0
ONE_PLACE = ("--batch-size", "1")
PART_S = 0.25
NEAR_S = 1.0  # the buffer's splices move a part by less
WORDS = r"\d:\d\d\.\d\s*\S"  # a line of the transcript
RAW = {"echoCancellation": False, "noiseSuppression": False, "autoGainControl": False}  # so that the file is what the server hears


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    yield from running(tmp_path_factory.mktemp("gateway") / "log", *ONE_PLACE)


@pytest.fixture
async def visitor(server: RealGateway) -> AsyncIterator[Visitor]:
    async with chromium() as browser, visiting(f"http://127.0.0.1:{server.port}", browser) as visitor:
        await visitor.open()
        yield visitor


def sides(wav: bytes) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """User and assistant of a kept call."""
    pcm, rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    assert rate == RATE
    assert pcm.shape[1] == 2
    return pcm[:, 0], pcm[:, 1]


def spoken_parts(pcm: NDArray[np.float32]) -> list[slice]:
    """Stretches of 0.25 s in which somebody speaks up."""
    size = round(PART_S * RATE)
    parts = [slice(start, start + size) for start in range(0, pcm.size - size, size)]
    enough = 0.3 * max(rms(pcm[part]) for part in parts)
    return [part for part in parts if rms(pcm[part]) > enough]


def align_parts(kept: NDArray[np.float32], sent: NDArray[np.float32]) -> list[tuple[int, float]]:
    """Find each spoken part of `kept` in `sent`, near where the whole lies: the model says a sentence the same way twice."""
    near, parts = round(NEAR_S * RATE), spoken_parts(kept)
    sent = np.pad(sent, 2 * near)
    lag = align(kept[parts[0].start : parts[-1].stop], sent)[0] - parts[0].start
    found = []
    for part in parts:
        first = max(0, part.start + lag - near)
        place, score = align(kept[part], sent[first : part.stop + lag + near])
        found.append((first + place, score))
    return found


async def test_twenty_seconds_of_talk_are_heard_shown_and_kept(visitor: Visitor) -> None:
    await visitor.choose(wire="pcm", seed="3", **RAW)
    await visitor.talk()
    await asyncio.sleep(TALK_S)
    log = await visitor.until("log", r"[A-Za-z]{2,}")
    assert re.search(r"^0:\d\d\.\d$", log, re.MULTILINE), "words have times"
    drawn = await visitor.page.evaluate("wave.getContext('2d').getImageData(0, 0, wave.width, wave.height).data.some(Boolean)")
    assert drawn
    await visitor.hang_up()

    user, assistant = sides(await visitor.download("save-wav"))
    assert user.size == assistant.size
    assert TALK_S - 1 < user.size / RATE < TALK_S + 5
    microphone = microphone_pcm()
    _, score = align(loudest(user, 1.5), np.concatenate([microphone, microphone]))
    assert score > 0.9, "the left side is what the microphone heard"
    sent = visitor.sent_pcm()
    assert rms(loudest(sent, 1.0)) > 0.01, "the model speaks"
    found = align_parts(assistant, sent)
    places = [place for place, score in found if score > 0.9]
    assert len(places) > len(found) / 2, "the right side is what the server sent, but where the buffer has spliced"
    assert places == sorted(places)

    vtt = (await visitor.download("save-vtt")).decode()
    starts = [int(minute) * 60 + float(second) for minute, second in re.findall(r"^00:(\d\d):([\d.]+) -->", vtt, re.MULTILINE)]
    assert vtt.startswith("WEBVTT\n\n1\n")
    assert starts == sorted(starts)
    for start in starts:  # where a line begins somebody speaks, soon: text runs ahead of the voice by a few frames at most
        stretch = assistant[round(max(0.0, start - 0.4) * RATE) : round((start + 1.2) * RATE)]
        assert rms(stretch) > 0.003


async def test_opus_carries_the_call_as_well_and_another_persona_and_voice_are_heard(visitor: Visitor, server: RealGateway) -> None:
    await visitor.choose(wire="opus", seed="3", preset="own", **RAW)
    await visitor.choose(persona="Your name is Peter.", voice="am_michael")
    await visitor.talk()
    await visitor.until("log", r"\d:\d\d\.\d")  # a line of words has a time
    await asyncio.sleep(3)
    await visitor.hang_up()
    user, assistant = sides(await visitor.download("save-wav"))
    assert rms(loudest(assistant, 0.5)) > 0.01
    microphone = microphone_pcm()
    assert align(loudest(user, 1.0), np.concatenate([microphone, microphone]))[1] > 0.9
    assert "voice am_michael" in (await visitor.download("save-text")).decode()
    assert await server.slots_used() <= 1


async def test_a_full_server_is_tried_again_by_itself_until_there_is_a_place(visitor: Visitor, server: RealGateway) -> None:
    await server.wait_empty()
    async with server.connect("rawpcm") as ws:
        await Call().open(ws)
        for wire in ("opus", "pcm"):
            await visitor.choose(wire=wire)
            await visitor.page.click("#talk")
            await visitor.phase("waiting")
            assert re.fullmatch(r"The server is full, trying again in [1-9] s", await visitor.text("state"))
            assert await visitor.text("detail") == "Every place is taken at the moment."
            if wire == "opus":
                await visitor.hang_up()
    await visitor.phase("live")  # nobody has clicked again
    await visitor.until("log", WORDS)
    await visitor.hang_up()


async def test_a_server_that_is_killed_in_mid_call_and_started_again(visitor: Visitor, server: RealGateway, tmp_path: Path) -> None:
    await server.wait_empty()
    await visitor.talk()
    before = await visitor.until("log", WORDS)
    server.kill()
    await visitor.phase("waiting")
    await visitor.until("state", "The server cannot be reached, trying again in")
    await visitor.until("server-text", "cannot be reached")
    log = tmp_path / "log"
    server.process = spawn("--model", "tiny", *ONE_PLACE, "--port", str(server.port), log=log)
    await visitor.until("state", "The server is starting, trying again in", START_S)  # by itself: it answers before it has its model
    await visitor.wait(lambda: asyncio.to_thread(log.read_text, "utf-8"), lambda text: "ready: " in text, "a server", START_S)
    await visitor.page.click("#retry")  # the next try may be half a minute away by now
    await visitor.phase("live")
    after = await visitor.until("log", rf"remembers nothing[\s\S]*{WORDS}")
    assert after.startswith(before.splitlines()[0])
    await visitor.hang_up()
    visitor.forgive("ERR_|WebSocket")
    assert "Traceback" not in log.read_text(encoding="utf-8")
