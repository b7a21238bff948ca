"""Meters on sounds whose figures are known."""

import numpy as np
import pytest

from gateway.training.evaluation import signals
from gateway.training.evaluation.signals import FLOOR_DBFS, RATE, Pcm


def voice(hz: float, seconds: float = 1.0, formant_hz: float = 700.0) -> Pcm:
    """Pulses through one resonance: a vowel of a sort."""
    source = np.zeros(round(seconds * RATE))
    source[(np.arange(0, seconds, 1 / hz) * RATE).astype(int)] = 1.0
    clock = np.arange(RATE // 50) / RATE
    response = np.exp(-500 * clock) * np.sin(2 * np.pi * formant_hz * clock)
    return signals.at_level(np.convolve(source, response)[: source.size].astype(np.float32), -23.0)


@pytest.mark.parametrize("hz", [80.0, 110.0, 150.0, 200.0, 300.0])
@pytest.mark.parametrize("formant_hz", [500.0, 1500.0])
def test_the_pitch_of_a_voice_is_found_whatever_its_resonance(hz: float, formant_hz: float) -> None:
    pitch, voiced_s = signals.pitch_hz(voice(hz, formant_hz=formant_hz))
    assert pitch == pytest.approx(hz, rel=0.02)
    assert voiced_s > 0.8


def test_pauses_and_noise_do_not_move_the_pitch() -> None:
    rng = np.random.default_rng(0)
    quiet, hiss = np.zeros(RATE, np.float32), (0.02 * rng.standard_normal(RATE)).astype(np.float32)
    pitch, voiced_s = signals.pitch_hz(np.concatenate([quiet, voice(120), hiss, voice(120)]))
    assert pitch == pytest.approx(120, rel=0.02)
    assert voiced_s == pytest.approx(2.0, abs=0.3)


@pytest.mark.parametrize("pcm", [np.zeros(RATE, np.float32), np.zeros(0, np.float32), voice(120)[:500], signals.amplified(voice(120), -40)])
def test_what_is_silent_or_short_or_faint_has_no_pitch(pcm: Pcm) -> None:
    assert signals.pitch_hz(pcm) == (0.0, 0.0)


def test_white_noise_has_next_to_no_pitch() -> None:
    hiss = (0.05 * np.random.default_rng(0).standard_normal(2 * RATE)).astype(np.float32)
    assert signals.pitch_hz(hiss)[1] < 0.1


def test_the_colour_depends_on_the_resonance_and_hardly_on_level_or_pitch() -> None:
    base = signals.colour(voice(150, formant_hz=700))
    assert base.shape == (12,)

    def distance(pcm: Pcm) -> float:
        return float(np.linalg.norm(signals.colour(pcm) - base))

    other = distance(voice(150, formant_hz=2000))
    assert distance(signals.amplified(voice(150, formant_hz=700), -6)) < 0.1 * other
    assert distance(voice(130, formant_hz=700)) < 0.5 * other
    assert not signals.colour(np.zeros(RATE, np.float32)).any()


@pytest.mark.parametrize(
    ("pcm", "dbfs"),
    [(np.full(100, 0.1, np.float32), -20.0), (np.zeros(100, np.float32), FLOOR_DBFS), (np.zeros(0, np.float32), FLOOR_DBFS)],
)
def test_levels_are_rms_and_have_a_floor(pcm: Pcm, dbfs: float) -> None:
    assert signals.level_dbfs(pcm) == pytest.approx(dbfs, abs=0.01)


@pytest.mark.parametrize("make", [signals.noise, signals.melody])
def test_made_up_sounds_have_the_level_and_length_asked_for_and_no_voice(make) -> None:  # type: ignore[no-untyped-def]
    pcm = make(np.random.default_rng(0), 3.0, -35.0)
    assert pcm.dtype == np.float32
    assert pcm.size == 3 * RATE
    assert signals.level_dbfs(pcm) == pytest.approx(-35.0, abs=0.1)


def test_a_level_beyond_full_scale_is_not_reached() -> None:
    assert np.abs(signals.at_level(voice(100), 0.0)).max() <= 0.981
