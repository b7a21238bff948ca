"""flite speaks in the tempo and at the pitch that were asked for."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from gateway.training import flite
from gateway.training.speech import trim

pytestmark = pytest.mark.skipif(shutil.which("flite") is None, reason="flite is not installed")
TEXT = "Hello, what is your name?"


def seconds(speed: float, pitch: float) -> float:
    return len(trim(flite.say("kal16", TEXT, speed, pitch))) / flite.SAMPLE_RATE


def centroid(pcm: np.ndarray) -> float:
    power = np.abs(np.fft.rfft(pcm)) ** 2
    return float((power * np.fft.rfftfreq(len(pcm), 1 / flite.SAMPLE_RATE)).sum() / power.sum())


def test_faster_speech_is_shorter() -> None:
    assert seconds(1.2, 1.0) == pytest.approx(seconds(1.0, 1.0) / 1.2, rel=0.05)


def test_pitch_moves_the_spectrum_and_not_the_tempo() -> None:
    assert seconds(1.0, 1.15) == pytest.approx(seconds(1.0, 1.0), rel=0.05)
    low, high = (centroid(flite.say("kal16", TEXT, 1.0, pitch)) for pitch in (0.85, 1.15))
    assert high > 1.15 * low
