from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from protocols.realtime.fault import EventError
from protocols.realtime.values import Value

ROOT = Value({"text": "a", "whole": 3, "part": 2.7, "yes": True, "none": None, "list": [1, "x"], "body": {"inner": 5}}, "session")


def test_paths_grow_with_the_keys() -> None:
    assert ROOT["body"]["inner"] == Value(5, "session.body.inner")
    assert Value({"a": 1}, "")["a"].path == "a"
    assert [value.path for value in ROOT["list"].items() or ()] == ["session.list.0", "session.list.1"]


def test_null_is_present_but_not_given() -> None:
    assert ROOT["none"].is_present
    assert not ROOT["none"].is_given
    assert not ROOT["absent"].is_present
    assert not ROOT["absent"].is_given
    assert not ROOT["text"]["below"].is_present
    assert ROOT["text"].is_given


def test_an_alias_counts_only_where_the_key_is_absent() -> None:
    assert ROOT["absent"].or_else(ROOT["whole"]).value == 3
    assert ROOT["text"].or_else(ROOT["whole"]).value == "a"
    assert ROOT["none"].or_else(ROOT["whole"]).value is None


@pytest.mark.parametrize("key", ["absent", "none"])
def test_nothing_reads_as_none(key: str) -> None:
    value = ROOT[key]
    assert value.object() is value
    assert value.unknown(()) == []
    readings = [value.text(), value.choice(("a",)), value.boolean(), value.number(), value.integer(0), value.floored(0), value.items()]
    assert readings == [None] * 7


def test_readings() -> None:
    assert ROOT["text"].text() == "a"
    assert ROOT["text"].choice(("a", "b")) == "a"
    assert ROOT["yes"].boolean() is True
    assert ROOT["part"].number(0, 3) == 2.7
    assert ROOT["whole"].integer(3, 3) == 3
    assert ROOT["part"].floored(2, 2) == 2
    assert ROOT["whole"].floored(0) == 3
    assert ROOT["body"].object().value == {"inner": 5}
    assert ROOT["body"].unknown(("other",)) == ["session.body.inner"]


@pytest.mark.parametrize(
    ("key", "read", "code"),
    [
        ("whole", lambda value: value.text(), "invalid_type"),
        ("whole", lambda value: value.choice(("a",)), "invalid_type"),
        ("text", lambda value: value.choice(iter(("b", "c"))), "invalid_value"),
        ("whole", lambda value: value.boolean(), "invalid_type"),
        ("yes", lambda value: value.number(), "invalid_type"),
        ("text", lambda value: value.number(), "invalid_type"),
        ("whole", lambda value: value.number(4), "invalid_value"),
        ("whole", lambda value: value.number(0, 2), "invalid_value"),
        ("part", lambda value: value.integer(0), "invalid_type"),
        ("yes", lambda value: value.integer(0), "invalid_type"),
        ("whole", lambda value: value.integer(4), "invalid_value"),
        ("part", lambda value: value.floored(3), "invalid_value"),
        ("text", lambda value: value.floored(3), "invalid_type"),
        ("text", lambda value: value.items(), "invalid_type"),
        ("list", lambda value: value.object(), "invalid_type"),
    ],
)
def test_what_cannot_be_read_is_an_error_at_its_path(key: str, read: Callable[[Value], Any], code: str) -> None:
    with pytest.raises(EventError) as caught:
        read(ROOT[key])
    assert (caught.value.code, caught.value.param) == (code, f"session.{key}")


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_numbers_are_finite(number: float) -> None:
    for read in (lambda value: value.number(), lambda value: value.floored(0)):
        with pytest.raises(EventError, match="finite"):
            read(Value(number, "x"))
