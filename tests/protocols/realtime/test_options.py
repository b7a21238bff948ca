from __future__ import annotations

import re

import pydantic
import pytest

from protocols.realtime.options import VOICE_ALIASES, RealtimeOptions

# specs/realtime.md Appendix A
DEFAULTS = {
    "strict_model": False, "max_session_s": 3600, "idle_timeout_s": 300, "max_messages_per_s": 500, "max_protocol_errors": 100,
    "max_persona_tokens": 1500, "max_items": 1000, "max_item_bytes": 256 * 1024, "input_jitter_ms": 40, "input_grace_ms": 40,
    "input_max_ms": 120_000, "park_after_ms": 10_000, "open_rms_db": -45, "close_rms_db": -50, "preroll_ms": 160,
    "close_silence_ms": 800, "max_response_ms": 120_000, "response_start_timeout_ms": 4000, "nudge": True,
    "cancel_hold_ms": 2000, "lead_ms": 0, "coalesce_frames": 1, "persona_change": "defer", "carry_history": True,
    "truncate_overrun": "clamp", "temperature": "ignore", "send_rate_limits": True, "trim_leading_space": True, "max_segment_s": 60,
    "flat_means_beta": False, "disclose_default_persona": False, "model_aliases": (),
}  # fmt: skip


def test_the_defaults_are_those_of_the_specification() -> None:
    options = RealtimeOptions()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS


def test_every_key_says_what_it_is_in_its_unit() -> None:
    units = {"_ms": "ms", "_s": "second", "_db": "dBFS", "_bytes": "bytes", "_tokens": "tokens"}
    for name, field in RealtimeOptions.model_fields.items():
        assert field.description, name
        for suffix, unit in units.items():
            if name.endswith(suffix) and not name.startswith("overlap_"):
                assert re.search(unit, field.description), name


def test_every_openai_voice_has_an_alias() -> None:
    assert set(VOICE_ALIASES) == {"alloy", "ash", "ballad", "coral", "echo", "sage", "shimmer", "verse", "marin", "cedar"}


@pytest.mark.parametrize(
    "values",
    [
        {"unknown": 1},
        {"close_silence_ms": 239},
        {"open_rms_db": -19},
        {"coalesce_frames": 0},
        {"persona_change": "later"},
        {"max_session_s": float("inf")},
        {"close_rms_db": -40},
    ],
)
def test_a_bad_value_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(pydantic.ValidationError):
        RealtimeOptions(**values)  # type: ignore[arg-type]


def test_options_come_from_json() -> None:
    options = RealtimeOptions.model_validate_json('{"model_aliases":["a"],"voice_aliases":{"alloy":"x"},"open_rms_db":-40}')
    assert (options.model_aliases, options.voice_aliases, options.open_rms_db) == (("a",), {"alloy": "x"}, -40.0)


def test_eagerness_decides_how_much_overlap_is_a_barge_in() -> None:
    options = RealtimeOptions(overlap_high_ms=300)
    assert [options.min_overlap_ms(eagerness) for eagerness in ("low", "medium", "high", "auto")] == [1600, 900, 300, 900]
