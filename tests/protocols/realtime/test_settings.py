from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.events import SamplingOptions
from protocols.realtime import settings
from protocols.realtime.dialect import Dialect
from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.settings import (
    MAX_IGNORED,
    MAX_PATH_CHARS,
    SessionConfig,
    TurnDetection,
    Update,
    apply_update,
    default_config,
    describe,
)
from tests.protocols.realtime.catalogues import MAX_ROWS, VOICE_ROWS, catalogue
from tests.protocols.realtime.test_parsing import JSON

CATALOGUE = catalogue()
OPTIONS = RealtimeOptions()
FRESH = default_config(CATALOGUE, OPTIONS, "gpt-realtime")
GA, BETA = Dialect.GA, Dialect.BETA


def update(session: dict[str, Any], config: SessionConfig = FRESH, dialect: Dialect = GA, **options: Any) -> Update:
    return apply_update(config, session, CATALOGUE, RealtimeOptions(**options), dialect)


def after(*sessions: dict[str, Any], dialect: Dialect = GA) -> SessionConfig:
    config = FRESH
    for session in sessions:
        config = update(session, config, dialect).config
    return config


def refusal(session: dict[str, Any], config: SessionConfig = FRESH, dialect: Dialect = GA) -> tuple[str, str | None]:
    with pytest.raises(EventError) as caught:
        update(session, config, dialect)
    return caught.value.code, caught.value.param


def audio_in(**fields: Any) -> dict[str, Any]:
    return {"audio": {"input": fields}}


def audio_out(**fields: Any) -> dict[str, Any]:
    return {"audio": {"output": fields}}


def shown(config: SessionConfig, dialect: Dialect = GA) -> dict[str, Any]:
    return describe(config, dialect, session_id="sess_1", expires_at=1, x_duplex={})


# -- Merging -------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("session", [{}, {"type": "realtime"}, {"audio": None}, {"audio": {"input": None, "output": {}}}, {"voice": None}])
@pytest.mark.parametrize("dialect", list(Dialect))
def test_nothing_given_changes_nothing(session: dict[str, Any], dialect: Dialect) -> None:
    assert update(session, dialect=dialect) == Update(FRESH, ())


def test_v03_unrelated_fields_stay() -> None:
    config = after({"type": "realtime", "instructions": "You are Ada.", **audio_out(voice="NATM1")})
    assert (config.instructions, config.voice, config.resolved_voice) == ("You are Ada.", "NATM1", "NATM1")
    config = update({"instructions": ""}, config).config
    assert (config.instructions, config.voice) == ("", "NATM1")
    assert update({"instructions": None}, config).config.instructions is None


def test_v04_turn_detection_keeps_its_type() -> None:
    first = audio_in(turn_detection={"type": "server_vad", "silence_duration_ms": 700})
    config = after(first, audio_in(turn_detection={"threshold": 0.8}))
    assert config.turn_detection == TurnDetection(type="server_vad", threshold=0.8, silence_duration_ms=700)
    assert update(audio_in(turn_detection=None), config).config.turn_detection is None


def test_v05_what_is_unsupported_but_harmless_is_accepted_and_flagged() -> None:
    accepted = update({
        "type": "realtime", "model": "gpt-realtime-2.1", "tools": [{"type": "function", "name": "f"}], "tracing": {"workflow_name": "w"},
        "audio": {
            "input": {"transcription": {"model": "gpt-4o-mini-transcribe"}, "noise_reduction": {"type": "near_field"}},
            "output": {"voice": "marin", "speed": 1.25},
        },
    })  # fmt: skip
    body = shown(accepted.config)
    assert (body["model"], body["tools"], body["tracing"]) == ("gpt-realtime", [{"type": "function", "name": "f"}], {"workflow_name": "w"})
    assert body["audio"]["input"]["transcription"] is None
    assert body["audio"]["input"]["noise_reduction"] == {"type": "near_field"}
    assert (body["audio"]["output"]["voice"], body["audio"]["output"]["speed"], body["x_duplex"]["voice"]) == ("marin", 1.0, "NATF2")
    flagged = {"model", "tools", "audio.input.transcription", "audio.input.noise_reduction", "audio.output.speed"}
    assert set(accepted.ignored) == flagged


def test_v06_a_flat_configuration_on_a_ga_connection() -> None:
    config = after({
        "model": "personaplex", "modalities": ["audio", "text"], "input_audio_format": "pcm_f32le", "output_audio_format": "pcm16",
        "sample_rate_hz": 24_000, "audio": {"input": {"sample_rate_hz": 24_000}, "output": {"sample_rate_hz": 24_000}},
        "turn_detection": None, "instructions": "p", "voice": "NATF0.pt", "extra_body": {"auto_response": True},
    })  # fmt: skip
    body = shown(config)
    assert (body["instructions"], body["output_modalities"]) == ("p", ["audio"])
    assert body["audio"]["input"]["turn_detection"] is None
    assert body["audio"]["input"]["format"] == body["audio"]["output"]["format"] == {"type": "audio/pcm", "rate": 24_000}
    assert body["audio"]["output"]["voice"] == "NATF0.pt"
    assert (body["x_duplex"]["voice"], body["x_duplex"]["input_encoding"]) == ("NATF0", "pcm_f32le")
    assert not config.is_gated


def test_v07_one_error_and_nothing_applied() -> None:
    session = {"instructions": "new", **audio_out(format={"type": "audio/opus"})}
    assert refusal(session) == ("invalid_value", "session.audio.output.format.type")


def test_v08_v09_v31_voices() -> None:
    assert refusal(audio_out(voice="NATF9")) == ("invalid_value", "session.audio.output.voice")
    assert after(audio_out(voice={"id": "NATM0"})).voice == "NATM0"
    config = after(audio_out(voice="natf2.pt"))
    assert (config.voice, config.resolved_voice) == ("natf2.pt", FRESH.resolved_voice)


@pytest.mark.parametrize(
    ("nested", "flat", "field", "value"),
    [
        (audio_out(voice="NATM1"), {"voice": "NATM2"}, "voice", "NATM1"),
        ({"output_modalities": ["text"]}, {"modalities": ["audio"]}, "output_modalities", ("text",)),
        (audio_in(format="pcm16"), {"input_audio_format": "ulaw"}, "input_format", AudioFormat("pcm")),
        (audio_out(format="ulaw"), {"output_audio_format": "pcm16"}, "output_format", AudioFormat("pcmu", 8000)),
        (audio_in(turn_detection=None), {"turn_detection": {"type": "server_vad"}}, "turn_detection", None),
        (audio_in(noise_reduction=None), {"input_audio_noise_reduction": {"type": "far_field"}}, "noise_reduction", None),
        ({"max_output_tokens": 7}, {"max_response_output_tokens": 8}, "max_output_tokens", 7),
    ],
)
def test_a_flat_alias_is_used_where_the_nested_key_is_absent(
    nested: dict[str, Any], flat: dict[str, Any], field: str, value: object
) -> None:
    assert getattr(after(nested | flat), field) == value
    assert getattr(after(flat), field) != value


@pytest.mark.parametrize(
    ("session", "fields"),
    [
        ({"output_modalities": ["audio", "text"]}, {"output_modalities": ("audio",)}),
        ({"max_output_tokens": 4096}, {"max_output_tokens": 4096}),
        ({"max_output_tokens": 5000}, {"max_output_tokens": None}),
        ({"max_output_tokens": "inf"}, {"max_output_tokens": None}),
        ({"tools": None}, {"tools": ()}),
        ({"tool_choice": {"type": "function", "name": "f"}}, {"tool_choice": {"type": "function", "name": "f"}}),
        ({"parallel_tool_calls": False}, {"parallel_tool_calls": False}),
        ({"temperature": 0.6}, {"temperature": 0.6}),
        ({"truncation": None, "tracing": "auto", "reasoning": {}}, {"truncation": None, "tracing": "auto", "reasoning": {}}),
        ({"idle_timeout_s": 20}, {"idle_timeout_s": 20}),
        ({"idle_timeout_s": 5000}, {"idle_timeout_s": 300}),
        ({"input_audio_transcription": None, "speed": 1.0}, {}),
        ({"object": 1, "id": 2, "expires_at": 3, "client_secret": 4, "model": "personaplex-7b"}, {}),
        ({"x_duplex": {"timing": True}}, {}),
        (audio_in(sample_rate_hz=16_000), {"input_format": AudioFormat("pcm", 16_000)}),
        ({"sample_rate_hz": 8000, **audio_in(sample_rate_hz=16_000)}, {"input_format": AudioFormat("pcm", 16_000)}),
        (audio_in(format={"type": "audio/pcm", "rate": 48_000}, sample_rate_hz=44_100), {"input_format": AudioFormat("pcm", 44_100)}),
        (audio_out(sample_rate_hz=8000), {"output_format": AudioFormat("pcm", 8000)}),
        (audio_in(turn_detection={"eagerness": "low"}), {"min_overlap_ms": 1600}),
        ({"x_duplex": {"overlap": {"min_overlap_ms": 500}}, "turn_detection": {"eagerness": "low"}}, {"min_overlap_ms": 500}),
    ],
)
def test_fields_are_taken_without_a_flag(session: dict[str, Any], fields: dict[str, Any]) -> None:
    accepted = update(session)
    assert {name: getattr(accepted.config, name) for name in fields} == fields
    assert accepted.ignored == ()


def test_a_format_is_replaced_whole() -> None:
    config = after(audio_in(format={"type": "audio/pcm", "rate": 16_000}), audio_in(format={"type": "audio/pcm"}))
    assert config.input_format == AudioFormat("pcm")


def test_other_names_of_the_model_are_known() -> None:
    for name in ("personaplex-7b", "gpt-realtime", "mine"):
        assert update({"model": name}, model_aliases=("mine",)).ignored == ()


def test_the_sampling_of_x_duplex_arrives() -> None:
    assert after({"x_duplex": {"sampling": {"seed": 3}}}).sampling == SamplingOptions(text_seed=3, audio_seed=3)


# -- Flags ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "ignored"),
    [
        ({"foo": 1, "audio": {"bar": 1, "input": {"baz": 1}, "output": {"qux": None}}},
         ["foo", "audio.bar", "audio.input.baz", "audio.output.qux"]),
        ({"voice": "nova"}, ["audio.output.voice"]),
        ({"speed": 0.5}, ["audio.output.speed"]),
        ({"input_audio_transcription": {}}, ["audio.input.transcription"]),
        ({"turn_detection": {"threshold": 0.5}}, ["audio.input.turn_detection.threshold"]),
        ({"include": ["x"], "prompt": {"id": "p"}}, ["include", "prompt"]),
        ({"include": None, "prompt": None}, []),
        ({"overlap_policy": "x", "playback_commit_policy": "y", "extra_body": {"auto_response": True, "z": 1}},
         ["overlap_policy", "playback_commit_policy", "extra_body.z"]),
        ({"ref_audio": "AAAA", "voice": "NATM0"}, ["ref_audio"]),
        ({"x_duplex": {"foo": 1}}, ["x_duplex.foo"]),
    ],
)  # fmt: skip
def test_what_has_no_effect_is_flagged_once_by_its_path(session: dict[str, Any], ignored: list[str]) -> None:
    found = update(session).ignored
    assert sorted(found) == sorted(ignored)


def test_the_list_of_flags_is_bounded() -> None:
    ignored = update({f"{n:03}" + "x" * 200: 1 for n in range(200)}).ignored
    assert len(ignored) == MAX_IGNORED
    assert {len(path) for path in ignored} == {MAX_PATH_CHARS}


# -- Errors --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session", "code", "param"),
    [
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"type": "realtime.session"}, "invalid_value", "session.type"),
        ({"type": 3}, "invalid_type", "session.type"),
        ({"model": 3}, "invalid_type", "session.model"),
        ({"instructions": 3}, "invalid_type", "session.instructions"),
        ({"audio": []}, "invalid_type", "session.audio"),
        ({"audio": {"input": 3}}, "invalid_type", "session.audio.input"),
        ({"audio": {"output": "x"}}, "invalid_type", "session.audio.output"),
        ({"output_modalities": []}, "invalid_value", "session.output_modalities"),
        ({"modalities": ["video"]}, "invalid_value", "session.modalities.0"),
        ({"input_audio_format": "opus"}, "invalid_value", "session.input_audio_format"),
        (audio_in(format={"type": "audio/pcm", "rate": 11_025}), "invalid_value", "session.audio.input.format.rate"),
        (audio_out(format="pcm_f32le"), "invalid_value", "session.audio.output.format"),
        ({"sample_rate_hz": 7999}, "invalid_value", "session.sample_rate_hz"),
        ({"sample_rate_hz": 16_000, "input_audio_format": "ulaw"}, "invalid_value", "session.sample_rate_hz"),
        (audio_out(sample_rate_hz=44_100), "invalid_value", "session.audio.output.sample_rate_hz"),
        (audio_in(transcription="whisper"), "invalid_type", "session.audio.input.transcription"),
        (audio_in(noise_reduction={"type": "loud"}), "invalid_value", "session.audio.input.noise_reduction.type"),
        ({"input_audio_noise_reduction": {}}, "missing_required_parameter", "session.input_audio_noise_reduction.type"),
        (audio_in(turn_detection={"type": "energy"}), "invalid_value", "session.audio.input.turn_detection.type"),
        ({"turn_detection": {"type": "energy"}}, "invalid_value", "session.turn_detection.type"),
        ({"voice": 3}, "invalid_type", "session.voice"),
        ({"voice": "../x"}, "invalid_value", "session.audio.output.voice"),
        (audio_out(speed=1.6), "invalid_value", "session.audio.output.speed"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        ({"max_response_output_tokens": "many"}, "invalid_value", "session.max_response_output_tokens"),
        ({"tools": {}}, "invalid_type", "session.tools"),
        ({"tools": [{}, None]}, "invalid_type", "session.tools.1"),
        ({"tool_choice": 3}, "invalid_type", "session.tool_choice"),
        ({"parallel_tool_calls": "yes"}, "invalid_type", "session.parallel_tool_calls"),
        ({"temperature": -0.1}, "invalid_value", "session.temperature"),
        ({"idle_timeout_s": 0}, "invalid_value", "session.idle_timeout_s"),
        ({"extra_body": []}, "invalid_type", "session.extra_body"),
        ({"extra_body": {"auto_response": 1}}, "invalid_type", "session.extra_body.auto_response"),
        ({"ref_audio": "AAAA"}, "unsupported_parameter", "session.ref_audio"),
        ({"x_duplex": []}, "invalid_value", "session.x_duplex"),
        ({"x_duplex": {"timing": 1}}, "invalid_value", "session.x_duplex.timing"),
    ],
)
def test_a_bad_value_is_refused_at_the_path_that_the_client_used(session: dict[str, Any], code: str, param: str) -> None:
    assert refusal(session) == (code, param)


# -- Persona -------------------------------------------------------------------------------------------------------------------------


def words(num_words: int) -> str:
    return "a " * num_words


def test_a_persona_that_fits_is_taken() -> None:
    assert after({"instructions": words(MAX_ROWS - VOICE_ROWS)}).instructions == words(MAX_ROWS - VOICE_ROWS)


@pytest.mark.parametrize(
    ("num_words", "counts"),
    [(MAX_ROWS - VOICE_ROWS + 1, ("1025", "1024")), (1501, ("1501", "1500")), (3000, ("3060", "1024")), (50_000, ("100000", "1500"))],
)
def test_a_persona_that_is_too_long_is_refused_with_both_counts(num_words: int, counts: tuple[str, str]) -> None:
    with pytest.raises(EventError) as caught:
        update({"instructions": words(num_words)})
    assert (caught.value.code, caught.value.param) == ("string_above_max_length", "session.instructions")
    assert all(count in caught.value.message for count in counts)


def test_the_operator_may_allow_less() -> None:
    with pytest.raises(EventError, match="11 tokens, at most 10"):
        update({"instructions": words(11)}, max_persona_tokens=10)


def test_a_persona_is_counted_when_it_or_the_voice_changes() -> None:
    counted: list[tuple[str | None, str]] = []

    def prompt_rows(voice: str | None, persona: str) -> int:
        counted.append((voice, persona))
        return 1

    counting = catalogue(prompt_rows=prompt_rows)
    config = FRESH
    for session in ({"instructions": "a"}, {"instructions": "a"}, {"temperature": 1}, {"voice": "natf2.pt"}, {"voice": "NATM0"}):
        config = apply_update(config, session, counting, OPTIONS, GA).config
    assert [call for call in counted if call[1]] == [("NATF2", "a"), ("NATM0", "a")]


# -- Turn detection by dialect -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "sessions", "kind", "is_native"),
    [
        (BETA, [{}], "server_vad", True),
        (BETA, [{"turn_detection": {"threshold": 0.6}}], "server_vad", True),
        (BETA, [{"turn_detection": {"type": "server_vad"}}], "server_vad", False),
        (BETA, [{"turn_detection": {"type": "semantic_vad"}}], "semantic_vad", False),
        (BETA, [{"turn_detection": {"type": "server_vad"}}, {"turn_detection": {"threshold": 0.6}}], "server_vad", False),
        (GA, [{"turn_detection": {"eagerness": "low"}}], "semantic_vad", True),
        (GA, [{"turn_detection": {"type": "server_vad"}}], "server_vad", False),
        (GA, [{"turn_detection": None}, {"turn_detection": {"threshold": 0.6}}], "server_vad", False),
    ],
)
def test_who_named_a_type_gets_its_policy(dialect: Dialect, sessions: list[dict[str, Any]], kind: str, is_native: bool) -> None:
    config = after(*sessions, dialect=dialect)
    detection = config.detection_in(dialect)
    assert detection is not None
    assert (detection.type, config.is_native_by_default) == (kind, is_native)


@pytest.mark.parametrize("dialect", list(Dialect))
def test_auto_response_is_another_name_for_create_response(dialect: Dialect) -> None:
    config = after({"extra_body": {"auto_response": False}}, dialect=dialect)
    named = config.detection_in(dialect)
    assert config.is_gated
    assert named is not None
    assert named.type == ("server_vad" if dialect is BETA else "semantic_vad")
    assert not update({"extra_body": {"auto_response": True}}, config, dialect).config.is_gated
    given_both = {"turn_detection": {"create_response": True}, "extra_body": {"auto_response": False}}
    assert not after(given_both, dialect=dialect).is_gated
    assert after({"turn_detection": {"threshold": 0.5}, "extra_body": {"auto_response": False}}, dialect=dialect).is_gated


def test_without_turn_detection_auto_response_is_the_gate() -> None:
    config = after({"turn_detection": None, "extra_body": {"auto_response": False}})
    assert config.is_gated
    assert not update({"extra_body": {"auto_response": True}}, config).config.is_gated
    assert update({"extra_body": {"auto_response": True}, "x_duplex": {"output_gate": "gated"}}, config).config.is_gated


# -- Whatever comes ------------------------------------------------------------------------------------------------------------------

KEYS = sorted(settings._GA_KEYS | settings._FLAT_KEYS - {"audio"})
AUDIO = st.fixed_dictionaries(
    {},
    optional={
        "input": st.dictionaries(st.sampled_from(settings._INPUT_KEYS), JSON, max_size=3) | JSON,
        "output": st.dictionaries(st.sampled_from(settings._OUTPUT_KEYS), JSON, max_size=3) | JSON,
    },
)


@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), AUDIO | st.none(), st.sampled_from(list(Dialect)))
def test_any_session_object_is_an_update_or_an_error(session: dict[str, Any], audio: object, dialect: Dialect) -> None:
    with contextlib.suppress(EventError):
        accepted = update(session | {"audio": audio}, dialect=dialect)
        json.dumps(shown(accepted.config, dialect))
        assert update({}, accepted.config, dialect).config == accepted.config


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_client_may_send_back_what_it_received(dialect: Dialect) -> None:
    config = after({"voice": "marin", "turn_detection": {"type": "server_vad", "threshold": 0.7}, "temperature": 0.7}, dialect=dialect)
    body = shown(config, dialect)
    del body["x_duplex"]
    again = update(json.loads(json.dumps(body)), config, dialect)
    assert shown(again.config, dialect) == shown(config, dialect)


def test_every_name_exists_once() -> None:
    assert len(set(settings.__all__)) == len(settings.__all__)
    assert all(hasattr(settings, name) for name in settings.__all__)
