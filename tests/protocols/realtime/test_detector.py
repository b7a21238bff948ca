from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.realtime.detector import FLOOR_FRAMES, MIN_FLOOR_FRAMES, Activity, EnergyDetector, Loudness, SpeechDetector

FRAME = 1920


def tone(level_db: float) -> np.ndarray:
    """A frame whose RMS is `level_db` dBFS."""
    return (10 ** (level_db / 20) * np.sqrt(2) * np.sin(2 * np.pi * 440 * np.arange(FRAME) / 24_000)).astype(np.float32)


def judge(*levels_db: float) -> list[float]:
    detector = EnergyDetector()
    for frame_idx, level_db in enumerate(levels_db):
        detector.feed(frame_idx, tone(level_db))
    return [probability for _, probability in detector.take()]


@pytest.mark.parametrize("threshold", [0.0, 0.1, 0.3, 0.5, 0.75, 1.0])
def test_a_threshold_is_a_level(threshold: float) -> None:
    """ "-60 + 36 t dBFS (0.5 -> -42)" (4.5.3)"""
    needed_db = -60 + 36 * threshold
    below, at, above = (judge(needed_db + offset)[0] for offset in (-1.0, 0.0, 1.0))
    assert at == pytest.approx(threshold, abs=1e-3)
    assert below == pytest.approx(max(threshold - 1 / 36, 0), abs=1e-3)
    assert above == pytest.approx(min(threshold + 1 / 36, 1), abs=1e-3)


def test_results_are_taken_once_and_in_order() -> None:
    detector: SpeechDetector = EnergyDetector()
    detector.feed(7, tone(-20))
    detector.feed(8, np.zeros(FRAME, np.float32))
    assert detector.take() == [Activity(7, 1.0), Activity(8, 0.0)]
    assert detector.take() == []
    detector.feed(9, tone(-20))
    detector.close()
    assert detector.take() == [Activity(9, 1.0)]


def test_speech_counts_from_the_first_frame_on() -> None:
    assert judge(*[-30] * (MIN_FLOOR_FRAMES - 1)) == pytest.approx([0.5 + 12 / 36] * (MIN_FLOOR_FRAMES - 1), abs=1e-3)


@pytest.mark.parametrize(("noise_db", "needed_db"), [(-80, -42), (-51.5, -42), (-45, -36), (-30, -21)])
def test_speech_must_be_louder_than_the_noise(noise_db: float, needed_db: float) -> None:
    """ "RMS >= max(-42 dBFS, noise floor + 9 dB)" (4.5)"""
    for offset, is_active in ((-0.5, False), (0.5, True)):
        *noise, last = judge(*[noise_db] * FLOOR_FRAMES, needed_db + offset)
        assert max(noise[MIN_FLOOR_FRAMES:]) < 0.5
        assert (last >= 0.5) is is_active


def test_pauses_between_words_keep_the_floor_down() -> None:
    sentence = [*[-20] * 12, *[-60] * 2]  # 1 s of speech, 160 ms of pause
    levels = sentence * 20
    active = [probability >= 0.5 for probability in judge(*levels)]
    assert active == [level == -20 for level in levels]


def test_noise_that_sets_in_is_the_floor_8_s_later_and_forgotten_8_s_after_its_end() -> None:
    active = [probability >= 0.5 for probability in judge(*[-80] * 200, *[-35] * 200, *[-80] * 200, -35)]
    assert not any(active[:200])
    assert active[200:400].index(False) == FLOOR_FRAMES - FLOOR_FRAMES // 20 - 1
    assert not any(active[300:600])
    assert active[600]


@given(st.lists(st.floats(-120, 0), min_size=1, max_size=60))
def test_loudness_is_a_probability_and_rises_with_the_level(levels_db: list[float]) -> None:
    first, second = Loudness(), Loudness()
    for level_db in levels_db[:-1]:
        assert 0 <= first.take(tone(level_db)) <= 1
        second.take(tone(level_db))
    assert first.take(tone(levels_db[-1])) <= second.take(tone(levels_db[-1] + 6)) + 1e-6


def test_silence_and_an_empty_frame_are_not_loud() -> None:
    loudness = Loudness()
    assert loudness.take(np.zeros(FRAME, np.float32)) == 0
    assert loudness.take(np.empty(0, np.float32)) == 0
