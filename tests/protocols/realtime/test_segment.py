from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.realtime.segment import SILENCE_DB, OutFrame, Segmentation, Segmenter, Speech, rms_db

SETTINGS = Segmentation(open_rms_db=-45.0, close_rms_db=-50.0, preroll_frames=2, close_frames=10)

# One character a frame. In: . silent, ~ between the two levels, # voiced, t text without voice, T text with it.
# Out: - silent, O onset, + goes on, E ends.
LEVELS = {".": SILENCE_DB, "~": -47.0, "#": -20.0, "t": SILENCE_DB, "T": -20.0}
LETTERS = {Speech.SILENT: "-", Speech.ONSET: "O", Speech.GOES_ON: "+", Speech.ENDS: "E"}
END = "+" * 9 + "E"  # what ten quiet frames give


def frame(frame_idx: int, kind: str, level_db: float | None = None) -> OutFrame:
    level_db = LEVELS[kind] if level_db is None else level_db
    pcm = np.full(64, 0.0 if level_db == SILENCE_DB else 10 ** (level_db / 20), np.float32)
    return OutFrame(frame_idx, pcm, "word" if kind in "tT" else "")


def push(segmenter: Segmenter, script: str, start: int = 0) -> str:
    return "".join(LETTERS[segmenter.push(frame(start + i, kind))] for i, kind in enumerate(script))


def preroll(segmenter: Segmenter) -> list[int]:
    return [before.frame_idx for before in segmenter.preroll]


@pytest.mark.parametrize(
    ("script", "speech"),
    [
        pytest.param(".#.###", "----O+", id="two voiced frames in a row begin speech"),
        pytest.param("..t.", "--O+", id="text begins speech at once"),
        pytest.param("T#", "O+", id="text with voice begins speech at once"),
        pytest.param("~~~#~", "-----", id="what is between the levels begins nothing"),
        pytest.param("##" + "." * 10 + ".", "-O" + END + "-", id="the tenth quiet frame ends it and belongs to it"),
        pytest.param("##" + "." * 9 + "#" + "." * 10, "-O" + "+" * 10 + END, id="a shorter pause is part of it and counts from zero after"),
        pytest.param("##" + "." * 9 + "t" + "." * 10, "-O" + "+" * 10 + END, id="text interrupts a pause"),
        pytest.param("##" + "." * 9 + "~" + "." * 10, "-O" + "+" * 10 + END, id="noise interrupts a pause"),
        pytest.param("##" + "~" * 30, "-O" + "+" * 30, id="noise between the levels ends nothing"),
        pytest.param("t" + "~" * 10, "O" + END, id="text that no voice follows ends in noise as well"),
        pytest.param("t" + "~" * 9 + "t" + "~" * 10, "O" + "+" * 10 + END, id="text that goes on without voice goes on"),
        pytest.param("t~#" + "~" * 30, "O++" + "+" * 30, id="voice after text makes noise count as speech"),
        pytest.param("t" + "~" * 10 + "##" + "~" * 15, "O" + END + "-O" + "+" * 15, id="being without voice does not outlast its stretch"),
        pytest.param("##" + "." * 10 + "##" + "." * 10, ("-O" + END) * 2, id="speech after the end is another stretch"),
    ],
)
def test_frames_are_told_apart(script: str, speech: str) -> None:
    assert push(Segmenter(SETTINGS), script) == speech


@pytest.mark.parametrize(
    ("most", "script", "frames"),
    [
        (2, "....t", [2, 3]),
        (2, ".t", [0]),
        (0, "....t", []),
        (2, "..##", [1, 2]),  # the first of the two voiced frames is one of them
        (0, "..##", [2]),  # and goes out even where no preroll is wanted
        (0, "..#.t", []),
        (5, "...##", [0, 1, 2, 3]),
        (2, "t" + "." * 10 + ".t", [11]),  # of no earlier stretch
        (2, "t" + "." * 10 + "t", []),
    ],
)
def test_the_preroll_is_what_came_right_before_and_belongs_to_nothing_else(most: int, script: str, frames: list[int]) -> None:
    segmenter = Segmenter(dataclasses.replace(SETTINGS, preroll_frames=most))
    assert push(segmenter, script)[-1] == "O"
    assert preroll(segmenter) == frames


def test_after_an_end_from_outside_speech_that_goes_on_begins_a_stretch_without_a_gap() -> None:
    segmenter = Segmenter(SETTINGS)
    push(segmenter, ".##")
    segmenter.end()
    assert push(segmenter, "#", 3) == "O"
    assert preroll(segmenter) == []


def test_nothing_of_before_a_reset_is_sent_or_counts() -> None:
    segmenter = Segmenter(SETTINGS)
    push(segmenter, "...#")
    segmenter.reset()
    assert (segmenter.is_voiced, segmenter.quiet_frames) == (False, 0)
    assert push(segmenter, "#", 4) == "-"
    assert push(segmenter, "t", 5) == "O"
    assert preroll(segmenter) == [4]


def test_a_stretch_can_be_begun_in_silence() -> None:
    segmenter = Segmenter(SETTINGS)
    assert push(segmenter, "..") == "--"
    assert segmenter.open() is Speech.ONSET
    assert preroll(segmenter) == []
    assert push(segmenter, "##..", 2) == "++++"


def test_quiet_frames_are_counted_in_a_row_whether_speech_is_open_or_not() -> None:
    segmenter = Segmenter(SETTINGS)
    counts = []
    for i, kind in enumerate("..~.#t...#." + "." * 11):
        segmenter.push(frame(i, kind))
        counts.append(segmenter.quiet_frames)
    assert counts == [1, 2, 0, 1, 0, 0, 1, 2, 3, 0, *range(1, 13)]


def test_a_voiced_frame_is_never_quiet_even_if_the_levels_are_set_the_wrong_way_round() -> None:
    segmenter = Segmenter(dataclasses.replace(SETTINGS, open_rms_db=-70.0))
    speech = [segmenter.push(frame(i, "#", -60.0)) for i in range(30)]
    assert speech == [Speech.SILENT, Speech.ONSET] + [Speech.GOES_ON] * 28


@given(script=st.text("...~##tT", max_size=120), most=st.integers(0, 3), close=st.integers(1, 4))
def test_every_frame_from_preroll_to_end_belongs_to_exactly_one_stretch(script: str, most: int, close: int) -> None:
    segmenter = Segmenter(dataclasses.replace(SETTINGS, preroll_frames=most, close_frames=close))
    sent: list[int] = []
    is_open = False
    for i, kind in enumerate(script):
        match segmenter.push(frame(i, kind)):
            case Speech.ONSET:
                assert not is_open
                is_open = True
                before = preroll(segmenter)
                assert before == list(range(i - len(before), i))  # right before, without a hole
                assert len(before) <= max(most, 1)
                sent += [*before, i]
            case Speech.SILENT:
                assert not is_open
            case speech:
                assert is_open
                sent.append(i)
                is_open = speech is not Speech.ENDS
    assert sent == sorted(set(sent))  # in order, nothing twice


@pytest.mark.parametrize(
    ("pcm", "level_db"),
    [
        (np.zeros(0), SILENCE_DB),
        (np.zeros(1920), SILENCE_DB),
        (np.full(1920, 1e-9), SILENCE_DB),
        (np.ones(1920), 0.0),
        (np.sin(np.arange(1920) * 2 * np.pi / 48), -3.01),
    ],
)
def test_levels_are_dbfs(pcm: np.ndarray, level_db: float) -> None:
    assert rms_db(pcm.astype(np.float32)) == pytest.approx(level_db, abs=0.01)
