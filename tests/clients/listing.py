"""The conversation's list and the user's speech over a capture, the part of `brackets` that is not about responses (specs/realtime.md 3.4).

Every item is announced once, names its true predecessor and becomes final once; every speech_started has one speech_stopped, and an item
follows at once. Thread: any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.clients.brackets import Responses

Event = Mapping[str, Any]


class Listing:
    """What the client has been told of the list."""

    def __init__(self) -> None:
        self.is_beta = False
        self._items: list[str] = []
        self._added: dict[str, str | None] = {}  # item -> predecessor it was announced with
        self._final: set[str] = set()
        self._committed: set[str] = set()
        self._created: list[Any] = []  # previous_item_id of the client's items that were not answered yet, oldest first
        self._speaking: str | None = None  # item of the speech that was announced and has not stopped
        self._start_ms = 0
        self._next: tuple[str, str] | None = None  # event and item that must come next
        self._is_cleared = False  # the client has thrown its audio away since the speech started

    def client(self, event: Event) -> None:
        """Note what the client adds to the list."""
        if event.get("type") == "conversation.item.create":
            self._created.append(event.get("previous_item_id"))
        self._is_cleared |= event.get("type") in ("input_audio_buffer.clear", "input.cancel")

    def server(self, kind: str, event: Event, responses: Responses) -> Iterator[str]:
        """Take one server event under its GA name; yield what it breaks."""
        item_id = event["item"].get("id") if isinstance(event.get("item"), Mapping) else event.get("item_id")
        expected, self._next = self._next, None
        if expected is not None and (kind, item_id) != expected and not (self._is_cleared and kind == "input_audio_buffer.cleared"):
            yield f"{kind} of {item_id} where {expected[0]} of {expected[1]} had to follow"
        match kind:
            case "conversation.item.added":
                yield from self._add(event, responses)
            case "conversation.item.done":
                yield from self._finish(str(item_id), event)
            case "conversation.item.deleted":
                if item_id not in self._items:
                    yield f"{item_id} was deleted and is not in the list"
                else:
                    self._items.remove(str(item_id))
            case "conversation.item.truncated":
                yield from self._truncate(event, responses)
            case "error":
                if self._created and event["error"].get("code", "").startswith("item_create"):
                    self._created.pop(0)
            case _ if kind.startswith("input_audio_buffer."):
                yield from self._speech(kind.removeprefix("input_audio_buffer."), event)

    def end(self) -> Iterator[str]:
        """The connection is over."""
        unfinished = [] if self.is_beta else sorted(set(self._added) - self._final)
        if len(unfinished) > 1:  # one may be open at the end
            yield f"items that never became final: {unfinished}"

    def _add(self, event: Event, responses: Responses) -> Iterator[str]:
        item_id, previous = event["item"]["id"], event.get("previous_item_id")
        last = self._items[-1] if self._items else None
        is_assistants = responses.open is not None and responses.open.item_id == item_id
        place = len(self._items)
        if item_id in self._added:
            yield f"{item_id} was added before"
        if not is_assistants and item_id not in self._committed and self._created:
            asked = self._created.pop(0)
            if asked == "root":
                last, place = None, 0
            elif asked is not None:
                last = asked
                place = self._items.index(asked) + 1 if asked in self._items else place
        elif not is_assistants and item_id not in self._committed:
            yield f"{item_id} was added and nobody had made it"
        if previous != last:
            yield f"{item_id} was added after {previous}, and its predecessor is {last}"
        self._items.insert(place, item_id)
        self._added[item_id] = previous
        if not is_assistants and not self.is_beta:
            self._next = ("conversation.item.done", item_id)

    def _finish(self, item_id: str, event: Event) -> Iterator[str]:
        if item_id not in self._added:
            yield f"{item_id} is done and was never added"
        elif item_id in self._final:
            yield f"{item_id} was done before"
        elif event.get("previous_item_id") != self._added[item_id]:
            yield f"{item_id} is done after {event.get('previous_item_id')}, and was added after {self._added[item_id]}"
        if event["item"].get("status", "completed") == "in_progress":
            yield f"{item_id} is done and in progress"
        self._final.add(item_id)

    def _truncate(self, event: Event, responses: Responses) -> Iterator[str]:
        item_id, end_ms = event["item_id"], event["audio_end_ms"]
        if responses.open is not None and responses.open.item_id == item_id:
            yield f"{item_id} was truncated while its response is open"
        elif end_ms > responses.sent_ms.get(item_id, 0):
            yield f"{item_id} was truncated at {end_ms} ms, and {responses.sent_ms.get(item_id, 0)} ms of it went out"

    def _speech(self, what: str, event: Event) -> Iterator[str]:
        item_id = event.get("item_id")
        if what == "speech_started":
            if self._speaking is not None:
                yield f"speech of {item_id} started while that of {self._speaking} goes on"
            if event["audio_start_ms"] < self._start_ms:
                yield f"speech started at {event['audio_start_ms']} ms, before the speech until {self._start_ms} ms"
            self._speaking, self._start_ms, self._is_cleared = item_id, event["audio_start_ms"], False
        elif what == "speech_stopped":
            if item_id != self._speaking:
                yield f"speech of {item_id} stopped, and {self._speaking} was speaking"
            if event["audio_end_ms"] < self._start_ms:
                yield f"speech ended at {event['audio_end_ms']} ms, before it started at {self._start_ms} ms"
            self._speaking, self._start_ms = None, event["audio_end_ms"]
            self._next = ("input_audio_buffer.committed", str(item_id))
        elif what == "committed":
            if self._speaking is not None:
                yield f"{item_id} was committed while {self._speaking} is speaking"
            if event.get("previous_item_id") != (self._items[-1] if self._items else None):
                yield f"{item_id} was committed after {event.get('previous_item_id')}"
            self._committed.add(str(item_id))
            self._next = ("conversation.item.added", str(item_id))
