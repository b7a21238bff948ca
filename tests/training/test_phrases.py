"""The question texts are written as the grammar reads them."""

from __future__ import annotations

import pytest

from gateway.training import phrases

ALL = phrases.SOCIAL | phrases.SMALL_TALK | phrases.ROLE | phrases.CONTROL | phrases.SLOTTED | {"nonsense": phrases.NONSENSE}


@pytest.mark.parametrize("intent", ALL)
def test_texts_are_sentences_with_at_most_one_pause_and_the_slot_where_there_is_one(intent: str) -> None:
    assert len(set(ALL[intent])) == len(ALL[intent])
    for text in ALL[intent]:
        assert text[0].isupper()
        assert text[-1] in ".?!"
        assert text.count(" | ") == text.count("|") <= 1
        assert text.count("{}") == (intent in phrases.SLOTTED)


def test_enough_is_out_of_this_world() -> None:
    assert len(phrases.NONSENSE) >= 30


def test_intents_that_take_an_opener_exist() -> None:
    assert set(phrases.OPENED) <= set(ALL)
