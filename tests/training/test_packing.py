"""What is packed is what was recorded, where the index says."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import pytest

from gateway.training import packing, speech, tokenizer
from gateway.training.alignment import Alignment, uniform
from gateway.training.corpus import INDEX, SAMPLE_RATE, read_audio, read_index
from gateway.training.packing import run

ROLES = ("assistant", "user", "heldout")
PER_ROLE = 12


def chirp(number: int) -> np.ndarray:
    """Half a second or more of a sound that no other clip has."""
    length = SAMPLE_RATE // 2 + 777 * number
    time = np.arange(length) / SAMPLE_RATE
    return np.asarray(0.3 * np.sin(2 * np.pi * (200 + 15 * number) * time * (1 + time / 2)), np.float32)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a few recordings of each role, all aligned already, and the text pieces."""
    folder = tmp_path_factory.mktemp("recordings")
    tokenizer.train(folder / tokenizer.FILE, tokenizer.sentences())
    with open(folder / "aligned.jsonl", "w", encoding="utf-8") as file:
        for number, take in enumerate(some_takes()):
            speech._write(take.path(folder), chirp(number))
            found = uniform(len(chirp(number)), take.text)
            file.write(json.dumps([take.path(folder).stem, found.words, [[0, 0], [480, 5]]]) + "\n")
    return folder


def some_takes() -> list[speech.Take]:
    plan = speech.plan()
    return [take for role in ROLES for take in [take for take in plan if take.role == role][:PER_ROLE]]


def packed(recordings: Path, out: Path) -> list[str]:
    said: list[str] = []
    run(recordings, argparse.Namespace(out=out / "corpus", held_out=out / "heldout"), progress=said.append)
    return said


def test_clips_come_back_from_where_the_index_says(recordings: Path, tmp_path: Path) -> None:
    assert len(packed(recordings, tmp_path)) == 2
    numbers = {(take.text, take.speaker): number for number, take in enumerate(some_takes())}
    assert not (tmp_path / "corpus/b").exists()
    for folder, count in ((tmp_path / "corpus/a", 2 * PER_ROLE), (tmp_path / "heldout", PER_ROLE)):
        pcm, clips = read_audio(folder, read_index(folder))
        assert len(clips) == count
        for clip in clips:
            original = chirp(numbers[clip.text, clip.speaker])
            assert clip.length == len(original)
            likeness = {lag: np.corrcoef(pcm[clip.start + lag :][: clip.length], original)[0, 1] for lag in range(-3, 4)}
            assert abs(max(likeness, key=lambda lag: likeness[lag])) <= 1  # the codec turns the phase a little
            assert likeness[0] > 0.9


def test_the_assistant_has_pieces_and_callers_have_none(recordings: Path, tmp_path: Path) -> None:
    packed(recordings, tmp_path)
    encoder = packing.load_encoder(recordings)
    for clip in read_index(tmp_path / "corpus/a"):
        assert [word for _, word, _ in clip.words] == clip.text.split()
        assert clip.phones == ((0, 0), (480, 5))
        pieces = [piece for *_, pieces in clip.words for piece in pieces]
        assert pieces == (encoder.encode(clip.text) if clip.role == "assistant" else [])
    assert {clip.role for clip in read_index(tmp_path / "heldout")} == {"user"}


def test_what_does_not_fit_goes_into_a_second_part_but_never_the_assistant(
    recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "PART_BYTES", 60_000)
    packed(recordings, tmp_path)
    a, b = (read_index(tmp_path / "corpus" / name) for name in "ab")
    assert sum(clip.role == "assistant" for clip in a) == PER_ROLE
    assert {clip.role for clip in b} == {"user"}
    assert sum(clip.role == "user" for clip in a + b) == PER_ROLE


def test_packing_again_replaces_what_was_there(recordings: Path, tmp_path: Path) -> None:
    packed(recordings, tmp_path)
    before = (tmp_path / "corpus/a" / INDEX).read_bytes()
    (tmp_path / "corpus/a/audio-007.opus").write_bytes(b"left over")
    packed(recordings, tmp_path)
    assert (tmp_path / "corpus/a" / INDEX).read_bytes() == before
    assert not (tmp_path / "corpus/a/audio-007.opus").exists()


def test_a_shard_that_grows_too_large_is_refused(recordings: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SHARD_BYTES", 5_000)
    with pytest.raises(ValueError, match="more than 5000"):
        packed(recordings, tmp_path)


def test_alignments_are_made_once(recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    class FakeAligner:
        def align(self, pcm: np.ndarray, text: str) -> Alignment:
            assert 0.1 < np.abs(pcm).max() < 1
            made.append(text)
            return uniform(len(pcm), text)

    monkeypatch.setattr(packing, "Aligner", FakeAligner)
    extra = next(take for take in speech.plan() if take.role == "user" and not take.path(recordings).exists())
    speech._write(extra.path(recordings), chirp(3))
    takes = [*some_takes(), extra]
    try:
        first = packing.align(recordings, takes, progress=lambda _: None)
        assert packing.align(recordings, takes, progress=lambda _: None) == first
    finally:
        extra.path(recordings).unlink()
    assert made == [extra.text]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no recordings"):
        packed(tmp_path, tmp_path)
    with pytest.raises(FileNotFoundError, match="tokenizer"):
        packing.load_encoder(tmp_path)
