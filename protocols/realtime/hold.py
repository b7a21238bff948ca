"""How long the model is kept silent after it was stopped, and while nobody asked it to speak (specs/realtime.md 4.7, 4.5.4).

Dropping audio is not enough: the model would finish its sentence in its head. So it is steered to silence, frame by frame, until its reason
is gone; which reasons there are, and what ends each, is the table here. Thread: any, one at a time.
"""

from __future__ import annotations

import enum

MIN_FRAMES = 6  # "at least 6 frames"
PAUSE_FRAMES = 4  # of the user's silence: less is a gap between words
TURN_FRAMES = 3  # of the user's speech: less is a click
MAX_FRAMES = 25  # "at most 25 (2 s)"
FOR_EVER = 2**31 - 1  # frames; until somebody lets go


class HoldReason(enum.Enum):
    """Why the model is held silent."""

    BARGE_IN = "barge_in"  # while the user speaks, at most MAX_FRAMES
    CLIENT = "client"  # until the user has spoken and stopped, at most cancel_hold_ms
    LIMIT = "limit"  # until the user has spoken and stopped, or a response is asked for
    GATE = "gate"  # until a response is asked for


class Hold:
    """One hold."""

    def __init__(self, reason: HoldReason, client_frames: int = MAX_FRAMES) -> None:
        """`client_frames` is cancel_hold_ms in frames."""
        self.reason = reason
        self._client_frames = client_frames
        self._num_frames = 0
        self._num_active = 0

    @property
    def steer_frames(self) -> int:
        """How many frames to steer at most."""
        match self.reason:
            case HoldReason.BARGE_IN:
                return MAX_FRAMES
            case HoldReason.CLIENT:
                return max(MIN_FRAMES, self._client_frames)
            case _:
                return FOR_EVER

    def step(self, inactive_frames: int) -> bool:
        """Count one frame, `inactive_frames` after the user's last active one; return whether the hold is over."""
        self._num_frames += 1
        self._num_active += inactive_frames == 0
        is_silent = inactive_frames >= PAUSE_FRAMES
        has_had_turn = self._num_active >= TURN_FRAMES and is_silent
        match self.reason:
            case HoldReason.BARGE_IN:
                return self._num_frames >= MIN_FRAMES and (is_silent or self._num_frames >= MAX_FRAMES)
            case HoldReason.CLIENT:
                return self._num_frames >= MIN_FRAMES and (has_had_turn or self._num_frames >= self.steer_frames)
            case HoldReason.LIMIT:
                return has_had_turn
            case _:
                return False
