from __future__ import annotations

import pytest

from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat, at_rate, echo_beta, echo_ga, parse_format
from protocols.realtime.values import Value

PCM = AudioFormat("pcm")
ULAW = AudioFormat("pcmu", 8000)
ALAW = AudioFormat("pcma", 8000)
FLOAT = AudioFormat("pcm", 24_000, "f32")

SPELLINGS = [
    *[(name, PCM) for name in ("pcm16", "pcm_s16le", "s16le", "audio/pcm", "audio/pcm16", "PCM16", {"type": "audio/pcm"})],
    *[({"type": "audio/pcm", "rate": rate}, AudioFormat("pcm", rate)) for rate in (8000, 16_000, 24_000, 48_000)],
    ({"type": "pcm16", "rate": None, "channels": 1}, PCM),
    *[(name, ULAW) for name in ("g711_ulaw", "g711-ulaw", "audio/g711_ulaw", "audio/mulaw", "ulaw", "audio/pcmu")],
    *[({"type": "audio/pcmu"} | more, ULAW) for more in ({}, {"rate": 8000})],
    *[(name, ALAW) for name in ("g711_alaw", "g711-alaw", "audio/g711_alaw", "audio/alaw", "alaw", {"type": "audio/pcma"})],
]


@pytest.mark.parametrize(("spelling", "fmt"), SPELLINGS)
@pytest.mark.parametrize("is_input", [True, False])
def test_every_spelling_is_understood(spelling: object, fmt: AudioFormat, is_input: bool) -> None:
    assert parse_format(spelling, "p", is_input=is_input) == fmt


@pytest.mark.parametrize("spelling", ["pcm_f32le", "f32le", {"type": "pcm_f32le"}])
def test_float_samples_are_for_input_alone(spelling: object) -> None:
    assert parse_format(spelling, "p", is_input=True) == FLOAT
    with pytest.raises(EventError) as caught:
        parse_format(spelling, "p", is_input=False)
    assert caught.value.code == "invalid_value"
    assert "f32le," not in caught.value.message


@pytest.mark.parametrize(
    ("spelling", "code", "param"),
    [
        ("opus", "invalid_value", "p"),
        ("mp3", "invalid_value", "p"),
        ("", "invalid_value", "p"),
        (7, "invalid_type", "p"),
        (["pcm16"], "invalid_type", "p"),
        ({}, "missing_required_parameter", "p.type"),
        ({"type": None}, "missing_required_parameter", "p.type"),
        ({"type": 3}, "invalid_type", "p.type"),
        ({"type": "audio/opus"}, "invalid_value", "p.type"),
        ({"type": "audio/pcm", "rate": 22_050}, "invalid_value", "p.rate"),
        ({"type": "audio/pcm", "rate": 0}, "invalid_value", "p.rate"),
        ({"type": "audio/pcm", "rate": "24000"}, "invalid_type", "p.rate"),
        ({"type": "audio/pcm", "rate": 24_000.0}, "invalid_type", "p.rate"),
        ({"type": "audio/pcm", "channels": 2}, "invalid_value", "p.channels"),
        ({"type": "audio/pcmu", "rate": 16_000}, "invalid_value", "p.rate"),
    ],
)
def test_anything_else_is_refused_at_its_path(spelling: object, code: str, param: str) -> None:
    with pytest.raises(EventError) as caught:
        parse_format(spelling, "p", is_input=True)
    assert (caught.value.code, caught.value.param) == (code, param)


def test_the_names_are_listed_and_the_input_is_cut() -> None:
    with pytest.raises(EventError) as caught:
        parse_format("x" * 500, "p", is_input=True)
    assert "audio/pcm, pcm16" in caught.value.message
    assert "pcm_f32le" in caught.value.message
    assert "x" * 81 not in caught.value.message


@pytest.mark.parametrize("rate", [8000, 11_025, 44_100, 96_000])
def test_an_input_rate_overrides_that_of_the_format(rate: int) -> None:
    assert at_rate(FLOAT, Value(rate, "r"), is_input=True) == AudioFormat("pcm", rate, "f32")


def test_no_rate_changes_nothing() -> None:
    assert at_rate(ULAW, Value(None, "r"), is_input=True) is ULAW
    assert at_rate(ULAW, Value(8000, "r"), is_input=False) is ULAW


@pytest.mark.parametrize(
    ("fmt", "rate", "is_input"),
    [(PCM, 7999, True), (PCM, 96_001, True), (PCM, 11_025, False), (ULAW, 16_000, True), (ALAW, 24_000, False), (PCM, -1, True)],
)
def test_an_impossible_rate_is_refused(fmt: AudioFormat, rate: int, is_input: bool) -> None:
    with pytest.raises(EventError) as caught:
        at_rate(fmt, Value(rate, "r"), is_input=is_input)
    assert (caught.value.code, caught.value.param) == ("invalid_value", "r")


@pytest.mark.parametrize(
    ("fmt", "ga", "beta"),
    [
        (PCM, {"type": "audio/pcm", "rate": 24_000}, "pcm16"),
        (AudioFormat("pcm", 16_000), {"type": "audio/pcm", "rate": 16_000}, "pcm16"),
        (FLOAT, {"type": "audio/pcm", "rate": 24_000}, "pcm16"),
        (ULAW, {"type": "audio/pcmu"}, "g711_ulaw"),
        (ALAW, {"type": "audio/pcma"}, "g711_alaw"),
    ],
)
def test_the_echo_shows_what_is_in_effect(fmt: AudioFormat, ga: dict[str, object], beta: str) -> None:
    assert echo_ga(fmt) == ga
    assert echo_beta(fmt) == beta
    if fmt.encoding == "s16":  # a client may send its echo back
        assert parse_format(ga, "p", is_input=True) == fmt


@pytest.mark.parametrize(("fmt", "bytes_per_s"), [(PCM, 48_000), (FLOAT, 96_000), (ULAW, 8000), (AudioFormat("pcm", 16_000), 32_000)])
def test_bytes(fmt: AudioFormat, bytes_per_s: int) -> None:
    assert fmt.bytes_per_s == bytes_per_s == fmt.rate * fmt.sample_bytes
