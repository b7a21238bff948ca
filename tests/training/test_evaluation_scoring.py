"""Every judgement on calls with made-up models: each can be passed and can be failed."""

import math

import numpy as np
import pytest

from gateway.training.evaluation import call as calls
from gateway.training.evaluation.asr import Reading
from gateway.training.evaluation.call import converse, interrupt, linger
from gateway.training.evaluation.scoring import STOP_S, Answer, opening, silence_faults, stop_s
from gateway.training.evaluation.signals import FRAME, RATE
from tests.training.evaluation_line import NOVA, MadeUpModel, asked, call, murmur, tone

FRANCE = "What is the capital of France?"
PARIS = "The capital of France is Paris."
FORMAL = "Your name is Nova. You are formal."


def answer_to(question: str, reply: str, persona: str = NOVA, **habits) -> Answer:  # type: ignore[no-untyped-def]
    case = call(MadeUpModel([(reply, 12)], **habits), converse([asked(question)]), persona=persona)
    (answer,) = case.answers
    return answer


@pytest.mark.parametrize(
    ("question", "reply", "is_right", "is_exact", "is_complete"),
    [
        (FRANCE, PARIS, True, True, True),
        (FRANCE, "the capital of france is paris", True, True, True),
        (FRANCE, "The capital of Italy is Rome.", False, False, True),
        (FRANCE, "The capital of France", False, False, False),
        (FRANCE, f"{PARIS} {PARIS}", False, False, False),
        (FRANCE, "", False, False, False),
        ("What is your name?", "My name is Nova, nice to meet you!", True, True, True),
        ("What is your name?", "My name is Peter, nice to meet you!", True, False, True),
        ("What is your name?", "My name is Nova, at your service.", True, False, True),
        ("What is your name?", "Hello! How can I help you?", False, False, True),
    ],
)
def test_an_answer_is_judged_by_its_words(question: str, reply: str, is_right: bool, is_exact: bool, is_complete: bool) -> None:
    answer = answer_to(question, reply)
    assert (answer.is_right, answer.is_exact, answer.is_complete) == (is_right, is_exact, is_complete)


def test_the_style_of_the_persona_decides_what_is_exact() -> None:
    reply = "My name is Nova, at your service."
    assert answer_to("What is your name?", reply, FORMAL).is_exact
    assert not answer_to("What is your name?", reply, NOVA).is_exact


@pytest.mark.parametrize(
    ("reply", "has_a_name", "has_own_name"),
    [
        ("My name is Nova.", True, True),
        ("Nova.", True, True),
        ("My name is Peter.", True, False),
        ("My name is Peter Nova.", True, False),
        ("Good day. How may I assist you?", False, False),
        ("", False, False),
    ],
)
def test_the_own_name_is_the_persona_s_and_the_only_one(reply: str, has_a_name: bool, has_own_name: bool) -> None:
    answer = answer_to("What is your name?", reply)
    assert (answer.has_a_name, answer.has_own_name) == (has_a_name, has_own_name)


def test_silence_is_no_answer() -> None:
    (answer,) = call(MadeUpModel([]), converse([asked(FRANCE)])).answers
    assert not answer.is_given
    assert answer.latency_s is None
    assert answer.pcm.size == 0
    answer.reading = Reading("Thank you.", "")
    assert (answer.word_error_rate, answer.is_recognised) == (None, None)


@pytest.mark.parametrize("latency", [4, 7])
def test_the_latency_counts_from_the_end_of_the_question_to_the_first_sound(latency: int) -> None:
    answer = answer_to(FRANCE, PARIS, latency=latency)
    assert answer.latency_s == pytest.approx((latency + 1) * FRAME / RATE, abs=FRAME / RATE)
    assert answer.pcm.size == (12 + 4) * FRAME  # two frames on each side


@pytest.mark.parametrize(("eagerness", "is_false"), [(5, True), (None, False)])
def test_a_false_start_is_speech_before_the_end_of_the_question(eagerness: int | None, is_false: bool) -> None:
    assert answer_to(FRANCE, PARIS, eagerness=eagerness).has_false_start is is_false


@pytest.mark.parametrize(("latency", "is_false"), [(2, True), (8, False)])
def test_an_answer_into_a_pause_is_a_false_start(latency: int, is_false: bool) -> None:
    words = asked(FRANCE, pcm=tone(1.6))
    question = calls.paused(calls.Utterance(words.ask, words.speaker, words.pcm, (0, 6000, 12000, 20000, 26000, 30000)), 3, 0.5)
    assert question.pcm.size == words.pcm.size + RATE // 2
    assert not question.pcm[20000 : 20000 + RATE // 2].any()
    (answer,) = call(MadeUpModel([(PARIS, 12), (PARIS, 12)], latency=latency), converse([question])).answers
    assert answer.has_false_start is is_false


def test_each_turn_has_its_own_answer() -> None:
    model = MadeUpModel([(PARIS, 12), ("My name is Nova, nice to meet you!", 8), ("Something else.", 8)])
    case = call(model, converse([asked(FRANCE), asked("What is your name?"), asked("Tell me a joke.")]))
    assert [(answer.turn, answer.text, answer.is_right) for answer in case.answers] == [
        (0, PARIS, True),
        (1, "My name is Nova, nice to meet you!", True),
        (2, "Something else.", False),
    ]


@pytest.mark.parametrize(
    ("whisper", "sphinx", "rate", "is_recognised"),
    [
        (" The capital of France is Paris.", "the capital of france is paris", 0.0, True),
        ("The capital of friends is powers.", "the capital of italy is rome", 2 / 6, False),
        ("", "", 1.0, False),
        (None, None, None, None),
    ],
)
def test_an_answer_s_sound_is_judged_by_what_it_should_say_itself(
    whisper: str | None, sphinx: str | None, rate: float | None, is_recognised: bool | None
) -> None:
    answer = answer_to(FRANCE, PARIS)
    answer.reading = Reading(whisper, sphinx)
    assert answer.word_error_rate == (None if rate is None else pytest.approx(rate))
    assert answer.is_recognised is is_recognised


def test_sound_without_text_is_not_intelligible() -> None:
    answer = answer_to(FRANCE, "")
    answer.reading = Reading("The capital of France is Paris.", "the capital of france is paris")
    assert answer.is_given
    assert (answer.word_error_rate, answer.is_recognised) == (1.0, False)


# -- Interruptions ---------------------------------------------------------------------------------------------------------------------

BARGE_IN = interrupt(asked("Tell me a story."), asked(FRANCE))


@pytest.mark.parametrize(("stopping", "stop_frames"), [(3, 4), (7, 8)])
def test_the_time_to_stop_counts_from_the_first_sample_of_the_barge_in(stopping: int, stop_frames: int) -> None:
    case = call(MadeUpModel([("Once upon a time", 120), (PARIS, 12)], stopping=stopping), BARGE_IN)
    assert stop_s(case) == pytest.approx(stop_frames * FRAME / RATE, abs=FRAME / RATE)
    assert case.answers[1].is_right


def test_the_rest_of_an_interrupted_answer_does_not_make_the_next_one_wrong() -> None:
    case = call(MadeUpModel([("Once upon a time", 120), (PARIS, 12)], stopping=3), BARGE_IN)
    answer = case.answers[1]
    case.record.read(answer.mark.first_frame + 1, "there was")
    assert (answer.is_right, answer.is_right_after_all) == (False, True)
    case.record.read(answer.mark.end_frame, "a king")
    assert not answer.is_right_after_all


def test_a_model_that_speaks_on_never_stops() -> None:
    assert stop_s(call(MadeUpModel([("Once upon a time", 60)]), BARGE_IN)) == math.inf


@pytest.mark.parametrize(("frames", "is_interrupted"), [(20, False), (33, True)])
def test_a_reply_that_ends_by_itself_in_time_proves_nothing(frames: int, is_interrupted: bool) -> None:
    """The reply is written whole; 20 frames of it are over within 640 ms of the barge-in, 33 are not, which shows that it does not stop."""
    stop = stop_s(call(MadeUpModel([(PARIS, frames), (PARIS, 12)], latency=7), BARGE_IN))
    assert (stop is not None and stop > STOP_S) is is_interrupted
    assert (stop is None) is not is_interrupted


def test_an_answer_that_was_over_cannot_be_interrupted() -> None:
    case = call(MadeUpModel([("The end.", 6)]), BARGE_IN)
    assert stop_s(case) is None
    assert len(case.record.marks) == 1


@pytest.mark.parametrize(("stopping", "is_complete"), [(None, True), (1, False)])
def test_a_model_goes_on_through_a_murmur_if_its_answer_stays_whole(stopping: int | None, is_complete: bool) -> None:
    """The murmur means nothing, so all of it is one answer; a model that starts again says it twice."""
    replies = [(PARIS, 60)] if stopping is None else [(PARIS, 60), (PARIS, 60)]
    case = call(MadeUpModel(replies, stopping=stopping), interrupt(asked(FRANCE), murmur()))
    assert len(case.record.marks) == 2
    (answer,) = case.answers
    assert answer.is_complete is is_complete


# -- Silence ---------------------------------------------------------------------------------------------------------------------------

FRAMES = 100
QUESTIONS = [asked(FRANCE)] * 3
ANSWERS = [(PARIS, 12)] * 3


@pytest.mark.parametrize(
    ("model", "fault"),
    [
        (MadeUpModel([*ANSWERS]), None),
        (MadeUpModel([*ANSWERS[:2], ("What?", 5)]), None),
        (MadeUpModel([*ANSWERS], opening=" Hello?"), "wrote 'Hello?'"),
        (MadeUpModel([*ANSWERS], hum={40: 0.1}), "was loud in 1 frames, first after 3 s"),
        (MadeUpModel([*ANSWERS], hum=dict.fromkeys(range(60, 100), 0.002)), "level went from -70 to -54 dBFS"),
        (MadeUpModel([("What?", 5)] * 3), "answered 0 of 3 questions afterwards"),
        (MadeUpModel([]), "answered 0 of 3 questions afterwards"),
    ],
)
def test_silence_is_kept_when_nothing_is_said_nor_grows_and_questions_are_answered_after(model, fault: str | None) -> None:
    case = call(model, linger(np.zeros(FRAMES * FRAME, np.float32), QUESTIONS))
    assert silence_faults(case, FRAMES) == ([] if fault is None else [fault])


def test_the_opening_is_what_was_written_before_the_first_question() -> None:
    quiet = np.zeros(FRAMES * FRAME, np.float32)
    assert opening(call(MadeUpModel([*ANSWERS], opening=" Hi there."), linger(quiet, QUESTIONS))) == "Hi there."
    assert opening(call(MadeUpModel([*ANSWERS]), linger(quiet, QUESTIONS))) == ""
    assert opening(call(MadeUpModel([], opening=" Hm."), linger(quiet, []))) == "Hm."
