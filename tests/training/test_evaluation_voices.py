"""Telling voices apart: the table against real recordings, and measuring it."""

from pathlib import Path

import numpy as np
import pytest
import soundfile

from gateway.training.evaluation import signals, voices
from gateway.training.evaluation.signals import RATE, Pcm
from gateway.training.speech import ASSISTANTS
from tests.training.test_evaluation_signals import voice

DATA = Path(__file__).parents[1] / "data" / "voices"


def recording(name: str) -> Pcm:
    pcm, rate = soundfile.read(DATA / f"{name}.wav", dtype="float32")
    assert rate == RATE
    return pcm


def test_the_table_has_the_assistant_s_voices() -> None:
    assert set(voices.REFERENCES) == set(ASSISTANTS)
    assert all(len(reference.colour) + 1 == len(voices.SPREAD) for reference in voices.REFERENCES.values())


@pytest.mark.parametrize("name", ["af_heart", "am_michael"])
def test_a_recording_is_most_like_its_own_voice(name: str) -> None:
    heard = voices.judge(recording(name), name)
    assert heard is not None
    assert (heard.has_pitch, heard.nearest) == (True, name)


@pytest.mark.parametrize(("name", "asked"), [("af_heart", "am_michael"), ("am_michael", "bf_emma")])
def test_a_man_does_not_pass_for_a_woman(name: str, asked: str) -> None:
    heard = voices.judge(recording(name), asked)
    assert heard is not None
    assert (heard.has_pitch, heard.nearest) == (False, name)


@pytest.mark.parametrize("pcm", [np.zeros(RATE, np.float32), voice(180, seconds=0.4)])
def test_too_little_speech_is_not_judged(pcm: Pcm) -> None:
    assert voices.judge(pcm, "af_heart") is None


def test_a_voice_that_is_not_in_the_table_is_not_judged() -> None:
    assert voices.judge(recording("af_heart"), "NATF9") is None


def test_a_table_is_measured_from_recordings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two voices of one pitch and different resonance: the table tells them apart."""
    made = {name: [voice(hz, 1.5, formant) for hz in (118, 120, 122)] for name, formant in (("dark", 500.0), ("bright", 1800.0))}
    references, spread = voices.measure(made)
    monkeypatch.setattr(voices, "REFERENCES", references)
    monkeypatch.setattr(voices, "SPREAD", spread)
    assert references["dark"].pitch_hz == pytest.approx(120, rel=0.02)
    heard = voices.judge(signals.amplified(voice(121, 1.5, 1800.0), -3), "dark")
    assert heard is not None
    assert (heard.has_pitch, heard.nearest) == (True, "bright")
