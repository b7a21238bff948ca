"""The internal API: one conversation between one caller and the model. Three verbs: `push`, `events`, `close`.

A wire pushes ClientEvents and reads ServerEvents; whatever else a caller may want is an event, not a method. The methods under "gateway
side" belong to the manager and to the slot table. The one rule: `end` is the only way out. It is synchronous and gives the slot back
exactly once, so no cancellation, at whatever await, can leak one. Who may do what when is the table in `state.py`, and what becomes of
audio on its way to the slot the business of an intake. Thread: loop.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Callable, Mapping
from typing import Protocol, assert_never

from gateway.admission import Admission
from gateway.engine.base import Engine, EngineInfo, Prompt
from gateway.errors import NoFreeSlot, SessionGone
from gateway.intake import ClockedIntake, FrameIntake
from gateway.lease import Lease
from gateway.limits import Limits, SessionSettings
from gateway.logs import SessionAdapter
from gateway.metrics import Direction, DropReason, Metrics, outcome_of
from gateway.outbox import EventStream, Outbox
from gateway.output import Output
from gateway.slots import Answer, InFrame, PushResult, SlotTable
from gateway.state import SessionEvent, SessionState, next_state
from gateway.tally import DropTally
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import (
    AudioIn,
    AudioOut,
    BargeIn,
    Cancel,
    ClearInput,
    ClientEvent,
    Clock,
    Ended,
    EndOfInput,
    EndReason,
    Failed,
    HangUp,
    Open,
    Pacing,
    Played,
    Ready,
    Rejected,
    Reprime,
    Reserve,
    Reserved,
    RunClock,
    SamplingOptions,
    ServerEvent,
    Steer,
    Warned,
)

logger = logging.getLogger(__name__)

CLOCKED_OUTBOX_S = 2.0  # audio that may wait for a caller with a clock: "more than 2000 ms of unsent audio" (specs/realtime.md 3.13)
HUNG_UP = Ended(reason=EndReason.CALLER)


class Host(Protocol):
    """What a session asks of the manager."""

    @property
    def engine_info(self) -> EngineInfo | None:
        """What the engine says of itself; None while it cannot serve anybody."""

    async def reserve(self, session: Session) -> None:
        """Let the session `claim` a slot, or wait for one; raises GatewayError."""

    async def prime(self, session: Session, event: Open | Reprime) -> None:
        """Prepare a prompt and `arm` the session with it, after `reserve` if it has no slot; raises GatewayError."""

    def on_end(self, session: Session) -> None:
        """The session has ended and has given its slot back."""


class Session:
    """One call. Made by `SessionManager.open_session`.

    Attributes:
        session_id, protocol: unguessable name of the call; name of the wire.
        state: where the call is in its life; see `state.py`.
        pacing: who keeps the time; known from Open on.
        opened_s: clock at Open (before that, at creation).
        ledger, dropped: how much audio was made, sent and heard; dropped frames by direction and reason.
    """

    def __init__(
        self,
        session_id: str,
        protocol: str,
        slots: SlotTable,
        settings: SessionSettings,
        metrics: Metrics,
        host: Host,
        *,
        clock: Callable[[], float],
        faults: Callable[[], Mapping[str, int]],
    ) -> None:
        self.session_id = session_id
        self.protocol = protocol
        self.state = SessionState.NEW
        self.pacing = Pacing.LIVE
        self.opened_s = clock()
        self._settings = settings
        self._metrics = metrics
        self._host = host
        self._clock = clock
        self._faults = faults
        self._log = SessionAdapter(logger, session_id, protocol)
        self._admission = Admission(f"admit {session_id}", self._log, self.end)
        self._lease = Lease(slots, self)
        self._inbox_frames = slots.inbox_frames
        self._tally = DropTally(metrics, self._log, clock, self.tell)
        self._intake: FrameIntake | ClockedIntake = FrameIntake(Pacing.LIVE, slots.inbox_frames, self._feed, self._tally.drop_backlog)
        self._output = Output()
        self._outbox = Outbox(slots.outbox_frames)
        self._limits = Limits(settings, self.opened_s)
        self._ready: Ready | None = None  # what Ready will say; set by arm
        self._primed_s = 0.0  # clock when the present prompt was asked for, or the slot found for it
        self.ledger = self._output.ledger
        self.dropped: Mapping[tuple[Direction, DropReason], int] = self._tally.dropped

    # Public

    async def push(self, event: ClientEvent) -> None:
        """Take one event of the caller. The first one is Open, or Reserve and then Open.

        Only audio of a Pacing.SCRIPT caller, and its EndOfInput, wait in here until there is room: stop reading the socket meanwhile, but
        watch it for a hang-up; and let one task at a time push those. Everything else is done when this returns and never waits, so any
        task may push it meanwhile. Admission goes on in the background and is told by `events`.

        Raises:
            SessionGone: the session has ended, perhaps while this call waited.
            LocalProtocolError: the event is illegal in this state, or needs another clock.
        """
        if self.state is SessionState.CLOSED:
            raise SessionGone("the session has ended")
        match event:
            case Reserve():
                self._reserve()
            case Open():
                self._open(event)
            case Reprime():
                self._reprime(event)
            case AudioIn():
                await self._push_audio(event)
            case EndOfInput():
                await self._push_end()
            case BargeIn() | Cancel():
                self._cut(event.steer_frames if isinstance(event, Cancel) else 0)
            case Steer():
                self._move(SessionEvent.CONTROL)
                self._lease.steer(event)
            case ClearInput() | RunClock():
                self._control_clock(event)
            case HangUp():
                self.end(Ended(reason=event.reason) if event.kind is None else Failed(kind=event.kind, detail=event.detail))
            case Played():
                self._move(SessionEvent.PLAYED)
                self.ledger.play(event.played_ms)
            case Rejected():
                self._move(SessionEvent.REJECTED)
                self.tell(event)
            case _:
                assert_never(event)

    def events(self) -> EventStream:
        """Iterate over what the caller must be told; ends after Ended or Failed. One reader; a cancelled read may be repeated."""
        return EventStream(self._outbox, self._taken)

    async def close(self, last: Ended | Failed = HUNG_UP) -> None:
        """End the session for the wire's reason; harmless when it has ended already. Never waits."""
        self.end(last)

    @property
    def slot_idx(self) -> int | None:
        """The slot it holds; None before and after."""
        return self._lease.slot_idx

    @property
    def epoch(self) -> int:
        """Of its slot: output stamped with an older one is never sent."""
        return self._lease.epoch

    @property
    def frames_in(self) -> int:
        """Frames accepted for the model."""
        return self._intake.num_accepted

    @property
    def frames_out(self) -> int:
        """Frames that the model answered."""
        return self._output.num_frames

    @property
    def refusal(self) -> NoFreeSlot | None:
        """Why it got no slot, where that is why it ended."""
        return self._admission.refusal

    # Gateway side: the manager

    def claim(self) -> None:
        """Take a free slot.

        Raises:
            NoFreeSlot: none is idle.
        """
        self._log.slot_idx = self._lease.claim()
        self._primed_s = self._clock()
        self._move(SessionEvent.CLAIM)
        if self.state is SessionState.RESERVED:
            self.tell(Reserved(session_id=self.session_id))

    def arm(self, engine: Engine, prompt: Prompt, sampling: SamplingOptions, max_frames: int | None) -> None:
        """Hand the prompt to the engine; `sampling` has every field set, `max_frames` is the caller's own limit.

        The limit is settled with the first prompt.
        """
        info = engine.info
        is_first = self._ready is None
        self._ready = Ready(session_id=self.session_id, voice_prompt=prompt.voice_prompt, sampling=sampling, model=info.model)
        self._output.arm(engine)
        if is_first:
            self._lease.arm(prompt, sampling, pacing=self.pacing, max_frames=self._limits.arm(info, max_frames))
        else:
            self._lease.rearm(prompt, sampling)
        self._intake.arm(info)

    def tell(self, event: ServerEvent) -> None:
        """Put one event on its way to the caller."""
        if self.state is SessionState.CLOSED:
            return  # the flood below ended the session in the middle of an answer; nothing follows the last word
        self._tally.drop_unread(self._outbox.put(event))
        if self._outbox.is_flooded:
            self.end(Failed(kind=ErrorKind.SLOW_READER, detail="too many messages wait for you"))

    def expire(self, now: float) -> None:
        """End the session if its caller has been silent, or has held its slot, for too long."""
        self._obey(self._limits.check_time(now))

    def end(self, last: Ended | Failed) -> None:
        """Give everything back and say the last word. The second and later calls do nothing."""
        if self.state is SessionState.CLOSED:
            return
        self._move(SessionEvent.END)
        self._tally.drop(Direction.IN, DropReason.NOT_READY, self._intake.take_early_frames())
        tail = self._output.tail(self.epoch)
        if tail is not None and isinstance(self._intake, FrameIntake):  # with a clock nothing of a frame follows its Heard
            self._outbox.put(tail)
        self._admission.cancel()
        self._lease.release()
        self._outbox.put(last)
        self._intake.close()
        self._metrics.count_end(self.protocol, last)
        self._log_end(last)
        self._host.on_end(self)

    # Gateway side: the slot table's Occupant

    def on_ready(self) -> None:
        """The prompt is in the model: say so, and listen from now on."""
        if self.state is SessionState.CLOSED:
            return
        assert self._ready is not None
        self._move(SessionEvent.READY)
        now = self._clock()
        self._metrics.prefill_seconds.observe(now - self._primed_s)
        self._limits.ready(now)
        self._tally.drop(Direction.IN, DropReason.NOT_READY, self._intake.take_early_frames())
        self.tell(self._ready)
        self._intake.ready()

    def on_answer(self, answer: Answer) -> None:
        """One frame came back: pass it on, and see whether the call is over."""
        if self.state is SessionState.CLOSED:
            return
        given = self._intake.answered()
        is_current = answer.pcm is not None and answer.epoch == self.epoch  # the epoch may have moved on since scatter looked
        if not is_current:
            self._tally.drop(Direction.OUT, DropReason.BARGE_IN)
            self._lease.grant(1)
        elif self.frames_out == 0:
            self._metrics.first_audio_seconds.observe(self._clock() - self.opened_s)
        for event in self._output.answered(answer, is_current, given):
            self.tell(event)
        if self.state is SessionState.DRAINING and self._intake.num_pending == 0:
            self.end(Ended(reason=EndReason.FINISHED))
        else:
            self._obey(self._limits.check_frames(self.frames_out))

    # Private: the slot and its prompt

    def _reserve(self) -> None:
        before = self.state
        self._move(SessionEvent.RESERVE)
        if before is SessionState.NEW:
            self._limits.reserve()
            self._admission.start(functools.partial(self._host.reserve, self))
        elif before is SessionState.RESERVED:
            self.tell(Reserved(session_id=self.session_id))

    def _open(self, event: Open) -> None:
        self._move(SessionEvent.OPEN)
        self._limits.open(event.clock)
        self.pacing = event.pacing
        self.opened_s = self._primed_s = self._clock()
        inbox_frames, info = self._inbox_frames, self._host.engine_info
        if event.clock is Clock.FRAMES:
            self._intake = FrameIntake(event.pacing, inbox_frames, self._feed, self._tally.drop_backlog)
        elif info is not None:  # without an engine the call is about to be refused
            on_dropped = functools.partial(self._tally.drop, Direction.IN, DropReason.BACKLOG)  # Heard tells the caller
            self._intake = ClockedIntake(info, self._settings, inbox_frames, self._feed, on_dropped, self._clock)
            self._outbox.max_audio = round(CLOCKED_OUTBOX_S * info.sample_rate / info.frame_samples)
        if event.pacing is Pacing.SCRIPT:
            self._outbox.max_audio = None  # bounded by the slot's credit
        self._log.info("open: %s pacing, %s clock", event.pacing.value, event.clock.value)
        self._admission.start(functools.partial(self._host.prime, self, event))

    def _reprime(self, event: Reprime) -> None:
        if not isinstance(self._intake, ClockedIntake):
            raise LocalProtocolError("another prompt needs a realtime clock")  # frames that came meanwhile would be lost
        self._move(SessionEvent.REPRIME)
        self._primed_s = self._clock()
        self._intake.disarm(self._lease.disarm(), event.replay_frames)
        self._purge()
        self._admission.start(functools.partial(self._host.prime, self, event))

    # Private: input and output

    async def _push_audio(self, event: AudioIn) -> None:
        self._move(SessionEvent.AUDIO)
        if self.state is SessionState.DRAINING:
            self._tally.drop(Direction.IN, DropReason.AFTER_END)
        else:
            await self._intake.push(event.pcm)

    async def _push_end(self) -> None:
        await self._intake.flush()
        self._move(SessionEvent.END_OF_INPUT)
        if self._intake.num_pending == 0:
            self.end(Ended(reason=EndReason.FINISHED))

    def _feed(self, frame: InFrame) -> PushResult:
        now = self._clock()
        result = self._lease.push_frame(frame, now)
        if result is not PushResult.FULL:
            self._limits.hear(now)
        return result

    def _cut(self, steer_frames: int) -> None:
        self._move(SessionEvent.CONTROL)
        if self._lease.cut(steer_frames):
            self._purge()

    def _control_clock(self, event: ClearInput | RunClock) -> None:
        self._move(SessionEvent.CONTROL)
        if not isinstance(self._intake, ClockedIntake):
            return  # there is none, or not yet
        if isinstance(event, RunClock):
            self._intake.run(event.is_running)
        else:
            self._intake.clear(self._lease.clear_inbox())

    def _purge(self) -> None:
        num_dropped = self._outbox.purge_output()
        self._tally.drop(Direction.OUT, DropReason.BARGE_IN, num_dropped)
        self._lease.grant(num_dropped)

    def _taken(self, event: ServerEvent) -> ServerEvent:
        """The reader has taken an event: it counts as sent."""
        if isinstance(event, Ready):
            return dataclasses.replace(event, epoch=self.epoch)  # which may have risen while it waited
        if isinstance(event, AudioOut):
            self._output.sent(event)
            self._lease.grant(1)
            if self.state is SessionState.DRAINING:
                self._limits.hear(self._clock())  # a long answer that is being read is not an idle call
        return event

    def _obey(self, due: Ended | Failed | Warned | None) -> None:
        match due:
            case Ended() | Failed():
                self.end(due)
            case Warned():
                self.tell(due)

    def _move(self, event: SessionEvent) -> None:
        self.state = next_state(self.state, event)

    def _log_end(self, last: Ended | Failed) -> None:
        faults = "".join(f", {count} {name}" for name, count in self._faults().items())
        facts = (outcome_of(last).value, self._clock() - self.opened_s, self.frames_in, self.frames_out, self._tally, faults)
        self._log.info("closed: %s, %.1f s, frames in %d, out %d, dropped %s%s", *facts)
