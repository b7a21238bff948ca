from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols import params
from protocols.errors import ErrorKind, RemoteProtocolError
from protocols.events import MAX_SEED, SamplingOptions

HOSTILE_VOICES = [
    "../../etc/passwd", "/etc/passwd", "..", "..\\x", "a/b.pt", "a\\b.pt", "C:x", ".hidden", "x\0.pt", "x\n", "\u202ex", "v" * 129,
]  # fmt: skip
BAD_NUMBERS = ["", " ", "abc", "nan", "inf", "-inf", "1e", "0x10", "1_0", "１", "1,5", "undefined", "NaN", "--1", "9" * 400, " 1"]


def options(query: dict[str, str]) -> SamplingOptions:
    return params.sampling_options(params.sampling_fields(params.query_numbers(query)))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, SamplingOptions()),
        ({"text_temperature": "0"}, SamplingOptions(text_temperature=0.0)),
        ({"audio_temperature": "0.8", "pad_mult": "-4"}, SamplingOptions(audio_temperature=0.8, pad_mult=-4.0)),
        ({"pad_mult": ".5", "text_temperature": "1."}, SamplingOptions(pad_mult=0.5, text_temperature=1.0)),
        ({"text_temperature": "7e-1"}, SamplingOptions(text_temperature=0.7)),
        ({"text_topk": "25", "audio_topk": "250"}, SamplingOptions(text_topk=25, audio_topk=250)),
        ({"text_topk": "0", "audio_topk": "-3"}, SamplingOptions(text_topk=1, audio_topk=1)),
        ({"text_topk": "99999", "audio_topk": "99999"}, SamplingOptions(text_topk=32_000, audio_topk=2048)),
        ({"seed": "7"}, SamplingOptions(text_seed=7, audio_seed=7)),
        ({"seed": "-1"}, SamplingOptions()),
        ({"seed": "7", "audio_seed": "9"}, SamplingOptions(text_seed=7, audio_seed=9)),
        ({"seed": "7", "text_seed": "-1"}, SamplingOptions(text_seed=None, audio_seed=7)),
        ({"text_seed": str(MAX_SEED)}, SamplingOptions(text_seed=MAX_SEED)),
        (
            {"repetition_penalty": "1.5", "repetition_penalty_context": "64"},
            SamplingOptions(repetition_penalty=1.5, repetition_penalty_context=64),
        ),
    ],
)
def test_every_parameter_is_honoured(query: dict[str, str], expected: SamplingOptions) -> None:
    assert options(query) == expected


@pytest.mark.parametrize("name", params.INT_PARAMETERS + params.FLOAT_PARAMETERS)
@pytest.mark.parametrize("text", BAD_NUMBERS)
def test_a_malformed_number_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=name) as caught:
        params.query_numbers({name: text})
    assert caught.value.kind is ErrorKind.BAD_PARAMETER


@pytest.mark.parametrize("name", params.INT_PARAMETERS)
def test_a_fraction_is_no_whole_number(name: str) -> None:
    with pytest.raises(RemoteProtocolError, match=name):
        params.query_numbers({name: "1.5"})


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("text_temperature", "-0.1"),
        ("audio_temperature", "1e999"),
        ("pad_mult", "51"),
        ("repetition_penalty", "0"),
        ("repetition_penalty_context", "257"),
        ("seed", "-2"),
        ("text_seed", "-2"),
        ("text_seed", str(MAX_SEED + 1)),
    ],
)
def test_a_number_out_of_range_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(RemoteProtocolError, match=name) as caught:
        options({name: text})
    assert caught.value.kind is ErrorKind.BAD_PARAMETER


@given(st.dictionaries(st.sampled_from(params.INT_PARAMETERS + params.FLOAT_PARAMETERS), st.text(max_size=12)))
def test_any_text_gives_options_or_a_refusal(query: dict[str, str]) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert isinstance(options(query), SamplingOptions)


def test_max_frames_goes_by_two_names() -> None:
    assert params.max_frames({}) is None
    assert params.max_frames({"max_steps": 4500}) == 4500
    assert params.max_frames({"max_frames": 10, "max_steps": 4500}) == 10
    with pytest.raises(RemoteProtocolError, match="max_steps"):
        params.max_frames({"max_steps": 0})


@pytest.mark.parametrize("name", ["NATF0.pt", "NATF0", "my voice-2.wav", "Ärmel", "v" * 128])
def test_a_bare_voice_name_passes(name: str) -> None:
    assert params.voice_name(name) == name


@pytest.mark.parametrize("name", HOSTILE_VOICES)
def test_a_voice_that_could_be_a_path_is_refused_without_an_echo(name: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        params.voice_name(name)
    assert caught.value.kind is ErrorKind.BAD_PARAMETER
    assert name == ".." or name not in caught.value.detail


def test_nothing_means_the_server_s_default() -> None:
    assert params.voice_name(None) is params.voice_name("") is None
    assert params.persona_text(None) is params.persona_text("") is params.persona_text(" \n") is None


def test_the_length_of_a_persona_is_limited() -> None:
    assert params.persona_text("x" * 4000) == "x" * 4000
    with pytest.raises(RemoteProtocolError, match="4000"):
        params.persona_text("x" * 4001)
