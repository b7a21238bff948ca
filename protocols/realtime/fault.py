"""What is wrong with a client's message, as the one exception that becomes one `error` event (specs/realtime.md 2.11).

Here are the exception, the wording of the three commonest faults, and `checked`, which turns what pydantic finds into them. The rule: a
message is one plain sentence, names the parameter as a dotted path, and repeats at most EXCERPT_CHARS characters of what the client sent.
Whether an error ends the call is not decided here: none of these does. Thread: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import pydantic

EXCERPT_CHARS = 80  # "at most 80 characters of client input" (2.11)

_Model = TypeVar("_Model", bound=pydantic.BaseModel)

_EXPECTED = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "dict_type": "an object",
    "model_type": "an object",
    "list_type": "a list",
    "tuple_type": "a list",
}
_JSON_NAMES: Mapping[type, str] = {
    bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list", dict: "an object", type(None): "null",
}  # fmt: skip
_BOUNDS = {
    "greater_than_equal": ("ge", "must be {} or more"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be {} or less"),
    "less_than": ("lt", "must be less than {}"),
    "string_too_short": ("min_length", "must have {} or more characters"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "literal_error": ("expected", "must be {}"),
}


class EventError(Exception):
    """A client message that must be answered by exactly one `error` event; nothing of the message has taken effect.

    Attributes:
        code: one of the codes of 2.11.
        message: one sentence for the person at the other end.
        param: dotted path of what is wrong in the message; None where no parameter is to blame.
        event_id: the client's id of its message, where it gave one and the message could be read.
        type: who has to act; one of the four of 2.11.
    """

    def __init__(
        self, code: str, message: str, param: str | None = None, *, event_id: str | None = None, type: str = "invalid_request_error"
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message
        self.param = param
        self.event_id = event_id
        self.type = type


def missing(param: str) -> EventError:
    """Return the error for a parameter that must be there."""
    return EventError("missing_required_parameter", f"Missing required parameter: '{param}'.", param)


def wrong_type(param: str, expected: str, value: object) -> EventError:
    """Return the error for a value of another JSON type; `expected` is worded like "a string"."""
    return EventError("invalid_type", f"Invalid type for '{param}': expected {expected}, but got {json_type(value)}.", param)


def bad_value(param: str | None, detail: str) -> EventError:
    """Return the error for a value that cannot be honoured; `detail` goes on from the parameter's name, as in "must be positive"."""
    return EventError("invalid_value", f"Invalid value for '{param}': it {detail}.", param)


def json_type(value: object) -> str:
    """Name the JSON type of a value, with its article."""
    return _JSON_NAMES.get(type(value), "something else")


def excerpt(text: str) -> str:
    """Quote client input for a message: printable, and at most EXCERPT_CHARS characters of it."""
    cut = text if len(text) <= EXCERPT_CHARS else text[: EXCERPT_CHARS - 3] + "..."
    return "'" + "".join(char if char.isprintable() else "?" for char in cut) + "'"


def checked(model: type[_Model], body: Mapping[str, Any], path: str = "") -> _Model:
    """Make a model of a JSON object that stands at `path` of the client's message ("" is the message itself).

    Raises:
        EventError: a key is missing, or its value has a wrong type or cannot be honoured.
    """
    try:
        return model.model_validate(body)
    except pydantic.ValidationError as exc:
        first = exc.errors(include_url=False)[0]
    raise _worded(first, ".".join([*([path] if path else []), *map(str, first["loc"])]))


def _worded(error: Any, param: str) -> EventError:
    kind = error["type"]
    if kind == "missing":
        return missing(param)
    if kind in _EXPECTED:
        return wrong_type(param, _EXPECTED[kind], error["input"])
    if kind in _BOUNDS:
        key, text = _BOUNDS[kind]
        bound = error["ctx"][key]
        return bad_value(param, text.format(f"{bound:g}" if isinstance(bound, float) else bound))
    if kind == "value_error":
        return bad_value(param, str(error["ctx"]["error"]))
    return bad_value(param, "is not acceptable")
