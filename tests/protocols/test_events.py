from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from protocols.codec import Close
from protocols.errors import CloseCode, ErrorKind, LocalProtocolError, ProtocolError, RemoteProtocolError
from protocols.events import MAX_PENALTY_CONTEXT, MAX_SEED, AudioIn, Cancel, Open, Played, SamplingOptions

LEGAL_SAMPLING = [
    ("text_temperature", 0.0, 100.0, -0.1, 100.1),
    ("audio_temperature", 0.0, 100.0, -0.1, float("nan")),
    ("text_topk", 0, 2**31 - 1, -1, 2**31),
    ("audio_topk", 0, 2048, -1, 2**40),
    ("text_seed", 0, MAX_SEED, -1, MAX_SEED + 1),
    ("audio_seed", 0, MAX_SEED, -1, MAX_SEED + 1),
    ("pad_mult", -50.0, 50.0, -51.0, float("inf")),
    ("repetition_penalty", 0.01, 100.0, 0.0, 101.0),
    ("repetition_penalty_context", 0, MAX_PENALTY_CONTEXT, -1, MAX_PENALTY_CONTEXT + 1),
]


@pytest.mark.parametrize(("name", "low", "high", "too_low", "too_high"), LEGAL_SAMPLING)
def test_a_sampling_value_out_of_range_cannot_exist(name: str, low: float, high: float, too_low: float, too_high: float) -> None:
    for value in (low, high, None):
        assert getattr(SamplingOptions(**{name: value}), name) == value
    for value in (too_low, too_high):
        with pytest.raises(ValueError, match=name):
            SamplingOptions(**{name: value})


@pytest.mark.parametrize("name", [row[0] for row in LEGAL_SAMPLING])
@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["huge", "negative", "too long to print"])
def test_a_whole_number_that_no_float_can_hold_is_out_of_range_too(name: str, value: int) -> None:
    with pytest.raises(ValueError, match=f"^{name} must be ") as caught:
        SamplingOptions(**{name: value})
    assert len(str(caught.value)) < 100


def test_every_sampling_field_is_checked() -> None:
    assert {row[0] for row in LEGAL_SAMPLING} == {field.name for field in dataclasses.fields(SamplingOptions)}


@pytest.mark.parametrize(
    "make",
    [
        lambda: Open(max_frames=0),
        lambda: Cancel(steer_frames=-1),
        lambda: Played(played_ms=-1),
        lambda: AudioIn(pcm=np.zeros(3)),
        lambda: AudioIn(pcm=np.zeros((1, 3), np.float32)),
        lambda: AudioIn(pcm=np.array([0, np.nan], np.float32)),
    ],
)
def test_an_illegal_event_cannot_exist(make) -> None:
    with pytest.raises(ValueError, match="must be"):
        make()


def test_the_smallest_legal_events_exist() -> None:
    assert Open(max_frames=1).max_frames == 1
    assert Cancel().steer_frames == 0
    assert Played(played_ms=0).played_ms == 0
    assert AudioIn(pcm=np.zeros(1, np.float32)).pcm.size == 1


def test_every_kind_has_a_close_code_and_a_status() -> None:
    for kind in ErrorKind:
        assert kind.close_code in CloseCode
        assert kind.http_status in (400, 408, 413, 500, 503)


def test_an_error_says_who_erred() -> None:
    remote = RemoteProtocolError(ErrorKind.BAD_AUDIO, "noise")
    assert (remote.kind, remote.detail, str(remote)) == (ErrorKind.BAD_AUDIO, "noise", "bad_audio: noise")
    assert LocalProtocolError("twice").kind is ErrorKind.INTERNAL
    with pytest.raises(TypeError):
        ProtocolError(ErrorKind.INTERNAL, "nobody")


@pytest.mark.parametrize(("reason", "kept"), [("x" * 200, "x" * 123), ("é" * 62, "é" * 61), ("\ud800", "?"), ("fine", "fine")])
def test_a_close_reason_fits_its_frame(reason: str, kept: str) -> None:
    assert Close(CloseCode.NORMAL, reason).reason == kept
