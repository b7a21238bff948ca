"""Whether the user speaks, frame by frame: the seam between the turn policy and a voice-activity detector.

A detector never influences the model; it only produces protocol events (specs/realtime.md 4.5). Results may come later than their frame, but
in order and one for each. Thread: any, one at a time.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Activity(NamedTuple):
    """One frame's result."""

    frame_idx: int
    probability: float  # of speech, 0 to 1


class SpeechDetector(Protocol):
    """One caller's detector."""

    def feed(self, frame_idx: int, pcm: NDArray[np.float32]) -> None:
        """Take the next frame that the model has heard, float32 [S]; frame_idx rises by one each time."""

    def take(self) -> list[Activity]:
        """Return the results that are there, oldest first; each frame's once."""

    def close(self) -> None:
        """Let go of what the detector holds; nothing is fed afterwards."""
