from __future__ import annotations

import asyncio

import numpy as np
import pytest
from core import Rig, S, audio, exchange, frame, read, text

from gateway.engine.fake import expected_audio
from gateway.errors import SessionGone
from gateway.slots import SlotState
from gateway.state import SessionState
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import (
    AudioIn,
    AudioOut,
    BargeIn,
    Cancel,
    Ended,
    EndOfInput,
    EndReason,
    Failed,
    Open,
    Pacing,
    Played,
    Ready,
    Rejected,
    SamplingOptions,
    TextDelta,
)

FINISHED = Ended(reason=EndReason.FINISHED)


# -- a call --------------------------------------------------------------------------------------------------------------------------


async def test_a_live_call_answers_each_frame_with_one_frame() -> None:
    rig = Rig()
    session, stream = await rig.live(seed=7)
    events = await exchange(rig, session, stream, [0.1, 0.2, 0.3])
    assert [event.frame_idx for event in audio(events)] == [0, 1, 2]
    assert [event.epoch for event in audio(events)] == [session.epoch] * 3
    previous = frame(0.0)
    for value, event in zip([0.1, 0.2, 0.3], audio(events), strict=True):
        np.testing.assert_array_equal(event.pcm, expected_audio(frame(value), previous, 7))
        previous = frame(value)
    assert [type(event) for event in events[:2]] == [AudioOut, TextDelta]  # text follows the audio of its frame
    await session.close()
    assert await read(stream) == [Ended(reason=EndReason.CALLER)]
    rig.tick()
    assert rig.states() == [SlotState.IDLE] * 2
    assert (session.frames_in, session.frames_out) == (3, 3)


async def test_ready_names_the_call_and_what_is_in_effect() -> None:
    rig = Rig()
    session = await rig.open(voice_prompt="tenor", seed=5)
    while session.state is SessionState.PREFILL:
        rig.tick()
    (ready,) = await read(session.events())
    assert isinstance(ready, Ready)
    assert (ready.session_id, ready.voice_prompt, ready.model) == (session.session_id, "tenor", "fake")
    assert ready.sampling.audio_seed == 5
    assert ready.sampling.audio_topk == rig.engine.info.sampling.audio_topk


async def test_byte_fallback_text_arrives_as_whole_characters() -> None:
    rig = Rig()
    session, stream = await rig.live()
    events = await exchange(rig, session, stream, [0.0] * 20)
    assert text(events) == " hello there, that is 5€."
    (euro,) = [event for event in events if isinstance(event, TextDelta) and event.text == "€"]
    assert euro.frame_idx == 16  # the frame of its last byte


async def test_text_that_was_cut_in_a_character_is_ended_before_the_last_word() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await exchange(rig, session, stream, [0.0] * 13)  # the next piece of the character never comes
    await session.close()
    assert await read(stream) == [TextDelta(text="\ufffd", frame_idx=12, epoch=session.epoch), Ended(reason=EndReason.CALLER)]


@pytest.mark.parametrize("event", [AudioIn(pcm=frame(0.1)), EndOfInput(), BargeIn(), Cancel(), Played(played_ms=0)])
async def test_the_first_event_is_open(event: AudioIn) -> None:
    rig = Rig()
    session = rig.manager.open_session("test")
    with pytest.raises(LocalProtocolError):
        await session.push(event)
    await session.close()


async def test_a_second_open_is_our_error() -> None:
    rig = Rig()
    session, _ = await rig.live()
    with pytest.raises(LocalProtocolError):
        await session.push(Open())
    assert session.state is SessionState.LIVE


async def test_a_rejected_message_is_handed_back() -> None:
    rig = Rig()
    session, stream = await rig.live()
    rejected = Rejected(kind=ErrorKind.BAD_REQUEST, detail="what?")
    await session.push(rejected)
    assert await read(stream) == [rejected]


async def test_a_cancelled_read_may_be_repeated() -> None:
    rig = Rig()
    session, stream = await rig.live()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await anext(stream)
    assert len(audio(await exchange(rig, session, stream, [0.1]))) == 1


async def test_pushing_after_the_end_says_that_the_session_is_gone() -> None:
    rig = Rig()
    session, _ = await rig.live()
    await session.close()
    await session.close(Failed(kind=ErrorKind.INTERNAL, detail="only the first reason counts"))
    with pytest.raises(SessionGone):
        await session.push(AudioIn(pcm=frame(0.1)))
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="caller") == 1
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="failed") == 0


async def test_output_after_the_end_is_ignored_and_counted() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(AudioIn(pcm=frame(0.1)))
    gathered = rig.slots.gather(S)
    await session.close()
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    assert await read(stream) == [Ended(reason=EndReason.CALLER)]
    assert rig.sample("gateway_frames_dropped_total", direction="out", reason="released") == 1


async def test_output_in_the_hand_over_when_the_session_ends_is_ignored() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(AudioIn(pcm=frame(0.1)))
    gathered = rig.slots.gather(S)
    scattered = rig.slots.scatter(gathered, rig.engine.step(gathered.batch))
    await session.close()
    rig.manager._on_tick(scattered)
    session.on_ready()
    assert await read(stream) == [Ended(reason=EndReason.CALLER)]


# -- end of input --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pacing", list(Pacing))
@pytest.mark.parametrize("num_samples", [0, 1, S - 1, S, S + 1, 5 * S, 5 * S + 2])
async def test_the_output_is_as_long_as_the_input(num_samples: int, pacing: Pacing) -> None:
    rig = Rig()
    session, stream = await rig.live(pacing=pacing)
    await session.push(AudioIn(pcm=np.full(num_samples, 0.1, dtype=np.float32)))
    await session.push(EndOfInput())
    rig.tick(7)
    events = await read(stream)
    assert sum(event.pcm.size for event in audio(events)) == num_samples
    assert events[-1] == FINISHED
    assert session.ledger.generated_ms == num_samples * 20
    assert session.ledger.sent_ms == num_samples * 20


async def test_what_comes_after_the_end_of_input_is_dropped_and_counted() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(AudioIn(pcm=frame(0.1)))
    await session.push(EndOfInput())
    await session.push(AudioIn(pcm=frame(0.2)))
    await session.push(EndOfInput())
    assert session.state is SessionState.DRAINING
    rig.tick()
    assert [len(audio(events := await read(stream))), events[-1]] == [1, FINISHED]
    assert rig.sample("gateway_frames_dropped_total", direction="in", reason="after_end") == 1


async def test_a_file_pushed_before_ready_is_answered_to_the_last_sample() -> None:
    rig = Rig(num_slots=1)
    session = rig.manager.open_session("test")
    await session.push(Open(pacing=Pacing.SCRIPT, persona="a b c d e f g h i j"))
    await session.push(AudioIn(pcm=frame(0.1, 2)))
    await session.push(AudioIn(pcm=frame(0.1)[:1]))
    await session.push(EndOfInput())
    assert session.state is SessionState.DRAINING
    rig.tick(6)
    events = await read(session.events())
    assert isinstance(events[0], Ready)
    assert sum(event.pcm.size for event in audio(events)) == 2 * S + 1
    assert events[-1] == FINISHED


async def test_live_audio_before_ready_is_dropped_with_its_half_frames() -> None:
    rig = Rig(num_slots=1)
    session = rig.manager.open_session("test")
    await session.push(Open(sampling=SamplingOptions(audio_seed=3)))
    await session.push(AudioIn(pcm=frame(0.5, 3)))  # before the slot
    await rig.admitted(session)
    await session.push(AudioIn(pcm=np.full(S + 3, 0.5, dtype=np.float32)))  # in the prefill
    rig.tick()
    stream = session.events()
    assert session.state is SessionState.LIVE
    await session.push(AudioIn(pcm=frame(0.1)[:1]))
    rig.tick()
    assert not audio(await read(stream))
    await session.push(AudioIn(pcm=frame(0.1)[:3]))
    rig.tick()
    (answer,) = audio(await read(stream))
    np.testing.assert_array_equal(answer.pcm, expected_audio(frame(0.1), frame(0.0), 3))  # no sample of 0.5 among them
    assert rig.sample("gateway_frames_dropped_total", direction="in", reason="not_ready") == 4


async def test_a_live_caller_that_ends_before_ready_has_nothing_to_wait_for() -> None:
    rig = Rig()
    session = await rig.open()
    await session.push(AudioIn(pcm=frame(0.1)[:1]))
    await session.push(EndOfInput())
    assert await read(session.events()) == [FINISHED]


# -- barge-in and cancel -------------------------------------------------------------------------------------------------------------


async def test_barge_in_throws_away_what_was_not_read_and_the_model_goes_on() -> None:
    rig = Rig()
    session, stream = await rig.live(seed=3)
    for value in (0.1, 0.2):
        await session.push(AudioIn(pcm=frame(value)))
        rig.tick()
    await session.push(BargeIn())
    await session.push(AudioIn(pcm=frame(0.3)))
    rig.tick()
    events = await read(stream)
    (after,) = audio(events)
    assert (after.frame_idx, after.epoch) == (2, session.epoch)
    np.testing.assert_array_equal(after.pcm, expected_audio(frame(0.3), frame(0.2), 3))  # it heard 0.2
    assert text(events) == " there"  # the words of the frames that were thrown away went with them
    assert rig.sample("gateway_frames_dropped_total", direction="out", reason="barge_in") == 2


async def test_barge_in_during_a_step_drops_the_audio_and_the_text_of_that_step() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(AudioIn(pcm=frame(0.1)))
    gathered = rig.slots.gather(S)
    await session.push(BargeIn())
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    assert await read(stream) == []
    assert text(await exchange(rig, session, stream, [0.1] * 2)) == " there"  # nobody is told of " hello"


async def test_a_character_that_begins_in_a_dropped_frame_is_whole_when_it_ends_in_another() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await exchange(rig, session, stream, [0.0] * 12)
    await session.push(AudioIn(pcm=frame(0.0)))  # the first of three bytes
    rig.tick()
    await session.push(BargeIn())
    assert text(await exchange(rig, session, stream, [0.0] * 4)) == "€"


async def test_half_a_character_of_an_epoch_that_is_over_is_no_last_word() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await exchange(rig, session, stream, [0.0] * 13)
    await session.push(BargeIn())
    await session.close()
    assert await read(stream) == [Ended(reason=EndReason.CALLER)]


async def test_barge_in_during_the_hand_over_drops_its_audio_too() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(AudioIn(pcm=frame(0.1)))
    gathered = rig.slots.gather(S)
    scattered = rig.slots.scatter(gathered, rig.engine.step(gathered.batch))
    await session.push(BargeIn())
    rig.manager._on_tick(scattered)
    assert not audio(await read(stream))
    assert session.frames_out == 1


async def test_cancel_steers_the_model_to_silence_for_its_frames() -> None:
    rig = Rig()
    session, stream = await rig.live(seed=3)
    await session.push(Cancel(steer_frames=2))
    answers = audio(await exchange(rig, session, stream, [0.1, 0.2, 0.3]))
    assert [bool(answer.pcm.any()) for answer in answers] == [False, False, True]


async def test_barge_in_before_a_slot_is_legal_and_harmless() -> None:
    rig = Rig()
    session = rig.manager.open_session("test")
    await session.push(Open())
    await session.push(BargeIn())
    assert session.epoch == 0
    await rig.admitted(session)
    assert session.slot_idx is not None
    await session.push(Cancel(steer_frames=1))
    assert session.epoch == 2


async def test_played_counts_the_audio_that_the_caller_got() -> None:
    """Frames that a barge-in drops are media time, and no caller can count them."""
    rig = Rig()
    session, stream = await rig.live()
    await exchange(rig, session, stream, [0.0] * 2)
    await session.push(Played(played_ms=160))
    await session.push(AudioIn(pcm=frame(0.0, 3)))
    rig.tick(3)
    await session.push(BargeIn())  # frames 2, 3 and 4 are dropped
    await exchange(rig, session, stream, [0.0] * 3)
    await session.push(Played(played_ms=160))
    assert session.ledger.played_ms == 160
    await session.push(Played(played_ms=320))
    assert session.ledger.played_ms == 7 * 80  # frames 5 and 6


async def test_an_acknowledgement_never_passes_what_was_read() -> None:
    rig = Rig()
    session, stream = await rig.live()
    for value in (0.1, 0.2):
        await session.push(AudioIn(pcm=frame(value)))
        rig.tick()
    assert isinstance(await anext(stream), AudioOut)
    await session.push(Played(played_ms=10_000))
    assert (session.ledger.generated_ms, session.ledger.sent_ms, session.ledger.played_ms) == (160, 80, 80)
