"""What a call on a session clock is told when epochs end, and how it gets another prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core import FRAME_S, Rig, S, audio, check_pairs, frame, heard, read, realtime, say, text

from gateway.engine.fake import expected_audio
from gateway.limits import SessionSettings
from gateway.metrics import Direction
from gateway.session import Session
from gateway.slots import SlotState
from gateway.state import SessionState
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import (
    AudioIn,
    BargeIn,
    Cancel,
    Ended,
    EndReason,
    Failed,
    Heard,
    Ready,
    Reprime,
    RunClock,
    SamplingOptions,
    Steer,
)

# -- epochs and bounds of the output -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [BargeIn(), Cancel(steer_frames=3)])
async def test_what_was_heard_is_told_even_where_the_answer_is_thrown_away(event: BargeIn | Cancel) -> None:
    rig = Rig()
    session, stream = await realtime(rig)
    epoch = session.epoch
    await say(rig, session, stream, [0.1, 0.2])
    await session.push(AudioIn(pcm=frame(0.3)))
    rig.pass_time()  # its answer waits for the reader
    await session.push(AudioIn(pcm=frame(0.4)))
    rig.clock.advance(FRAME_S)
    rig.run_clocks()
    gathered = rig.slots.gather(S)  # and another is on its way
    await session.push(event)
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    events = await read(stream)
    assert [type(event) for event in events] == [Heard, Heard]
    assert [event.epoch for event in heard(events)] == [epoch, epoch]
    events = await say(rig, session, stream, [0.5])
    assert [event.epoch for event in heard(events)] == [epoch + 1]
    indices = [event.frame_idx for event in heard(events)]
    assert indices == [event.frame_idx for event in audio(events)] == [4]


async def test_a_reader_that_is_2_s_behind_loses_its_oldest_audio_and_hears_of_every_frame() -> None:
    rig = Rig(outbox_frames=3)
    session, stream = await realtime(rig)
    rig.pass_time(40)
    events = await read(stream)
    assert len(heard(events)) == session.frames_out
    assert [event.frame_idx for event in audio(events)] == [event.frame_idx for event in heard(events)][-25:]
    assert rig.sample("gateway_frames_dropped_total", direction="out", reason="slow_reader") == session.frames_out - 25


async def test_no_idle_time_ends_a_call_that_is_fed_by_its_clock_and_its_length_does() -> None:
    rig = Rig(session=SessionSettings(idle_s=5.0, max_call_s=30.0, warn_s=1.0))
    session, stream = await realtime(rig)
    await session.push(RunClock(is_running=False))
    rig.clock.advance(29.0)
    rig.manager.sweep()
    assert session.state is SessionState.LIVE
    rig.clock.advance(1.0)
    rig.manager.sweep()
    last = (await read(stream))[-1]
    assert isinstance(last, Ended)
    assert last.reason is EndReason.LIMIT


async def test_nothing_of_a_frame_follows_what_was_heard_in_it() -> None:
    rig = Rig()
    session, stream = await realtime(rig)
    rig.pass_time(16)  # the first bytes of a character that never ends
    assert 13 <= session.frames_out <= 16
    await session.close()
    events = await read(stream)
    assert isinstance(events[-2], Heard)
    assert "\ufffd" not in text(events)


# -- another prompt ------------------------------------------------------------------------------------------------------------------


async def reprime(rig: Rig, session: Session, **fields: Any) -> None:
    await session.push(Reprime(sampling=SamplingOptions(audio_seed=9, text_seed=0), **fields))
    assert session.state is SessionState.PREFILL
    await rig.admitted(session)


async def test_another_prompt_begins_a_new_epoch_in_the_same_slot_and_is_told_with_ready() -> None:
    rig = Rig()
    session, stream = await realtime(rig, seed=1)
    slot_idx, epoch = session.slot_idx, session.epoch
    events = await say(rig, session, stream, [0.1, 0.2, 0.3])
    await session.push(Steer(frames=2, pad_bias=-3.0))
    await reprime(rig, session, voice_prompt="tenor")
    assert (session.slot_idx, session.epoch) == (slot_idx, epoch + 1)
    rig.tick()  # closes and opens the row, and reads the prompt
    (ready,) = await read(stream)
    assert isinstance(ready, Ready)
    assert (ready.voice_prompt, ready.epoch, ready.sampling.audio_seed) == ("tenor", epoch + 1, 9)
    assert rig.slots.slots[slot_idx or 0].steer_frames == 2
    after = await say(rig, session, stream, [0.4, 0.5, 0.6, 0.7, 0.8])
    assert heard(after)[0].frame_idx == heard(events)[-1].frame_idx + 1  # media time goes on
    assert {event.epoch for event in heard(after)} == {epoch + 1}
    (third,) = [event for event in audio(after) if event.frame_idx == heard(after)[2].frame_idx]
    np.testing.assert_allclose(third.pcm, expected_audio(heard(after)[2].pcm, heard(after)[1].pcm, 9), atol=1e-6)
    assert [bool(event.pcm.any()) for event in audio(after)][:3] == [False, False, True]  # steered


async def test_ready_names_the_epoch_that_follows_though_a_cut_came_before_it_was_read() -> None:
    """A reader that took it for the epoch of its frames would throw every one of them away."""
    rig = Rig()
    session, stream = await realtime(rig)
    await reprime(rig, session)
    rig.tick()
    await session.push(Cancel())
    rig.pass_time(3)
    ready, *events = await read(stream)
    assert isinstance(ready, Ready)
    assert {event.epoch for event in (*audio(events), *heard(events))} == {ready.epoch} == {session.epoch}


async def test_audio_that_waits_or_comes_while_another_prompt_is_read_is_heard_by_the_new_one() -> None:
    rig = Rig(num_slots=1)
    session, stream = await realtime(rig, seed=1)
    await say(rig, session, stream, [0.1, 0.2, 0.3])
    for value in (0.4, 0.5, 0.6):
        await session.push(AudioIn(pcm=frame(value)))
        rig.clock.advance(FRAME_S)
        rig.run_clocks()
    gathered = rig.slots.gather(S)  # 0.4 is being heard by the old one; 0.5 lies in the inbox
    sampling = SamplingOptions(audio_seed=9, text_seed=0)
    await session.push(Reprime(persona="one two three four five six seven eight nine", sampling=sampling))
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    (old,) = await read(stream)
    assert isinstance(old, Heard)
    assert old.pcm[0] == pytest.approx(0.4)
    await session.push(AudioIn(pcm=frame(0.7)))
    await rig.admitted(session)
    rig.tick(2)
    assert session.state is SessionState.LIVE
    events = await say(rig, session, stream, [0.8, 0.9, 1.0])
    assert isinstance(events[0], Ready)
    assert [event.pcm[0] for event in heard(events)][:3] == pytest.approx([0.5, 0.6, 0.7])
    check_pairs(events, 9)
    assert {way for way, _ in session.dropped} == {Direction.OUT}  # the answer of the old one


async def test_what_was_heard_before_is_heard_again_first_as_fast_as_the_model_can() -> None:
    rig = Rig()
    session, stream = await realtime(rig, seed=1)
    await say(rig, session, stream, [0.1, 0.2, 0.3, 0.4])
    rig.pass_time(3)
    await read(stream)
    await reprime(rig, session, replay_frames=3)
    await session.push(AudioIn(pcm=frame(0.5)))
    rig.tick(5)  # no time passes
    events = await read(stream)
    assert isinstance(events[0], Ready)
    assert [event.pcm[0] for event in heard(events)] == pytest.approx([0.2, 0.3, 0.4])
    assert [event.real_samples for event in heard(events)] == [0, 0, 0]  # the caller's own once, and only once
    check_pairs(events, 9)
    rig.pass_time(2)
    events = await read(stream)
    assert heard(events)[0].pcm[0] == pytest.approx(0.5)
    check_pairs(events, 9, previous=frame(0.4))


async def test_the_limit_of_a_call_goes_on_through_another_prompt() -> None:
    rig = Rig()
    session, stream = await realtime(rig, max_frames=6)
    await say(rig, session, stream, [0.1] * 4)
    left = rig.slots.slots[0].frames_left
    await reprime(rig, session)
    assert rig.slots.slots[0].frames_left == left
    rig.tick()
    rig.pass_time(8)
    events = await read(stream)
    assert isinstance(events[-1], Ended)
    assert session.frames_out == 6


async def test_another_prompt_that_cannot_be_served_ends_the_call_and_frees_its_slot() -> None:
    rig = Rig(num_slots=1)
    session, stream = await realtime(rig)
    await reprime(rig, session, voice_prompt="nobody")
    (last,) = await read(stream)
    assert isinstance(last, Failed)
    assert last.kind is ErrorKind.BAD_PARAMETER
    rig.tick()
    assert rig.states() == [SlotState.IDLE]


async def test_a_prompt_at_a_time() -> None:
    rig = Rig()
    session, _ = await realtime(rig)
    await session.push(Reprime())
    with pytest.raises(LocalProtocolError):
        await session.push(Reprime())
    await session.close()
    await rig.admitted(session)
    rig.tick()
    assert rig.states() == [SlotState.IDLE] * 2


@pytest.mark.parametrize("num_ticks", [0, 1, 2])
async def test_a_call_that_ends_between_two_prompts_frees_its_slot(num_ticks: int) -> None:
    rig = Rig(num_slots=1, prefill_rows=1)
    session, _ = await realtime(rig)
    await session.push(Reprime())
    rig.tick(num_ticks)  # the old row is closed by the first
    await session.close()
    rig.tick()
    assert rig.states() == [SlotState.IDLE]
    await rig.live()
