"""The page in every state that a call can be in, on a gateway whose model costs nothing: what is said, what is tried again, what is not."""

from __future__ import annotations

import asyncio
import re

import pytest

from gateway.app import TICKER
from tests.browser.network import network
from tests.browser.visitor import Visitor, chromium, visiting
from tests.integration.rig import Gateway, PcmCaller, gateway, until

QUEUED_S = 1.5  # from the click: nobody is told for longer that the model gets ready when it is a place that is wanted
LOST_S = 3.0
SLOW_STEP_S = 0.11  # more than a frame lasts
LONG_PERSONA = " ".join(["word"] * 400)  # 51 steps of prefill


def origin(server: Gateway) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.mark.parametrize("wire", ["opus", "pcm"])
async def test_a_call_by_each_wire_mute_hang_up_and_call_again(wire: str) -> None:
    async with gateway(2) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        assert "/api/chat" in await visitor.page.content()
        await visitor.choose(wire=wire, seed="0")  # of the fake model's constant offset: none
        await visitor.talk()
        assert server.count("gateway_slots_used") == 1
        assert re.search("/api/chat" if wire == "opus" else "/v1/audio/duplex", visitor.sockets[0])
        await visitor.until("log", r"hello")  # the model's words, once they are heard
        await visitor.until("n-trip", r"^\d+ ms")
        await visitor.until("n-epoch", r"^\d+$")
        await visitor.until("n-dropped", r"^0 / 0")
        assert await visitor.page.evaluate("document.activeElement.id") == "mute"
        await visitor.page.keyboard.press("Space")
        assert await visitor.page.get_attribute("#mute", "aria-pressed") == "true"
        await until_silent(visitor)
        await visitor.page.keyboard.down("m")
        await asyncio.sleep(0.6)
        await visitor.page.keyboard.up("m")  # held: it was open for as long
        assert await visitor.page.get_attribute("#mute", "aria-pressed") == "true"
        await visitor.page.click("#mute")
        assert await visitor.page.get_attribute("#mute", "aria-pressed") == "false"
        await visitor.hang_up()
        assert await visitor.text("state") == "You hung up"
        await until(lambda: server.is_empty)
        await visitor.talk()
        await visitor.until("log", r"hello")
        await visitor.hang_up()
        await until(lambda: server.is_empty)


async def until_silent(visitor: Visitor) -> None:
    """Wait until the echo of the microphone is gone for half a second: muted is muted."""
    levels: list[int] = []

    async def level() -> int:
        levels.append(int(str(await visitor.page.get_attribute("#meter-assistant", "aria-valuenow"))))
        return max(levels[-5:])

    await visitor.wait(level, lambda loudest: len(levels) > 5 and loudest == -60, "silence")


async def test_persona_voice_sampling_and_seed_reach_the_model_and_are_remembered() -> None:
    async with gateway(1, voice="tenor") as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        seen = []
        prepare, open_row = server.engine.prepare, server.engine.open
        server.engine.prepare = lambda voice, persona: (seen.append((voice, persona)), prepare(voice, persona))[1]  # type: ignore[method-assign]
        server.engine.open = lambda idx, prompt, sampling: (seen.append(sampling), open_row(idx, prompt, sampling))[1]  # type: ignore[method-assign]
        await visitor.open()
        await visitor.until("voice", r"tenor")
        assert await visitor.page.eval_on_selector_all("#voice option", "found => found.map(({value}) => value)") == ["", "alto", "tenor"]
        await visitor.choose(preset="own", voice="alto", audio_topk="40", text_temperature="0.25", seed="7")
        await visitor.choose(persona="You are kind.")
        for wire in ("opus", "pcm"):
            await visitor.choose(wire=wire)
            await visitor.talk()
            await visitor.hang_up()
            (voice, persona), sampling = seen[-2:]
            assert (voice, persona) == ("alto", "You are kind.")
            assert (sampling.audio_topk, sampling.text_temperature, sampling.text_seed, sampling.audio_seed) == (40, 0.25, 7, 7)
            assert sampling.text_topk == 25  # the model's own
        await visitor.open()
        assert await visitor.page.input_value("#persona") == "You are kind."
        assert await visitor.page.input_value("#voice") == "alto"
        assert await visitor.page.input_value("#audio_topk") == "40"


async def test_a_change_during_a_call_is_offered_for_the_next_one() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        await visitor.talk()
        assert await visitor.page.is_hidden("#applies")
        await visitor.choose(preset="teacher")
        await visitor.page.click("#call-again")
        await visitor.until("log", r"hello")
        await visitor.phase("live")
        assert server.ended("moshi", "caller") == 1


async def test_a_full_server_is_tried_again_with_a_countdown_until_there_is_room() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        for wire in ("opus", "pcm"):
            await visitor.choose(wire=wire)
            async with server.connect("rawpcm") as ws:
                await PcmCaller(ws).open()
                await visitor.page.click("#talk")
                await visitor.phase("waiting")
                assert re.fullmatch(r"The server is full, trying again in [1-9] s", await visitor.text("state"))
                await ws.close()
            await visitor.page.click("#retry")
            await visitor.phase("live")
            await visitor.hang_up()


async def test_a_full_server_that_refuses_by_http_is_told_from_a_proxy_without_websockets() -> None:
    async with gateway(1, overflow="http") as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        async with server.connect("rawpcm") as ws:
            await PcmCaller(ws).open()
            await visitor.page.click("#talk")
            await visitor.phase("waiting")
            assert (await visitor.text("state")).startswith("The server is full")
            assert await visitor.text("detail") == "All 1 places are taken."
        visitor.forgive("503")


async def test_the_place_in_the_queue_is_told_and_then_the_call_begins() -> None:
    async with gateway(1, queue_seconds=60) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        for wire, words in (("pcm", "Number 1 in the queue"), ("opus", "Waiting for a free place")):
            await visitor.choose(wire=wire)
            async with server.connect("rawpcm") as ws:
                await PcmCaller(ws).open()
                await visitor.page.click("#talk")
                await visitor.until("state", words, QUEUED_S)
            await visitor.phase("live")
            await visitor.hang_up()


async def test_getting_ready_is_shown_while_the_model_reads() -> None:
    async with gateway(1, engine={"step_seconds": 0.05}) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        await visitor.choose(preset="own", wire="pcm")
        await visitor.choose(persona=LONG_PERSONA)
        await visitor.page.click("#talk")
        await visitor.until("state", "Getting ready")
        await visitor.phase("live")


async def test_a_refused_call_says_why_and_is_not_tried_again() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        for wire in ("opus", "pcm"):
            await visitor.choose(wire=wire, preset="own")
            await visitor.choose(persona=" ".join(["word"] * 600))  # more rows than a prompt may have
            await visitor.page.click("#talk")
            await visitor.phase("over")
            assert await visitor.text("state") == "The persona cannot be used" or "prompt" in await visitor.text("detail")
            await asyncio.sleep(3)
            assert await visitor.phase("over") == "over"
            assert await visitor.page.evaluate("document.body.classList.contains('is-fault')")


async def test_the_length_limit_is_announced_and_named() -> None:
    async with gateway(1, max_call_seconds=11) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        await visitor.talk()
        await visitor.until("hint", "this call ends in 10 seconds")
        await visitor.phase("over")
        assert await visitor.text("state") == "The call has reached its length limit"


async def test_a_lost_connection_comes_back_keeps_the_transcript_and_says_what_is_lost() -> None:
    async with (
        gateway(1) as server,
        network(server.port) as relay,
        chromium() as browser,
        visiting(f"http://127.0.0.1:{relay.port}", browser) as visitor,
    ):
        await visitor.open()
        await visitor.talk()
        await visitor.until("log", "hello")
        await relay.close()
        await visitor.phase("waiting")
        assert (await visitor.text("state")).startswith("The connection was lost, trying again in")
        await asyncio.sleep(LOST_S)
        assert "hello" in await visitor.text("log")
        await relay.open()
        await visitor.phase("live")
        log = await visitor.until("log", r"remembers nothing[\s\S]*hello")
        assert "The connection was lost." in log
        text = (await visitor.download("save-text")).decode()
        assert re.search(r"hello[\s\S]*— The connection was lost\.\n[\s\S]*— A new call", text)
        visitor.forgive("ERR_|WebSocket")


async def test_a_server_that_is_too_slow_says_so_and_the_delay_stays_bounded_and_goes_back() -> None:
    async with gateway(1, inbox_frames=6) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        await visitor.talk()
        server.engine.step_seconds = SLOW_STEP_S
        await visitor.until("hint", "too slow")
        await visitor.until("n-dropped", r"^[1-9]\d* / ")
        await asyncio.sleep(5)
        assert await round_trip_s(visitor) < 8 * SLOW_STEP_S + 1  # a full inbox, a step, the way; without a bound 1.5 s more each 5 s
        server.engine.step_seconds = 0.0
        await visitor.wait(lambda: round_trip_s(visitor), lambda seconds: seconds < 0.5, "a short way again")
        await visitor.hang_up()


async def round_trip_s(visitor: Visitor) -> float:
    return int((await visitor.until("n-trip", r"^\d+ ms")).split()[0]) / 1000


async def test_a_fault_of_the_server_is_told_as_one_and_never_as_a_lack_of_room() -> None:
    async with gateway(2) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        said: list[str] = []

        async def note(text: str) -> None:
            said.append(text)

        await visitor.page.expose_function("noteState", note)
        await visitor.open()
        await visitor.page.evaluate("new MutationObserver(() => noteState(state.textContent)).observe(state, { childList: true })")
        await visitor.talk()

        def fail(*_: object) -> None:
            raise RuntimeError("the codec has gone")

        server.engine.step = fail  # type: ignore[method-assign]
        await visitor.phase("waiting", "over")
        await visitor.until("state", "cannot be reached")  # the process ends, for a supervisor to start another
        assert any(text.startswith("The server has failed") for text in said)
        assert not any("full" in text for text in said)
        assert server.app[TICKER].failure is not None
        visitor.forgive("ERR_|WebSocket|503")


async def test_closing_the_page_ends_the_call_as_its_callers_wish() -> None:
    async with gateway(1) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        for wire, protocol in (("opus", "moshi"), ("pcm", "rawpcm")):
            await visitor.open()
            await visitor.choose(wire=wire)
            await visitor.talk()
            await visitor.page.goto("about:blank")
            await until(lambda: server.is_empty)
            assert server.ended(protocol, "caller") == 1


async def test_no_permission_no_microphone_and_no_https_are_each_told_with_what_to_do() -> None:
    async with gateway(1) as server:
        async with chromium(is_asked=True) as browser, visiting(origin(server), browser) as visitor:
            await visitor.open()
            assert "will ask for the microphone" in await visitor.text("detail") or "blocked" in await visitor.text("state")
            await visitor.page.click("#talk")
            await visitor.phase("over")
            assert await visitor.text("state") == "The microphone is blocked"
            assert "Allow" in await visitor.text("detail")
        async with chromium(mic=False) as browser, visiting(origin(server), browser) as visitor:
            await visitor.open()
            await visitor.page.click("#talk")
            await visitor.phase("over")
            assert await visitor.text("state") == "No microphone was found"
        name = "http://gateway.test"  # which the browser finds here: not https, and not localhost
        resolve = f"--host-resolver-rules=MAP gateway.test 127.0.0.1:{server.port}"
        async with chromium(resolve) as browser, visiting(name, browser) as visitor:
            await visitor.open()
            await visitor.until("state", "gives no microphone to this address")
            assert "--ssl" in await visitor.text("detail")
            assert await visitor.page.is_disabled("#talk")
        assert server.ended("moshi", "caller") == 0


async def test_a_server_with_keys_asks_for_one_says_when_it_is_wrong_and_remembers_it() -> None:
    async with gateway(1, api_keys=("sk-good",)) as server, chromium() as browser, visiting(origin(server), browser) as visitor:
        await visitor.open()
        await visitor.until("key-title", "This server asks for a key")
        await visitor.page.fill("#key", "no good")
        await visitor.page.click("#key-form .primary")
        assert await visitor.page.is_visible("#key-box")  # a key has no spaces
        await visitor.page.fill("#key", "sk-bad")
        await visitor.page.click("#key-form .primary")
        await visitor.until("key-title", "The key was not accepted")
        await visitor.page.fill("#key", "sk-good")
        await visitor.page.click("#key-form .primary")
        await visitor.until("server-text", "fake on cpu")
        for wire in ("opus", "pcm"):
            await visitor.choose(wire=wire)
            await visitor.talk()
            await visitor.until("log", "hello")
            await visitor.hang_up()
        assert all("sk-good" not in url for url in visitor.sockets)
        visitor.forgive("401")
        await visitor.open()  # of the same tab
        await visitor.until("server-text", "fake on cpu")
