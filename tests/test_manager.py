from __future__ import annotations

import asyncio
import logging

import pytest
from core import Rig, audio, exchange, frame, read

from gateway.engine.base import Prompt
from gateway.errors import SessionGone
from gateway.manager import AdmissionSettings, Health, resolve_sampling
from gateway.session import Session
from gateway.slots import Answer, SlotState
from gateway.state import SessionState
from gateway.ticker import MIN_STEP_SAMPLES, STALE_S
from protocols.errors import ErrorKind
from protocols.events import AudioIn, Ended, EndReason, Failed, Open, Queued, Ready, SamplingOptions, ServerEvent

UNIT_S = 0.05  # the one scaled unit of the tests that must wait for the loop's clock
LONG_S = 60.0
IDLE, PREFILL, LIVE, DRAINING = SlotState.IDLE, SlotState.PREFILL, SlotState.LIVE, SlotState.DRAINING


def kind_of(events: list[ServerEvent]) -> ErrorKind:
    assert isinstance(events[-1], Failed), events
    return events[-1].kind


async def enqueue(rig: Rig) -> Session:
    """Open a session that has to wait; return when it stands in the queue."""
    session = rig.manager.open_session("test")
    await session.push(Open())
    for _ in range(3):
        await asyncio.sleep(0)
    assert session.state is SessionState.QUEUED
    return session


# -- full --------------------------------------------------------------------------------------------------------------------------


async def test_a_full_server_refuses_at_once_and_disturbs_nobody() -> None:
    rig = Rig(num_slots=2)
    calls = [await rig.live(seed=seed) for seed in range(2)]
    refused = await rig.open()
    assert kind_of(await read(refused.events())) is ErrorKind.CAPACITY
    assert rig.states() == [LIVE, LIVE]
    for session, stream in calls:
        assert len(audio(await exchange(rig, session, stream, [0.1]))) == 1
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="refused") == 1
    assert rig.sample("gateway_sessions_open") == 2
    assert rig.sample("gateway_slots_used") == 2
    assert rig.manager.num_sessions == 2


async def test_refusal_is_told_before_an_upgrade() -> None:
    rig = Rig(num_slots=1)
    assert rig.manager.refusal() is None
    await rig.live()
    refusal = rig.manager.refusal()
    assert refusal is not None
    assert refusal.kind is ErrorKind.CAPACITY
    assert refusal.retry_after_s > 0


async def test_a_caller_may_redial_while_its_old_slot_is_being_cleared() -> None:
    rig = Rig(num_slots=1)
    session, _ = await rig.live()
    await session.close()
    assert rig.states() == [DRAINING]
    again = await enqueue(rig)
    another = await rig.open()  # one slot comes free, one caller may wait for it
    assert kind_of(await read(another.events())) is ErrorKind.CAPACITY
    rig.tick()
    await rig.admitted(again)
    rig.tick()
    (ready,) = await read(again.events())  # no word of a queue
    assert isinstance(ready, Ready)


async def test_a_queue_is_served_in_order_and_tells_each_its_place() -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S, queue_limit=3))
    first, _ = await rig.live()
    waiting = [await enqueue(rig) for _ in range(3)]
    refused = await rig.open()
    assert kind_of(await read(refused.events())) is ErrorKind.CAPACITY
    streams = [session.events() for session in waiting]
    assert [await read(stream) for stream in streams] == [[Queued(position=place)] for place in (1, 2, 3)]
    await waiting[1].close()  # one hangs up
    assert [await read(streams[0]), await read(streams[2])] == [[], [Queued(position=2)]]
    await first.close()
    rig.tick()
    assert [session.state for session in waiting] == [SessionState.PREFILL, SessionState.CLOSED, SessionState.QUEUED]
    assert await read(streams[2]) == [Queued(position=1)]
    await rig.admitted(waiting[0])
    rig.tick()
    assert isinstance((await read(streams[0]))[-1], Ready)


async def test_nobody_overtakes_the_queue() -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S))
    first, _ = await rig.live()
    waiting = await enqueue(rig)
    await first.close()
    rig.slots.gather(4)  # the slot is idle, and the loop has not been told yet
    rig.engine.close(0)
    late = rig.manager.open_session("test")
    await late.push(Open())
    await asyncio.sleep(0)
    assert (waiting.state, late.state) == (SessionState.QUEUED, SessionState.QUEUED)
    rig.manager.sweep()
    assert (waiting.state, late.state) == (SessionState.PREFILL, SessionState.QUEUED)
    await waiting.close()
    await late.close()


async def test_waiting_ends_when_its_time_is_up() -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=UNIT_S))
    session, stream = await rig.live()
    waiting = await rig.open()
    assert kind_of(await read(waiting.events())) is ErrorKind.CAPACITY
    assert len(audio(await exchange(rig, session, stream, [0.1]))) == 1
    await session.close()
    rig.tick()
    assert rig.states() == [IDLE]


async def test_a_slot_that_comes_free_in_the_moment_of_giving_up_is_not_lost() -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S))
    first, _ = await rig.live()
    waiting = await enqueue(rig)
    (waiter,) = rig.manager._queue
    waiter.claimed.cancel()  # what a time-out does first
    await first.close()
    rig.tick()
    await rig.admitted(waiting)
    assert waiting.state is SessionState.CLOSED
    assert rig.states() == [IDLE]
    _, stream = await rig.live()
    assert await read(stream) == []


# -- bad parameters and defaults -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"voice_prompt": "baritone"}, {"persona": "word " * 600}])
async def test_what_the_engine_cannot_prepare_is_the_caller_s_error_and_frees_the_slot(fields: dict[str, str]) -> None:
    rig = Rig(num_slots=1)
    refused = await rig.open(**fields)
    assert kind_of(await read(refused.events())) is ErrorKind.BAD_PARAMETER
    assert rig.states() == [IDLE]
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="client_error") == 1
    await rig.live()


@pytest.mark.parametrize(
    ("voice_prompt", "persona", "expected"),
    [
        (None, None, ("tenor", "the house persona")),
        (None, "", ("tenor", "")),
        ("alto", "mine", ("alto", "mine")),
    ],
)
async def test_defaults_serve_who_asks_for_nothing(
    voice_prompt: str | None, persona: str | None, expected: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(admission=AdmissionSettings(default_voice="tenor", default_persona="the house persona"))
    prepared: list[tuple[str | None, str | None]] = []
    prepare = rig.engine.prepare

    def spy(voice: str | None, text: str | None) -> Prompt:
        prepared.append((voice, text))
        return prepare(voice, text)

    monkeypatch.setattr(rig.engine, "prepare", spy)
    await rig.live(voice_prompt=voice_prompt, persona=persona)
    assert prepared == [expected]


async def test_a_bug_in_admission_is_our_error_without_details(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(num_slots=1)

    def broken(voice: str | None, text: str) -> Prompt:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(rig.engine, "prepare", broken)
    refused = await rig.open()
    assert await read(refused.events()) == [Failed(kind=ErrorKind.INTERNAL, detail="internal error")]
    assert rig.states() == [IDLE]
    assert "secret detail" in caplog.text


def test_sampling_is_resolved_field_by_field() -> None:
    defaults = SamplingOptions(
        text_temperature=0.7,
        text_topk=25,
        audio_temperature=0.8,
        audio_topk=250,
        pad_mult=0.0,
        repetition_penalty=1.0,
        repetition_penalty_context=64,
    )
    asked = SamplingOptions(text_temperature=0.0, text_topk=0, text_seed=0)
    chosen = resolve_sampling(asked, defaults)
    assert (chosen.text_temperature, chosen.text_topk, chosen.text_seed) == (0.0, 0, 0)
    assert (chosen.audio_temperature, chosen.audio_topk, chosen.repetition_penalty_context) == (0.8, 250, 64)
    assert chosen.audio_seed is not None
    assert 0 <= chosen.audio_seed < 2**53
    assert chosen.audio_seed != resolve_sampling(asked, defaults).audio_seed


# -- health and the end --------------------------------------------------------------------------------------------------------------


async def test_callers_before_the_model_are_told_to_come_again() -> None:
    rig = Rig(is_loaded=False)
    assert rig.manager.health is Health.LOADING
    refused = await rig.open()
    assert kind_of(await read(refused.events())) is ErrorKind.LOADING
    rig.ticker.load()
    assert rig.manager.health is Health.READY
    await rig.live()


async def test_a_slow_server_admits_nobody_until_it_has_recovered() -> None:
    rig = Rig(num_slots=3, admission=AdmissionSettings(queue_s=LONG_S), step_seconds=0.1)
    session, stream = await rig.live()
    await exchange(rig, session, stream, [0.1] * MIN_STEP_SAMPLES)
    assert rig.manager.health is Health.DEGRADED
    refused = await rig.open()
    assert kind_of(await read(refused.events())) is ErrorKind.OVERLOADED
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="refused") == 1
    rig.clock.advance(STALE_S)
    assert rig.manager.health is Health.READY
    await rig.live()


async def test_a_queue_waits_while_the_server_is_slow() -> None:
    rig = Rig(num_slots=2, admission=AdmissionSettings(queue_s=LONG_S))
    session, stream = await rig.live()
    other, _ = await rig.live()
    waiting = await enqueue(rig)
    rig.engine.step_seconds = 0.1
    await exchange(rig, session, stream, [0.1] * MIN_STEP_SAMPLES)
    await other.close()
    rig.tick()
    assert waiting.state is SessionState.QUEUED
    rig.clock.advance(STALE_S)
    rig.manager.sweep()
    assert waiting.state is SessionState.PREFILL
    await rig.admitted(waiting)


async def test_draining_refuses_new_callers_and_ends_the_rest_after_the_grace_time() -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=LONG_S))
    session, stream = await rig.live()
    waiting = await enqueue(rig)
    drain = asyncio.create_task(rig.manager.drain(UNIT_S))
    await asyncio.sleep(0)
    assert rig.manager.health is Health.DRAINING
    assert kind_of(await read(waiting.events())) is ErrorKind.SHUTDOWN
    refused = await rig.open()
    assert kind_of(await read(refused.events())) is ErrorKind.SHUTDOWN
    assert len(audio(await exchange(rig, session, stream, [0.1]))) == 1  # the present caller talks on
    await drain
    assert kind_of(await read(stream)) is ErrorKind.SHUTDOWN
    assert rig.manager.num_sessions == 0
    assert rig.sample("gateway_sessions_total", protocol="test", outcome="shutdown") == 3


async def test_draining_ends_when_the_last_caller_hangs_up() -> None:
    rig = Rig()
    session, stream = await rig.live()
    drain = asyncio.create_task(rig.manager.drain(LONG_S))
    await asyncio.sleep(0)
    await session.close()
    async with asyncio.timeout(5):
        await drain
    assert await read(stream) == [Ended(reason=EndReason.CALLER)]


async def test_a_session_is_found_by_its_id_until_it_ends() -> None:
    rig = Rig()
    session = await rig.open()
    assert rig.manager.get(session.session_id) is session
    await session.close()
    with pytest.raises(SessionGone):
        rig.manager.get(session.session_id)


async def test_output_that_one_session_cannot_take_costs_nobody_else_a_frame(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="gateway.manager")
    rig = Rig(num_slots=3)
    calls = [await rig.live(seed=seed) for seed in range(3)]

    def broken(answer: Answer) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(calls[1][0], "on_answer", broken)
    for session, _ in calls:
        await session.push(AudioIn(pcm=frame(0.1)))
    rig.tick()
    assert [len(audio(await read(stream))) for _, stream in (calls[0], calls[2])] == [1, 1]
    assert kind_of(await read(calls[1][1])) is ErrorKind.INTERNAL
    rig.tick()
    assert rig.states() == [LIVE, IDLE, LIVE]


async def test_idle_sessions_are_looked_for_only_while_there_are_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.manager.SWEEP_S", UNIT_S / 10)
    rig = Rig()
    assert rig.manager._sweep is None
    session = await rig.open()
    other = await rig.open()
    rig.tick()
    rig.clock.advance(LONG_S + 1)
    await other.push(AudioIn(pcm=frame(0.1)))
    await asyncio.sleep(UNIT_S)
    assert (session.state, other.state) == (SessionState.CLOSED, SessionState.LIVE)
    await other.close()
    assert rig.manager._sweep is None


async def test_a_hundred_calls_leave_nothing_behind() -> None:
    rig = Rig(num_slots=3)
    for number in range(100):
        session = await rig.open(seed=number)
        for _ in range(number % 4):
            rig.tick()
            if session.state is SessionState.LIVE:
                await session.push(AudioIn(pcm=frame(0.1)))
        await session.close()
        rig.tick(number % 2)
    rig.tick()
    assert rig.states() == [IDLE] * 3
    assert rig.manager.num_sessions == 0
    assert rig.engine.open_rows == []
    assert {task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("admit")} == set()


async def test_a_full_server_says_so_however_slow_it_is() -> None:
    """A caller who finds every slot taken on a slow machine must not be told that the machine is the reason."""
    rig = Rig(num_slots=1, step_seconds=0.1)
    session, stream = await rig.live()
    await exchange(rig, session, stream, [0.1] * MIN_STEP_SAMPLES)
    assert rig.manager.health is Health.DEGRADED
    refused = await rig.open()
    assert kind_of(await read(refused.events())) is ErrorKind.CAPACITY
