"""How often something may happen in a stretch of time; time is an argument. Thread: any, one at a time."""

from __future__ import annotations

from collections import deque


class Budget:
    """At most `limit` events in any `window_s` seconds."""

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit = limit
        self._window_s = window_s
        self._times: deque[float] = deque()

    def spend(self, now: float) -> bool:
        """Count one event; return whether it is within the budget. One that is not is not counted."""
        times = self._times
        while times and now >= times[0] + self._window_s:
            times.popleft()
        if len(times) >= self._limit:
            return False
        times.append(now)
        return True

    def free_s(self, now: float) -> float:
        """When the next event fits."""
        return now if len(self._times) < self._limit else max(now, self._times[0] + self._window_s)
