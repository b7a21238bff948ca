"""The session object as clients read it, nested (GA) or flat (beta); specs/realtime.md 2.2, 2.3.

The rule: the hard rules of 2.2, of which each broken one has silenced a client: the GA object has `type` and is nested, formats are of
three types, PCM is at 24000 Hz unless this client asked for another rate, the voice is a plain string. Thread: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from protocols.realtime.dialect import BETA_TEMPERATURE, Dialect
from protocols.realtime.formats import PCM_RATE, AudioFormat, echo_beta, echo_ga
from protocols.realtime.session_config import SessionConfig

EXTENSION_VERSION = 1  # x_duplex.protocol
SPEED = 1.0  # the clock of the model is fixed


def describe(
    config: SessionConfig, dialect: Dialect, *, session_id: str, expires_at: int, x_duplex: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the session object.

    Args:
        expires_at: Unix seconds at which the call ends at the latest.
        x_duplex: the call's own state; version, dialect, voice and what the formats cannot say are added here.
    """
    shape = _ga(config) if dialect is Dialect.GA else _beta(config)
    identity = {"object": "realtime.session", "id": session_id, "model": config.model, "expires_at": expires_at}
    head = {"type": "realtime", **identity} if dialect is Dialect.GA else identity
    extras = {"protocol": EXTENSION_VERSION, "dialect": dialect.value, "voice": config.resolved_voice, **x_duplex}
    return {**head, **shape, "x_duplex": {**extras, **_unsaid(config.input_format, dialect)}}


def _ga(config: SessionConfig) -> dict[str, Any]:
    detection = config.detection_in(Dialect.GA)
    return {
        "output_modalities": list(config.output_modalities),
        **_shared(config),
        "max_output_tokens": _limit(config),
        "truncation": config.truncation,
        "prompt": config.prompt,
        "include": config.include,
        **({} if config.temperature is None else {"temperature": config.temperature}),
        "audio": {
            "input": {
                "format": echo_ga(config.input_format),
                "transcription": None,
                "noise_reduction": config.noise_reduction,
                "turn_detection": None if detection is None else detection.echo(),
            },
            "output": {"format": echo_ga(config.output_format), "voice": config.voice, "speed": SPEED},
        },
    }


def _beta(config: SessionConfig) -> dict[str, Any]:
    detection = config.detection_in(Dialect.BETA)
    return {
        "modalities": ["audio", "text"] if "audio" in config.output_modalities else ["text"],
        **_shared(config),
        "voice": config.voice,
        "input_audio_format": echo_beta(config.input_format),
        "output_audio_format": echo_beta(config.output_format),
        "input_audio_transcription": None,
        "input_audio_noise_reduction": config.noise_reduction,
        "turn_detection": None if detection is None else detection.echo(),
        "temperature": BETA_TEMPERATURE if config.temperature is None else config.temperature,
        "max_response_output_tokens": _limit(config),
        "speed": SPEED,
        **{name: value for name, value in (("include", config.include), ("prompt", config.prompt)) if value is not None},
    }


def _shared(config: SessionConfig) -> dict[str, Any]:
    optional = {"parallel_tool_calls": config.parallel_tool_calls, "reasoning": config.reasoning}
    return {
        "instructions": config.default_instructions if config.instructions is None else config.instructions,
        "tools": list(config.tools),
        "tool_choice": config.tool_choice,
        "tracing": config.tracing,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _limit(config: SessionConfig) -> int | str:
    return "inf" if config.max_output_tokens is None else config.max_output_tokens


def _unsaid(fmt: AudioFormat, dialect: Dialect) -> dict[str, Any]:
    """What is in effect and has no place in the format's echo (2.6)."""
    unsaid: dict[str, Any] = {}
    if fmt.kind == "pcm" and fmt.encoding == "f32":
        unsaid["input_encoding"] = "pcm_f32le"
    if fmt.kind == "pcm" and fmt.rate != PCM_RATE and dialect is Dialect.BETA:
        unsaid["input_rate"] = fmt.rate
    return unsaid
