"""What waits to be sent to one caller: a bounded queue of ServerEvents.

A live caller that does not read loses its oldest audio, and the words of it, before anything is encoded; everything else (Heard too) is
never dropped, so a caller that reads nothing at all is `is_flooded` after a while and must be ended. A script's audio is never dropped: its
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
        self._has_news = asyncio.Event()  # set by every event and every poke
        self._is_poked = False

    def __len__(self) -> int:
        return len(self._events)

    @property
    def is_flooded(self) -> bool:
        """Whether so much waits that the peer cannot be reading."""
        return len(self._events) > MAX_EVENTS

    def put(self, event: ServerEvent) -> int:
        """Append an event; return how many older audio frames were dropped for it."""
        self._events.append(event)
        self._has_news.set()
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

    def take(self) -> ServerEvent | None:
        """Take the oldest event; None when none waits."""
        if not self._events:
            return None
        event = self._events.popleft()
        if isinstance(event, AudioOut):
            self._num_audio -= 1
        return event

    async def wait(self) -> None:
        """Return when an event waits, or when `poke` was called since the last time. A cancelled wait loses nothing."""
        while not self._events and not self._is_poked:
            self._has_news.clear()
            await self._has_news.wait()
        self._is_poked = False

    def poke(self) -> None:
        """Let `wait` return though there may be no event."""
        self._is_poked = True
        self._has_news.set()


class EventStream:
    """The async iterator behind `Session.events`: ends after Ended or Failed.

    A class and not a generator, so that a `__anext__` that was cancelled can simply be called again. A reader with more to wait for than
    events uses `take` and `wait` instead, and lets others `poke` it.

    Attributes:
        is_over: the last event was taken.

    Args:
        on_taken: looks at each event that is taken, and returns it as it is true by now.
    """

    def __init__(self, outbox: Outbox, on_taken: Callable[[ServerEvent], ServerEvent]) -> None:
        self.is_over = False
        self._outbox = outbox
        self._on_taken = on_taken

    def take(self) -> ServerEvent | None:
        """Take the oldest event; None when none waits."""
        event = self._outbox.take()
        if event is None:
            return None
        self.is_over = isinstance(event, Ended | Failed)
        return self._on_taken(event)

    async def wait(self) -> None:
        """Return when an event waits, or when somebody has poked this stream. A cancelled wait loses nothing."""
        await self._outbox.wait()

    def poke(self) -> None:
        """Wake the reader. Thread: loop."""
        self._outbox.poke()

    def __aiter__(self) -> EventStream:
        return self

    async def __anext__(self) -> ServerEvent:
        if self.is_over:
            raise StopAsyncIteration
        while (event := self.take()) is None:
            await self.wait()
        return event
