"""The plan of the recordings is fair and keeps evaluation apart; recordings are whole, levelled and made once."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile

from gateway.training import grammar, kokoro, speech
from gateway.training.corpus import SAMPLE_RATE
from gateway.training.speech import ASSISTANTS, HELD_OUT_SPEAKERS, Take, plan, record_all, trim

PLAN = plan()
USERS = [take for take in PLAN if take.role == "user"]


def test_no_recording_is_planned_twice() -> None:
    assert len({take.path(Path()) for take in PLAN}) == len(PLAN)


def test_evaluation_has_its_own_speakers() -> None:
    held_out = [take for take in PLAN if take.role == "heldout"]
    assert held_out == speech.held_out()
    assert {take.speaker for take in held_out} == set(HELD_OUT_SPEAKERS)
    assert not {take.speaker for take in PLAN if take.role != "heldout"} & set(HELD_OUT_SPEAKERS)
    intents = collections.Counter(grammar.intent_of(take.text)[0] for take in held_out)
    assert len(held_out) == len({take.text for take in held_out}) == 300
    assert set(intents) == set(grammar.INTENTS)
    assert max(intents.values()) - min(intents.values()) <= 1


def test_callers_never_have_a_voice_of_the_assistant() -> None:
    mixed = {voice for take in USERS if take.engine == "kokoro" for voice, _ in kokoro.parts(take.speaker)}
    assert not mixed & set(ASSISTANTS)
    assert len({take.speaker for take in USERS}) > 200


@pytest.mark.parametrize("share", [0.2, 0.35, 0.6, 1.0])
def test_any_beginning_of_the_work_is_balanced(share: float) -> None:
    counts = collections.Counter(take.text for take in USERS[: int(len(USERS) * share)])
    assert len(counts) == len(grammar.asks()) + len(grammar.BACKCHANNELS)
    assert max(counts.values()) - min(counts.values()) <= 2  # two rounds of a text may draw one speaker and tempo


def test_the_assistant_says_everything_in_every_voice_twice() -> None:
    said = collections.Counter((take.text, take.speaker) for take in PLAN if take.role == "assistant")
    assert said.keys() == {(text, voice) for text in grammar.replies() for voice in ASSISTANTS}
    assert set(said.values()) == {2}


def test_silence_around_speech_is_cut_and_the_level_is_set() -> None:
    tone = 0.9 * np.sin(np.arange(SAMPLE_RATE) * 0.05, dtype=np.float32)
    silence = np.full(SAMPLE_RATE // 2, 1e-4, np.float32)
    pcm = trim(np.concatenate([silence, tone, silence]))
    assert len(pcm) == pytest.approx(1.09 * SAMPLE_RATE, abs=0.02 * SAMPLE_RATE)
    loud = pcm[SAMPLE_RATE // 4 : SAMPLE_RATE // 2]
    assert 20 * np.log10(np.sqrt(np.mean(loud**2))) == pytest.approx(speech.LEVEL_DBFS, abs=0.2)
    assert abs(pcm[0]) < 1e-3


def test_a_pause_inside_speech_stays() -> None:
    tone = np.sin(np.arange(SAMPLE_RATE) * 0.05, dtype=np.float32)
    pcm = np.concatenate([tone, np.zeros(SAMPLE_RATE, np.float32), tone])
    assert len(trim(pcm)) == pytest.approx(len(pcm), abs=0.1 * SAMPLE_RATE)


@pytest.mark.parametrize("pcm", [np.zeros(SAMPLE_RATE, np.float32), np.zeros(0, np.float32)], ids=["zeros", "nothing"])
def test_a_silent_recording_is_refused(pcm: np.ndarray) -> None:
    with pytest.raises(ValueError, match="silent"):
        trim(pcm)


class FakeStudio(speech.Studio):
    """Hums; loses its voice after a number of recordings."""

    def __init__(self, lasts: int) -> None:
        super().__init__(Path("nowhere"))
        self.lasts = lasts

    def learn(self, takes: Sequence[Take]) -> None:
        """Nothing to look up."""

    def record(self, take: Take) -> np.ndarray:
        if not self.lasts:
            raise KeyboardInterrupt
        self.lasts -= 1
        return np.full(2400, len(take.text) / 1000, np.float32)


def test_interrupted_work_leaves_whole_recordings_only(tmp_path: Path) -> None:
    work, said = PLAN[:5], []
    with pytest.raises(KeyboardInterrupt):
        record_all(tmp_path, work, FakeStudio(3), progress=said.append)
    assert [take.path(tmp_path).exists() for take in work] == [True, True, True, False, False]
    assert not list(tmp_path.rglob("*.partial"))
    record_all(tmp_path, work[3:], FakeStudio(2), progress=said.append)
    assert said == ["2 of 2 clips, 0.0 min of speech"]
    for take in work:
        pcm, rate = soundfile.read(take.path(tmp_path), dtype="float32")
        assert rate == SAMPLE_RATE
        assert pcm == pytest.approx(np.full(2400, len(take.text) / 1000), abs=1e-4)


@pytest.mark.parametrize("engine", [None, "kokoro", "flite"])
def test_shares_of_the_work_add_up_to_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str | None) -> None:
    some = (*PLAN[:6], *[take for take in USERS if take.engine == "flite"][:5])
    monkeypatch.setattr(speech, "_plan", lambda: some)
    monkeypatch.setattr(speech, "Studio", lambda cache: FakeStudio(100))
    wanted = [take for take in some if engine in (None, take.engine)]
    for share in range(2):
        options = argparse.Namespace(cache=Path("nowhere"), engine=engine, share=share, shares=2)
        speech.run(tmp_path, options, progress=lambda _: None)
        made = [take for take in some if take.path(tmp_path).exists()]
        assert len(made) == (len(wanted) + 1) // 2 if share == 0 else made == wanted
