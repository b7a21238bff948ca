"""Calls on a session clock (Clock.REALTIME), on a clock that passes when told."""

from __future__ import annotations

import asyncio
import time

import numpy as np
import pytest
from core import FRAME_S, Rig, S, audio, check_pairs, frame, heard, read, realtime, say
from prometheus_client import CollectorRegistry

from gateway.engine.fake import FakeEngine
from gateway.intake import ClockedIntake
from gateway.limits import SessionSettings
from gateway.manager import AdmissionSettings, SessionManager
from gateway.metrics import Metrics
from gateway.session import Session
from gateway.slots import SlotState, SlotTable
from gateway.state import SessionState
from gateway.ticker import Ticker
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import (
    AudioIn,
    AudioOut,
    ClearInput,
    Clock,
    EndOfInput,
    Failed,
    Heard,
    Open,
    Ready,
    Reprime,
    RunClock,
    TextDelta,
)

TO_START = 2.0  # frames of time after which the first tick has come, whatever waits


def timer_of(session: Session) -> asyncio.TimerHandle | None:
    assert isinstance(session._intake, ClockedIntake)
    return session._intake._timer


# -- the clock -----------------------------------------------------------------------------------------------------------------------


async def test_one_frame_for_each_frame_of_time_whatever_the_caller_sends() -> None:
    rig = Rig()
    session, stream = await realtime(rig, seed=5)
    rig.pass_time(TO_START)
    events = await read(stream)
    events += await say(rig, session, stream, [0.1, 0.2])
    rig.pass_time(3)  # muted
    events += await read(stream)
    assert [event.frame_idx for event in heard(events)] == list(range(6))
    assert [event.real_samples for event in heard(events)] == [0, S, S, 0, 0, 0]
    assert [event.frame_idx for event in audio(events)] == list(range(6))
    check_pairs(events, 5)
    assert (session.frames_in, session.frames_out) == (6, 6)


async def test_a_frame_is_told_as_audio_then_text_then_what_was_heard() -> None:
    rig = Rig()
    session, stream = await realtime(rig)
    events = await say(rig, session, stream, [0.1, 0.2, 0.3])
    assert [type(event) for event in events] == [AudioOut, TextDelta, Heard, AudioOut, Heard, AudioOut, TextDelta, Heard]
    assert [event.epoch for event in heard(events)] == [session.epoch] * 3
    np.testing.assert_array_equal(heard(events)[0].pcm, frame(0.1))


async def test_audio_that_comes_while_the_prompt_is_read_is_heard_first() -> None:
    rig = Rig()
    session = rig.manager.open_session("test")
    await session.push(Open(clock=Clock.REALTIME))
    await session.push(AudioIn(pcm=frame(0.1)))  # before there is a slot
    await rig.admitted(session)
    await session.push(AudioIn(pcm=frame(0.2)))  # before the model listens
    stream = session.events()
    rig.tick()
    rig.pass_time(2)
    events = await read(stream)
    assert [event.pcm[0] for event in heard(events)] == pytest.approx([0.1, 0.2])
    assert not session.dropped


async def test_a_model_that_is_late_is_given_two_frames_at_most_and_loses_none() -> None:
    rig = Rig(inbox_frames=12)
    session, stream = await realtime(rig, seed=2)
    for value in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        await session.push(AudioIn(pcm=frame(value)))
        rig.clock.advance(FRAME_S)
        rig.run_clocks()
    slot = rig.slots.slots[session.slot_idx or 0]
    assert len(slot.inbox) == 2
    assert timer_of(session) is None  # an answer will wake it
    rig.tick(10)
    events = await read(stream)
    assert [event.pcm[0] for event in heard(events)] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    assert [event.real_samples for event in heard(events)] == [S] * 6
    check_pairs(events, 2)


async def test_an_inbox_of_one_frame_is_enough() -> None:
    rig = Rig(inbox_frames=1)
    session, stream = await realtime(rig, seed=2)
    events = await say(rig, session, stream, [0.1 * (at + 1) for at in range(8)])
    check_pairs(events, 2)
    assert len(heard(events)) >= 6


async def test_what_was_dropped_because_too_much_waited_is_told_and_counted() -> None:
    rig = Rig()
    session, stream = await realtime(rig)
    for at in range(25):
        await session.push(AudioIn(pcm=frame(0.01 * at)))
        rig.clock.advance(FRAME_S)  # the engine does not tick
    rig.run_clocks()
    rig.tick(3)
    events = heard(await read(stream))
    skipped = sum(event.skipped_samples for event in events)
    assert skipped == 10  # 200 ms: nothing was padded before
    assert sum(session.dropped.values()) == skipped // S
    assert not [event for event in events if event.real_samples != S]


async def test_input_that_does_not_fit_is_dropped_and_counted() -> None:
    rig = Rig(session=SessionSettings(input_max_ms=800))
    session, _ = await realtime(rig)
    await session.push(AudioIn(pcm=frame(0.1, 9)))
    await session.push(AudioIn(pcm=frame(0.2, 3)))
    assert sum(session.dropped.values()) == 3
    assert rig.sample("gateway_frames_dropped_total", direction="in", reason="backlog") == 3


async def test_a_clock_needs_a_loaded_engine() -> None:
    rig = Rig(is_loaded=False)
    session = rig.manager.open_session("test")
    await session.push(Open(clock=Clock.REALTIME))
    await session.push(AudioIn(pcm=frame(0.1)))
    await session.push(RunClock(is_running=True))
    await rig.admitted(session)
    (last,) = await read(session.events())
    assert isinstance(last, Failed)
    assert last.kind is ErrorKind.LOADING


async def test_the_timer_of_the_loop_drives_the_clock() -> None:
    """The one test here in real time: five frames of 80 ms, on real threads."""
    engine = FakeEngine(1)
    slots, metrics = SlotTable(1), Metrics(CollectorRegistry())
    ticker = Ticker(engine, slots, metrics, coalesce_ms=0)
    manager = SessionManager(ticker, slots, metrics, AdmissionSettings(), SessionSettings())
    ticker.start()
    await ticker.wait_loaded()
    session = manager.open_session("test")
    stream = session.events()
    await session.push(Open(clock=Clock.REALTIME))
    assert isinstance(await anext(stream), Ready)
    started_s = time.monotonic()
    async with asyncio.timeout(10):
        while session.frames_out < 5:
            await anext(stream)
    assert time.monotonic() - started_s > 0.16 + 4 * 0.08 - 0.02
    await session.close()
    assert timer_of(session) is None
    await manager.drain(0)
    assert await ticker.stop()


# -- what the caller asks of it ------------------------------------------------------------------------------------------------------


async def test_a_parked_call_costs_nothing_and_audio_wakes_it() -> None:
    rig = Rig()
    session, stream = await realtime(rig)
    rig.pass_time(TO_START)
    await session.push(RunClock(is_running=False))
    assert timer_of(session) is None
    await read(stream)
    rig.pass_time(20)
    assert await read(stream) == []
    events = await say(rig, session, stream, [0.1, 0.2, 0.3])
    assert [event.pcm[0] for event in heard(events)] == pytest.approx([0.1, 0.2, 0.3])
    assert timer_of(session) is not None
    await session.push(RunClock(is_running=False))
    await session.push(RunClock(is_running=True))
    assert timer_of(session) is not None


async def test_the_end_stops_the_timer() -> None:
    rig = Rig()
    session, _ = await realtime(rig)
    assert timer_of(session) is not None
    await session.close()
    assert timer_of(session) is None
    rig.run_clocks()


async def test_cleared_audio_is_not_heard_though_it_was_on_its_way() -> None:
    rig = Rig()
    session, stream = await realtime(rig, seed=4)
    await say(rig, session, stream, [0.1, 0.2])
    for value in (0.3, 0.4, 0.5):
        await session.push(AudioIn(pcm=frame(value)))
        rig.clock.advance(FRAME_S)
        rig.run_clocks()  # two frames lie in the inbox, the model is busy
    gathered = rig.slots.gather(S)  # it takes the first
    await session.push(ClearInput())
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    events = await read(stream)
    assert [event.pcm[0] for event in heard(events)] == pytest.approx([0.3])
    events = await say(rig, session, stream, [0.6, 0.7, 0.8])
    values = [event.pcm[0] for event in heard(events) if event.real_samples]
    assert values == pytest.approx([0.6, 0.7, 0.8])
    assert sum(event.skipped_samples for event in heard(events)) == 0
    check_pairs(events, 4, previous=frame(0.3))


@pytest.mark.parametrize("event", [ClearInput(), RunClock(is_running=False)])
async def test_a_call_without_a_clock_ignores_what_is_for_clocks(event: ClearInput | RunClock) -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(AudioIn(pcm=frame(0.1)))
    await session.push(event)
    rig.tick()
    assert len(audio(await read(stream))) == 1


async def test_a_call_without_an_end_of_input_and_one_without_another_prompt() -> None:
    rig = Rig()
    session, _ = await realtime(rig)
    with pytest.raises(LocalProtocolError, match="hang up"):
        await session.push(EndOfInput())
    other, _ = await rig.live()
    with pytest.raises(LocalProtocolError, match="realtime clock"):
        await other.push(Reprime())
    assert (session.state, other.state) == (SessionState.LIVE, SessionState.LIVE)
    assert rig.states() == [SlotState.LIVE] * 2
