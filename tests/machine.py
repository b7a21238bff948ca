"""The ground of the random machines: callers that check all they are told, and a core that is driven by hand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar
from unittest import mock

import numpy as np
from core import FRAME_S, Rig, S, check_table, frame, read
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.engine.base import FrameOutput
from gateway.engine.fake import expected_audio
from gateway.intake import ClockedIntake
from gateway.manager import AdmissionSettings
from gateway.session import Session
from gateway.slots import Gathered, SlotState
from gateway.state import SessionState
from protocols.events import (
    AudioOut,
    BargeIn,
    Cancel,
    ClearInput,
    ClientEvent,
    Clock,
    Ended,
    Failed,
    Heard,
    Open,
    Pacing,
    Ready,
    Reserved,
    RunClock,
    SamplingOptions,
    ServerEvent,
    Steer,
    TextDelta,
)

T = TypeVar("T")
NUM_SLOTS = 2
BOX_FRAMES = 3
KINDS = st.sampled_from([(Pacing.LIVE, Clock.FRAMES), (Pacing.SCRIPT, Clock.FRAMES), (Pacing.LIVE, Clock.REALTIME)])
CONTROLS = [Steer(frames=2, pad_bias=-1.0), Steer(), ClearInput(), RunClock(is_running=False), RunClock(is_running=True)]
UNOPENED = (SessionState.NEW, SessionState.RESERVING, SessionState.RESERVED)


async def prepare_here(function: Callable[..., T], *args: Any) -> T:
    """Stand in for asyncio.to_thread: as many turns of the loop each time, so that hypothesis can replay a run."""
    for _ in range(4):
        await asyncio.sleep(0)
    return function(*args)


class Caller:
    """One session and what its reader has seen."""

    def __init__(self, session: Session, seed: int) -> None:
        self.session = session
        self.seed = seed
        self.pacing = Pacing.LIVE
        self.clock = Clock.FRAMES
        self.stream: AsyncIterator[ServerEvent] = session.events()
        self.events: list[ServerEvent] = []
        self.num_pushed = 0  # frames
        self.num_written = 0  # samples
        self.num_cleared = 0  # samples
        self.num_primed = 0  # prompts asked for
        self.has_ended_input = False

    def check(self) -> None:
        """What holds for every reader at any time."""
        if self.clock is Clock.REALTIME:
            self.check_pairs()
        heard = [event for event in self.events if isinstance(event, AudioOut)]
        assert [event.frame_idx for event in heard] == sorted({event.frame_idx for event in heard})
        assert [event.epoch for event in heard] == sorted(event.epoch for event in heard)
        for event in heard:
            # frame n of a caller is constant (n + 1) / 1000, and the mark is its seed: whose output is it, and of which frames?
            if self.pacing is Pacing.SCRIPT and event.pcm.any():
                value, previous = (event.frame_idx + 1) / 1000, event.frame_idx / 1000
                np.testing.assert_allclose(event.pcm, expected_audio(frame(value), frame(previous), self.seed), atol=1e-6)
            elif event.pcm.any() and self.clock is Clock.FRAMES:
                mark = np.float32(event.pcm[0]) % np.float32(0.00025)  # frames add multiples of 0.00025
                assert min(abs(mark - self.seed * 1e-4), abs(mark - self.seed * 1e-4 - 0.00025)) < 1e-5
        said = [event for event in self.events if isinstance(event, TextDelta) and event.text != "\ufffd"]  # which ends a cut character
        assert {(event.frame_idx, event.epoch) for event in said} <= {(event.frame_idx, event.epoch) for event in heard}
        kinds = [type(event) for event in self.events]
        assert kinds.count(Ready) <= self.num_primed
        assert not self.events or Reserved not in kinds[kinds.index(Ready) if Ready in kinds else len(kinds) :]
        for at, event in enumerate(self.events):
            assert not isinstance(event, Ended | Failed) or at == len(self.events) - 1

    def check_pairs(self) -> None:
        """Frames are told once, in order, and the audio of each is the answer to what is said to have been heard."""
        told = [event for event in self.events if isinstance(event, Heard)]
        assert [event.frame_idx for event in told] == list(range(len(told)))
        assert [event.epoch for event in told] == sorted(event.epoch for event in told)
        previous, said = frame(0.0), None
        for event in self.events:
            match event:
                case Ready():
                    previous, said = frame(0.0), None  # a fresh row
                case AudioOut():
                    said = event
                case Heard():
                    assert said is None or (said.frame_idx, said.epoch) == (event.frame_idx, event.epoch)
                    if said is not None and said.pcm.any():
                        np.testing.assert_allclose(said.pcm, expected_audio(event.pcm, previous, self.seed), atol=1e-6)
                    previous, said = event.pcm, None
        intake = self.session._intake
        assert isinstance(intake, ClockedIntake)
        frames = [*told, *intake._given]
        unread = [event for event in self.session._outbox._events if isinstance(event, Heard)]
        accounted = sum(event.real_samples + event.skipped_samples for event in (*frames, *unread))
        waiting = intake._clock.waiting_samples + intake._clock._skipped + self.num_cleared
        if self.session.state is not SessionState.CLOSED:
            assert accounted + waiting == self.num_written

    @property
    def num_unheard(self) -> int:
        """Samples that a clear may still reach, and those it cannot any more."""
        intake = self.session._intake
        if not isinstance(intake, ClockedIntake):
            return 0
        return intake._clock.waiting_samples + sum(given.real_samples for given in intake._given)


def has_callers(machine: Machine) -> bool:
    return any(caller.session.state is not SessionState.CLOSED for caller in machine.callers)


class Machine(RuleBasedStateMachine):
    """What every machine does with the callers it has: time passes, they speak, are cut and steered, and their events are read.

    A tick may be caught between gather and scatter.
    """

    def start(self, queue_s: float) -> None:
        """First of all: a rig, and time that stands still."""
        self.patch = mock.patch("asyncio.to_thread", prepare_here)
        self.patch.start()
        self.loop = asyncio.new_event_loop()
        self.callers: list[Caller] = []
        self.in_step: tuple[Gathered, FrameOutput | None] | None = None
        self.rig = self.run(self.make(queue_s))

    async def make(self, queue_s: float) -> Rig:
        return Rig(NUM_SLOTS, admission=AdmissionSettings(queue_s=queue_s), inbox_frames=BOX_FRAMES, outbox_frames=BOX_FRAMES)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(coroutine)

    def teardown(self) -> None:
        if not hasattr(self, "loop"):
            return
        self.finish_step()
        self.run(self.rig.manager.drain(0))
        self.rig.tick(2)
        assert self.rig.states() == [SlotState.IDLE] * NUM_SLOTS
        assert self.rig.engine.open_rows == []
        for caller in self.callers:
            self.read(caller)
            assert isinstance(caller.events[-1], Ended | Failed)
            heard = sum(isinstance(event, AudioOut) for event in caller.events)
            caller.session.ledger.play(10**9)
            assert caller.session.ledger._delivered_ms == 80 * heard
            if isinstance(caller.session._intake, ClockedIntake):
                assert caller.session._intake._timer is None
        self.run(asyncio.sleep(0))
        assert not asyncio.all_tasks(self.loop)
        self.loop.close()
        self.patch.stop()

    def read(self, caller: Caller) -> None:
        caller.events += self.run(read(caller.stream))
        caller.check()

    def push(self, caller: Caller, event: ClientEvent) -> bool:
        """Push, unless the session ends in the turn before; return whether it did not."""
        session = caller.session

        async def push() -> bool:
            if session.state is SessionState.CLOSED:
                return False
            before = caller.num_unheard
            await session.push(event)
            if isinstance(event, ClearInput):
                caller.num_cleared += before - caller.num_unheard
            return True

        return self.run(push())

    def pick(self, data: st.DataObject) -> Caller:
        return data.draw(st.sampled_from([caller for caller in self.callers if caller.session.state is not SessionState.CLOSED]))

    async def connect(self) -> Caller:
        caller = Caller(self.rig.manager.open_session("test"), len(self.callers) % 2 + 1)
        self.callers.append(caller)
        return caller

    async def push_open(self, caller: Caller, kind: tuple[Pacing, Clock], voice: str | None, wait: bool) -> None:
        session = caller.session
        if session.state not in (SessionState.NEW, SessionState.RESERVED):
            return  # ended, or found its slot, in the turn before
        caller.pacing, caller.clock = kind
        caller.num_primed = 1
        sampling = SamplingOptions(audio_seed=caller.seed)
        await session.push(Open(pacing=kind[0], clock=kind[1], voice_prompt=voice, sampling=sampling))
        await asyncio.sleep(0)
        if wait and session.state is SessionState.PREFILL:
            await self.rig.admitted(session)

    def clocked(self) -> list[Caller]:
        """Those whose clock ticks."""
        live = [caller for caller in self.callers if caller.session.state is SessionState.LIVE]
        return [caller for caller in live if caller.clock is Clock.REALTIME]

    @precondition(has_callers)
    @rule(data=st.data(), event=st.sampled_from([BargeIn(), Cancel(), Cancel(steer_frames=2)]))
    def cut(self, data: st.DataObject, event: BargeIn | Cancel) -> None:
        caller = self.pick(data)
        if caller.session.state is SessionState.NEW:
            return
        num_read = len(caller.events)
        self.push(caller, event)
        self.read(caller)
        assert not [heard for heard in caller.events[num_read:] if isinstance(heard, AudioOut | TextDelta)]

    @precondition(has_callers)
    @rule(data=st.data(), event=st.sampled_from(CONTROLS))
    def control(self, data: st.DataObject, event: ClientEvent) -> None:
        caller = self.pick(data)
        if caller.session.state is not SessionState.NEW:
            self.push(caller, event)

    @rule(quarters=st.integers(1, 12))
    def wait(self, quarters: int) -> None:
        async def pass_time() -> None:
            self.rig.clock.advance(quarters * FRAME_S / 4)
            self.rig.run_clocks()

        self.run(pass_time())

    @precondition(has_callers)
    @rule(data=st.data())
    def take(self, data: st.DataObject) -> None:
        self.read(self.pick(data))

    @rule(num_ticks=st.integers(1, 3))
    def tick(self, num_ticks: int) -> None:
        for _ in range(num_ticks):
            self.finish_step()
            self.begin_step()
            self.finish_step()

    @rule()
    def begin_step(self) -> None:
        if self.in_step is not None:
            return
        engine = self.rig.engine
        gathered = self.rig.slots.gather(S)
        for slot_idx in gathered.closings:
            engine.close(slot_idx)
        for opening in gathered.openings:
            engine.open(opening.slot_idx, opening.prompt, opening.sampling)
        self.in_step = (gathered, engine.step(gathered.batch) if gathered.needs_step else None)

    @rule()
    def finish_step(self) -> None:
        async def hand_over() -> None:
            if self.in_step is not None:
                self.rig.manager._on_tick(self.rig.slots.scatter(*self.in_step))
                self.in_step = None

        self.run(hand_over())

    @invariant()
    def table_is_sound(self) -> None:
        if not hasattr(self, "rig"):
            return
        check_table(self.rig.slots, self.rig.engine)
        held = [caller.session.slot_idx for caller in self.callers if caller.session.slot_idx is not None]
        assert len(held) == len(set(held))
        taken = [slot.slot_idx for slot in self.rig.slots.slots if slot.occupant is not None]
        assert sorted(held) == taken
        open_calls = [caller for caller in self.callers if caller.session.state is not SessionState.CLOSED]
        assert self.rig.manager.num_sessions == len(open_calls)
