"""The internal API: one conversation between one caller and the model. Three verbs: `push`, `events`, `close`.

A wire pushes ClientEvents and reads ServerEvents; whatever else a caller may want is an event, not a method. The methods under "gateway
side" belong to the manager and to the slot table. The one rule: `end` is the only way out. It is synchronous and gives the slot back
exactly once, so no cancellation, at whatever await, can leak one. Who may do what when is the table in `state.py`. Thread: loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import assert_never

from gateway.engine.base import Engine, Prompt
from gateway.errors import GatewayError, SessionGone
from gateway.ledger import PlaybackLedger
from gateway.limits import Limits, SessionSettings
from gateway.logs import SessionAdapter
from gateway.metrics import Direction, DropReason, Metrics, outcome_of
from gateway.outbox import EventStream, Outbox
from gateway.slots import Answer, InFrame, PushResult, SlotTable
from gateway.state import SessionEvent, SessionState, next_state
from gateway.text import TextAssembler
from protocols.audio import FrameAssembler
from protocols.errors import ErrorKind
from protocols.events import (
    AudioIn,
    AudioOut,
    BargeIn,
    Cancel,
    ClientEvent,
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
    ServerEvent,
    TextDelta,
    Warned,
)

logger = logging.getLogger(__name__)

DROP_WARNING_S = 10.0  # at most one Warned and one log line about dropped frames in so many seconds
HUNG_UP = Ended(reason=EndReason.CALLER)


class Session:
    """One call. Made by `SessionManager.open_session`.

    Attributes:
        session_id, protocol: unguessable name of the call; name of the wire.
        state: where the call is in its life; see `state.py`.
        pacing: who keeps the time; known from Open on.
        slot_idx, epoch: the slot it holds (None before and after) and its epoch; output stamped with an older one is never sent.
        ledger: how much audio was made, sent and heard.
        opened_s: clock at Open (before that, at creation).
        frames_in, frames_out: frames accepted for the model, frames it answered.
        dropped: dropped frames by (direction, reason).
    """

    def __init__(
        self,
        session_id: str,
        protocol: str,
        slots: SlotTable,
        settings: SessionSettings,
        metrics: Metrics,
        *,
        clock: Callable[[], float],
        admit: Callable[[Session, Open], Awaitable[None]],
        on_end: Callable[[Session], None],
        faults: Callable[[], Mapping[str, int]],
    ) -> None:
        self.session_id = session_id
        self.protocol = protocol
        self.state = SessionState.NEW
        self.pacing = Pacing.LIVE
        self.slot_idx: int | None = None
        self.epoch = 0
        self.ledger = PlaybackLedger()
        self.opened_s = clock()
        self.frames_in = 0
        self.frames_out = 0
        self.dropped: Counter[tuple[Direction, DropReason]] = Counter()
        self._slots = slots
        self._metrics = metrics
        self._clock = clock
        self._admit = admit
        self._on_end = on_end
        self._faults = faults
        self._admission: asyncio.Task[None] | None = None
        self._outbox = Outbox(slots.outbox_frames)
        self._may_go_on = asyncio.Event()  # wakes a push that waits for the slot or for room in its inbox
        self._engine: Engine | None = None  # this and the next two are set by arm
        self._assembler: FrameAssembler | None = None
        self._ready: Ready | None = None  # what Ready will say
        self._limits = Limits(settings, self.opened_s)
        self._text = TextAssembler()
        self._text_epoch = 0  # of the last frame whose text was sent
        self._early_samples = 0  # of live audio before Ready
        self._pending = 0  # frames in the inbox or in the engine: accepted, not dropped, not answered
        self._claimed_s = 0.0
        self._last_warning_s = -math.inf
        self._log = SessionAdapter(logger, session_id, protocol)

    # Public

    async def push(self, event: ClientEvent) -> None:
        """Take one event of the caller. One task at a time; the first event is Open.

        Audio of a Pacing.SCRIPT caller waits until there is room for it: stop reading the socket meanwhile, but watch it for a hang-up.
        Everything else returns at once; admission goes on in the background and is told by `events`.

        Raises:
            SessionGone: the session has ended, perhaps while this call waited.
            LocalProtocolError: the event is illegal in this state.
        """
        self._raise_if_closed()
        match event:
            case Open():
                self._open(event)
            case AudioIn():
                self._move(SessionEvent.AUDIO)
                await self._push_audio(event)
            case EndOfInput():
                await self._push_end()
            case BargeIn():
                self._cut(0)
            case Cancel():
                self._cut(event.steer_frames)
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

    # Gateway side: the manager

    def claim(self) -> None:
        """Take a free slot.

        Raises:
            NoFreeSlot: none is idle.
        """
        self.slot_idx, self.epoch = self._slots.claim(self, self.pacing)
        self._log.slot_idx = self.slot_idx
        self._claimed_s = self._clock()
        self._move(SessionEvent.CLAIM)

    def arm(self, engine: Engine, prompt: Prompt, sampling: SamplingOptions, max_frames: int | None) -> None:
        """Hand the prompt to the engine; `sampling` has every field set, `max_frames` is the caller's own limit."""
        assert self.slot_idx is not None  # the manager claims before it arms
        info = engine.info
        self._engine = engine
        self._assembler = FrameAssembler(info.frame_samples)
        self._ready = Ready(session_id=self.session_id, voice_prompt=prompt.voice_prompt, sampling=sampling, model=info.model)
        self._slots.arm(self.slot_idx, self, prompt, sampling, max_frames=self._limits.arm(info, max_frames))
        self._may_go_on.set()

    def tell(self, event: ServerEvent) -> None:
        """Put one event on its way to the caller."""
        if self.state is SessionState.CLOSED:
            return  # the flood below ended the session in the middle of an answer; nothing follows the last word
        num_dropped = self._outbox.put(event)
        if num_dropped:
            self._drop(Direction.OUT, DropReason.SLOW_READER, num_dropped)
            self._warn_dropped("audio was dropped: you do not read it fast enough")
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
        self._count_early()
        if (tail := self._text.flush()) and self._text_epoch == self.epoch:
            self._outbox.put(TextDelta(text=tail, frame_idx=self.frames_out - 1, epoch=self.epoch))
        if self._admission is not None:
            self._admission.cancel()  # often this very task, about to return; then it does no harm
        if self.slot_idx is not None:
            self._slots.release(self.slot_idx, self)
            self.slot_idx = None
        self._outbox.put(last)
        self._may_go_on.set()
        self._metrics.count_end(self.protocol, last)
        self._log_end(last)
        self._on_end(self)

    # Gateway side: the slot table's Occupant

    def on_ready(self) -> None:
        """The prompt is in the model: say so, and listen from now on."""
        if self.state is SessionState.CLOSED:
            return
        assert self._ready is not None
        self._move(SessionEvent.READY)
        now = self._clock()
        self._metrics.prefill_seconds.observe(now - self._claimed_s)
        self._limits.ready(now)
        self._count_early()
        self.tell(self._ready)

    def on_answer(self, answer: Answer) -> None:
        """One frame came back: pass it on, and see whether the call is over."""
        if self.state is SessionState.CLOSED:
            return
        assert self._engine is not None
        self._pending -= 1
        self._may_go_on.set()
        frame_idx = self.frames_out
        self.frames_out += 1
        end_ms = self._end_ms(frame_idx, self._engine.info.frame_samples if answer.pcm is None else answer.pcm.size)
        self.ledger.generate(end_ms)
        text = self._text.push(self._engine.piece(answer.text_id))  # of a dropped frame too: the next may end its character
        if answer.pcm is None or answer.epoch != self.epoch:  # the epoch may have moved on since scatter looked
            self._drop(Direction.OUT, DropReason.BARGE_IN)
            self._grant(1)
        else:
            if frame_idx == 0:
                self._metrics.first_audio_seconds.observe(self._clock() - self.opened_s)
            self._text_epoch = answer.epoch
            self.tell(AudioOut(pcm=answer.pcm, frame_idx=frame_idx, epoch=answer.epoch))
            if text:
                self.tell(TextDelta(text=text, frame_idx=frame_idx, epoch=answer.epoch))
        if self.state is SessionState.DRAINING and self._pending == 0:
            self.end(Ended(reason=EndReason.FINISHED))
        else:
            self._obey(self._limits.check_frames(self.frames_out))

    # Private: input

    def _open(self, event: Open) -> None:
        self._move(SessionEvent.OPEN)
        self._limits.open()
        self.pacing = event.pacing
        self.opened_s = self._clock()
        if event.pacing is Pacing.SCRIPT:
            self._outbox.max_audio = None  # bounded by the slot's credit
        self._log.info("open: %s pacing", event.pacing.value)
        self._admission = asyncio.get_running_loop().create_task(self._run_admission(event), name=f"admit {self.session_id}")
        self._admission.add_done_callback(self._admitted)

    async def _run_admission(self, event: Open) -> None:
        try:
            await self._admit(self, event)
        except GatewayError as error:
            self.end(Failed(kind=error.kind, detail=str(error)))

    def _admitted(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # by end (then this does nothing), or by a loop that is being torn down
            self.end(Failed(kind=ErrorKind.SHUTDOWN, detail="the server is stopping"))
        elif (error := task.exception()) is not None:
            self._log.error("admission failed", exc_info=error)
            self.end(Failed(kind=ErrorKind.INTERNAL, detail="internal error"))

    async def _push_audio(self, event: AudioIn) -> None:
        if self.state is SessionState.DRAINING:
            self._drop(Direction.IN, DropReason.AFTER_END)
            return
        if self.pacing is Pacing.LIVE and self.state is not SessionState.LIVE:
            self._early_samples += event.pcm.size  # specs/moshi-protocol.md 3.2: live audio before Ready is dropped
            return
        while self._assembler is None:
            await self._wait_to_go_on()
        pcm = event.pcm
        if self.pacing is Pacing.LIVE:  # what the inbox would drop at once is not even cut into frames: one message may hold minutes
            pcm, num_dropped = self._assembler.skip(pcm, self._slots.inbox_frames)
            self._drop_backlog(num_dropped)
        for frame in self._assembler.push(pcm):
            await self._push_frame(InFrame(frame, frame.size))

    async def _push_end(self) -> None:
        tail = None if self._assembler is None else self._assembler.flush()
        if tail is not None:
            await self._push_frame(InFrame(*tail))
        self._move(SessionEvent.END_OF_INPUT)
        if self._pending == 0:
            self.end(Ended(reason=EndReason.FINISHED))

    async def _push_frame(self, frame: InFrame) -> None:
        self._raise_if_closed()
        assert self.slot_idx is not None
        while (result := self._slots.push_frame(self.slot_idx, self, frame, self._clock())) is PushResult.FULL:
            await self._wait_to_go_on()
        self.frames_in += 1
        self._limits.hear(self._clock())
        if result is PushResult.DROPPED_OLDEST:
            self._drop_backlog(1)
        else:
            self._pending += 1

    async def _wait_to_go_on(self) -> None:
        self._may_go_on.clear()
        await self._may_go_on.wait()
        self._raise_if_closed()

    def _cut(self, steer_frames: int) -> None:
        self._move(SessionEvent.BARGE_IN)
        if self.slot_idx is None:
            return
        self.epoch = self._slots.cut(self.slot_idx, self, steer_frames=steer_frames)
        num_dropped = self._outbox.purge_output()
        self._drop(Direction.OUT, DropReason.BARGE_IN, num_dropped)
        self._grant(num_dropped)
        self.ledger.cut()

    # Private: output

    def _taken(self, event: ServerEvent) -> None:
        """The reader has taken an event: it counts as sent."""
        if isinstance(event, AudioOut):
            self.ledger.send(self._end_ms(event.frame_idx, 0), self._end_ms(event.frame_idx, event.pcm.size))
            self._grant(1)
            if self.state is SessionState.DRAINING:
                self._limits.hear(self._clock())  # a long answer that is being read is not an idle call
        elif isinstance(event, TextDelta):
            assert self._engine is not None
            self.ledger.add_text(self._end_ms(event.frame_idx, self._engine.info.frame_samples), event.text)

    def _end_ms(self, frame_idx: int, num_samples: int) -> int:
        assert self._engine is not None
        info = self._engine.info
        return (frame_idx * info.frame_samples + num_samples) * 1000 // info.sample_rate

    # Private: bookkeeping

    def _obey(self, due: Ended | Failed | Warned | None) -> None:
        match due:
            case Ended() | Failed():
                self.end(due)
            case Warned():
                self.tell(due)

    def _move(self, event: SessionEvent) -> None:
        self.state = next_state(self.state, event)

    def _raise_if_closed(self) -> None:
        if self.state is SessionState.CLOSED:
            raise SessionGone("the session has ended")

    def _grant(self, num_frames: int) -> None:
        if self.slot_idx is not None and num_frames:
            self._slots.grant(self.slot_idx, self, num_frames)

    def _drop(self, direction: Direction, reason: DropReason, num_frames: int = 1) -> None:
        if num_frames:
            self.dropped[direction, reason] += num_frames
            self._metrics.count_dropped(direction, reason, num_frames)

    def _drop_backlog(self, num_frames: int) -> None:
        if num_frames:
            self._drop(Direction.IN, DropReason.BACKLOG, num_frames)
            self._warn_dropped("audio was dropped: more arrives than the server can take")

    def _count_early(self) -> None:
        if self._engine is not None:  # or nobody knows what a frame is
            num_frames, self._early_samples = self._early_samples // self._engine.info.frame_samples, 0
            self._drop(Direction.IN, DropReason.NOT_READY, num_frames)

    def _warn_dropped(self, detail: str) -> None:
        now = self._clock()
        if now - self._last_warning_s >= DROP_WARNING_S:
            self._last_warning_s = now
            self._log.warning("%s", detail)
            self.tell(Warned(detail=detail))

    def _log_end(self, last: Ended | Failed) -> None:
        dropped = ", ".join(f"{count} {way.value} {reason.value}" for (way, reason), count in self.dropped.items()) or "none"
        faults = "".join(f", {count} {name}" for name, count in self._faults().items())
        facts = (outcome_of(last).value, self._clock() - self.opened_s, self.frames_in, self.frames_out, dropped, faults)
        self._log.info("closed: %s, %.1f s, frames in %d, out %d, dropped %s%s", *facts)
