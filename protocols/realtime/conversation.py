"""The list of items that client and server share (specs/realtime.md 2.8.1): order, look-up and bounds; the model's memory is not in it.

The rule: an item's id and place never change once it was announced. Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses

from protocols.realtime.fault import EventError
from protocols.realtime.server_events import ContentPart, Item
from protocols.realtime.watermarks import Watermarks

ROOT = "root"  # previous_item_id of an item that shall be the first


@dataclasses.dataclass(slots=True)
class Entry:
    """One item; what the assistant says has watermarks besides."""

    item: Item
    marks: Watermarks | None = None


class Conversation:
    """An ordered list with a bound: the oldest items are dropped without a word."""

    def __init__(self, conversation_id: str, max_items: int) -> None:
        self.conversation_id = conversation_id
        self._max_items = max_items
        self._entries: dict[str, Entry] = {}
        self._order: list[str] = []

    def __contains__(self, item_id: object) -> bool:
        return item_id in self._entries

    @property
    def last_id(self) -> str | None:
        """The last item; None while there is none."""
        return self._order[-1] if self._order else None

    def entries(self) -> list[Entry]:
        """Every item, in order."""
        return [self._entries[item_id] for item_id in self._order]

    def add(self, item: Item, previous_item_id: str | None = None, marks: Watermarks | None = None) -> str | None:
        """Insert an item after another one, None appends; return the id of the item before it.

        Raises:
            EventError: the id exists, or the previous one does not.
        """
        if item.id in self._entries:
            raise EventError("item_create_duplicate_item_id", "an item with this id exists already", "item.id")
        if previous_item_id is None:
            place = len(self._order)
        elif previous_item_id == ROOT:
            place = 0
        elif previous_item_id in self._entries:
            place = self._order.index(previous_item_id) + 1
        else:
            raise EventError("item_create_invalid_previous_item_id", "there is no such item to insert after", "previous_item_id")
        previous = self._order[place - 1] if place else None
        self._order.insert(place, item.id)
        self._entries[item.id] = Entry(item, marks)
        if len(self._order) > self._max_items:
            del self._entries[self._order.pop(0 if place else 1)]
        return previous

    def find(self, item_id: str, code: str) -> Entry:
        """Look an item up.

        Raises:
            EventError: with `code`, there is no such item.
        """
        entry = self._entries.get(item_id)
        if entry is None:
            raise EventError(code, "there is no such item in this conversation", "item_id")
        return entry

    def remove(self, item_id: str) -> None:
        """Take an item out of the list."""
        del self._entries[item_id]
        self._order.remove(item_id)

    def retrieve(self, item_id: str, now: float) -> Item:
        """Return an item as it stands: of what was cut off only what was heard.

        Raises:
            EventError: there is no such item.
        """
        entry = self.find(item_id, "item_retrieve_invalid_item_id")
        marks = entry.marks
        if marks is None:
            return entry.item
        marks.settle(now)
        text = marks.transcript()
        if not entry.item.content and text:  # it is being said
            return entry.item.model_copy(update={"content": (ContentPart(type="output_audio", transcript=text),)})
        return entry.item.model_copy(update={"content": tuple(_with_text(part, text) for part in entry.item.content)})


def _with_text(part: ContentPart, text: str) -> ContentPart:
    return part.model_copy(update={"text": text} if part.text is not None else {"transcript": text})
