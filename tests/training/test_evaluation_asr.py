"""Comparing what was heard with what was written, and the recognisers themselves where they are installed."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from gateway.training import flite, grammar, sources
from gateway.training.evaluation import asr
from gateway.training.speech import trim


@pytest.mark.parametrize(
    ("said", "heard", "rate"),
    [
        ("My name is Nova.", "My name is Nova", 0.0),
        ("My name is Nova.", "my name is Noah.", 1 / 4),
        ("My name is Nova.", "", 1.0),
        ("My name is Nova.", "My name is not Nova at all.", 3 / 4),
        ("Nova.", "Thank you very much.", 4.0),
        ("Three plus four is seven.", "3 + 4 = 7.", 0.0),
        ("A large pizza is twelve dollars.", "A large pizza is $12.", 0.0),
        ("Water boils at one hundred degrees.", "Water boils at 100 degrees.", 0.0),
        ("A single room is eighty dollars.", "A single room is 80 dollars.", 0.0),
        ("One, two, three.", "1, 2, 3.", 0.0),
        ("An elephant is grey.", "An elephant is gray.", 0.0),
        ("My preferred colour is dark blue.", "My preferred color is dark blue.", 0.0),
        ("A, B, C, D.", "ABCD", 0.0),
        ("I love chocolate ice cream!", "I love chocolate icecream.", 0.0),
        ("Okay.", "OK", 0.0),
        ("I am fine.", "I'm fine.", 0.0),
        ("I am fine.", "I am five.", 1 / 3),
    ],
)
def test_word_errors_are_those_of_hearing_not_of_spelling(said: str, heard: str, rate: float) -> None:
    assert asr.word_error_rate(said, heard) == pytest.approx(rate)


def spoken(text: str) -> np.ndarray:
    if shutil.which("flite") is None:
        pytest.skip("flite is not installed")
    return trim(flite.say("slt", text, 1.0, 1.0))


@pytest.fixture(scope="module")
def sphinx() -> asr.Sphinx:
    pytest.importorskip("pocketsphinx")
    return asr.Sphinx(grammar.replies())


def test_every_reply_is_in_the_closed_grammar(sphinx: asr.Sphinx) -> None:
    assert sphinx.left_out == []


@pytest.mark.parametrize("text", ["The capital of France is Paris.", "We are open until midnight.", "You can call me Nova."])
def test_the_closed_grammar_hears_the_reply_that_was_said(sphinx: asr.Sphinx, text: str) -> None:
    assert sphinx.read(spoken(text)) == grammar.plain(text)


def test_the_closed_grammar_does_not_hear_what_was_not_said(sphinx: asr.Sphinx) -> None:
    assert sphinx.read(np.zeros(24_000, np.float32)) == ""
    assert sphinx.read(spoken("We are next to the cinema.")) != grammar.plain("You can call me Nova.")


def test_whisper_writes_down_what_was_said() -> None:
    pytest.importorskip("faster_whisper")
    if not (sources.DEFAULT_CACHE.expanduser() / "whisper-tiny.en" / "model.bin").exists():
        pytest.skip("Whisper's weights were not downloaded; `evaluate` does it")
    text = "The capital of France is Paris."
    heard = asr.Whisper(sources.DEFAULT_CACHE).read(spoken(text))
    assert asr.word_error_rate(text, heard) == 0.0
    assert asr.word_error_rate("We are next to the cinema.", heard) > 0.8


def test_a_recogniser_that_is_not_there_is_named_and_reads_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("faster_whisper", "pocketsphinx"):
        monkeypatch.setitem(__import__("sys").modules, module, None)  # import raises
    assert [reason.split(":")[0] for reason in asr.missing(tmp_path)] == ["whisper", "pocketsphinx"]
    assert asr.read_all([np.zeros(100, np.float32)], tmp_path) == [asr.Reading(None, None)]
