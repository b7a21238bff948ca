from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from protocols.realtime.dialect import Dialect
from protocols.realtime.formats import AudioFormat
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.session_config import SessionConfig, default_config
from protocols.realtime.session_object import describe
from protocols.realtime.turn_detection import TurnDetection
from tests.protocols.realtime.catalogues import catalogue

FRESH = default_config(catalogue(), RealtimeOptions(), None)
STATE = {"state": "idle", "epoch": 0, "ignored": [], "pending": []}


def shown(dialect: Dialect, config: SessionConfig = FRESH, **changes: Any) -> dict[str, Any]:
    config = dataclasses.replace(config, **changes)
    return describe(config, dialect, session_id="sess_1", expires_at=1_790_000_000, x_duplex=STATE)


def test_the_ga_object_is_that_of_the_specification() -> None:
    assert shown(Dialect.GA) == {
        "type": "realtime",
        "object": "realtime.session",
        "id": "sess_1",
        "model": "personaplex-7b",
        "expires_at": 1_790_000_000,
        "output_modalities": ["audio"],
        "instructions": "",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "tracing": None,
        "truncation": "disabled",
        "prompt": None,
        "include": None,
        "audio": {
            "input": {
                "format": {"type": "audio/pcm", "rate": 24_000},
                "transcription": None,
                "noise_reduction": None,
                "turn_detection": {
                    "type": "semantic_vad",
                    "eagerness": "auto",
                    "create_response": True,
                    "interrupt_response": True,
                },
            },
            "output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "NATF2", "speed": 1.0},
        },
        "x_duplex": {"protocol": 1, "dialect": "ga", "voice": "NATF2", **STATE},
    }


def test_the_beta_object_is_that_of_the_specification() -> None:
    assert shown(Dialect.BETA) == {
        "object": "realtime.session",
        "id": "sess_1",
        "model": "personaplex-7b",
        "expires_at": 1_790_000_000,
        "modalities": ["audio", "text"],
        "instructions": "",
        "voice": "NATF2",
        "input_audio_format": "pcm16",
        "output_audio_format": "pcm16",
        "input_audio_transcription": None,
        "input_audio_noise_reduction": None,
        "turn_detection": {
            "type": "server_vad",
            "threshold": 0.5,
            "prefix_padding_ms": 300,
            "silence_duration_ms": 500,
            "create_response": True,
            "interrupt_response": True,
        },
        "tools": [],
        "tool_choice": "auto",
        "temperature": 0.8,
        "max_response_output_tokens": "inf",
        "speed": 1.0,
        "tracing": None,
        "x_duplex": {"protocol": 1, "dialect": "beta", "voice": "NATF2", **STATE},
    }


def test_what_was_set_is_told_back() -> None:
    changes: dict[str, Any] = {
        "instructions": "You are Ada.",
        "output_modalities": ("text",),
        "input_format": AudioFormat("pcmu", 8000),
        "output_format": AudioFormat("pcma", 8000),
        "voice": "marin",
        "turn_detection": None,
        "max_output_tokens": 20,
        "temperature": 0.6,
        "noise_reduction": {"type": "near_field"},
        "tools": ({"type": "function"},),
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "tracing": "auto",
        "truncation": "auto",
        "include": ["a"],
        "prompt": {"id": "p"},
        "reasoning": {"effort": "low"},
    }
    ga, beta = shown(Dialect.GA, **changes), shown(Dialect.BETA, **changes)
    same = {
        "instructions": "You are Ada.", "tools": [{"type": "function"}], "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False, "tracing": "auto", "include": ["a"], "prompt": {"id": "p"}, "reasoning": {"effort": "low"},
        "temperature": 0.6,
    }  # fmt: skip
    for body in (ga, beta):
        assert {key: body[key] for key in same} == same
    assert (ga["output_modalities"], ga["max_output_tokens"], ga["truncation"]) == (["text"], 20, "auto")
    assert ga["audio"] == {
        "input": {
            "format": {"type": "audio/pcmu"},
            "transcription": None,
            "noise_reduction": {"type": "near_field"},
            "turn_detection": None,
        },
        "output": {"format": {"type": "audio/pcma"}, "voice": "marin", "speed": 1.0},
    }
    assert (beta["modalities"], beta["max_response_output_tokens"], beta["voice"]) == (["text"], 20, "marin")
    assert (beta["input_audio_format"], beta["output_audio_format"], beta["turn_detection"]) == ("g711_ulaw", "g711_alaw", None)
    assert beta["input_audio_noise_reduction"] == {"type": "near_field"}


def test_no_persona_is_shown_as_none_and_the_server_s_only_on_request() -> None:
    open_config = default_config(catalogue(), RealtimeOptions(disclose_default_persona=True), None)
    assert shown(Dialect.GA, open_config)["instructions"] == "You are a teacher."
    assert shown(Dialect.GA, open_config, instructions="")["instructions"] == ""


@pytest.mark.parametrize(
    ("fmt", "dialect", "extras"),
    [
        (AudioFormat("pcm", 24_000, "f32"), Dialect.GA, {"input_encoding": "pcm_f32le"}),
        (AudioFormat("pcm", 16_000, "f32"), Dialect.BETA, {"input_encoding": "pcm_f32le", "input_rate": 16_000}),
        (AudioFormat("pcm", 16_000), Dialect.BETA, {"input_rate": 16_000}),
        (AudioFormat("pcm", 16_000), Dialect.GA, {}),
        (AudioFormat("pcmu", 8000), Dialect.BETA, {}),
    ],
)
def test_what_the_echo_of_a_format_cannot_say_stands_in_x_duplex(fmt: AudioFormat, dialect: Dialect, extras: dict[str, Any]) -> None:
    x_duplex = shown(dialect, input_format=fmt)["x_duplex"]
    assert {key: value for key, value in x_duplex.items() if key.startswith("input_")} == extras


def test_server_vad_of_a_beta_client_is_its_own() -> None:
    own = shown(Dialect.BETA, turn_detection=TurnDetection(eagerness="low"), is_native_by_default=False)
    assert own["turn_detection"]["type"] == "semantic_vad"
