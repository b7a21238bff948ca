"""Scripts: what is said when, in answer to what."""

import numpy as np
import pytest

from gateway.training.evaluation.call import LONGEST_S, PATIENCE_S, Caller, Record, converse, interrupt, linger, paused
from gateway.training.evaluation.signals import FRAME, FRAME_S, RATE
from tests.training.evaluation_line import QUIET, MadeUpModel, asked, call, murmur, tone

PARIS = "The capital of France is Paris."
QUESTION = asked("What is the capital of France?")


def test_the_next_question_waits_for_the_end_of_the_answer() -> None:
    record = call(MadeUpModel([(PARIS, 40), (PARIS, 10)]), converse([QUESTION, QUESTION])).record
    first, second = record.marks
    loud = record.loud_frames(first.end_frame, second.first_frame)
    assert len(loud) == 40
    quiet_s = (second.first_frame - loud[-1]) * FRAME_S
    assert 1.0 <= quiet_s <= 1.0 + 1.2 + 3 * FRAME_S  # settled, and a gap


def test_a_pause_between_two_sentences_is_not_the_end_of_the_answer() -> None:
    gap = 10  # frames, 0.8 s

    class TwoSentences(MadeUpModel):
        async def exchange(self, frame, record, ahead):  # type: ignore[no-untyped-def]
            await super().exchange(frame, record, ahead)
            loud = record.loud_frames(0, len(record.said))
            if loud and self.replies and len(record.said) - loud[-1] > gap:
                self._left = self.replies.pop(0)[1]

    record = call(TwoSentences([(PARIS, 10), ("", 12)]), converse([QUESTION])).record
    assert len(record.loud_frames(0, len(record.said))) == 22


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_patience() -> None:
    record = call(MadeUpModel([]), converse([QUESTION])).record
    waited_s = (len(record.said) - record.marks[0].end_frame) * FRAME_S
    assert waited_s == pytest.approx(PATIENCE_S, abs=2 * FRAME_S)


def test_an_endless_answer_is_cut() -> None:
    record = call(MadeUpModel([(PARIS, 10_000)]), converse([QUESTION])).record
    assert (len(record.said) - record.marks[0].end_frame) * FRAME_S == pytest.approx(LONGEST_S, abs=2 * FRAME_S)


def test_speech_begins_anywhere_in_a_frame_and_is_marked_to_the_sample() -> None:
    sent: list[np.ndarray] = []
    caller = Caller(np.random.default_rng(1))
    for frame in caller.say(QUESTION):
        sent.append(frame)
        caller.record.hear(QUIET)
    (mark,) = caller.record.marks
    assert mark.start % FRAME != 0
    assert np.array_equal(np.concatenate(sent)[mark.start : mark.end], QUESTION.pcm)
    assert {frame.size for frame in sent} == {FRAME}


def test_an_interruption_comes_one_to_two_seconds_into_the_answer() -> None:
    record = call(MadeUpModel([(PARIS, 80)], stopping=3), interrupt(QUESTION, murmur())).record
    first, second = record.marks
    into_s = (second.first_frame - record.loud_frames(first.end_frame, second.first_frame)[0]) * FRAME_S
    assert 1.0 - FRAME_S <= into_s <= 2.0 + 2 * FRAME_S


def test_silence_is_sent_ahead_and_questions_are_not() -> None:
    owed: list[int] = []

    class Watched(MadeUpModel):
        async def exchange(self, frame, record, ahead):  # type: ignore[no-untyped-def]
            owed.append(ahead)
            await super().exchange(frame, record, ahead)

    call(Watched([(PARIS, 10)]), linger(np.zeros(30 * FRAME, np.float32), [QUESTION]))
    assert set(owed[:30]) == {8}
    assert set(owed[30:]) == {0}


def test_a_pause_moves_what_comes_after_it() -> None:
    spoken = asked("Hello.", pcm=tone(1.0))
    with_words = type(spoken)(spoken.ask, spoken.speaker, spoken.pcm, (0, 8000, 16000))
    made = paused(with_words, 1, 0.5)
    assert made.words == (0, 20000, 28000)
    assert np.array_equal(made.pcm[:8000], spoken.pcm[:8000])
    assert not made.pcm[8000:20000].any()
    assert np.array_equal(made.pcm[20000:], spoken.pcm[8000:])
    assert made.pcm.size == spoken.pcm.size + RATE // 2


def test_the_text_of_the_last_frame_does_not_decide_anything() -> None:
    """It may not have come yet: a decision on it would depend on timing."""
    record = Record()
    record.hear(QUIET)
    record.read(0, " Hello")
    assert not record.is_speaking(0)
    record.hear(QUIET)
    assert record.is_speaking(0)
    assert record.text(0, 1) == " Hello"
    assert record.text(1) == ""
    assert record.text_frames(0, 2) == [0]
