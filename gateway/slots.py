"""The slot table: which caller holds which row of the engine, what waits for that row, and whose output came back.

The event loop claims, fills, steers and releases; the tick thread gathers and scatters. Both do so under `SlotTable.cond`, the one lock
of the core, held for bookkeeping only: no engine call, no copy of audio and no callback happens under it. The one rule: an output belongs
to the occupant and the epoch captured when its input was gathered. Where the slot has a new occupant by then the output is dropped; where
the epoch has moved on (barge-in, cancel, a new prompt) its audio is. This module owns no thread and reads no clock; it knows rows, not
sessions.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base import FrameBatch, FrameOutput, Prompt
from gateway.errors import NoFreeSlot
from gateway.slot import Answer, Capture, InFrame, Occupant, Opening, PushResult, Slot, SlotState
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import Pacing, SamplingOptions

__all__ = [
    "INBOX_FRAMES",
    "OUTBOX_FRAMES",
    "Answer",
    "Gathered",
    "InFrame",
    "Occupant",
    "PushResult",
    "Scattered",
    "SlotState",
    "SlotTable",
]

INBOX_FRAMES = 12  # 960 ms at 80 ms a frame: a backlog that a caller still takes for a slow answer, not for a dead one
OUTBOX_FRAMES = 12


@dataclasses.dataclass(frozen=True, slots=True)
class Gathered:
    """What one tick has to do: close, open, then step."""

    closings: Sequence[int]
    openings: Sequence[Opening]
    prefilling: Sequence[Capture]
    rows: Sequence[Capture]
    batch: FrameBatch
    num_freed: int  # of the closings: slots that nobody holds any more
    max_backlog: int  # frames left in the longest inbox

    @property
    def needs_step(self) -> bool:
        """Whether any row advances."""
        return bool(self.rows or self.prefilling)


@dataclasses.dataclass(frozen=True, slots=True)
class Scattered:
    """What one tick has for the event loop."""

    ready: Sequence[Occupant] = ()
    answers: Sequence[tuple[Occupant, Answer]] = ()
    num_late: int = 0  # outputs whose caller was gone
    num_freed: int = 0  # slots that became idle in this tick


class SlotTable:
    """A fixed table of slots and the lock around it.

    Attributes:
        cond: the lock; notified whenever there may be work for the tick thread.
        slots: the rows. Read them under `cond`.
    """

    def __init__(self, num_slots: int, *, inbox_frames: int = INBOX_FRAMES, outbox_frames: int = OUTBOX_FRAMES) -> None:
        self.cond = threading.Condition(threading.Lock())
        self.num_slots = num_slots
        self.inbox_frames = inbox_frames
        self.outbox_frames = outbox_frames
        self.slots = tuple(Slot(slot_idx) for slot_idx in range(num_slots))

    # Public: the event loop's side

    def count(self, state: SlotState) -> int:
        """Count the slots in a state. Thread: any."""
        with self.cond:
            return sum(slot.state is state for slot in self.slots)

    def claim(self, occupant: Occupant) -> tuple[int, int]:
        """Take a free slot; return its index and epoch. Nothing happens in the engine until `arm`. Thread: loop.

        Raises:
            NoFreeSlot: none is idle.
        """
        with self.cond:
            for slot in self.slots:
                if slot.state is SlotState.IDLE:
                    slot.state = SlotState.PREFILL
                    slot.epoch += 1
                    slot.occupant = occupant
                    return slot.slot_idx, slot.epoch
        raise NoFreeSlot(ErrorKind.CAPACITY, "every slot is taken")

    def arm(
        self, slot_idx: int, occupant: Occupant, prompt: Prompt, sampling: SamplingOptions, *, pacing: Pacing, max_frames: int
    ) -> None:
        """Hand the prompt over: the next tick opens the row. The call may take `max_frames` frames. Thread: loop.

        Raises:
            LocalProtocolError: not the occupant, or armed before.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            if slot.is_armed:
                raise LocalProtocolError(f"slot {slot_idx} is armed already")
            slot.is_armed = True
            slot.to_open = (prompt, sampling)
            slot.pacing = pacing
            slot.credit = self.outbox_frames if pacing is Pacing.SCRIPT else None
            slot.frames_left = max_frames
            self.cond.notify()

    def disarm(self, slot_idx: int, occupant: Occupant) -> tuple[int, int]:
        """End the life of the row but not the hold on the slot: another prompt comes with `rearm`. Thread: loop.

        What the model was going to hear is given up, what it is being told is answered in the old epoch; steering and limit stay.

        Returns:
            The new epoch, and how many of the newest frames were taken out of the inbox.

        Raises:
            LocalProtocolError: not the occupant, or the slot is not live.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            if slot.state is not SlotState.LIVE:
                raise LocalProtocolError(f"slot {slot_idx} is not live")
            slot.state = SlotState.PREFILL
            slot.epoch += 1
            slot.is_armed = False
            slot.to_close = True
            num_unheard = len(slot.inbox)
            slot.inbox.clear()
            self.cond.notify()
            return slot.epoch, num_unheard

    def rearm(self, slot_idx: int, occupant: Occupant, prompt: Prompt, sampling: SamplingOptions) -> None:
        """Hand another prompt over, after `disarm`: the next tick closes the row, if it has not yet, and opens it again. Thread: loop.

        Raises:
            LocalProtocolError: not the occupant, or armed.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            if slot.is_armed:
                raise LocalProtocolError(f"slot {slot_idx} is armed already")
            slot.is_armed = True
            slot.to_open = (prompt, sampling)
            self.cond.notify()

    def push_frame(self, slot_idx: int, occupant: Occupant, frame: InFrame, now: float) -> PushResult:
        """Put one frame into the inbox. Thread: loop.

        Raises:
            LocalProtocolError: not the occupant.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            result = PushResult.ACCEPTED
            if len(slot.inbox) >= self.inbox_frames:
                if slot.pacing is Pacing.SCRIPT:
                    return PushResult.FULL
                slot.inbox.popleft()
                result = PushResult.DROPPED_OLDEST
            slot.inbox.append(frame)
            slot.last_push_s = now
            self.cond.notify()
            return result

    def cut(self, slot_idx: int, occupant: Occupant, *, steer_frames: int = 0) -> int:
        """End the epoch (barge-in, cancel): audio that is under way is dropped. Return the new epoch. Thread: loop.

        Args:
            steer_frames: frames that the model is forced to silence for; a longer steering in progress stays.

        Raises:
            LocalProtocolError: not the occupant.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            slot.epoch += 1
            slot.steer_frames = max(slot.steer_frames, steer_frames)
            return slot.epoch

    def steer(self, slot_idx: int, occupant: Occupant, steer_frames: int, pad_bias: float) -> None:
        """Set the frames that the model is forced to silence for, in place of what was set before, and its bias. Thread: loop.

        Raises:
            LocalProtocolError: not the occupant.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            slot.steer_frames = steer_frames
            slot.pad_bias = pad_bias

    def clear_inbox(self, slot_idx: int, occupant: Occupant) -> int:
        """Throw away the frames that wait; return their number. Thread: loop.

        Raises:
            LocalProtocolError: not the occupant.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            num_frames = len(slot.inbox)
            slot.inbox.clear()
            return num_frames

    def grant(self, slot_idx: int, occupant: Occupant, num_frames: int) -> None:
        """Say that a script's outbox has room for more frames. Thread: loop.

        Raises:
            LocalProtocolError: not the occupant.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            if slot.credit is not None:
                slot.credit += num_frames
                self.cond.notify()

    def release(self, slot_idx: int, occupant: Occupant) -> SlotState:
        """Give a slot back, whatever it is doing; waiting input is thrown away. Thread: loop.

        Returns:
            What the slot is now: IDLE, or DRAINING until the next tick has closed its row.

        Raises:
            LocalProtocolError: not the occupant; a slot cannot be released twice.
        """
        with self.cond:
            slot = self._held(slot_idx, occupant)
            was_in_engine = slot.is_in_engine
            slot.clear()
            slot.epoch += 1
            if was_in_engine:
                slot.state = SlotState.DRAINING
                self.cond.notify()
            return slot.state

    # Public: the tick thread's side

    def has_work(self) -> bool:
        """Whether a tick would do anything. Call it under `cond`. Thread: tick."""
        return any(slot.is_due for slot in self.slots)

    def is_worth_waiting(self, now: float, recent_s: float) -> bool:
        """Whether a step is due that a peer, who spoke within `recent_s` and has no frame yet, may still join. Thread: tick.

        Call it under `cond`. A slot that has to be cleared is not kept waiting unless a step is due anyway: a new caller may be waiting
        for it.
        """
        if not any(slot.is_runnable for slot in self.slots):
            return False
        return any(slot.is_open_for_frames and not slot.inbox and now - slot.last_push_s <= recent_s for slot in self.slots)

    def gather(self, frame_samples: int) -> Gathered:
        """Take one frame of each slot that has one, and the openings and closings that are due. Thread: tick."""
        closings: list[int] = []
        openings: list[Opening] = []
        prefilling: list[Capture] = []
        rows: list[Capture] = []
        frames: list[NDArray[np.float32]] = []
        exec_mask = np.zeros(self.num_slots, dtype=np.bool_)
        steer_mask = np.zeros(self.num_slots, dtype=np.bool_)
        pad_bias = np.zeros(self.num_slots, dtype=np.float32)
        num_freed = 0
        with self.cond:
            for slot in self.slots:
                if slot.state is SlotState.DRAINING:
                    # Idle from now on: should the loop claim and arm it at once, the engine hears of the opening in a later gather, and
                    # so after this closing.
                    closings.append(slot.slot_idx)
                    slot.state = SlotState.IDLE
                    num_freed += 1
                elif slot.to_close:  # and perhaps opened again right below: a tick closes before it opens
                    closings.append(slot.slot_idx)
                    slot.to_close = slot.is_in_engine = False
                if not slot.is_runnable:
                    continue
                assert slot.occupant is not None
                if slot.state is SlotState.PREFILL:
                    if slot.to_open is not None:
                        openings.append(Opening(slot.slot_idx, *slot.to_open))
                        slot.to_open = None
                        slot.is_in_engine = True
                    prefilling.append(Capture(slot.slot_idx, slot.occupant, slot.epoch, 0))
                    continue
                frame = slot.inbox.popleft()
                frames.append(frame.pcm)
                rows.append(Capture(slot.slot_idx, slot.occupant, slot.epoch, frame.real_samples))
                exec_mask[slot.slot_idx] = True
                steer_mask[slot.slot_idx] = slot.steer_frames > 0
                slot.steer_frames = max(0, slot.steer_frames - 1)
                pad_bias[slot.slot_idx] = slot.pad_bias
                slot.frames_left -= 1
                if slot.credit is not None:
                    slot.credit -= 1
            max_backlog = max(len(slot.inbox) for slot in self.slots)
        pcm = np.zeros((self.num_slots, frame_samples), dtype=np.float32)
        if frames:
            pcm[exec_mask] = frames  # rows are in slot order, as the mask is
        batch = FrameBatch(pcm=pcm, exec_mask=exec_mask, steer_mask=steer_mask, pad_bias=pad_bias)
        return Gathered(closings, openings, prefilling, rows, batch, num_freed, max_backlog)

    def scatter(self, gathered: Gathered, output: FrameOutput | None) -> Scattered:
        """Give each output to the occupant it was captured for; `output` is None when no step was needed. Thread: tick."""
        if output is None:
            return Scattered(num_freed=gathered.num_freed)
        ready: list[Occupant] = []
        current: list[tuple[Capture, bool]] = []  # (row, whether its epoch goes on)
        with self.cond:
            for row in gathered.prefilling:
                slot = self.slots[row.slot_idx]
                if slot.occupant is row.occupant and output.ready_mask[row.slot_idx]:
                    slot.state = SlotState.LIVE
                    ready.append(row.occupant)
            for row in gathered.rows:
                slot = self.slots[row.slot_idx]
                if slot.occupant is row.occupant:
                    current.append((row, slot.epoch == row.epoch))
        answers = []
        for row, is_current in current:
            # A copy: a view would keep the whole batch's audio alive for as long as one caller's outbox holds it.
            pcm = output.pcm[row.slot_idx, : row.real_samples].copy() if is_current else None
            answers.append((row.occupant, Answer(epoch=row.epoch, pcm=pcm, text_id=int(output.text_ids[row.slot_idx]))))
        return Scattered(ready, answers, len(gathered.rows) - len(current), gathered.num_freed)

    # Private

    def _held(self, slot_idx: int, occupant: Occupant) -> Slot:
        slot = self.slots[slot_idx]
        if slot.occupant is not occupant:
            raise LocalProtocolError(f"slot {slot_idx} is not held by this session")
        return slot
