"""Random calls on session clocks: every frame that a caller was given is told once, with the answer to it, whatever comes in between."""

from __future__ import annotations

import numpy as np
from core import S
from hypothesis import given, settings
from hypothesis import strategies as st
from machine import CONTROLS, Caller, Machine

from gateway.state import SessionState
from protocols.events import AudioIn, BargeIn, Cancel, Clock, HangUp, Pacing, Reprime, SamplingOptions

NUM_CALLERS = 2
SPEECH = st.tuples(st.sampled_from(["say", "say", "say", "say late"]), st.one_of(st.just(S), st.integers(0, 3 * S)))
OPERATIONS = st.one_of(
    SPEECH,
    SPEECH,
    SPEECH,
    st.tuples(st.sampled_from(["be silent", "tick", "begin a step", "finish the step", "read"]), st.integers(1, 4)),
    st.tuples(st.sampled_from(["reprime", "cut", "settle", "settle"]), st.integers(0, 3)),
    st.tuples(st.sampled_from(["control", "control", "hang up"]), st.integers(0, len(CONTROLS) - 1)),
)


class Calls(Machine):
    """The machine's callers, all of them live on their clocks, driven by a list of operations."""

    def open_all(self) -> None:
        self.start(0.0)
        for _ in range(NUM_CALLERS):
            self.run(self.push_open(self.run(self.connect()), (Pacing.LIVE, Clock.REALTIME), None, True))
        self.tick(1)
        self.tick(1)

    def do(self, caller: Caller, name: str, number: int) -> None:
        match name:
            case "say" | "say late":
                caller.num_pushed += 1
                pcm = np.full(number, caller.num_pushed / 1000, dtype=np.float32)
                caller.num_written += number * self.push(caller, AudioIn(pcm=pcm))
                self.wait(4)
                if name == "say":
                    self.tick(1)
            case "be silent":
                self.wait(4 * number)
            case "reprime" if caller.session.state is SessionState.LIVE:
                epoch = caller.session.epoch
                caller.num_primed += 1
                self.push(caller, Reprime(sampling=SamplingOptions(audio_seed=caller.seed), replay_frames=number))
                assert caller.session.epoch == epoch + 1
            case "control":
                self.push(caller, CONTROLS[number])
            case "cut":
                self.push(caller, Cancel(steer_frames=number) if number else BargeIn())
            case "tick":
                self.tick(1)
            case "begin a step":
                self.begin_step()
            case "finish the step":
                self.finish_step()
            case "read":
                self.read(caller)
            case "settle" if caller.session.state is SessionState.PREFILL:
                self.run(self.rig.admitted(caller.session))
                self.tick(1)
            case "hang up" if number == 0:
                self.push(caller, HangUp())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(0, NUM_CALLERS - 1), OPERATIONS), min_size=20, max_size=60))
def test_every_frame_is_told_once_with_its_answer(operations: list[tuple[int, tuple[str, int]]]) -> None:
    calls = Calls()
    try:
        calls.open_all()
        for caller_idx, (name, number) in operations:
            caller = calls.callers[caller_idx]
            if caller.session.state is not SessionState.CLOSED:
                calls.do(caller, name, number)
            calls.table_is_sound()
    finally:
        calls.teardown()
