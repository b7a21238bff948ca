from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.realtime.watermarks import SETTLE_S, Watermarks

FRAME_MS = 80


def said(*pieces: str, sent: int | None = None, at_s: float = 0.0, has_acks: bool = False) -> Watermarks:
    """An item with one piece of text a frame, sent to `sent` ms: all of it, where that is not said; the text goes before the audio."""
    marks = Watermarks(has_acks=has_acks)
    for i, text in enumerate(pieces, 1):
        marks.generate(i * FRAME_MS, text)
    sent = marks.generated_ms if sent is None else sent
    for i, text in enumerate(pieces):
        if text and i * FRAME_MS <= sent:
            marks.send_text()
    marks.send(sent, at_s)
    return marks


def lasting(ms: int, *, at_s: float = 0.0, has_acks: bool = False) -> Watermarks:
    marks = Watermarks(has_acks=has_acks)
    marks.generate(ms, "word")
    marks.send_text()
    marks.send(ms, at_s)
    return marks


def values(marks: Watermarks) -> tuple[int, int, int, int]:
    return marks.generated_ms, marks.sent_ms, marks.played_ms, marks.committed_ms


# -- The marks -----------------------------------------------------------------------------------------------------------------------


def test_only_what_exists_is_sent() -> None:
    marks = Watermarks()
    marks.generate(80)
    marks.send(400, 0.0)
    assert values(marks) == (80, 80, 0, 0)
    marks.generate(40)  # neither falls
    marks.send(40, 0.0)
    assert values(marks) == (80, 80, 0, 0)


def test_acknowledgements_are_clamped_and_late_ones_change_nothing() -> None:  # V36
    marks = lasting(2000)
    for played_ms, committed_ms, expected in [(1500, 1400, (1500, 1400)), (900, 900, (1500, 1400)), (9999, 9999, (2000, 2000))]:
        marks.acknowledge(played_ms, committed_ms, 0.0)
        assert (marks.played_ms, marks.committed_ms) == expected
    assert marks.truncate(1000, 0.0) == 2000


def test_an_acknowledgement_commits_what_was_played_only_once_the_response_is_done() -> None:
    marks = lasting(2000, has_acks=True)
    marks.acknowledge(1000, None, 1.0)
    assert values(marks) == (2000, 2000, 1000, 0)
    marks.acknowledge(1000, 1200, 1.0)
    assert values(marks) == (2000, 2000, 1000, 1000)
    marks.end(2.0, was_interrupted=False)
    marks.acknowledge(1600, None, 2.5)
    assert values(marks) == (2000, 2000, 1600, 1600)


@pytest.mark.parametrize(
    ("asked_ms", "sealed_ms"),
    [(2730, 2000), (2000, 2000), (1200, 1200), (0, 0)],  # V20: an overrun is clamped
)
def test_a_truncation_seals_the_item_for_good(asked_ms: int, sealed_ms: int) -> None:
    marks = said(*[" one"] * 30, sent=2000)
    assert marks.truncate(asked_ms, 0.5) == sealed_ms
    sealed = values(marks), marks.transcript()
    assert values(marks) == (2400, 2000, sealed_ms, sealed_ms)
    marks.generate(4000, " two")
    marks.send_text()
    marks.send(4000, 1.0)
    marks.acknowledge(3000, 3000, 1.0)
    marks.end(1.0, was_interrupted=True)
    marks.settle(100.0)
    assert marks.truncate(asked_ms + 100, 101.0) == sealed_ms
    assert marks.truncate(0, 101.0) == sealed_ms  # committed
    assert (values(marks), marks.transcript()) == sealed
    assert marks.played_by(200.0) == sealed_ms


def test_a_truncation_before_the_first_audio_is_answered_with_nothing() -> None:  # V45
    marks = said(" one", " two", sent=0)
    assert marks.truncate(500, 0.0) == 0
    assert marks.transcript() == ""


# -- What was heard, by estimate -----------------------------------------------------------------------------------------------------


def test_without_acknowledgements_audio_is_played_in_real_time_from_the_first_that_was_sent() -> None:
    marks = Watermarks()
    assert marks.played_by(5.0) == 0
    marks.generate(2000)
    marks.send(400, 10.0)
    marks.send(2000, 10.4)
    assert [marks.played_by(now) for now in (9.0, 10.0, 10.3, 11.5, 99.0)] == [0, 0, 300, 1500, 2000]
    assert values(marks) == (2000, 2000, 0, 0)  # a guess moves no mark


@pytest.mark.parametrize(
    ("was_interrupted", "committed_ms"),
    [(False, 2000), (True, 1500)],  # an interrupted client flushes what it has not played
)
def test_the_estimate_counts_once_no_truncation_can_be_expected(was_interrupted: bool, committed_ms: int) -> None:
    marks = lasting(2000, at_s=10.0)
    marks.settle(100.0)  # not over: nothing is known
    assert not marks.is_settled
    marks.end(11.5, was_interrupted=was_interrupted)
    marks.end(99.0, was_interrupted=not was_interrupted)  # it ends once
    known_s = 11.5 + SETTLE_S + 0.5  # 500 ms are not played at the end
    marks.settle(known_s - 0.01)
    assert (marks.is_settled, marks.committed_ms) == (False, 0)
    marks.settle(known_s)
    assert marks.is_settled
    assert values(marks) == (2000, 2000, committed_ms, committed_ms)
    assert marks.truncate(300, known_s + 1) == committed_ms  # too late: committed wins
    assert marks.transcript() == "word"


def test_a_truncation_in_time_goes_before_the_estimate() -> None:
    marks = lasting(2000, at_s=10.0)
    marks.end(11.5, was_interrupted=True)
    assert marks.truncate(700, 13.9) == 700


def test_who_promised_acknowledgements_is_not_guessed_at() -> None:
    marks = said(" one", " two", " three", has_acks=True)
    marks.acknowledge(100, 100, 0.1)
    marks.end(0.2, was_interrupted=True)
    assert marks.transcript() == " one two three"  # an acknowledgement may be on its way
    marks.settle(60.0)
    assert (marks.played_by(60.0), values(marks)) == (100, (240, 240, 100, 100))
    assert marks.transcript() == " one two"
    marks.acknowledge(240, None, 61.0)
    assert marks.transcript() == " one two three"


def test_nor_is_who_acknowledges_without_a_promise_and_what_was_played_counts_when_the_response_is_done() -> None:
    marks = lasting(2000, at_s=10.0)
    marks.acknowledge(500, None, 11.0)
    marks.end(11.5, was_interrupted=True)
    marks.settle(60.0)
    assert values(marks) == (2000, 2000, 500, 500)


operations = st.one_of(
    st.tuples(st.just("generate"), st.sampled_from(["", " one", "two", "é"])),
    st.tuples(st.just("send"), st.integers(0, 2000)),
    st.tuples(st.just("end"), st.booleans()),
    st.tuples(st.just("acknowledge"), st.integers(0, 2000), st.none() | st.integers(0, 2000)),
    st.tuples(st.just("truncate"), st.integers(0, 2000)),
    st.tuples(st.just("settle")),
    st.tuples(st.just("wait"), st.sampled_from([0.04, 0.5, 3.0])),
)


@settings(max_examples=500)
@given(drawn=st.lists(operations, max_size=40), has_acks=st.booleans())
def test_marks_stay_in_order_and_only_rise_and_a_seal_is_final(drawn: list[tuple[Any, ...]], has_acks: bool) -> None:
    marks, now = Watermarks(has_acks=has_acks), 0.0
    before = values(marks)
    sealed: tuple[object, ...] | None = None
    for name, *args in drawn:
        match name:
            case "generate":
                marks.generate(marks.generated_ms + FRAME_MS, args[0])
                if args[0]:
                    marks.send_text()
            case "send":
                marks.send(args[0], now)
            case "end":
                marks.end(now, was_interrupted=args[0])
            case "acknowledge":
                marks.acknowledge(args[0], args[1], now)
            case "truncate":
                assert marks.truncate(args[0], now) == marks.committed_ms
            case "settle":
                marks.settle(now)
            case _:
                now += args[0]
        after = values(marks)
        assert list(after) == sorted(after, reverse=True)
        assert all(new >= old for new, old in zip(after, before, strict=True))
        assert marks.committed_ms <= marks.played_by(now) <= marks.sent_ms
        assert sealed in (None, (*after, marks.transcript()))
        sealed = (*after, marks.transcript()) if marks.is_sealed else None
        before = after


# -- The words -----------------------------------------------------------------------------------------------------------------------


def test_the_transcript_is_what_was_sent_until_it_is_known_what_was_heard() -> None:
    marks = Watermarks()
    for i, text in enumerate((" one", " two", "", " three"), 1):
        marks.generate(i * FRAME_MS, text)
    marks.send_text()
    assert (marks.transcript(), marks.text()) == (" one", " one two three")
    marks.send_text()
    assert marks.transcript() == " one two"


def test_truncating_twice_keeps_the_first_place_and_trims_the_words() -> None:  # V21
    marks = Watermarks()
    for end_ms, text in ((400, "one"), (800, " two"), (1600, " three")):
        marks.generate(end_ms, text)
        marks.send_text()
    marks.send(1500, 0.0)
    assert (marks.truncate(700, 1.0), marks.truncate(1200, 1.0)) == (700, 700)
    assert marks.transcript() == "one two"


def test_a_word_that_was_generated_and_never_sent_ends_the_transcript_before_it() -> None:
    marks = said(" one", " tw", "o", sent=160)
    assert marks.truncate(1000, 0.0) == 160
    assert marks.transcript() == " one"


@pytest.mark.parametrize(
    ("pieces", "heard", "text"),
    [
        ([" one", " two"], 0, ""),
        ([" one", " two"], 2, " one two"),
        (["one", " two"], 1, "one"),
        ([" Hel", "lo", " you"], 1, ""),  # inside the first word
        ([" one", " tw", "o"], 2, " one"),
        (["one", "\ntw", "o"], 2, "one"),
        ([" one ", "two"], 1, " one"),  # trailing space goes
        (["one", " two", " "], 3, "one two"),
        ([" Hello", ",", " you"], 1, " Hello"),  # punctuation does not make a word unfinished
        ([" Hello", ",", " you"], 2, " Hello,"),
        ([" I", " don", "'t"], 2, " I"),
        ([" well", "-", "known"], 1, ""),
        ([" 3", ".5"], 1, ""),
        ([" so", "...", "\n"], 1, " so"),
        ([" ça", " dé", "jà"], 2, " ça"),
        (["こんに", "ちは"], 1, "こんに"),  # no spaces, no words to cut
        (["東京 Mo", "shi"], 1, "東京"),
        (["", " one", "", "", " two"], 4, " one"),
    ],
)
def test_the_text_that_was_heard_ends_with_a_whole_word(pieces: list[str], heard: int, text: str) -> None:
    assert said(*pieces).text_until(heard * FRAME_MS) == text


@given(pieces=st.lists(st.sampled_from(["", " a", "b", ", ", "é", "語", "\n", "."]), max_size=12), end_ms=st.integers(0, 1000))
def test_the_text_that_was_heard_begins_the_whole_text_and_is_no_longer_than_its_frames(pieces: list[str], end_ms: int) -> None:
    marks = said(*pieces)
    heard = marks.text_until(end_ms)
    assert marks.text().startswith(heard)
    assert "".join(pieces[: -(-end_ms // FRAME_MS)]).startswith(heard)
