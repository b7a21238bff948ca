"""What waits to be written to one client, in order, and can still be taken back (specs/realtime.md 4.6).

The rule: a message of an epoch that is over is never handed out. It is looked for twice here, when the epoch ends (the queue is purged) and
again when a message is taken; a third look, before anything is queued, is the codec's. What closes a response carries no epoch and stays.
Thread: any, one at a time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from protocols.codec import Close
from protocols.realtime import ids
from protocols.realtime.dialect import Dialect, encode
from protocols.realtime.meter import Count, Meter
from protocols.realtime.server_events import AudioDelta, ServerMessage

Sent = Callable[[float], None]


class _Waiting(NamedTuple):
    message: ServerMessage | Close
    epoch: int | None  # None: never stale
    on_sent: Sent | None


class Outgoing:
    """An ordered queue of server messages.

    Attributes:
        dialect: in which names messages are worded; settled before the first response.
        is_settled: the dialect does not change any more.
        epoch: rises whenever output that exists becomes invalid; starts at 0.
    """

    def __init__(self, dialect: Dialect, meter: Meter) -> None:
        self.dialect = dialect
        self.is_settled = False
        self.epoch = 0
        self._meter = meter
        self._waiting: deque[_Waiting] = deque()

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def put(self, *messages: ServerMessage | Close) -> None:
        """Append messages that are never taken back."""
        self._waiting.extend(_Waiting(message, None, None) for message in messages)

    def put_output(self, message: ServerMessage, on_sent: Sent | None = None) -> None:
        """Append output of the model in the present epoch; `on_sent` is told the time at which it is handed out."""
        self._waiting.append(_Waiting(message, self.epoch, on_sent))

    def keep(self) -> None:
        """What waits shall be sent, whatever becomes of its epoch."""
        self._waiting = deque(waiting._replace(epoch=None) for waiting in self._waiting)

    def bump(self) -> None:
        """End the epoch: take back what waits of it."""
        self.epoch += 1
        kept = deque(waiting for waiting in self._waiting if waiting.epoch is None)
        self._meter.count(Count.EPOCHS)
        num_stale = sum(waiting.epoch is not None and isinstance(waiting.message, AudioDelta) for waiting in self._waiting)
        if num_stale:
            self._meter.count(Count.STALE, "queue", num_stale)
        self._waiting = kept

    def take(self, now: float) -> str | Close | None:
        """Hand out the next message; None when none waits."""
        while self._waiting:
            waiting = self._waiting.popleft()
            if waiting.epoch is not None and waiting.epoch != self.epoch:
                if isinstance(waiting.message, AudioDelta):
                    self._meter.count(Count.STALE, "writer")
                continue
            if isinstance(waiting.message, Close):
                self._waiting.clear()
                return waiting.message
            text = encode(waiting.message, self.dialect, ids.new("event"))
            if waiting.on_sent is not None:
                waiting.on_sent(now)
            if text is not None:
                return text
        return None
