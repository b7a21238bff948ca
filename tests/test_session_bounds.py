from __future__ import annotations

import asyncio
import logging
from typing import Any

import numpy as np
import pytest
from core import FRAME_S, Rig, S, audio, exchange, frame, read, text

from gateway.engine.fake import expected_audio
from gateway.errors import SessionGone
from gateway.limits import SessionSettings
from gateway.outbox import MAX_EVENTS
from gateway.slots import SlotState
from gateway.state import SessionState
from protocols.errors import ErrorKind
from protocols.events import (
    AudioIn,
    BargeIn,
    Ended,
    EndOfInput,
    EndReason,
    Failed,
    Pacing,
    Played,
    Rejected,
    ServerEvent,
    Warned,
)

FINISHED = Ended(reason=EndReason.FINISHED)


# -- bounds --------------------------------------------------------------------------------------------------------------------------


async def test_a_burst_keeps_the_newest_frames_and_the_caller_is_told_once() -> None:
    rig = Rig(inbox_frames=3)
    session, stream = await rig.live(seed=1)
    values = np.linspace(0.1, 0.8, 8, dtype=np.float32)
    await session.push(AudioIn(pcm=np.repeat(values, S)))
    rig.tick(4)
    events = await read(stream)
    previous = frame(0.0)
    for value, event in zip(values[5:], audio(events), strict=True):
        np.testing.assert_array_equal(event.pcm, expected_audio(frame(value), previous, 1))
        previous = frame(value)
    assert [type(event) for event in events].count(Warned) == 1
    assert rig.sample("gateway_frames_dropped_total", direction="in", reason="backlog") == 5
    assert session.frames_out == 3


async def test_a_message_of_minutes_costs_a_live_caller_no_more_than_its_inbox(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(inbox_frames=3)
    session, stream = await rig.live(seed=1)
    num_pushed = 0
    push_frame = rig.slots.push_frame

    def counted(*args: Any) -> Any:
        nonlocal num_pushed
        num_pushed += 1
        return push_frame(*args)

    monkeypatch.setattr(rig.slots, "push_frame", counted)
    await session.push(AudioIn(pcm=frame(0.9)[:1]))  # of a frame that is dropped with the rest
    await session.push(AudioIn(pcm=np.concatenate([frame(0.9)[:3], np.repeat(np.linspace(0.1, 0.8, 10_000, dtype=np.float32), S)])))
    assert num_pushed == 3
    rig.tick(3)
    events = await read(stream)
    heard = np.linspace(0.1, 0.8, 10_000, dtype=np.float32)[-3:]
    np.testing.assert_array_equal(audio(events)[1].pcm, expected_audio(frame(heard[1]), frame(heard[0]), 1))  # frames keep their edges
    assert rig.sample("gateway_frames_dropped_total", direction="in", reason="backlog") == 9998
    assert [type(event) for event in events].count(Warned) == 1
    assert session._intake.num_pending == 0


async def test_a_live_caller_that_does_not_read_loses_its_oldest_audio_and_its_words() -> None:
    rig = Rig(outbox_frames=3)
    session, stream = await rig.live()
    for _ in range(7):
        await session.push(AudioIn(pcm=frame(0.1)))
        rig.tick()
    events = await read(stream)
    assert [event.frame_idx for event in audio(events)] == [4, 5, 6]
    assert text(events) == ", that"  # of frames 4 and 6; it never hears what " hello there" sounded like
    await session.push(Played(played_ms=240))
    assert session.ledger.played_ms == 560
    assert rig.sample("gateway_frames_dropped_total", direction="out", reason="slow_reader") == 4


async def test_a_caller_that_reads_nothing_at_all_is_ended() -> None:
    rig = Rig()
    session, stream = await rig.live()
    for _ in range(MAX_EVENTS + 1):
        await session.push(Rejected(kind=ErrorKind.BAD_REQUEST, detail="again"))
    assert session.state is SessionState.CLOSED
    events = await read(stream)
    assert len(events) == MAX_EVENTS + 2
    assert isinstance(events[-1], Failed)
    assert events[-1].kind is ErrorKind.SLOW_READER
    rig.tick()
    assert rig.states() == [SlotState.IDLE] * 2


async def test_a_flood_in_the_middle_of_an_answer_ends_with_the_last_word() -> None:
    rig = Rig()
    session, stream = await rig.live()
    for _ in range(MAX_EVENTS):
        await session.push(Rejected(kind=ErrorKind.BAD_REQUEST, detail="again"))
    await session.push(AudioIn(pcm=frame(0.1)))
    rig.tick()  # its audio is one too many, and its text would be another
    assert isinstance((await read(stream))[-1], Failed)
    assert session.state is SessionState.CLOSED
    assert len(session._outbox) == 0


async def test_a_script_loses_nothing_when_it_pushes_faster_than_it_reads() -> None:
    rig = Rig(num_slots=1, inbox_frames=3, outbox_frames=2)
    session, stream = await rig.live(pacing=Pacing.SCRIPT)

    async def send() -> None:
        await session.push(AudioIn(pcm=np.repeat(np.arange(20, dtype=np.float32), S)))
        await session.push(EndOfInput())

    sender = asyncio.create_task(send())
    events: list[ServerEvent] = []
    for tick_idx in range(100):
        await asyncio.sleep(0)
        rig.tick()
        if tick_idx % 3 == 0:  # a slow reader
            events += await read(stream)
    await sender
    assert [event.frame_idx for event in audio(events)] == list(range(20))
    assert events[-1] == FINISHED
    assert not session.dropped


async def test_a_script_that_does_not_read_is_not_stepped_on_and_on() -> None:
    rig = Rig(num_slots=1, inbox_frames=3, outbox_frames=2)
    session, stream = await rig.live(pacing=Pacing.SCRIPT)
    sender = asyncio.create_task(session.push(AudioIn(pcm=frame(0.1, 20))))
    for _ in range(10):
        await asyncio.sleep(0)
        rig.tick()
    assert session.frames_out == 2
    assert not sender.done()
    await session.push(BargeIn())  # throws the two away, so there is room for two more
    for _ in range(10):
        await asyncio.sleep(0)
        rig.tick()
    assert session.frames_out == 4
    await session.close()
    with pytest.raises(SessionGone):
        await sender
    assert [event.frame_idx for event in audio(await read(stream))] == [2, 3]


async def test_barge_in_during_a_script_s_step_gives_its_credit_back() -> None:
    rig = Rig(num_slots=1, outbox_frames=2)
    session, _ = await rig.live(pacing=Pacing.SCRIPT)
    await session.push(AudioIn(pcm=frame(0.1)))
    gathered = rig.slots.gather(S)
    await session.push(BargeIn())
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    assert rig.slots.slots[0].credit == 2


# -- limits --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("max_call_s", "max_frames", "engine_frames", "expected"),
    [(4.0, None, 1000, 50), (None, 30, 1000, 30), (4.0, 70, 1000, 50), (None, None, 40, 40), (0.01, None, 1000, 1)],
)
async def test_the_shortest_limit_ends_the_call(
    max_call_s: float | None, max_frames: int | None, engine_frames: int, expected: int
) -> None:
    rig = Rig(session=SessionSettings(max_call_s=max_call_s, warn_s=1.0), max_frames=engine_frames)
    session, stream = await rig.live(max_frames=max_frames)
    events: list[ServerEvent] = []
    while session.state is SessionState.LIVE:
        events += await exchange(rig, session, stream, [0.1])
    assert len(audio(events)) == expected
    assert isinstance(events[-1], Ended)
    assert events[-1].reason is EndReason.LIMIT
    warned_after = [len(audio(events[:at])) for at, event in enumerate(events) if isinstance(event, Warned)]
    assert warned_after == ([expected - 13] if expected > 13 else [])  # 13 frames: one second


async def test_an_input_that_ends_at_the_limit_is_finished() -> None:
    rig = Rig()
    session, stream = await rig.live(max_frames=2)
    await session.push(AudioIn(pcm=frame(0.1, 2)))
    await session.push(EndOfInput())
    rig.tick(2)
    assert (await read(stream))[-1] == FINISHED


async def test_only_audio_keeps_a_session_from_being_idle() -> None:
    rig = Rig(session=SessionSettings(idle_s=5.0))
    session, stream = await rig.live()
    for _ in range(3):
        rig.clock.advance(4.0)
        await session.push(AudioIn(pcm=frame(0.1)))
        rig.manager.sweep()
    rig.clock.advance(4.0)
    for event in (BargeIn(), Played(played_ms=1), AudioIn(pcm=frame(0.1)[:0])):
        await session.push(event)
    rig.clock.advance(1.5)
    rig.manager.sweep()
    events = await read(stream)
    assert isinstance(events[-1], Failed)
    assert events[-1].kind is ErrorKind.IDLE
    rig.tick()
    assert rig.states() == [SlotState.IDLE] * 2
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="idle") == 1


@pytest.mark.parametrize(("open_s", "idle_s"), [(10.0, 60.0), (10.0, 10.0), (60.0, 10.0)])
async def test_a_connection_that_never_opens_is_ended(open_s: float, idle_s: float) -> None:
    rig = Rig(session=SessionSettings(open_s=open_s, idle_s=idle_s))
    session = rig.manager.open_session("test")
    rig.clock.advance(9.9)
    await session.push(Rejected(kind=ErrorKind.BAD_REQUEST, detail="this is no open"))
    rig.manager.sweep()
    assert session.state is SessionState.NEW
    rig.clock.advance(0.2)
    rig.manager.sweep()
    assert (await read(session.events()))[-1] == Failed(kind=ErrorKind.IDLE, detail="no call was opened within 10 s")


@pytest.mark.parametrize("pacing", list(Pacing))
async def test_less_than_a_frame_does_not_keep_a_slot(pacing: Pacing) -> None:
    """One sample in 55 s would hold it for ever: the length limit counts frames."""
    rig = Rig(session=SessionSettings(idle_s=60.0))
    session, _ = await rig.live(pacing=pacing)
    for _ in range(2):
        rig.clock.advance(55.0)
        await session.push(AudioIn(pcm=frame(0.1)[:1]))
        rig.manager.sweep()
    assert session.state is SessionState.CLOSED
    rig.tick()
    assert rig.states() == [SlotState.IDLE] * 2


async def test_a_call_that_pauses_ends_at_its_limit_by_the_clock_on_the_wall() -> None:
    rig = Rig(session=SessionSettings(idle_s=60.0, max_call_s=100.0, warn_s=10.0))
    session, stream = await rig.live()
    events: list[ServerEvent] = []
    told_after = {}
    for second in range(0, 101, 5):
        events += await exchange(rig, session, stream, [0.1]) if session.state is SessionState.LIVE else await read(stream)
        rig.manager.sweep()
        told_after |= {type(event): second for event in await read(stream) if isinstance(event, Warned | Ended)}
        rig.clock.advance(5.0)
    assert told_after == {Warned: 90, Ended: 100}
    assert session.frames_out == 21


async def test_a_limit_shorter_than_its_warning_is_not_announced() -> None:
    rig = Rig(session=SessionSettings(max_call_s=8.0, warn_s=10.0))
    _, stream = await rig.live()
    rig.clock.advance(7.9)
    rig.manager.sweep()
    assert await read(stream) == []


async def test_a_caller_that_waits_for_us_is_not_idle() -> None:
    rig = Rig(session=SessionSettings(idle_s=5.0))
    session = await rig.open()
    rig.clock.advance(60.0)
    rig.manager.sweep()
    assert session.state is SessionState.PREFILL
    rig.tick()
    rig.clock.advance(4.9)
    rig.manager.sweep()
    assert session.state is SessionState.LIVE


async def test_a_script_that_has_sent_everything_before_ready_is_not_idle() -> None:
    rig = Rig(session=SessionSettings(idle_s=5.0))
    session = await rig.open(pacing=Pacing.SCRIPT)
    await session.push(AudioIn(pcm=frame(0.1, 2)))
    await session.push(EndOfInput())
    rig.clock.advance(60.0)
    rig.manager.sweep()
    assert session.state is SessionState.DRAINING
    rig.tick(3)
    events = await read(session.events())
    assert (len(audio(events)), events[-1]) == (2, FINISHED)


async def test_reading_a_long_answer_is_not_idle() -> None:
    rig = Rig(session=SessionSettings(idle_s=5.0))
    session, stream = await rig.live(pacing=Pacing.SCRIPT)
    await session.push(AudioIn(pcm=frame(0.1, 3)))
    await session.push(EndOfInput())
    for _ in range(2):
        rig.clock.advance(4.0)
        rig.tick()
        rig.manager.sweep()
        await read(stream)
    assert session.state is SessionState.DRAINING


# -- what is written down ------------------------------------------------------------------------------------------------------------


async def test_one_line_at_open_and_one_at_close_with_totals_and_no_words(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="gateway")
    rig = Rig()
    session, stream = await rig.live(persona="you are secretive")
    await exchange(rig, session, stream, [0.1, 0.2])
    rig.clock.advance(3 * FRAME_S)
    await session.close()
    records = [record for record in caplog.records if record.name == "gateway.session"]
    assert [record.getMessage() for record in records] == [
        "open: live pacing, frames clock",
        "closed: caller, 0.2 s, frames in 2, out 2, dropped none",
    ]
    assert [(record.__dict__["session_id"], record.__dict__["slot_idx"], record.__dict__["protocol"]) for record in records] == [
        (session.session_id, None, "test"),
        (session.session_id, 0, "test"),
    ]
    assert "secretive" not in caplog.text
    assert "hello" not in caplog.text


async def test_what_the_wire_could_not_use_is_in_the_line_of_the_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="gateway.session")
    rig = Rig()
    faults: dict[str, int] = {}
    session = rig.manager.open_session("test", lambda: faults)
    faults |= {"errors": 3, "discarded bytes": 70}
    await session.close()
    assert caplog.messages == ["closed: caller, 0.0 s, frames in 0, out 0, dropped none, 3 errors, 70 discarded bytes"]


async def test_live_audio_of_a_call_that_never_was_ready_is_counted() -> None:
    rig = Rig()
    session = await rig.open()
    await session.push(AudioIn(pcm=frame(0.1, 3)))
    await session.close()
    await session.close()
    assert rig.sample("gateway_frames_dropped_total", direction="in", reason="not_ready") == 3


async def test_waiting_times_are_observed() -> None:
    rig = Rig(step_seconds=0.04)
    session, stream = await rig.live(persona="one two three four five six")
    await exchange(rig, session, stream, [0.1, 0.2])
    assert rig.sample("gateway_prefill_seconds_count") == 1
    assert rig.sample("gateway_prefill_seconds_sum") == pytest.approx(0.08)  # 10 rows in chunks of 8
    assert rig.sample("gateway_first_audio_seconds_count") == 1
    assert rig.sample("gateway_first_audio_seconds_sum") == pytest.approx(0.12)
