"""What the Realtime wire counts and times, as names; who keeps the numbers is the gateway's business. Thread: any."""

from __future__ import annotations

import enum
from typing import Protocol


class Count(enum.Enum):
    """Counters (specs/realtime.md, Appendix E); the label's meaning stands behind each."""

    RESPONSES = "responses"  # label: x_duplex.reason of response.done
    ERRORS = "errors"  # label: code of the error event
    EPOCHS = "epochs"  # no label
    STALE = "stale"  # audio frames discarded because their epoch was over; label: codec, queue, writer (the three filters)
    INPUT_MS = "input_ms"  # milliseconds of user audio; label: padded, dropped, suppressed


class Timer(enum.Enum):
    """Histograms, in seconds."""

    CREATED = "created"  # upgrade -> session.created
    ARMING = "arming"  # first reason to start -> the prompt is in the model
    ANSWER = "answer"  # end of the user's speech -> first voiced delta
    BARGE_IN = "barge_in"  # onset of the user's speech -> speech_started, where a response was cut
    DELTA_GAP = "delta_gap"  # between two audio deltas of one response


class Meter(Protocol):
    """Keeps the numbers. Thread: any."""

    def count(self, what: Count, label: str = "", by: int = 1) -> None:
        """Add to a counter."""

    def observe(self, what: Timer, seconds: float) -> None:
        """Record one duration."""
