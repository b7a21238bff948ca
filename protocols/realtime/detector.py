"""Whether the user speaks, frame by frame: the seam between the turn policy and a voice-activity detector, and the detector by level.

A detector never influences the model; it only produces protocol events (specs/realtime.md 4.5). Results may come later than their frame,
but in order and one for each. The network that knows speech from noise is not here. Thread: any, one at a time.
"""

from __future__ import annotations

import math
from collections import deque
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


MIN_SPEECH_DB = -42.0  # dBFS; "RMS >= max(-42 dBFS, noise floor + 9 dB)" (4.5)
ABOVE_FLOOR_DB = 9.0
DB_PER_PROBABILITY = 36.0  # "-60 + 36 t dBFS (0.5 -> -42)" (4.5.3)
FLOOR_FRAMES = 100  # 8 s: longer than anybody speaks without a pause for breath
MIN_FLOOR_FRAMES = 25  # 2 s: nothing is known of the floor before
_FLOOR_SHARE = 20  # the floor is the level that one frame in 20 stays below: pauses in speech are more, gaps in noise fewer


class Loudness:
    """How loud each frame of a caller is, on the scale of a threshold: 0.5 is as loud as speech must be, 0.1 is 3.6 dB.

    The noise floor is the level that 5 % of the last 8 s were below. Steady noise, however loud, and talk in the background are the floor
    soon; whoever speaks to the microphone is above it, and the frames between their words keep it down.
    """

    def __init__(self) -> None:
        self._levels_db: deque[float] = deque(maxlen=FLOOR_FRAMES)

    def take(self, pcm: NDArray[np.float32]) -> float:
        """Return the next frame's loudness, 0 to 1."""
        level_db = 10 * math.log10(float(np.dot(pcm, pcm)) / max(pcm.size, 1) + 1e-12)
        self._levels_db.append(level_db)
        needed_db = MIN_SPEECH_DB
        if len(self._levels_db) >= MIN_FLOOR_FRAMES:
            needed_db = max(needed_db, sorted(self._levels_db)[len(self._levels_db) // _FLOOR_SHARE] + ABOVE_FLOOR_DB)
        return min(max(0.5 + (level_db - needed_db) / DB_PER_PROBABILITY, 0.0), 1.0)


class EnergyDetector:
    """A SpeechDetector that takes what is loud for speech; its results are there at once.

    For machines without the network, and for tests. Keyboards, doors and music are speech to it.
    """

    def __init__(self) -> None:
        self._loudness = Loudness()
        self._results: list[Activity] = []

    def feed(self, frame_idx: int, pcm: NDArray[np.float32]) -> None:
        """Judge a frame."""
        self._results.append(Activity(frame_idx, self._loudness.take(pcm)))

    def take(self) -> list[Activity]:
        """Return the results since the last call."""
        results, self._results = self._results, []
        return results

    def close(self) -> None:
        """Do nothing: nothing is held."""
