"""Random calls of every kind against the whole core: whatever the order, no slot is lost and no output reaches the wrong caller."""

from __future__ import annotations

from core import S, frame
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule
from machine import BOX_FRAMES, KINDS, UNOPENED, Caller, Machine, has_callers

from gateway.state import SessionState
from protocols.events import AudioIn, Clock, EndOfInput, HangUp, Pacing, Reserve


class Core(Machine):
    """Sessions are opened, spoken to, cut, ended and ticked in any order; a tick may be caught between gather and scatter."""

    @initialize(queue_s=st.sampled_from([0.0, 60.0]))
    def begin(self, queue_s: float) -> None:
        self.start(queue_s)

    @rule(kind=KINDS, voice=st.sampled_from([None, "alto", "nobody"]), wait=st.booleans())
    def open(self, kind: tuple[Pacing, Clock], voice: str | None, wait: bool) -> None:
        self.run(self.push_open(self.run(self.connect()), kind, voice, wait))

    @rule(again=st.booleans())
    def reserve(self, again: bool) -> None:
        caller = self.run(self.connect())
        for _ in range(1 + again):
            self.push(caller, Reserve())

    def reserved(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.session.state is SessionState.RESERVED]

    @precondition(lambda self: self.reserved())
    @rule(data=st.data(), kind=KINDS, wait=st.booleans())
    def open_reserved(self, data: st.DataObject, kind: tuple[Pacing, Clock], wait: bool) -> None:
        self.run(self.push_open(data.draw(st.sampled_from(self.reserved())), kind, None, wait))

    @precondition(has_callers)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        caller = self.pick(data)
        if caller.session.state is SessionState.PREFILL:
            self.run(self.rig.admitted(caller.session))

    @precondition(has_callers)
    @rule(data=st.data(), num_frames=st.integers(1, 3))
    def speak(self, data: st.DataObject, num_frames: int) -> None:
        caller = self.pick(data)
        session = caller.session
        if caller.has_ended_input or session.state in UNOPENED:
            return
        is_script = caller.pacing is Pacing.SCRIPT
        if is_script and (session.slot_idx is None or session._ready is None):
            return  # it would wait, and this machine does one thing at a time
        for _ in range(num_frames):
            if is_script and len(self.rig.slots.slots[session.slot_idx or 0].inbox) >= BOX_FRAMES:
                return
            was_pushed = self.push(caller, AudioIn(pcm=frame((caller.num_pushed + 1) / 1000)))
            caller.num_pushed += was_pushed
            caller.num_written += was_pushed * S

    @precondition(has_callers)
    @rule(data=st.data())
    def end_input(self, data: st.DataObject) -> None:
        caller = self.pick(data)
        if caller.session.state in UNOPENED or caller.clock is Clock.REALTIME:
            return
        caller.has_ended_input = True
        self.push(caller, EndOfInput())

    @precondition(has_callers)
    @rule(data=st.data(), is_said=st.booleans())
    def hang_up(self, data: st.DataObject, is_said: bool) -> None:
        caller = self.pick(data)
        if is_said:
            self.push(caller, HangUp())
        else:
            self.run(caller.session.close())

TestCore = Core.TestCase
TestCore.settings = settings(max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
