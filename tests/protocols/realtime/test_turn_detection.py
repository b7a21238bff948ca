from __future__ import annotations

from typing import Any

import pytest

from protocols.realtime.fault import EventError
from protocols.realtime.turn_detection import TurnDetection, merge
from protocols.realtime.values import Value

PATH = "session.audio.input.turn_detection"
SERVER = TurnDetection(type="server_vad", threshold=0.7, silence_duration_ms=900)
SEMANTIC = TurnDetection(eagerness="low", create_response=False)


@pytest.mark.parametrize("off", [None, "none", {"type": "none"}])
@pytest.mark.parametrize("current", [None, SERVER, SEMANTIC])
def test_it_can_be_switched_off(current: TurnDetection | None, off: object) -> None:
    merged = merge(current, Value(off, PATH))
    assert (merged.detection, merged.has_type, merged.ignored) == (None, True, ())


@pytest.mark.parametrize(
    ("current", "given", "detection", "has_type"),
    [
        (SERVER, {}, SERVER, False),
        (SERVER, {"threshold": 0.9}, TurnDetection(type="server_vad", threshold=0.9, silence_duration_ms=900), False),
        (SERVER, {"type": "server_vad"}, SERVER, True),
        (SERVER, {"type": None, "threshold": None, "eagerness": None}, SERVER, False),
        (SERVER, {"type": "semantic_vad", "eagerness": "high"}, TurnDetection(eagerness="high"), True),
        (SEMANTIC, {"interrupt_response": False}, TurnDetection(eagerness="low", create_response=False, interrupt_response=False), False),
        (SEMANTIC, {"type": "server_vad", "silence_duration_ms": 700}, TurnDetection(type="server_vad", silence_duration_ms=700), True),
        (None, {"threshold": 0.2}, TurnDetection(type="server_vad", threshold=0.2), False),
        (None, {"type": "semantic_vad"}, TurnDetection(), True),
        (SERVER, {"threshold": 7}, TurnDetection(type="server_vad", threshold=1.0, silence_duration_ms=900), False),
        (SERVER, {"threshold": -1}, TurnDetection(type="server_vad", threshold=0.0, silence_duration_ms=900), False),
        (SERVER, {"prefix_padding_ms": 0.9, "silence_duration_ms": 100.5},
         TurnDetection(type="server_vad", threshold=0.7, prefix_padding_ms=0, silence_duration_ms=100), False),
    ],
)  # fmt: skip
def test_keys_merge_and_another_type_starts_anew(
    current: TurnDetection | None, given: dict[str, Any], detection: TurnDetection, has_type: bool
) -> None:
    merged = merge(current, Value(given, PATH))
    assert (merged.detection, merged.has_type) == (detection, has_type)


def test_an_idle_timeout_can_be_taken_back() -> None:
    detection = merge(SERVER, Value({"idle_timeout_ms": 6000}, PATH)).detection
    assert detection is not None
    assert detection.idle_timeout_ms == 6000
    kept = merge(detection, Value({"threshold": 0.5}, PATH)).detection
    gone = merge(detection, Value({"idle_timeout_ms": None}, PATH)).detection
    assert (kept and kept.idle_timeout_ms, gone and gone.idle_timeout_ms) == (6000, None)


@pytest.mark.parametrize(
    ("current", "given", "ignored"),
    [
        (SERVER, {"threshold": 0.5, "idle_timeout_ms": 5000, "eagerness": "low", "foo": 1}, ("eagerness", "idle_timeout_ms", "foo")),
        (SEMANTIC, {"threshold": 0.5, "silence_duration_ms": 500, "prefix_padding_ms": 100}, ("silence_duration_ms", "threshold")),
        (SEMANTIC, {"eagerness": "high", "idle_timeout_ms": None}, ()),
    ],
)
def test_what_has_no_effect_is_flagged(current: TurnDetection, given: dict[str, Any], ignored: tuple[str, ...]) -> None:
    assert merge(current, Value(given, PATH)).ignored == tuple(f"{PATH}.{name}" for name in ignored)


@pytest.mark.parametrize(
    ("given", "code", "key"),
    [
        ("server_vad", "invalid_type", None),
        ([], "invalid_type", None),
        ({"type": "energy"}, "invalid_value", "type"),
        ({"type": 3}, "invalid_type", "type"),
        ({"threshold": "0.5"}, "invalid_type", "threshold"),
        ({"prefix_padding_ms": 5001}, "invalid_value", "prefix_padding_ms"),
        ({"prefix_padding_ms": -1}, "invalid_value", "prefix_padding_ms"),
        ({"silence_duration_ms": 99.9}, "invalid_value", "silence_duration_ms"),
        ({"silence_duration_ms": 10_001}, "invalid_value", "silence_duration_ms"),
        ({"eagerness": "very"}, "invalid_value", "eagerness"),
        ({"create_response": 1}, "invalid_type", "create_response"),
        ({"interrupt_response": "no"}, "invalid_type", "interrupt_response"),
        ({"idle_timeout_ms": 4999}, "invalid_value", "idle_timeout_ms"),
        ({"idle_timeout_ms": 30_001}, "invalid_value", "idle_timeout_ms"),
    ],
)
def test_a_bad_value_is_refused_at_its_path(given: object, code: str, key: str | None) -> None:
    with pytest.raises(EventError) as caught:
        merge(SERVER, Value(given, PATH))
    assert (caught.value.code, caught.value.param) == (code, PATH if key is None else f"{PATH}.{key}")


def test_the_echo_has_the_fields_of_the_type() -> None:
    assert TurnDetection().echo() == {
        "type": "semantic_vad", "eagerness": "auto", "create_response": True, "interrupt_response": True,
    }  # fmt: skip
    server = {
        "type": "server_vad", "threshold": 0.5, "prefix_padding_ms": 300, "silence_duration_ms": 500, "create_response": True,
        "interrupt_response": True,
    }  # fmt: skip
    assert TurnDetection(type="server_vad").echo() == server
    assert TurnDetection(type="server_vad", idle_timeout_ms=5000).echo() == {**server, "idle_timeout_ms": 5000}
