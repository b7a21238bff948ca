"""What one call has lost: frames by direction and reason, for its metrics, its log line and its caller. Nothing is dropped here.

The one rule: every dropped frame is counted here once, by whoever dropped it. Thread: loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable

from gateway.logs import SessionAdapter
from gateway.metrics import Direction, DropReason, Metrics
from protocols.events import Warned

DROP_WARNING_S = 10.0  # at most one Warned and one log line about dropped frames in so many seconds


class DropTally:
    """Dropped frames of one session.

    Attributes:
        dropped: their numbers; reasons that never occurred are missing.

    Args:
        now: monotonic seconds.
        tell: takes the warnings for the caller.
    """

    def __init__(self, metrics: Metrics, log: SessionAdapter, now: Callable[[], float], tell: Callable[[Warned], None]) -> None:
        self.dropped: Counter[tuple[Direction, DropReason]] = Counter()
        self._metrics = metrics
        self._log = log
        self._now = now
        self._tell = tell
        self._last_warning_s = -math.inf

    def drop(self, direction: Direction, reason: DropReason, num_frames: int = 1) -> None:
        """Count frames; none is fine."""
        if num_frames:
            self.dropped[direction, reason] += num_frames
            self._metrics.count_dropped(direction, reason, num_frames)

    def drop_backlog(self, num_frames: int) -> None:
        """Count frames that the server had no time for, and say so."""
        if num_frames:
            self.drop(Direction.IN, DropReason.BACKLOG, num_frames)
            self._warn("audio was dropped: more arrives than the server can take")

    def drop_unread(self, num_frames: int) -> None:
        """Count frames that the caller had no time for, and say so."""
        if num_frames:
            self.drop(Direction.OUT, DropReason.SLOW_READER, num_frames)
            self._warn("audio was dropped: you do not read it fast enough")

    def __str__(self) -> str:
        return ", ".join(f"{count} {way.value} {reason.value}" for (way, reason), count in self.dropped.items()) or "none"

    def _warn(self, detail: str) -> None:
        now = self._now()
        if now - self._last_warning_s >= DROP_WARNING_S:
            self._last_warning_s = now
            self._log.warning("%s", detail)
            self._tell(Warned(detail=detail))
