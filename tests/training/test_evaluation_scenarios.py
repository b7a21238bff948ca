"""The list of calls: complete, balanced, and the same for the same seed."""

from collections import Counter

import numpy as np
import pytest

from gateway.training import grammar, lexicon, persona
from gateway.training.evaluation.call import Utterance
from gateway.training.evaluation.scenarios import FULL, QUICK, Scenarios, Size
from gateway.training.evaluation.server import Plan
from gateway.training.evaluation.signals import FRAME, level_dbfs
from gateway.training.evaluation.speech import Questions
from tests.training.evaluation_line import MadeUpModel, call, murmur, tone

VOICES = ["bf_emma", "af_heart", "am_adam", "am_michael"]


@pytest.fixture(scope="module")
def questions() -> Questions:
    """Every question of the grammar, with words of a tenth of a second."""
    spoken = [
        Utterance(ask, "nobody", tone(1.2), tuple(2400 * number for number in range(len(ask.text.split())))) for ask in grammar.asks()
    ]
    return Questions(spoken, [murmur()])


def plans(questions: Questions, size: Size, seed: int = 0) -> list[Plan]:
    return Scenarios(questions, VOICES, size, seed).plans()


@pytest.mark.parametrize("size", [FULL, QUICK])
def test_every_kind_of_call_is_held_as_often_as_the_size_says(questions: Questions, size: Size) -> None:
    counts = Counter((plan.kind, plan.wire) for plan in plans(questions, size))
    assert counts == {
        ("silence", "duplex"): 1,
        ("question", "chat"): size.chat,
        ("question", "duplex"): size.question,
        ("conversation", "duplex"): size.conversation,
        ("name", "duplex"): size.name,
        ("pause", "duplex"): size.pause,
        ("barge_in", "duplex"): size.barge_in,
        ("murmur", "duplex"): size.murmur,
        ("babble", "duplex"): size.babble,
        ("faint", "duplex"): size.faint,
        ("noise", "duplex"): size.noise,
        ("music", "duplex"): size.noise,
        ("greeting", "duplex"): size.greeting,
    }


def test_the_silence_comes_first_because_it_takes_longest(questions: Questions) -> None:
    drawn = Scenarios(questions, VOICES, FULL, 0)
    assert drawn.plans()[0].kind == "silence"
    assert drawn.silence_frames == 1800 * 24_000 // FRAME


def test_voices_and_personas_are_mixed(questions: Questions) -> None:
    asked = [plan for plan in plans(questions, FULL) if plan.kind == "question"]
    assert min(Counter(plan.voice for plan in asked).values()) >= FULL.question // 4
    held_out = [persona.read(plan.persona).is_held_out for plan in asked]
    assert 0.3 < np.mean(held_out) < 0.4
    assert not any(persona.read(plan.persona).greets_first for plan in plans(questions, FULL) if plan.kind != "greeting")
    assert all(persona.read(plan.persona).greets_first for plan in plans(questions, FULL) if plan.kind == "greeting")


def test_every_name_is_asked_for(questions: Questions) -> None:
    named = [persona.read(plan.persona).name for plan in plans(questions, FULL) if plan.kind == "name"]
    assert sorted(named) == sorted(lexicon.NAMES)


def test_the_seed_decides_everything(questions: Questions) -> None:
    def facts(seed: int) -> list[tuple[str, str, str, int]]:
        held = [(plan, call(MadeUpModel([]), plan.script)) for plan in plans(questions, QUICK, seed) if plan.kind == "question"]
        return [(plan.persona, plan.voice, case.record.marks[0].utterance.ask.text, case.record.marks[0].start) for plan, case in held]

    assert facts(0) == facts(0) != facts(1)


def test_faint_questions_and_babble_have_their_levels(questions: Questions) -> None:
    drawn = plans(questions, QUICK)
    faint = next(plan for plan in drawn if plan.kind == "faint")
    (mark,) = call(MadeUpModel([]), faint.script).record.marks
    assert level_dbfs(mark.utterance.pcm) == pytest.approx(level_dbfs(tone(1.2)) - 12, abs=0.1)
    babble = next(plan for plan in drawn if plan.kind == "babble")
    assert babble.background is not None
    assert level_dbfs(babble.background) == pytest.approx(-38.0, abs=0.1)


def test_barge_ins_interrupt_something_long_with_something_else(questions: Questions) -> None:
    for plan in plans(questions, FULL):
        if plan.kind == "barge_in":
            case = call(MadeUpModel([("Once upon a time", 100), ("Yes.", 5)], stopping=2), plan.script)
            first, second = (mark.utterance.ask.intent for mark in case.record.marks)
            assert first in ("story", "alphabet")
            assert second not in ("story", "alphabet")


def test_without_murmurs_and_words_those_calls_are_left_out() -> None:
    bare = Questions([Utterance(ask, "nobody", tone(1.2)) for ask in grammar.asks()], [])
    kinds = {plan.kind for plan in plans(bare, QUICK)}
    assert not kinds & {"murmur", "pause"}
    assert "question" in kinds


def test_conversations_in_real_time_and_calls_of_people(questions: Questions) -> None:
    drawn = Scenarios(questions, VOICES, QUICK, 0)
    assert {(plan.kind, plan.wire) for plan in drawn.paced(3)} == {("conversation", "live")}
    assert [plan.kind for plan in drawn.of_people(questions.all[:2])] == ["person", "person"]
