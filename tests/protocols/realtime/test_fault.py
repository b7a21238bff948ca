from __future__ import annotations

from typing import Annotated, Any, Literal

import pydantic
import pytest
from pydantic import AfterValidator, Field

from protocols.realtime import fault
from protocols.realtime.fault import EXCERPT_CHARS, EventError, checked


def _even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


class _Inner(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    name: str = Field(default="x", min_length=1, max_length=3)


class _Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, allow_inf_nan=False)
    text: str
    count: int = Field(default=1, gt=0, le=5)
    level: float = Field(default=0.0, ge=-0.5, lt=1)
    even: Annotated[int, AfterValidator(_even)] = 2
    is_on: bool = False
    way: Literal["a", "b"] = "a"
    inner: _Inner = _Inner()
    several: tuple[_Inner, ...] = Field(default=(), strict=False)
    table: dict[str, Any] = {}
    rows: list[int] = []


@pytest.mark.parametrize(
    ("body", "code", "param", "words"),
    [
        ({}, "missing_required_parameter", "text", "Missing required parameter: 'text'."),
        ({"text": 7}, "invalid_type", "text", "expected a string, but got a number"),
        ({"text": None}, "invalid_type", "text", "but got null"),
        ({"text": "", "count": "1"}, "invalid_type", "count", "expected a whole number, but got a string"),
        ({"text": "", "count": 1.0}, "invalid_type", "count", "expected a whole number"),
        ({"text": "", "count": True}, "invalid_type", "count", "but got a boolean"),
        ({"text": "", "level": []}, "invalid_type", "level", "expected a number, but got a list"),
        ({"text": "", "is_on": 1}, "invalid_type", "is_on", "expected true or false"),
        ({"text": "", "inner": 3}, "invalid_type", "inner", "expected an object"),
        ({"text": "", "table": []}, "invalid_type", "table", "expected an object"),
        ({"text": "", "rows": {}}, "invalid_type", "rows", "expected a list, but got an object"),
        ({"text": "", "several": "x"}, "invalid_type", "several", "expected a list"),
        ({"text": "", "several": [{}, {"name": 4}]}, "invalid_type", "several.1.name", "expected a string"),
        ({"text": "", "count": 0}, "invalid_value", "count", "must be more than 0"),
        ({"text": "", "count": 6}, "invalid_value", "count", "must be 5 or less"),
        ({"text": "", "level": -0.6}, "invalid_value", "level", "must be -0.5 or more"),
        ({"text": "", "level": 1}, "invalid_value", "level", "must be less than 1"),
        ({"text": "", "level": float("inf")}, "invalid_value", "level", "is not acceptable"),
        ({"text": "", "even": 3}, "invalid_value", "even", "must be even"),
        ({"text": "", "way": "c"}, "invalid_value", "way", "must be 'a' or 'b'"),
        ({"text": "", "inner": {"name": ""}}, "invalid_value", "inner.name", "1 or more characters"),
        ({"text": "", "inner": {"name": "abcd"}}, "invalid_value", "inner.name", "at most 3 characters"),
    ],
)
def test_what_is_wrong_becomes_one_sentence_with_its_path(body: dict[str, Any], code: str, param: str, words: str) -> None:
    with pytest.raises(EventError) as caught:
        checked(_Model, body)
    error = caught.value
    assert (error.code, error.param, error.event_id, error.type) == (code, param, None, "invalid_request_error")
    assert words in error.message
    assert error.message.endswith(".")
    assert "pydantic" not in error.message
    assert "http" not in error.message
    assert str(error) == f"{code}: {error.message}"


def test_the_place_of_the_object_is_part_of_the_path() -> None:
    with pytest.raises(EventError) as caught:
        checked(_Inner, {"name": 1}, "session.voice")
    assert caught.value.param == "session.voice.name"


def test_what_is_right_becomes_a_model() -> None:
    assert checked(_Inner, {"name": "ab", "more": 1}).name == "ab"


def test_an_excerpt_is_short_and_printable() -> None:
    assert fault.excerpt("a") == "'a'"
    assert fault.excerpt("x" * EXCERPT_CHARS) == f"'{'x' * EXCERPT_CHARS}'"
    assert fault.excerpt("x" * 1000) == f"'{'x' * (EXCERPT_CHARS - 3)}...'"
    assert fault.excerpt("a\n\u202eb\0") == "'a??b?'"


def test_every_json_type_has_a_name() -> None:
    values = [True, 1, 1.5, "x", [], {}, None, object()]
    assert [fault.json_type(value) for value in values] == [
        "a boolean", "a number", "a number", "a string", "a list", "an object", "null", "something else",
    ]  # fmt: skip
