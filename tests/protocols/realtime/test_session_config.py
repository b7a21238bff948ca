from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from protocols.events import SamplingOptions
from protocols.realtime.dialect import Dialect
from protocols.realtime.formats import AudioFormat
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.session_config import SessionConfig, default_config
from protocols.realtime.turn_detection import TurnDetection
from tests.protocols.realtime.catalogues import catalogue


def fresh(**options: Any) -> SessionConfig:
    return default_config(catalogue(), RealtimeOptions(**options), "gpt-realtime")


def with_duplex(config: SessionConfig, **changes: Any) -> SessionConfig:
    return dataclasses.replace(config, duplex=dataclasses.replace(config.duplex, **changes))


def test_a_fresh_session() -> None:
    config = fresh()
    assert (config.model, config.instructions, config.default_instructions) == ("gpt-realtime", None, "")
    assert (config.voice, config.resolved_voice, config.min_overlap_ms) == ("NATF2", "NATF2", 900)
    assert config.input_format == config.output_format == AudioFormat("pcm")
    assert config == fresh()


def test_a_model_without_voices_still_has_a_string_for_one() -> None:
    config = default_config(catalogue(voices=(), default_voice=None), RealtimeOptions(), None)
    assert (config.model, config.voice, config.resolved_voice) == ("personaplex-7b", "default", None)


def test_the_default_persona_is_shown_only_on_request() -> None:
    assert fresh(disclose_default_persona=True).default_instructions == "You are a teacher."


@pytest.mark.parametrize(
    ("detection", "gate", "is_gated"),
    [
        (TurnDetection(), None, False),
        (TurnDetection(create_response=False), None, True),
        (None, None, False),
        (TurnDetection(create_response=False), "live", False),
        (None, "gated", True),
        (TurnDetection(), "gated", True),
    ],
)
def test_the_gate(detection: TurnDetection | None, gate: str | None, is_gated: bool) -> None:
    config = with_duplex(dataclasses.replace(fresh(), turn_detection=detection), output_gate=gate)
    assert config.is_gated is is_gated


@pytest.mark.parametrize(
    ("temperature", "audio", "text"), [(0.8, 0.8, 0.7), (0.0, 0.1, 0.0875), (2.0, 1.2, 1.05)]
)
def test_a_temperature_is_applied_where_the_operator_wants_it(temperature: float, audio: float, text: float) -> None:
    assert dataclasses.replace(fresh(), temperature=temperature).sampling == SamplingOptions()
    sampling = dataclasses.replace(fresh(temperature="apply"), temperature=temperature).sampling
    assert sampling.audio_temperature == pytest.approx(audio)
    assert sampling.text_temperature == pytest.approx(text)


def test_x_duplex_beats_the_temperature() -> None:
    asked = SamplingOptions(audio_temperature=0.3, text_temperature=0.4, text_seed=1)
    config = with_duplex(dataclasses.replace(fresh(temperature="apply"), temperature=1.0), sampling=asked)
    assert config.sampling == asked
    assert with_duplex(fresh(temperature="apply"), sampling=asked).sampling == asked


def test_beta_clients_know_the_default_as_server_vad() -> None:
    config = fresh()
    assert config.detection_in(Dialect.GA) == TurnDetection()
    assert config.detection_in(Dialect.BETA) == TurnDetection(type="server_vad")
    chosen = dataclasses.replace(config, is_native_by_default=False)
    assert chosen.detection_in(Dialect.BETA) == TurnDetection()
    assert dataclasses.replace(config, turn_detection=None).detection_in(Dialect.BETA) is None
