"""Items as clients write them, and as the list keeps them (specs/realtime.md 2.8.1).

Clients disagree in small things: a text part is `text` in one and `input_text` in the other, roles are mixed up with directions. All mean
the same, and what is kept and told back are the names that strict clients accept for the role. The rule: audio and images are never part of
a kept item. Thread: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field

from protocols.realtime.fault import bad_value, checked, excerpt, missing, wrong_type
from protocols.realtime.ids import MAX_ITEM_ID_CHARS
from protocols.realtime.objects import ContentPart, Item, PartType

# What a message needs beside its type, by item type.
_REQUIRED: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
}
_PARTS: Mapping[str, Literal["text", "audio", "image"]] = {
    **dict.fromkeys(("input_text", "output_text", "text"), "text"),
    **dict.fromkeys(("input_audio", "output_audio", "audio"), "audio"),
    "input_image": "image",
}


class _Body(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class ClientPart(_Body):
    """Part of a message. Pictures are not kept, so their data is not read."""

    type: Literal["input_text", "output_text", "text", "input_audio", "output_audio", "audio", "input_image"]
    text: str | None = None
    audio: str | None = None  # base64, in the session's input format
    transcript: str | None = None
    detail: str | None = None


class ClientItem(_Body):
    """Item of conversation.item.create, or of the input of response.create."""

    id: str | None = Field(default=None, min_length=1, max_length=MAX_ITEM_ID_CHARS)
    type: str
    role: Literal["system", "user", "assistant"] | None = None
    content: tuple[ClientPart, ...] = Field(default=(), strict=False)
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None
    tool_fields: Mapping[str, Any] = {}  # everything that a mcp_* item has beside id, type and status

    @property
    def text(self) -> str:
        """What the item says in words."""
        return " ".join(filter(None, (part.text or part.transcript for part in self.content)))

    @property
    def audio(self) -> list[str]:
        """The base64 texts of the user's audio, in order."""
        return [part.audio for part in self.content if part.audio] if self.role == "user" else []

    def kept(self, item_id: str) -> Item:
        """Return the item for the list, complete from the start, under its own id or this one."""
        keys: dict[str, Any] = {"id": self.id or item_id, "type": self.type, "status": "completed"}
        if self.type == "message":
            return Item(**keys, role=self.role, content=tuple(_kept_part(part, self.role) for part in self.content))
        tool_keys = {key: getattr(self, key) for key in _REQUIRED.get(self.type, ())}
        return Item(**keys, **tool_keys, **{key: value for key, value in self.tool_fields.items() if key not in Item.model_fields})


def read_item(value: object, path: str, *, allows_reference: bool = False) -> ClientItem:
    """Read an item that stands at `path`.

    Args:
        allows_reference: item_reference is legal, as in the input of response.create.

    Raises:
        EventError: a field is missing or wrong, or there is no such type of item.
    """
    if not isinstance(value, Mapping):
        raise wrong_type(path, "an object", value)
    kind = value.get("type")
    is_tool = isinstance(kind, str) and kind.startswith("mcp_")
    item = checked(ClientItem, {**value, "tool_fields": value} if is_tool else value, path)
    if not is_tool and item.type not in _REQUIRED and not (item.type == "item_reference" and allows_reference):
        raise bad_value(f"{path}.type", f"must be one of {', '.join(_REQUIRED)}, not {excerpt(item.type)}")
    for key in _REQUIRED.get(item.type, ()):
        if value.get(key) is None:
            raise missing(f"{path}.{key}")
    for index, part in enumerate(item.content):
        _check_part(part, item.role, f"{path}.content.{index}")
    return item


def payload_chars(value: object) -> int:
    """Return how many characters of an item are audio and pictures, which the limit of a message's text does not count."""
    content = value.get("content") if isinstance(value, Mapping) else None
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    texts = [part.get(key) for part in parts for key in ("audio", "image_url")]
    return sum(len(text) for text in texts if isinstance(text, str))


def _check_part(part: ClientPart, role: str | None, path: str) -> None:
    kind = _PARTS[part.type]
    if kind == "text" and part.text is None:
        raise missing(f"{path}.text")
    if (kind == "audio" and role == "system") or (kind == "image" and role != "user"):
        raise bad_value(f"{path}.type", f"cannot be {part.type} in a message of the role {role}")


def _kept_part(part: ClientPart, role: str | None) -> ContentPart:
    kind = _PARTS[part.type]
    if kind == "image":
        return ContentPart(type="input_image", detail=part.detail if part.detail in ("auto", "low", "high") else None)
    name: PartType = f"{'output' if role == 'assistant' else 'input'}_{kind}"  # type: ignore[assignment]
    if kind == "text":
        return ContentPart(type=name, text=part.text)
    return ContentPart(type=name, transcript=part.transcript or ("" if role == "assistant" else None))
