"""Replies are complete sentences in three styles, and facts answer their own question."""

from __future__ import annotations

import pytest

from gateway.training import lexicon, wording


@pytest.mark.parametrize("intent", wording.STYLED)
def test_styled_replies_end_and_only_the_name_is_filled_in(intent: str) -> None:
    assert len(wording.STYLED[intent]) == len(wording.STYLES)
    for text in wording.STYLED[intent]:
        assert text[-1] in ".?!"
        assert ("{" in text) == (intent == "your_name")


def test_stories_are_long_enough_to_be_interrupted() -> None:
    assert all(len(text.split()) >= 28 for text in wording.STYLED["story"])


@pytest.mark.parametrize(
    ("intent", "answers"),
    [
        ("capital", lexicon.CAPITALS),
        ("colour_of", lexicon.COLOURS),
        ("animal_sound", lexicon.ANIMAL_SOUNDS),
        ("opposite", lexicon.OPPOSITES),
    ],
)
def test_facts_name_the_question_and_the_answer(intent: str, answers: dict[str, str]) -> None:
    assert wording.FACTS[intent].keys() == answers.keys()
    for slot, text in wording.FACTS[intent].items():
        assert slot.lower() in text.lower()
        assert text.endswith(f" {answers[slot]}.")


def test_sums_are_right() -> None:
    for slot, text in wording.FACTS["add"].items():
        a, b = map(int, slot.split("+"))
        assert text.lower() == f"{lexicon.NUMBERS[a]} plus {lexicon.NUMBERS[b]} is {lexicon.NUMBERS[a + b]}."
