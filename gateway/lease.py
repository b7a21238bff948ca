"""A session's hold on a slot: at most one, taken once and given back once. Without a slot everything here is harmless.

The one rule: nobody else calls the slot table in the name of a session, so the epoch kept here is the slot's. Thread: loop.
"""

from __future__ import annotations

from gateway.engine.base import Prompt
from gateway.slots import InFrame, Occupant, PushResult, SlotTable
from protocols.events import Pacing, SamplingOptions, Steer


class Lease:
    """The slot of one occupant.

    Attributes:
        slot_idx: None before and after.
        epoch: of the slot, as last seen; 0 before.
    """

    def __init__(self, slots: SlotTable, occupant: Occupant) -> None:
        self.slot_idx: int | None = None
        self.epoch = 0
        self._slots = slots
        self._occupant = occupant
        self._steering: Steer | None = None  # asked for before there was a slot

    def claim(self) -> int:
        """Take a free slot and return its index.

        Raises:
            NoFreeSlot: none is idle.
        """
        self.slot_idx, self.epoch = self._slots.claim(self._occupant)
        if self._steering is not None:
            self.steer(self._steering)
        return self.slot_idx

    def arm(self, prompt: Prompt, sampling: SamplingOptions, *, pacing: Pacing, max_frames: int) -> None:
        """Hand the first prompt over, see `SlotTable.arm`."""
        self._slots.arm(self._held, self._occupant, prompt, sampling, pacing=pacing, max_frames=max_frames)

    def disarm(self) -> int:
        """End the life of the row, see `SlotTable.disarm`; return how many frames its inbox dropped."""
        self.epoch, num_unheard = self._slots.disarm(self._held, self._occupant)
        return num_unheard

    def rearm(self, prompt: Prompt, sampling: SamplingOptions) -> None:
        """Hand another prompt over, see `SlotTable.rearm`."""
        self._slots.rearm(self._held, self._occupant, prompt, sampling)

    def push_frame(self, frame: InFrame, now: float) -> PushResult:
        """Put one frame into the inbox."""
        return self._slots.push_frame(self._held, self._occupant, frame, now)

    def cut(self, steer_frames: int) -> bool:
        """End the epoch, see `SlotTable.cut`; return whether there was one."""
        if self.slot_idx is None:
            return False
        self.epoch = self._slots.cut(self.slot_idx, self._occupant, steer_frames=steer_frames)
        return True

    def steer(self, steering: Steer) -> None:
        """Steer the model, as soon as there is a slot."""
        self._steering = steering
        if self.slot_idx is not None:
            self._slots.steer(self.slot_idx, self._occupant, steering.frames, steering.pad_bias)

    def clear_inbox(self) -> int:
        """Throw away the frames that wait; return their number."""
        return 0 if self.slot_idx is None else self._slots.clear_inbox(self.slot_idx, self._occupant)

    def grant(self, num_frames: int) -> None:
        """Say that a script's outbox has room for more frames."""
        if self.slot_idx is not None and num_frames:
            self._slots.grant(self.slot_idx, self._occupant, num_frames)

    def release(self) -> None:
        """Give the slot back, whatever it is doing."""
        if self.slot_idx is not None:
            self._slots.release(self.slot_idx, self._occupant)
            self.slot_idx = None

    @property
    def _held(self) -> int:
        assert self.slot_idx is not None  # the session claims before it does this
        return self.slot_idx
