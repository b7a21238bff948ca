"""NVIDIA's own web client, unmodified, at the root of a gateway with the real engine, while our page is at `/app/`.

Its bundle is not kept here: `npm ci && npm run build` in the `client/` folder of github.com/NVIDIA/personaplex makes one, and
PERSONAPLEX_CLIENT_DIST names the folder that comes out (tried with commit 3428dfd of 2026-03-02). Without it these tests are skipped, and
`test_page.py` has a page of two lines in its place.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.browser.visitor import Visitor, chromium, visiting
from tests.integration.real import RealGateway, running

DIST = os.environ.get("PERSONAPLEX_CLIENT_DIST", "")
TALK_S = 15.0
LOUD = 0.01  # -40 dBFS
MUCH_S = 2.0  # of speech in that time

# The level of what that page plays, looked at 25 times a second. It has an analyser of its own to draw by; another beside it does no harm.
EARS = """
globalThis.heard = [];
const { connect } = AudioNode.prototype;
AudioNode.prototype.connect = function (target, ...rest) {
  if (this instanceof AudioWorkletNode && target instanceof AudioDestinationNode) {
    const analyser = new AnalyserNode(this.context, { fftSize: 2048 });
    const samples = new Float32Array(analyser.fftSize);
    connect.call(this, analyser);
    setInterval(() => {
      analyser.getFloatTimeDomainData(samples);
      heard.push(Math.sqrt(samples.reduce((sum, sample) => sum + sample * sample, 0) / samples.length));
    }, 40);
  }
  return connect.call(this, target, ...rest);
};
"""

pytestmark = pytest.mark.skipif(not DIST, reason="PERSONAPLEX_CLIENT_DIST names no bundle of the official client")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    assert (Path(DIST) / "index.html").is_file(), f"{DIST} has no index.html"
    yield from running(tmp_path_factory.mktemp("gateway") / "log", "--batch-size", "2", "--static", DIST)


@pytest.fixture
async def visitor(server: RealGateway) -> AsyncIterator[Visitor]:
    async with chromium() as browser, visiting(f"http://127.0.0.1:{server.port}", browser) as visitor:
        await visitor.page.add_init_script(EARS)
        await visitor.open()
        yield visitor
        visitor.troubles = [trouble for trouble in visitor.troubles if "font" not in trouble]  # it asks for one of another host


async def seconds_played(visitor: Visitor) -> float:
    """What its own statistics say."""
    found = re.search(r"Audio played:\s*(\d+):([\d.]+)", await visitor.page.inner_text("body"))
    return 60 * int(found[1]) + float(found[2]) if found else 0.0


async def test_it_connects_shows_words_and_plays_for_fifteen_seconds_while_our_page_is_used_too(
    visitor: Visitor, server: RealGateway
) -> None:
    assert await visitor.page.title() == "PersonaPlex"
    await visitor.page.click("text=Connect")
    await visitor.wait(lambda: seconds_played(visitor), lambda seconds: seconds > 0.5, "sound")
    ours = await visitor.page.context.new_page()
    await ours.goto(visitor.origin + "/app/")
    await ours.wait_for_function("document.getElementById('server-text').textContent.includes('1 of 2 places taken')")
    await ours.close()
    await asyncio.sleep(TALK_S)
    assert await seconds_played(visitor) > 0.8 * TALK_S
    levels = await visitor.page.evaluate("heard")
    assert sum(level > LOUD for level in levels) * 0.04 > MUCH_S
    body = await visitor.page.inner_text("body")
    words = body.partition("Disconnect")[2].partition("Server Audio Stats")[0]
    assert len(re.findall(r"[A-Za-z]{2,}", words)) >= 3, body
    await visitor.page.click("text=Disconnect")
    await server.wait_empty()
    assert "/api/chat?" in visitor.sockets[0]
    assert "voice_prompt=NATF0.pt" in visitor.sockets[0]  # which the bundled model has under that name, too
