"""Words and phones are found where they are said."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from gateway.training import flite
from gateway.training.alignment import Aligner, Alignment, uniform
from gateway.training.corpus import PHONES, SAMPLE_RATE
from gateway.training.speech import trim


@pytest.fixture(scope="module")
def aligner() -> Aligner:
    pytest.importorskip("pocketsphinx")
    return Aligner()


def spoken(text: str) -> np.ndarray:
    if shutil.which("flite") is None:
        pytest.skip("flite is not installed")
    return trim(flite.say("slt", text, 1.0, 1.0))


def names(found: Alignment) -> list[str]:
    return [PHONES[phone] for _, phone in found.phones if PHONES[phone] != "SIL"]


def test_a_word_after_a_pause_is_found_where_it_begins(aligner: Aligner) -> None:
    first, second = spoken("Hello."), spoken("Goodbye.")
    pause = np.zeros(SAMPLE_RATE // 2, np.float32)
    found = aligner.align(np.concatenate([first, pause, second]), "Hello. Goodbye.")
    begins = len(first) + len(pause)
    assert len(found.words) == 2
    assert found.words[0] == pytest.approx(0, abs=0.1 * SAMPLE_RATE)
    assert found.words[1] == pytest.approx(begins, abs=0.1 * SAMPLE_RATE)
    assert names(found)[0] == "HH"
    assert names(found)[-1] == "AY"


def test_times_ascend_and_lie_in_the_recording(aligner: Aligner) -> None:
    pcm = spoken("What's the capital of France?")
    found = aligner.align(pcm, "What's the capital of France?")
    assert list(found.words) == sorted(set(found.words))
    starts = [start for start, _ in found.phones]
    assert starts == sorted(set(starts))
    assert starts[0] >= 0
    assert starts[-1] < len(pcm)
    assert names(found)[:4] == ["W", "AH", "T", "S"]


@pytest.mark.parametrize("text", ["Mm-hm.", "Wubba lubba wah.", "A pig says oink."])
def test_words_that_the_dictionary_lacks_are_known(aligner: Aligner, text: str) -> None:
    found = aligner.align(spoken(text), text)
    assert len(found.words) == len(text.split())
    assert found.phones


@pytest.mark.parametrize("text", ["Zyxwvut.", "..."])
def test_an_unknown_word_is_laid_out_and_flagged(aligner: Aligner, text: str) -> None:
    pcm = np.zeros(SAMPLE_RATE, np.float32)
    assert aligner.align(pcm, text) == uniform(SAMPLE_RATE, text)
    assert aligner.align(pcm, text).phones == ()


def test_without_alignment_words_get_time_by_their_letters() -> None:
    assert uniform(1000, "aa bbbb cc dd") == Alignment((0, 200, 600, 800), ())
