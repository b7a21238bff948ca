"""The effective settings of a Realtime session as one frozen value (specs/realtime.md 2.2, 2.5).

`settings` makes the next value from a session.update; the wire shape is `session_object`'s. Fields that are only told back are kept as they
came. The rule: two equal values mean the same session. Thread: any.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from protocols.events import SamplingOptions
from protocols.realtime.dialect import Dialect
from protocols.realtime.duplex import DuplexConfig, default_duplex
from protocols.realtime.formats import DEFAULT_FORMAT, AudioFormat
from protocols.realtime.objects import Modality
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.turn_detection import DEFAULT_DETECTION, TurnDetection
from protocols.realtime.voices import NO_VOICE, Catalogue

TEXT_PER_AUDIO_TEMPERATURE = 0.875  # "text temperature = 0.875 x that" (2.5)
MIN_TEMPERATURE, MAX_TEMPERATURE = 0.1, 1.2  # "audio temperature = clamp(value, 0.1, 1.2)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """Everything that a session.update can set."""

    model: str  # told back: the name given at connect
    instructions: str | None = None  # None: the server's default persona; "": none
    default_instructions: str = ""  # shown in place of None: the server's default persona, where it may be disclosed
    output_modalities: tuple[Modality, ...] = ("audio",)  # ("audio",) or ("text",)
    input_format: AudioFormat = DEFAULT_FORMAT
    output_format: AudioFormat = DEFAULT_FORMAT
    voice: str  # as the client wrote it
    resolved_voice: str | None  # installed; None where the model takes none
    turn_detection: TurnDetection | None = DEFAULT_DETECTION  # None: switched off
    is_native_by_default: bool = True  # the client never named a type: even a server_vad of the beta dialect follows the model (2.3)
    min_overlap_ms: int  # of user speech over the model's that is a barge-in, by eagerness or x_duplex
    max_output_tokens: int | None = None  # of a response; None is "inf"
    temperature: float | None = None
    applies_temperature: bool = False  # the operator's policy
    idle_timeout_s: float | None = None  # the client's own, at most the server's; None is the server's
    noise_reduction: dict[str, Any] | None = None  # this and all below: told back, without effect
    tools: tuple[dict[str, Any], ...] = ()
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool | None = None
    tracing: Any = None
    truncation: Any = "disabled"
    include: Any = None
    prompt: Any = None
    reasoning: Any = None
    duplex: DuplexConfig

    @property
    def is_gated(self) -> bool:
        """The model is held silent until a response is asked for (4.5.4)."""
        if self.duplex.output_gate is not None:
            return self.duplex.output_gate == "gated"
        return self.turn_detection is not None and not self.turn_detection.create_response

    @property
    def sampling(self) -> SamplingOptions:
        """What x_duplex asks for, with the client's temperature where that is applied."""
        asked = self.duplex.sampling
        if self.temperature is None or not self.applies_temperature:
            return asked
        audio = min(MAX_TEMPERATURE, max(MIN_TEMPERATURE, self.temperature))
        return dataclasses.replace(
            asked,
            audio_temperature=audio if asked.audio_temperature is None else asked.audio_temperature,
            text_temperature=audio * TEXT_PER_AUDIO_TEMPERATURE if asked.text_temperature is None else asked.text_temperature,
        )

    def detection_in(self, dialect: Dialect) -> TurnDetection | None:
        """Return the turn detection as a client of this dialect knows it.

        "In beta the default turn_detection is server_vad in name, executed with the same model-native policy" (2.3).
        """
        if dialect is Dialect.BETA and self.is_native_by_default and self.turn_detection == DEFAULT_DETECTION:
            return TurnDetection(type="server_vad")
        return self.turn_detection


def default_config(catalogue: Catalogue, options: RealtimeOptions, model_echo: str | None) -> SessionConfig:
    """Return the settings of a fresh connection; `model_echo` is the model's name as the client wrote it, None is the served one."""
    return SessionConfig(
        model=model_echo or catalogue.model,
        default_instructions=catalogue.default_persona if options.disclose_default_persona else "",
        voice=catalogue.default_voice or NO_VOICE,
        resolved_voice=catalogue.default_voice,
        min_overlap_ms=options.min_overlap_ms("auto"),
        applies_temperature=options.temperature == "apply",
        duplex=default_duplex(options),
    )
