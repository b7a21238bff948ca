"""The callers' recordings, from a packed corpus, from the studio, and of people."""

import random
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import soundfile

from gateway.training import corpus, flite, grammar, speech
from gateway.training.corpus import Clip
from gateway.training.evaluation import speech as callers
from gateway.training.evaluation.call import Utterance
from gateway.training.evaluation.signals import RATE, Pcm, level_dbfs
from tests.training.evaluation_line import tone

TEXTS = ("What is your name?", "Tell me a joke.", "What is the capital of France?", "Mm-hm.", "This text is no question of anybody.")


def packed(folder: Path) -> None:
    """A corpus of one tone per text, at 100 ms from each other; every word takes a tenth of a second."""
    pcm, clips, at = [], [], 0
    for index, text in enumerate(TEXTS):
        sound = tone(1.0, hz=200 + 50 * index)
        words = tuple((2400 * number, word, ()) for number, word in enumerate(text.split()))
        clips.append(Clip("user", f"blend:{index}", text, words, ((0, 1),), 0, at, sound.size))
        pcm += [sound, np.zeros(corpus.GAP_SAMPLES, np.float32)]
        at += sound.size + corpus.GAP_SAMPLES
    soundfile.write(corpus.shard_path(folder, 0), np.concatenate(pcm), RATE, format="OGG", subtype="OPUS")
    corpus.write_index(folder, clips)


@pytest.fixture
def questions(tmp_path: Path) -> callers.Questions:
    packed(tmp_path)
    return callers.read(tmp_path)


def test_a_packed_corpus_gives_questions_with_words_and_murmurs(questions: callers.Questions) -> None:
    assert [utterance.ask.text for utterance in questions.all] == list(TEXTS[:3])
    assert [utterance.ask.intent for utterance in questions.all] == ["your_name", "joke", "capital"]
    assert questions.all[2].ask.slot == "France"
    assert questions.all[0].words == (0, 2400, 4800, 7200)
    assert [utterance.ask for utterance in questions.murmurs] == [grammar.Ask("", "", "Mm-hm.")]
    assert all(utterance.pcm.size == RATE and level_dbfs(utterance.pcm) > -25 for utterance in questions.all)


def test_intents_are_drawn_equally_often(questions: callers.Questions) -> None:
    drawn = questions.balanced(random.Random(0), 9)
    assert Counter(utterance.ask.intent for utterance in drawn) == {"your_name": 3, "joke": 3, "capital": 3}
    assert [utterance.ask.intent for utterance in questions.balanced(random.Random(0), 2, ("joke",))] == ["joke", "joke"]
    assert questions.balanced(random.Random(0), 2, ("story",)) == []


def test_pauses_are_made_where_the_sentence_is_unfinished(tmp_path: Path) -> None:
    ask = next(ask for ask in grammar.asks() if grammar.pause_at(ask) == 3 and len(ask.text.split()) >= 5)
    sound = tone(2.0)
    words = tuple((2400 * number, word, ()) for number, word in enumerate(ask.text.split()))
    soundfile.write(corpus.shard_path(tmp_path, 0), sound, RATE, format="OGG", subtype="OPUS")
    aligned = [Clip("user", "blend:a", ask.text, words, phones, 0, 0, sound.size) for phones in (((0, 1),), ())]  # the second is not
    corpus.write_index(tmp_path, aligned)
    (made,) = callers.read(tmp_path).with_pause(random.Random(0), 5)
    pause = made.pcm.size - sound.size
    assert callers.PAUSE_S[0] * RATE - 1 <= pause <= callers.PAUSE_S[1] * RATE + 1
    assert not made.pcm[7200 : 7200 + pause].any()
    assert made.words[3] == 7200 + pause


def test_babble_is_many_voices_at_one_level(questions: callers.Questions) -> None:
    pcm = questions.babble(random.Random(0), 3.0, -38.0)
    assert pcm.size == 3 * RATE
    assert level_dbfs(pcm) == pytest.approx(-38.0, abs=0.1)
    spectrum = np.abs(np.fft.rfft(pcm))
    assert all(spectrum[3 * hz] > 20 * np.median(spectrum) for hz in (200, 250, 300))  # all three at once


class FakeStudio:
    """Says everything as a tone."""

    takes: list[str]

    def __init__(self, cache: Path) -> None:
        type(self).takes = []

    def record(self, take: speech.Take) -> Pcm:
        self.takes.append(take.text)
        return tone(0.5)


def test_questions_are_spoken_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speech, "Studio", FakeStudio)
    monkeypatch.setattr(callers, "_murmurs", list)
    monkeypatch.setattr(callers, "_aligner", lambda: None)
    spoken = callers.make(tmp_path, tmp_path, 5, lambda line: None)
    expected = [take.text for take in speech.held_out()[:5]]
    assert [utterance.ask.text for utterance in spoken.all] == FakeStudio.takes == expected
    assert {utterance.speaker for utterance in spoken.all} <= set(speech.HELD_OUT_SPEAKERS)
    again = callers.make(tmp_path, tmp_path, 5, lambda line: None)
    assert FakeStudio.takes == []
    assert [utterance.ask for utterance in again.all] == [utterance.ask for utterance in spoken.all]


def test_spoken_questions_know_their_words(tmp_path: Path) -> None:
    pytest.importorskip("pocketsphinx")
    if shutil.which("flite") is None:
        pytest.skip("flite is not installed")
    ask = next(ask for ask in grammar.asks() if grammar.pause_at(ask))
    pcm = speech.trim(flite.say("slt", ask.text, 1.0, 1.0))
    aligner = callers._aligner()
    assert aligner is not None
    words = aligner.align(pcm, ask.text).words
    made = callers.Questions([Utterance(ask, "flite:slt", pcm, words)], []).with_pause(random.Random(0), 1)
    assert len(made) == 1


def test_without_flite_there_are_no_murmurs(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*arguments: object) -> Pcm:
        raise FileNotFoundError("flite")

    monkeypatch.setattr(flite, "say", missing)
    assert callers.Questions([], callers._murmurs()).murmurs == []


def test_recordings_of_people_are_found_by_their_names(tmp_path: Path) -> None:
    """goforward.raw is 16 kHz; files that are not in the list are left alone."""
    (tmp_path / "deep").mkdir()
    sound = (32767 * tone(1.0)[: 16_000]).astype("<i2")
    (tmp_path / "deep" / "goforward.raw").write_bytes(sound.tobytes())
    (tmp_path / "deep" / "other.raw").write_bytes(sound.tobytes())
    (heard,) = callers.people(tmp_path)
    assert (heard.ask.intent, heard.speaker) == ("nonsense", "goforward.raw")
    assert heard.pcm.size == pytest.approx(RATE, rel=0.02)
    assert level_dbfs(heard.pcm) == pytest.approx(speech.LEVEL_DBFS, abs=1.0)


def test_every_recording_of_people_has_an_intent_without_slots() -> None:
    assert set(callers.PEOPLE.values()) <= set(grammar.INTENTS)
