"""From a session.update to the next effective settings (specs/realtime.md 2.4, 2.5): every field, by all its names.

The steps are those of 2.4: take the nested GA key, or the flat alias where that is absent; check everything; merge. `apply_update` is a
function of values: nothing is applied unless all of it can be. What depends on the call, such as a voice that can no longer be changed, is
the caller's to judge. The rule: harmless settings without an effect are accepted and flagged, an error is only for what the client must
mend (0.2). Thread: any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from protocols.realtime import duplex, turn_detection
from protocols.realtime.client_events import session_of
from protocols.realtime.dialect import Dialect, decide_dialect
from protocols.realtime.duplex import DuplexConfig, Pacing
from protocols.realtime.fault import EventError, bad_value, missing, wrong_type
from protocols.realtime.formats import at_rate, parse_format
from protocols.realtime.options import Eagerness, RealtimeOptions
from protocols.realtime.response_options import read_limit, read_modalities, read_voice
from protocols.realtime.session_config import SessionConfig, default_config
from protocols.realtime.session_object import describe
from protocols.realtime.turn_detection import TurnDetection
from protocols.realtime.values import Value
from protocols.realtime.voices import Catalogue, resolve_voice

__all__ = [
    "Catalogue",
    "DuplexConfig",
    "Pacing",
    "SessionConfig",
    "TurnDetection",
    "Update",
    "apply_update",
    "decide_dialect",
    "default_config",
    "describe",
    "resolve_voice",
    "session_of",
]

MAX_TEMPERATURE = 2.0  # what a client may ask for; OpenAI's own limit lies below
MIN_SPEED, MAX_SPEED = 0.25, 1.5
MAX_IGNORED = 50  # flagged paths in one answer, each cut to
MAX_PATH_CHARS = 80
CHARS_PER_TOKEN = 32  # no tokeniser gets further with speech that can be read: longer instructions are not even counted

_GA_KEYS = frozenset((
    "type", "model", "instructions", "output_modalities", "audio", "max_output_tokens", "tools", "tool_choice", "parallel_tool_calls",
    "temperature", "tracing", "truncation", "include", "prompt", "reasoning", "x_duplex",
))  # fmt: skip
_FLAT_KEYS = frozenset((
    "modalities", "input_audio_format", "sample_rate_hz", "input_audio_transcription", "input_audio_noise_reduction", "turn_detection",
    "output_audio_format", "voice", "speed", "max_response_output_tokens", "ref_audio", "overlap_policy", "playback_commit_policy",
    "idle_timeout_s", "extra_body",
))  # fmt: skip
_ECHOED_BY_SERVERS = frozenset(("object", "id", "expires_at", "client_secret"))  # "clients echo back objects they received"
_INPUT_KEYS = ("format", "sample_rate_hz", "transcription", "noise_reduction", "turn_detection")
_OUTPUT_KEYS = ("format", "sample_rate_hz", "voice", "speed")


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """An accepted session.update."""

    config: SessionConfig
    ignored: tuple[str, ...]  # paths inside the session object that have no effect


def apply_update(
    config: SessionConfig, session: Mapping[str, Any], catalogue: Catalogue, options: RealtimeOptions, dialect: Dialect
) -> Update:
    """Merge a session object into the settings.

    Raises:
        EventError: something in it cannot be honoured; nothing is applied then.
    """
    update = _Update(config, session, catalogue, options, dialect)
    update.read()
    ignored = dict.fromkeys(path.removeprefix("session.")[:MAX_PATH_CHARS] for path in update.ignored)
    return Update(dataclasses.replace(config, **update.changes), tuple(ignored)[:MAX_IGNORED])


class _Update:
    """One session object while it is read: what changes, and what is flagged."""

    def __init__(
        self, config: SessionConfig, session: Mapping[str, Any], catalogue: Catalogue, options: RealtimeOptions, dialect: Dialect
    ) -> None:
        self.changes: dict[str, Any] = {}
        self.ignored: list[str] = []
        self._config = config
        self._catalogue = catalogue
        self._options = options
        self._dialect = dialect
        self._session = Value(session, "session")
        self._audio = self._session["audio"].object()
        self._input = self._audio["input"].object()
        self._output = self._audio["output"].object()

    def read(self) -> None:
        """Read every field, in the order of the table in 2.5."""
        self._read_identity()
        self._read_persona()
        self._read_output()
        self._read_input()
        self._read_detection()
        self._read_limits()
        self._read_tools()
        self._read_extensions()
        self._check_persona()

    # -- Fields ----------------------------------------------------------------------------------------------------------------------

    def _read_identity(self) -> None:
        session = self._session
        if session["type"].text() not in (None, "realtime"):
            raise bad_value("session.type", "must be realtime: there is no transcription and no translation here")
        name = session["model"].text()
        if name is not None and name not in (self._catalogue.model, self._config.model, *self._options.model_aliases):
            self.ignored.append("model")  # sdk-py sends a hard-coded name in mid-call
        self.ignored += session.unknown(_GA_KEYS | _FLAT_KEYS | _ECHOED_BY_SERVERS)
        self.ignored += self._audio.unknown(("input", "output")) + self._input.unknown(_INPUT_KEYS) + self._output.unknown(_OUTPUT_KEYS)

    def _read_persona(self) -> None:
        given = self._session["instructions"]
        if given.is_present:
            self.changes["instructions"] = given.text()

    def _read_output(self) -> None:
        session, output = self._session, self._output
        self._set("output_modalities", read_modalities(session["output_modalities"].or_else(session["modalities"])))
        fmt, given = self._config.output_format, output["format"].or_else(session["output_audio_format"])
        if given.is_given:
            fmt = parse_format(given.value, given.path, is_input=False)
        self.changes["output_format"] = at_rate(fmt, output["sample_rate_hz"], is_input=False)
        voice = read_voice(output["voice"].or_else(session["voice"]))
        if voice is not None:
            self.changes["voice"] = voice
            self.changes["resolved_voice"], is_flagged = resolve_voice(voice, self._catalogue, self._options)
            if is_flagged:
                self.ignored.append("audio.output.voice")
        speed = output["speed"].or_else(session["speed"]).number(MIN_SPEED, MAX_SPEED)
        if speed not in (None, 1):
            self.ignored.append("audio.output.speed")

    def _read_input(self) -> None:
        session, given_input = self._session, self._input
        fmt, given = self._config.input_format, given_input["format"].or_else(session["input_audio_format"])
        if given.is_given:
            fmt = parse_format(given.value, given.path, is_input=True)
        # "audio.input.sample_rate_hz > sample_rate_hz (flat) > format.rate" (2.6)
        rate = given_input["sample_rate_hz"].or_else(session["sample_rate_hz"])
        self.changes["input_format"] = at_rate(fmt, rate, is_input=True)
        if given_input["transcription"].or_else(session["input_audio_transcription"]).object().is_given:
            self.ignored.append("audio.input.transcription")  # "Never an error": three frameworks always send it
        noise = given_input["noise_reduction"].or_else(session["input_audio_noise_reduction"]).object()
        if noise.is_present:
            self.changes["noise_reduction"] = noise.value
        if noise.is_given:
            if noise["type"].choice(("near_field", "far_field")) is None:
                raise missing(noise["type"].path)
            self.ignored.append("audio.input.noise_reduction")

    def _read_detection(self) -> None:
        config = self._config
        given = self._input["turn_detection"].or_else(self._session["turn_detection"])
        detection = config.turn_detection
        if given.is_present:
            current = config.detection_in(self._dialect)
            merged = turn_detection.merge(current, given)
            detection = merged.detection
            self.ignored += [path.replace("session.turn_detection", "audio.input.turn_detection") for path in merged.ignored]
            # GA clients know server_vad as what they asked for; beta clients, as the name that they get without asking.
            has_type = merged.has_type or (current is None and self._dialect is Dialect.GA)
            self.changes["is_native_by_default"] = config.is_native_by_default and not has_type
        auto_response = self._session["extra_body"].object()["auto_response"].boolean()
        if auto_response is not None and detection is not None and not given["create_response"].is_given:
            named = detection if given.is_present else config.detection_in(self._dialect)
            detection = None if named is None else dataclasses.replace(named, create_response=auto_response)
        self.changes["turn_detection"] = detection

    def _read_limits(self) -> None:
        session, options = self._session, self._options
        limit = session["max_output_tokens"].or_else(session["max_response_output_tokens"])
        if limit.is_given:
            self.changes["max_output_tokens"] = read_limit(limit)
        self._set("temperature", session["temperature"].number(0, MAX_TEMPERATURE))
        idle_s = session["idle_timeout_s"].number(1)
        if idle_s is not None:
            self.changes["idle_timeout_s"] = min(idle_s, options.idle_timeout_s)

    def _read_tools(self) -> None:
        session = self._session
        if session["tools"].is_present:
            tools = session["tools"].items() or []
            if (other := next((tool for tool in tools if not isinstance(tool.value, Mapping)), None)) is not None:
                raise wrong_type(other.path, "an object", other.value)
            self.changes["tools"] = tuple(tool.value for tool in tools)
            if tools:
                self.ignored.append("tools")  # the model never calls
        choice = session["tool_choice"]
        if choice.is_given:
            if not isinstance(choice.value, str | Mapping):
                raise wrong_type(choice.path, "a string or an object", choice.value)
            self.changes["tool_choice"] = choice.value
        self._set("parallel_tool_calls", session["parallel_tool_calls"].boolean())
        for name in ("tracing", "truncation", "include", "prompt", "reasoning"):
            if session[name].is_present:
                self.changes[name] = session[name].value
        self.ignored += [name for name in ("include", "prompt") if session[name].is_given]

    def _read_extensions(self) -> None:
        session = self._session
        wish = self._config.duplex
        # Of a client without turn detection, auto_response can only mean the gate itself.
        auto_response = session["extra_body"]["auto_response"].value
        if isinstance(auto_response, bool) and self.changes["turn_detection"] is None:
            wish = dataclasses.replace(wish, output_gate=None if auto_response else "gated")
        if session["x_duplex"].is_given:
            wish, ignored = duplex.merge(wish, session["x_duplex"], self._options)
            self.ignored += ignored
        self.changes["duplex"] = wish
        detection: TurnDetection | None = self.changes["turn_detection"]
        eagerness: Eagerness = "auto" if detection is None else detection.eagerness
        self.changes["min_overlap_ms"] = wish.min_overlap_ms or self._options.min_overlap_ms(eagerness)
        self.ignored += session["extra_body"].unknown(("auto_response",))
        self.ignored += [name for name in ("ref_audio", "overlap_policy", "playback_commit_policy") if session[name].is_given]
        if session["ref_audio"].is_given and "voice" not in self.changes:
            message = "Unsupported parameter: 'session.ref_audio': voices cannot be cloned here, name an installed voice instead."
            raise EventError("unsupported_parameter", message, "session.ref_audio")

    # -- Private helpers -------------------------------------------------------------------------------------------------------------

    def _set(self, name: str, value: object) -> None:
        if value is not None:
            self.changes[name] = value

    def _check_persona(self) -> None:
        """Refuse instructions that the model cannot hold beside the voice."""
        config, catalogue = self._config, self._catalogue
        persona = self.changes.get("instructions", config.instructions)
        voice = self.changes.get("resolved_voice", config.resolved_voice)
        if not persona or (persona, voice) == (config.instructions, config.resolved_voice):
            return
        most = self._options.max_persona_tokens
        if len(persona) > most * CHARS_PER_TOKEN:
            raise _too_long(f"they have {len(persona)} characters, at most {most} tokens are read")
        try:
            num_rows = catalogue.prompt_rows(voice, persona)
            num_tokens = num_rows - catalogue.prompt_rows(voice, "")
        except ValueError as exc:
            raise _too_long(str(exc)) from None
        if num_tokens > most:
            raise _too_long(f"they have {num_tokens} tokens, at most {most} are read")
        if num_rows > catalogue.max_prompt_rows:
            raise _too_long(f"with the voice they take {num_rows} frames of the model's window, at most {catalogue.max_prompt_rows} can be")


def _too_long(detail: str) -> EventError:
    return EventError("string_above_max_length", f"The instructions are too long: {detail}.", "session.instructions")
