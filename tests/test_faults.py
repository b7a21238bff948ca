"""Tasks cancelled at each of their await points (BR-031), and calls that end at each moment: a slot is never lost."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Coroutine, Generator
from typing import Any

import pytest
from core import Rig, audio, exchange, frame, read

from gateway.manager import AdmissionSettings
from gateway.session import Session
from gateway.slots import SlotState
from gateway.state import SessionState
from protocols.events import AudioIn, EndOfInput, Failed, Open, Pacing

MAX_AWAITS = 200  # more than the scenario has; the test asserts that it ran to its end below that


@types.coroutine
def cancel_at(coroutine: Coroutine[Any, Any, None], await_idx: int) -> Generator[Any, None, bool]:
    """Run a coroutine and throw CancelledError into its suspension `await_idx`; return True when it was over before that."""
    for _ in range(await_idx):
        try:
            waited = coroutine.send(None)
        except StopIteration:
            return True
        yield waited
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    coroutine.throw(asyncio.CancelledError())
    raise AssertionError("a cancelled task went on")


async def handler(rig: Rig, session: Session, pacing: Pacing) -> None:
    """Do what a transport does, both directions in one task."""
    try:
        stream = session.events()
        await session.push(Open(pacing=pacing))
        await anext(stream)  # Ready, or Queued
        while session.state is SessionState.QUEUED:
            await anext(stream)
        for _ in range(3):
            await session.push(AudioIn(pcm=frame(0.1, 2)))
            await asyncio.sleep(0)
        await session.push(EndOfInput())
        async for _event in stream:
            pass
    finally:
        await session.close()


async def turn(rig: Rig, task: asyncio.Task[Any]) -> None:
    """Tick and give everybody a turn until the task is done; a wait for the thread pool takes as many turns as it takes."""
    while not task.done():
        rig.tick()
        await asyncio.sleep(0)


async def assert_nothing_is_lost(rig: Rig) -> None:
    await asyncio.sleep(0)
    rig.tick(2)
    assert rig.states() == [SlotState.IDLE] * rig.slots.num_slots
    assert rig.manager.num_sessions == 0
    assert not rig.manager._queue
    session, stream = await rig.live()
    assert len(audio(await exchange(rig, session, stream, [0.1]))) == 1
    await session.close()
    rig.tick()


@pytest.mark.parametrize("pacing", list(Pacing))
async def test_a_handler_cancelled_at_any_await_leaves_nothing_behind(pacing: Pacing) -> None:
    rig = Rig(num_slots=1, inbox_frames=2, outbox_frames=4)  # just enough for a handler that reads after it has written
    for await_idx in range(MAX_AWAITS):
        session = rig.manager.open_session("test")

        async def run(session: Session = session, await_idx: int = await_idx) -> bool:
            return await cancel_at(handler(rig, session, pacing), await_idx)

        task = asyncio.create_task(run())
        await turn(rig, task)
        await rig.admitted(session)
        await assert_nothing_is_lost(rig)
        if not task.cancelled():
            assert await task  # ran to its end: every await has been tried
            assert await_idx > 3
            return
    pytest.fail("the scenario has more awaits than the test tries")


@pytest.mark.parametrize("is_full", [False, True])
async def test_an_admission_cancelled_at_any_await_leaves_nothing_behind(is_full: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = Rig(num_slots=1, admission=AdmissionSettings(queue_s=60.0))
    prime = rig.manager.prime
    for await_idx in range(MAX_AWAITS):
        holder = (await rig.live())[0] if is_full else None
        results: list[bool] = []

        async def injected(session: Session, event: Open, await_idx: int = await_idx, results: list[bool] = results) -> None:
            results.append(await cancel_at(prime(session, event), await_idx))

        monkeypatch.setattr(rig.manager, "prime", injected)
        session = rig.manager.open_session("test")
        await session.push(Open())
        monkeypatch.setattr(rig.manager, "prime", prime)
        for _ in range(3):
            await asyncio.sleep(0)
        if holder is not None:
            await holder.close()
        rig.tick()
        await rig.admitted(session)
        if results != [True]:
            last = (await read(session.events()))[-1]
            assert isinstance(last, Failed)
        await session.close()
        await assert_nothing_is_lost(rig)
        if results == [True]:
            assert await_idx >= 1
            return
    pytest.fail("the admission has more awaits than the test tries")


@pytest.mark.parametrize("turn_idx", range(12))
async def test_a_call_that_ends_at_any_moment_disturbs_nobody(turn_idx: int) -> None:
    rig = Rig(num_slots=2)
    neighbour, stream = await rig.live(seed=9)
    heard: list[int] = []
    session = rig.manager.open_session("test")
    await session.push(Open(persona="one two three four five six seven eight nine ten"))
    for step_idx in range(12):
        if step_idx == turn_idx:
            await session.close()
        elif step_idx == 2:
            await rig.admitted(session)
        if session.state is SessionState.LIVE:
            await session.push(AudioIn(pcm=frame(0.9)))
        await neighbour.push(AudioIn(pcm=frame(0.1)))
        rig.tick()
        heard += [event.frame_idx for event in audio(await read(stream))]
    assert heard == list(range(12))
    await neighbour.close()
    await assert_nothing_is_lost(rig)


async def test_the_engine_failing_while_a_prompt_is_prepared_leaves_nothing_behind() -> None:
    rig = Rig(num_slots=1)
    session = rig.manager.open_session("test")
    await session.push(Open())
    await asyncio.sleep(0)
    assert session.state is SessionState.PREFILL
    rig.ticker._fail(RuntimeError("gone"))
    await rig.admitted(session)
    assert rig.states() == [SlotState.IDLE]
    assert isinstance((await read(session.events()))[-1], Failed)
