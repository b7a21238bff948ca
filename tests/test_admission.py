"""How a session comes by a slot and a prompt: slots that are reserved first, what may be asked meanwhile, and hanging up."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from core import Rig, audio, exchange, frame, heard, read

from gateway.limits import SessionSettings
from gateway.manager import AdmissionSettings
from gateway.outbox import EventStream
from gateway.session import Session
from gateway.slots import SlotState
from gateway.state import SessionState
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import (
    AudioIn,
    BargeIn,
    Cancel,
    ClearInput,
    Clock,
    Ended,
    EndOfInput,
    EndReason,
    Failed,
    HangUp,
    Open,
    Pacing,
    Queued,
    Ready,
    Reserve,
    Reserved,
    RunClock,
    SamplingOptions,
    Steer,
)

LONG_S = 60.0
IDLE, PREFILL, LIVE = SlotState.IDLE, SlotState.PREFILL, SlotState.LIVE


async def reserve(rig: Rig) -> tuple[Session, EventStream]:
    session = rig.manager.open_session("test")
    await session.push(Reserve())
    await rig.admitted(session)
    return session, session.events()


async def until_live(rig: Rig, session: Session, **fields: Any) -> None:
    await session.push(Open(sampling=SamplingOptions(audio_seed=1, text_seed=0), **fields))
    await rig.admitted(session)
    while session.state is SessionState.PREFILL:
        rig.tick()


# -- reserving -----------------------------------------------------------------------------------------------------------------------


async def test_a_reserved_slot_is_held_and_costs_the_engine_nothing() -> None:
    rig = Rig(num_slots=1)
    session, stream = await reserve(rig)
    assert await read(stream) == [Reserved(session_id=session.session_id)]
    rig.tick(3)
    assert (rig.states(), rig.engine.open_rows, rig.engine.num_steps) == ([PREFILL], [], 0)
    refused = await rig.open()
    assert (await read(refused.events()))[-1] == Failed(kind=ErrorKind.CAPACITY, detail="every slot is taken (1 of 1)")


@pytest.mark.parametrize("pacing", list(Pacing))
async def test_a_call_opens_in_the_slot_that_was_reserved_for_it(pacing: Pacing) -> None:
    rig = Rig(num_slots=1, outbox_frames=2)
    session, stream = await reserve(rig)
    epoch = session.epoch
    await until_live(rig, session, pacing=pacing)
    reserved, ready = await read(stream)
    assert isinstance(reserved, Reserved)
    assert isinstance(ready, Ready)
    assert ready.epoch == epoch == session.epoch
    assert rig.slots.slots[0].credit == (2 if pacing is Pacing.SCRIPT else None)
    assert len(audio(await exchange(rig, session, stream, [0.1, 0.2]))) == 2


async def test_reserving_again_is_harmless_and_answered_again() -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S))
    holder, _ = await rig.live()
    session = rig.manager.open_session("test")
    stream = session.events()
    await session.push(Reserve())
    await session.push(Reserve())
    for _ in range(3):
        await asyncio.sleep(0)
    assert (session.state, await read(stream)) == (SessionState.RESERVING, [Queued(position=1)])
    await holder.close()
    rig.tick()
    await rig.admitted(session)
    reserved = Reserved(session_id=session.session_id)
    assert await read(stream) == [reserved]
    await session.push(Reserve())
    assert await read(stream) == [reserved]
    assert rig.states() == [PREFILL]


async def test_a_reservation_that_fails_says_why_and_when_to_come_again() -> None:
    rig = Rig(is_loaded=False)
    session, stream = await reserve(rig)
    (last,) = await read(stream)
    assert isinstance(last, Failed)
    assert session.refusal is not None
    assert (last.kind, session.refusal.kind, session.refusal.retry_after_s) == (ErrorKind.LOADING, ErrorKind.LOADING, 10)


async def test_a_slot_that_was_reserved_is_given_back_without_an_open() -> None:
    rig = Rig(num_slots=1)
    session, stream = await reserve(rig)
    await session.close()
    assert rig.states() == [IDLE]  # at once: the engine never saw it
    assert (await read(stream))[-1] == Ended(reason=EndReason.CALLER)
    await rig.live()


async def test_no_limit_of_the_session_ends_a_reservation() -> None:
    rig = Rig(session=SessionSettings(open_s=10.0, idle_s=20.0, max_call_s=30.0))
    session, stream = await reserve(rig)
    rig.clock.advance(300.0)
    rig.manager.sweep()
    assert session.state is SessionState.RESERVED
    await until_live(rig, session)
    rig.manager.sweep()
    rig.clock.advance(20.1)
    rig.manager.sweep()
    last = (await read(stream))[-1]
    assert isinstance(last, Failed)  # a call has its limits again
    assert last.kind is ErrorKind.IDLE


async def test_the_prefill_is_timed_from_the_open_and_not_from_the_reservation() -> None:
    rig = Rig(step_seconds=0.04)
    session, _ = await reserve(rig)
    rig.clock.advance(100.0)
    await until_live(rig, session)
    assert rig.sample("gateway_prefill_seconds_sum") == pytest.approx(0.04)


@pytest.mark.parametrize("event", [AudioIn(pcm=frame(0.1)), EndOfInput()])
async def test_nothing_is_said_between_reserve_and_open(event: AudioIn | EndOfInput) -> None:
    rig = Rig()
    session, _ = await reserve(rig)
    with pytest.raises(LocalProtocolError):
        await session.push(event)
    assert session.state is SessionState.RESERVED


@pytest.mark.parametrize("event", [BargeIn(), Cancel(steer_frames=1), ClearInput(), RunClock(is_running=False), Steer(frames=3)])
async def test_control_before_the_call_is_harmless(event: BargeIn) -> None:
    rig = Rig(num_slots=1)
    session = rig.manager.open_session("test")
    await session.push(Reserve())
    await session.push(event)
    await rig.admitted(session)
    await session.push(event)
    await until_live(rig, session)
    rig.pass_time(4)
    assert session.state is SessionState.LIVE


async def test_a_call_may_be_opened_the_moment_its_slot_is_found() -> None:
    """The task that waited for the slot has not run again by then."""
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S))
    holder, _ = await rig.live()
    session = rig.manager.open_session("test")
    await session.push(Reserve())
    await asyncio.sleep(0)
    await holder.close()
    rig.tick()
    assert session.state is SessionState.RESERVED
    await until_live(rig, session)
    assert session.state is SessionState.LIVE


async def test_a_server_that_stops_ends_reservations() -> None:
    rig = Rig(num_slots=2, admission=AdmissionSettings(queue_s=LONG_S))
    _, stream = await reserve(rig)
    await rig.manager.drain(0)
    last = (await read(stream))[-1]
    assert isinstance(last, Failed)
    assert last.kind is ErrorKind.SHUTDOWN
    assert rig.states() == [IDLE] * 2


# -- steering ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before the slot", "in the slot", "in the prefill"])
async def test_steering_that_was_asked_for_before_the_model_listens_is_remembered(moment: str) -> None:
    rig = Rig()
    session = rig.manager.open_session("test")
    steer = Steer(frames=2, pad_bias=5.0)
    await session.push(Reserve())
    if moment == "before the slot":
        await session.push(steer)
    await rig.admitted(session)
    if moment == "in the slot":
        await session.push(steer)
    await session.push(Open(sampling=SamplingOptions(audio_seed=1, text_seed=0)))
    if moment == "in the prefill":
        await session.push(steer)
    await rig.admitted(session)
    rig.tick()
    events = await exchange(rig, session, session.events(), [0.1, 0.2, 0.3, 0.4])
    assert [bool(event.pcm.any()) for event in audio(events)] == [False, False, True, True]
    assert rig.slots.slots[session.slot_idx or 0].pad_bias == 5.0


async def test_steering_replaces_what_was_asked_for_before() -> None:
    rig = Rig()
    session, stream = await rig.live()
    await session.push(Steer(frames=100, pad_bias=-1.0))
    assert not audio(await exchange(rig, session, stream, [0.1]))[0].pcm.any()
    epoch = session.epoch
    await session.push(Steer())
    assert audio(await exchange(rig, session, stream, [0.1]))[0].pcm.any()
    assert (session.epoch, rig.slots.slots[0].pad_bias) == (epoch, 0.0)  # nothing that was said is thrown away


# -- hanging up ----------------------------------------------------------------------------------------------------------------------


async def test_a_codec_hangs_up_for_its_caller_or_for_a_fault() -> None:
    rig = Rig()
    for event, last in (
        (HangUp(), Ended(reason=EndReason.CALLER)),
        (HangUp(kind=ErrorKind.IDLE, detail="nothing came"), Failed(kind=ErrorKind.IDLE, detail="nothing came")),
    ):
        session, stream = await rig.live()
        await session.push(event)
        assert await read(stream) == [last]
        assert session.slot_idx is None
    rig.tick()
    assert rig.states() == [IDLE] * 2


@pytest.mark.parametrize("state", [state for state in SessionState if state is not SessionState.CLOSED])
async def test_a_call_can_be_hung_up_in_every_state(state: SessionState) -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S))
    holder = (await rig.live())[0] if state in (SessionState.RESERVING, SessionState.QUEUED) else None
    session = rig.manager.open_session("test")
    if state in (SessionState.RESERVING, SessionState.RESERVED):
        await session.push(Reserve())
    elif state is not SessionState.NEW:
        await session.push(Open(pacing=Pacing.SCRIPT))
    for _ in range(3):
        await asyncio.sleep(0)
    if state in (SessionState.RESERVED, SessionState.PREFILL, SessionState.LIVE, SessionState.DRAINING):
        await rig.admitted(session)
    if state in (SessionState.LIVE, SessionState.DRAINING):
        rig.tick()
    if state is SessionState.DRAINING:
        await session.push(AudioIn(pcm=frame(0.1)))
        await session.push(EndOfInput())
    assert session.state is state
    await session.push(HangUp())
    assert session.state is SessionState.CLOSED
    if holder is not None:
        await holder.close()
    rig.tick()
    assert rig.states() == [IDLE]
    assert rig.manager.num_sessions == 0
    await rig.live()


async def test_a_realtime_call_is_hung_up_with_frames_on_their_way() -> None:
    rig = Rig(num_slots=1)
    session, stream = await reserve(rig)
    await until_live(rig, session, clock=Clock.REALTIME)
    rig.pass_time(3)
    rig.clock.advance(1.0)
    rig.run_clocks()
    gathered = rig.slots.gather(4)
    await session.push(HangUp())
    rig.manager._on_tick(rig.slots.scatter(gathered, rig.engine.step(gathered.batch)))
    events = await read(stream)
    assert events[-1] == Ended(reason=EndReason.CALLER)
    assert len(heard(events)) == session.frames_out
    rig.tick()
    assert rig.states() == [IDLE]
