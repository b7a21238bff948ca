"""What waits to be sent to one caller: a bounded queue of ServerEvents.

A live caller that does not read loses its oldest audio, and the words of it, before anything is encoded; control events are never
dropped, so a caller that reads nothing at all is `is_flooded` after a while and must be ended. A script's audio is never dropped: its
slot is stepped only while there is room here. The one rule: nothing follows an Ended or a Failed. Thread: loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from protocols.events import AudioOut, Ended, Failed, ServerEvent, TextDelta

MAX_EVENTS = 1024  # far more than any reader lets wait; a peer so far behind does not read


class Outbox:
    """Events on their way out.

    Args:
        max_audio: audio frames kept for a caller; None keeps all.
    """

    def __init__(self, max_audio: int | None) -> None:
        self.max_audio = max_audio
        self._events: deque[ServerEvent] = deque()
        self._num_audio = 0
        self._has_events = asyncio.Event()

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_flooded(self) -> bool:
        """Whether so much waits that the peer cannot be reading."""
        return len(self._events) > MAX_EVENTS

    def put(self, event: ServerEvent) -> int:
        """Append an event; return how many older audio frames were dropped for it."""
        self._events.append(event)
        self._has_events.set()
        if not isinstance(event, AudioOut):
            return 0
        self._num_audio += 1
        if self.max_audio is None or self._num_audio <= self.max_audio:
            return 0
        oldest = next(waiting.frame_idx for waiting in self._events if isinstance(waiting, AudioOut))
        self._events = deque(
            waiting for waiting in self._events if not isinstance(waiting, AudioOut | TextDelta) or waiting.frame_idx != oldest
        )
        self._num_audio -= 1
        return 1

    def purge_output(self) -> int:
        """Drop the audio and the text that wait (their epoch is over); return the number of audio frames."""
        num_dropped = self._num_audio
        self._events = deque(event for event in self._events if not isinstance(event, AudioOut | TextDelta))
        self._num_audio = 0
        return num_dropped

    async def get(self) -> ServerEvent:
        """Take the oldest event, waiting for one. A cancelled wait takes nothing."""
        while not self._events:
            self._has_events.clear()
            await self._has_events.wait()
        event = self._events.popleft()
        if isinstance(event, AudioOut):
            self._num_audio -= 1
        return event


class EventStream:
    """The async iterator behind `Session.events`: ends after Ended or Failed.

    A class and not a generator, so that a `__anext__` that was cancelled (a time-out for keep-alives, say) can simply be called again.
    """

    def __init__(self, outbox: Outbox, on_taken: Callable[[ServerEvent], None]) -> None:
        self._outbox = outbox
        self._on_taken = on_taken
        self._is_over = False

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> ServerEvent:
        if self._is_over:
            raise StopAsyncIteration
        event = await self._outbox.get()
        self._is_over = isinstance(event, Ended | Failed)
        self._on_taken(event)
        return event
