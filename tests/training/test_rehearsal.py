"""What a model says of itself becomes a corpus: the bundled model is asked by people it never heard, and its words and codes are kept."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from gateway.training import packing, rehearsal, sources
from gateway.training.bank import SpeechBank
from gateway.training.corpus import OWN_CODES, Clip, read_index, write_index
from gateway.training.dialogues import FRAME, Dialogue, DialogueMaker
from gateway.training.grammar import asks, greeting, intent_of, plain, replies, reply
from gateway.training.lm_batches import TAIL_FRAMES, Answers
from gateway.training.persona import Persona
from gateway.training.rehearsal import Line, Said, Stage

ROOT = Path(__file__).parents[2]
TINY = ROOT / "gateway" / "engine" / "tiny"
QUESTION = "Do you know the capital of Russia?"


@pytest.fixture(scope="module")
def users(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus of one question."""
    folder = tmp_path_factory.mktemp("users")
    pcm, _ = soundfile.read(ROOT / "tests" / "data" / "spoken" / "capital.flac", dtype="int16")
    words = tuple((len(pcm) * i // 7, word, ()) for i, word in enumerate(QUESTION.split()))
    write_index(folder, packing.write_shards(folder, [(Clip("user", "somebody", QUESTION, words, ()), pcm)]))
    return folder


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    raw = json.loads((TINY / "config.json").read_text())["gateway"]
    settled = {name: raw[name] for name in ("silence_codes", "sine_codes")}
    codes = {"somebody": [torch.tensor(raw["silence_codes"]).repeat(26, 1)]}  # no voice at all: the words do not depend on it
    torch.save({"codes": codes, **settled}, path := tmp_path_factory.mktemp("prompts") / "prompts.pt")
    return path


@pytest.fixture(scope="module")
def stage(users: Path, prompts: Path) -> Stage:
    return Stage(SpeechBank.load([users], torch.device("cpu")), TINY, prompts)


@pytest.fixture(scope="module")
def said(stage: Stage) -> list[Said | None]:
    cue = Persona("Nova"), next(ask for ask in asks() if ask.text == QUESTION)
    return stage.say([Line("somebody", text, (cue,)) for text in ("The capital of Russia is Moscow.", "No, a computer.")], 0)


def test_what_is_right_is_kept_and_what_is_wrong_is_not(stage: Stage, said: list[Said | None]) -> None:
    assert [answer is not None for answer in said] == [True, False]
    for answer in said[:1]:
        assert answer is not None
        pieces = [piece for _, run in answer.pieces for piece in run]
        assert plain(stage._tokenizer.decode(pieces)) == plain(answer.line.text)
        frames = len(answer.pcm) // FRAME
        assert len(answer.codes) == frames + TAIL_FRAMES
        assert 10 < frames < 60
        assert np.abs(answer.pcm).max() > 1000
        assert answer.pieces[0][0] <= 2  # words and sound begin together


def test_the_corpus_gives_back_the_very_codes(stage: Stage, said: list[Said | None], tmp_path: Path) -> None:
    rehearsal.write(tmp_path, [answer for answer in said if answer])
    bank = SpeechBank.load([tmp_path], torch.device("cpu"))
    own = torch.load(tmp_path / OWN_CODES, weights_only=True)
    answers = Answers(bank, stage._mimi, own)
    clip = next(clip for clip in bank.index.clips if "Moscow" in clip.text)
    maker = DialogueMaker(bank.index, 100, 0)
    dialogue = Dialogue.silent(Persona("Nova"), "somebody", 100)
    maker._speak(dialogue, clip, 20 * FRAME, clip.length)
    codes = answers.lay([dialogue], torch.full((8,), 511), 100)[0]
    kept = own["somebody The capital of Russia is Moscow."].long()
    assert torch.equal(codes[20 : 20 + len(kept)], kept)
    assert (codes[:20] == 511).all()
    assert (codes[20 + len(kept) :] == 511).all()
    pieces = [piece for piece in dialogue.text.tolist() if piece > 3]
    assert plain(stage._tokenizer.decode(pieces)) == "the capital of russia is moscow"


def test_every_line_is_asked_for_in_every_voice_by_what_leads_to_it() -> None:
    found = rehearsal.lines(("one", "two"), seed=0)
    assert sorted((line.voice, line.text) for line in found) == sorted((voice, text) for voice in ("one", "two") for text in replies())
    for line in found:
        assert len(line.cues) == rehearsal.ROUNDS
        for who, ask in line.cues:
            assert line.text == (greeting(who) if ask is None else reply(*intent_of(ask.text), who))
            assert who.greets_first == (ask is None)


def test_the_clearest_saying_is_kept_and_only_what_was_misheard_is_said_again() -> None:
    clear, mumbled, never = (Line("one", text, ()) for text in ("clear", "mumbled", "never"))
    asked: list[list[str]] = []

    def say(wanted: Sequence[Line], number: int) -> list[Said | None]:
        asked.append([line.text for line in wanted])
        return [None if line is never else Said(line, (), torch.full((1, 8), number), np.zeros(1, np.int16)) for line in wanted]

    def errors(answer: Said) -> float:
        return 0.0 if answer.line is clear else (0.5, 0.2, 0.4, 0.2)[int(answer.codes[0, 0])]

    best = rehearsal.best_of(say, errors, [clear, mumbled, never])
    assert asked == [["clear", "mumbled", "never"], *[["mumbled", "never"]] * (rehearsal.ROUNDS - 1)]
    assert {line.text: int(answer.codes[0, 0]) for line, answer in best.items()} == {"clear": 0, "mumbled": 1}


def test_the_stage_names_what_was_never_said(
    users: Path, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    cues = ((Persona("Nova"), next(ask for ask in asks() if ask.text == QUESTION)),) * rehearsal.ROUNDS
    wanted = [Line("somebody", text, cues) for text in ("No, a computer.", "The capital of Russia is Moscow.")]
    monkeypatch.setattr(rehearsal, "lines", lambda voices, seed: wanted)
    options = Namespace(users=[users], checkpoint=TINY, prompts=prompts, out=tmp_path, cache=sources.DEFAULT_CACHE)
    try:
        rehearsal.run(tmp_path, options)
    except sources.SourceError as error:
        pytest.skip(f"no weights for Whisper: {error}")
    assert "never said right: somebody: No, a computer." in capsys.readouterr().err
    assert [clip.text for clip in read_index(tmp_path)] == ["The capital of Russia is Moscow."]
    assert list(torch.load(tmp_path / OWN_CODES, weights_only=True)) == ["somebody The capital of Russia is Moscow."]
