from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from protocols.events import MAX_SEED, SamplingOptions
from protocols.realtime.duplex import EVENT_NAMES, DuplexConfig, Pacing, default_duplex, merge
from protocols.realtime.fault import EventError
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.values import Value

OPTIONS = RealtimeOptions(close_silence_ms=700, lead_ms=80, coalesce_frames=2, persona_change="restart")
PATH = "session.x_duplex"


def merged(given: object, current: DuplexConfig | None = None) -> tuple[DuplexConfig, list[str]]:
    return merge(current or default_duplex(OPTIONS), Value(given, PATH), OPTIONS)


def changed(given: object) -> dict[str, Any]:
    config, ignored = merged(given)
    assert not ignored
    default = default_duplex(OPTIONS)
    return {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if getattr(config, field.name) != getattr(default, field.name)
    }


def test_the_defaults_are_the_operator_s() -> None:
    config = default_duplex(OPTIONS)
    assert (config.close_silence_ms, config.preroll_ms, config.persona_change, config.layout) == (700, 160, "restart", "turns")
    assert config.pacing == Pacing(lead_ms=80, coalesce_frames=2)
    assert (config.events, config.sampling, config.output_gate) == (frozenset(), SamplingOptions(), None)


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({}, {}),
        ({"events": None, "timing": None, "segmentation": None, "resume": False}, {}),
        ({"events": ["listen", "frames", "listen"]}, {"events": frozenset({"listen", "frames"})}),
        ({"events": ["all"]}, {"events": frozenset(EVENT_NAMES)}),
        ({"timing": True}, {"timing": True}),
        ({"segmentation": {"open_rms_db": -40, "layout": "single"}}, {"open_rms_db": -40.0, "layout": "single"}),
        ({"overlap": {"min_overlap_ms": 500, "policy": "classic"}}, {"min_overlap_ms": 500, "overlap_policy": "classic"}),
        ({"pacing": {"lead_ms": 0}}, {"pacing": Pacing(lead_ms=0, coalesce_frames=2)}),
        (
            {"sampling": {"audio_temperature": 0, "text_top_k": 25, "seed": 7}},
            {"sampling": SamplingOptions(audio_temperature=0.0, text_topk=25, audio_seed=7, text_seed=7)},
        ),
        ({"output_gate": "gated", "persona_change": "reject"}, {"output_gate": "gated", "persona_change": "reject"}),
        ({"binary_audio": True, "playback": "ack"}, {"binary_audio": True, "playback": "ack"}),
    ],
)
def test_every_key_has_its_effect(given: dict[str, Any], fields: dict[str, Any]) -> None:
    assert changed(given) == fields


def test_a_key_that_is_absent_stays_and_a_section_is_replaced_whole() -> None:
    config, _ = merged({"timing": True, "segmentation": {"preroll_ms": 0, "layout": "fixed"}, "overlap": {"policy": "listen_only"}})
    config, _ = merged({"segmentation": {"close_silence_ms": 400}, "overlap": {"min_overlap_ms": 240}}, config)
    assert config.timing
    assert (config.preroll_ms, config.layout, config.close_silence_ms) == (160, "turns", 400)
    assert (config.overlap_policy, config.min_overlap_ms) == (None, 240)


def test_unknown_keys_are_flagged() -> None:
    config, ignored = merged({"foo": 1, "resume": True, "overlap": {"bar": 2}, "sampling": {"top_p": 0.5, "seed": 1}})
    assert config.sampling.text_seed == 1
    assert sorted(ignored) == [f"{PATH}.foo", f"{PATH}.overlap.bar", f"{PATH}.resume", f"{PATH}.sampling.top_p"]


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ([], ""),
        ({"events": "all"}, ".events"),
        ({"events": ["speech"]}, ".events.0"),
        ({"timing": 1}, ".timing"),
        ({"segmentation": []}, ".segmentation"),
        ({"segmentation": {"close_silence_ms": 239}}, ".segmentation.close_silence_ms"),
        ({"segmentation": {"close_silence_ms": 5001}}, ".segmentation.close_silence_ms"),
        ({"segmentation": {"close_silence_ms": 800.0}}, ".segmentation.close_silence_ms"),
        ({"segmentation": {"open_rms_db": -71}}, ".segmentation.open_rms_db"),
        ({"segmentation": {"preroll_ms": 481}}, ".segmentation.preroll_ms"),
        ({"segmentation": {"max_response_ms": 9999}}, ".segmentation.max_response_ms"),
        ({"segmentation": {"layout": "poem"}}, ".segmentation.layout"),
        ({"overlap": {"policy": "loud"}}, ".overlap.policy"),
        ({"overlap": {"min_overlap_ms": "900"}}, ".overlap.min_overlap_ms"),
        ({"pacing": {"lead_ms": 1001}}, ".pacing.lead_ms"),
        ({"pacing": {"coalesce_frames": 6}}, ".pacing.coalesce_frames"),
        ({"sampling": {"audio_temperature": -1}}, ".sampling.audio_temperature"),
        ({"sampling": {"seed": MAX_SEED + 1}}, ".sampling.seed"),
        ({"output_gate": "open"}, ".output_gate"),
        ({"persona_change": True}, ".persona_change"),
        ({"binary_audio": "yes"}, ".binary_audio"),
        ({"playback": "maybe"}, ".playback"),
    ],
)
def test_every_bad_value_is_an_invalid_value(given: object, key: str) -> None:
    with pytest.raises(EventError) as caught:
        merged(given)
    assert (caught.value.code, caught.value.param) == ("invalid_value", PATH + key)
