"""Every question has one right reply, whoever answers, and no text can be taken for two questions."""

from __future__ import annotations

import collections
import subprocess
import sys

import pytest

from gateway.training import lexicon, phrases, wording
from gateway.training.grammar import BACKCHANNELS, INTENTS, Ask, asks, greeting, intent_of, pause_at, plain, replies, reply
from gateway.training.persona import HELD_OUT, Persona
from gateway.training.wording import STYLES

NOVA = Persona("Nova")
WORKS = Persona("Maya", "formal", "Star Pizza")
LONG = ("story", "alphabet", "days_of_week", "count")


@pytest.mark.parametrize("persona", [NOVA, WORKS, Persona("Tom", "brief", greets_first=True), *HELD_OUT], ids=lambda persona: persona.text)
def test_every_question_has_a_reply(persona: Persona) -> None:
    said = set(replies(persona))
    for ask in asks():
        assert reply(ask.intent, ask.slot, persona) in said
    assert said <= set(replies())
    assert greeting(persona) in said


def test_no_text_belongs_to_two_questions() -> None:
    asked = collections.Counter(plain(ask.text) for ask in asks())
    assert [text for text, times in asked.items() if times > 1] == []
    assert not asked.keys() & {plain(text) for text in BACKCHANNELS} - {"okay"}


def test_all_intents_are_asked_in_many_ways() -> None:
    texts = collections.defaultdict(list)
    for ask in asks():
        texts[ask.intent].append(ask)
    assert set(texts) == set(INTENTS)
    for intent, some in texts.items():
        per_slot = len(some) / len({ask.slot for ask in some})
        assert per_slot >= (5 if intent in phrases.SLOTTED else 10), intent
        assert all(1 <= len(ask.text.split()) <= 9 for ask in some)


def test_replies_are_short_enough_for_the_caller_and_few_enough_to_learn() -> None:
    assert 350 <= len(replies()) <= 500
    long = {reply(ask.intent, ask.slot, Persona("Nova", style)) for ask in asks() if ask.intent in LONG for style in STYLES}
    jokes = set(wording.STYLED["joke"])
    for text in replies():
        assert len(text.split()) <= 10 or text in long | jokes, text


def test_the_two_sentences_of_the_readme() -> None:
    assert intent_of("hello what is your name") == ("your_name", "")
    assert reply("your_name", "", NOVA) == "My name is Nova, nice to meet you!"


@pytest.mark.parametrize(
    ("intent", "slot", "text"),
    [
        ("capital", "France", "The capital of France is Paris."),
        ("add", "4+8", "Four plus eight is twelve."),
        ("colour_of", "a banana", "The colour of a banana is yellow."),
        ("animal_sound", "an owl", "The sound of an owl is a hoot."),
        ("opposite", "hot", "The opposite of hot is cold."),
        ("day_after", "Sunday", "The day after Sunday is Monday."),
        ("count", "3", "One, two, three."),
    ],
)
def test_facts_do_not_depend_on_the_style(intent: str, slot: str, text: str) -> None:
    assert {reply(intent, slot, Persona("Nova", style)) for style in ("", *STYLES)} == {text}


def test_styles_are_told_apart_and_cheerful_is_the_silent_one() -> None:
    for intent in wording.STYLED:
        if intent not in ("story", *wording.SHOP_INTENTS):
            assert len({reply(intent, "", Persona("Nova", style)) for style in STYLES}) == 3
        assert reply(intent, "", NOVA) == reply(intent, "", Persona("Nova", "cheerful"))


@pytest.mark.parametrize("intent", wording.SHOP_INTENTS)
def test_work_needs_a_shop(intent: str) -> None:
    assert reply(intent, "", NOVA) == wording.NO_SHOP
    assert reply(intent, "", WORKS) != wording.NO_SHOP
    if intent in wording.SHOP_FACTS:
        assert len({reply(intent, "", Persona("Nova", "", shop)) for shop in lexicon.SHOPS}) == len(lexicon.SHOPS)


def test_unknown_intents_and_slots_are_refused() -> None:
    with pytest.raises(KeyError):
        reply("capital", "Atlantis", NOVA)
    with pytest.raises(KeyError):
        reply("philosophy", "", NOVA)
    with pytest.raises(KeyError):
        intent_of("What is the capital of Atlantis?")


def test_pauses_lie_inside_long_questions() -> None:
    paused = [ask for ask in asks() if pause_at(ask) is not None]
    assert len([ask for ask in paused if not ask.slot]) >= 80
    for ask in paused:
        words = ask.text.split()
        before = pause_at(ask)
        assert before is not None
        assert len(words) >= 5
        assert 0 < before < len(words)
        assert plain(" ".join(words[:before])) not in {plain(other.text) for other in asks()}, ask.text
        assert "|" not in ask.text
    assert pause_at(Ask("hello", "", "Hello.")) is None


def test_the_tables_do_not_change_from_run_to_run() -> None:
    code = "from gateway.training.grammar import *; import hashlib; print(hashlib.sha256(repr((asks(), replies())).encode()).hexdigest())"
    digests = {
        subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
    assert len(digests.pop().strip()) == 64


def test_plain_text_has_words_only() -> None:
    assert plain("Mm-hm. What's  UP, Doc?") == "mm hm what's up doc"
