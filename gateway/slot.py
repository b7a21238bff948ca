"""One slot, and the values that pass between its caller, the table and the tick thread. No lock and no decision about others lives here.

The one rule: a `Slot` is touched under the table's lock only; everything else here is a value and never changes. Thread: any.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base import Prompt
from protocols.events import Ended, Failed, Pacing, SamplingOptions


class SlotState(enum.Enum):
    """Where a slot is in its life."""

    IDLE = "idle"  # nobody's; the engine row is free, or will be closed before it is opened again
    PREFILL = "prefill"  # claimed; no prompt has been asked for yet, or it is being prepared or read
    LIVE = "live"  # one frame out for each frame in
    DRAINING = "draining"  # released; the engine row is closed by the next tick


class PushResult(enum.Enum):
    """What became of a pushed frame."""

    ACCEPTED = "accepted"
    DROPPED_OLDEST = "dropped_oldest"  # accepted, and the oldest waiting frame made room (Pacing.LIVE)
    FULL = "full"  # not taken: try again when an answer has come (Pacing.SCRIPT)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One output frame for its caller."""

    epoch: int  # as captured when the input was gathered
    pcm: NDArray[np.float32] | None  # float32 [real samples of the input frame], the occupant's own; None when its epoch is over
    text_id: int


class Occupant(Protocol):
    """Who holds a slot. Called on the event loop, never under the lock."""

    def on_ready(self) -> None:
        """The prompt is in the model."""

    def on_answer(self, answer: Answer) -> None:
        """One frame was answered."""

    def end(self, last: Ended | Failed) -> None:
        """The call is over, for a reason that is not the occupant's."""


class InFrame(NamedTuple):
    """One whole frame of input."""

    pcm: NDArray[np.float32]  # float32 [S]
    real_samples: int  # S, or less for the padded last frame of a call: the answer is as long


class Capture(NamedTuple):
    """Whose row it was when the batch was gathered."""

    slot_idx: int
    occupant: Occupant
    epoch: int
    real_samples: int  # 0 for a row that prefills


class Opening(NamedTuple):
    """A row that the engine must open before the step."""

    slot_idx: int
    prompt: Prompt
    sampling: SamplingOptions


@dataclasses.dataclass(slots=True)
class Slot:
    """One row of the engine batch. Guarded by the table's lock."""

    slot_idx: int
    state: SlotState = SlotState.IDLE
    epoch: int = 0  # rises on claim, barge-in, cancel, a new prompt and release; never falls
    occupant: Occupant | None = None
    pacing: Pacing = Pacing.LIVE  # set by arm
    inbox: deque[InFrame] = dataclasses.field(default_factory=deque)
    is_armed: bool = False  # it has a prompt, or is about to have it
    to_close: bool = False  # set by disarm, done by the next gather: the row in the engine has the prompt of before
    to_open: tuple[Prompt, SamplingOptions] | None = None  # set by arm and rearm, taken by the next gather
    is_in_engine: bool = False  # the engine has been (or, in this very tick, is being) told to open the row
    frames_left: int = 0  # frames until the call's limit; the engine is never stepped past it
    credit: int | None = None  # output frames its outbox still has room for; None: no limit (a live outbox drops instead)
    steer_frames: int = 0  # frames still to be forced to silence
    pad_bias: float = 0.0  # of every frame, see `FrameBatch.pad_bias`
    last_push_s: float = -math.inf  # clock of the last accepted frame

    @property
    def is_open_for_frames(self) -> bool:
        """Whether a frame, if there is one, may go into the next step."""
        return self.state is SlotState.LIVE and self.frames_left > 0 and self.credit != 0

    @property
    def is_runnable(self) -> bool:
        """Whether the next step advances this row."""
        if self.state is SlotState.PREFILL:
            return self.to_open is not None or (self.is_in_engine and not self.to_close)
        return self.is_open_for_frames and bool(self.inbox)

    @property
    def is_due(self) -> bool:
        """Whether the next tick does anything for this slot."""
        return self.state is SlotState.DRAINING or self.to_close or self.is_runnable

    def clear(self) -> None:
        """Forget the occupant and everything that was its own; the epoch stays."""
        self.state = SlotState.IDLE
        self.occupant = None
        self.inbox.clear()
        self.is_armed = False
        self.to_close = False
        self.to_open = None
        self.is_in_engine = False
        self.frames_left = 0
        self.credit = None
        self.steer_frames = 0
        self.pad_bias = 0.0
        self.last_push_s = -math.inf
