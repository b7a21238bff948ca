"""The conversation that the bundled model learns: what is asked, with which intent, and the one right reply.

Wordings are in `phrases` and `wording`, words in `lexicon`, roles in `persona`. The one rule: everything here is a pure function of its
arguments, in one fixed order, because recordings and labels are matched by text. Not here: speech and dialogues. Pure. Thread: any.
"""

from __future__ import annotations

import dataclasses
import functools
import re

from gateway.training import lexicon, phrases, wording
from gateway.training.persona import Persona
from gateway.training.phrases import BACKCHANNELS

__all__ = ["BACKCHANNELS", "INTENTS", "Ask", "asks", "greeting", "intent_of", "pause_at", "plain", "replies", "reply"]

_FIXED = phrases.SOCIAL | phrases.SMALL_TALK | phrases.ROLE | phrases.CONTROL
INTENTS = (*_FIXED, *phrases.SLOTTED, "nonsense")
_OPENERS_EACH = 3  # openers per intent that takes them


@dataclasses.dataclass(frozen=True, slots=True)
class Ask:
    """One thing that a caller says.

    Attributes:
        intent: one of INTENTS.
        slot: what it is about, a key of `wording.FACTS[intent]`; empty where the intent has none.
        text: the words, with punctuation.
    """

    intent: str
    slot: str
    text: str


def asks() -> list[Ask]:
    """Return everything a caller may say, intent by intent, each text once."""
    return list(_table())


def pause_at(ask: Ask) -> int | None:
    """Return the number of words before which a speaker may pause, the sentence being unfinished, or None."""
    return _table().get(ask)


def reply(intent: str, slot: str, persona: Persona) -> str:
    """Return what the assistant answers.

    Raises:
        KeyError: no such intent, or no such slot of it.
    """
    if intent in wording.SHOP_INTENTS and not persona.shop:
        return wording.NO_SHOP
    if intent in wording.SHOP_FACTS:
        return str(getattr(lexicon.SHOPS[persona.shop], intent))
    if intent == "who_are_you" and persona.shop:
        return wording.shop_who(persona.shop)
    if intent in wording.FACTS:
        return wording.FACTS[intent][slot]
    return wording.STYLED[intent][persona.wording].format(name=persona.name)


def greeting(persona: Persona) -> str:
    """Return what the assistant says first when the persona has it speak before the caller."""
    return wording.shop_greeting(persona.shop) if persona.shop else wording.GREETING[persona.wording]


def replies(persona: Persona | None = None) -> list[str]:
    """Return every text the assistant may say, greetings included, each once: of one persona, or of all."""
    personas = [persona] if persona else _all_wordings()
    questions = dict.fromkeys((ask.intent, ask.slot) for ask in _table())
    said = [reply(intent, slot, who) for who in personas for intent, slot in questions]
    return list(dict.fromkeys(said + [greeting(who) for who in personas]))


def plain(text: str) -> str:
    """Return the words of a text, lower case, without punctuation: what counts when two texts are compared."""
    return " ".join(re.sub(r"[^a-z0-9']+", " ", text.lower()).split())


def intent_of(text: str) -> tuple[str, str]:
    """Return intent and slot of what a caller said.

    Raises:
        KeyError: no such text.
    """
    return _by_plain()[plain(text)]


# Private


@functools.cache
def _by_plain() -> dict[str, tuple[str, str]]:
    return {plain(ask.text): (ask.intent, ask.slot) for ask in _table()}


@functools.cache
def _table() -> dict[Ask, int | None]:
    """Every ask with the place of its pause."""
    table: dict[Ask, int | None] = {}
    for intent, texts in _FIXED.items():
        opened = _opened(texts) if intent in phrases.OPENED else []
        for text in (*texts, *opened):
            _add(table, intent, "", text)
    for intent, texts in phrases.SLOTTED.items():
        for slot in wording.FACTS[intent]:
            for text in texts:
                _add(table, intent, slot, text.format(_spoken(intent, slot)))
    for text in phrases.NONSENSE:
        _add(table, "nonsense", "", text)
    return table


def _add(table: dict[Ask, int | None], intent: str, slot: str, marked: str) -> None:
    before, bar, _ = marked.partition(" | ")
    ask = Ask(intent, slot, marked.replace(" | ", " "))
    table[ask] = len(before.split()) if bar and len(ask.text.split()) >= 5 else None


def _opened(texts: tuple[str, ...]) -> list[str]:
    """A few of the texts behind an opener; which ones depends on the texts alone."""
    bare = [text for text in texts if "," not in text and not text.startswith(("Please", "Hello", "Hi", "Hey"))]
    step = len(bare) // _OPENERS_EACH
    first = len(bare[0]) + len(texts)
    opened = []
    for index in range(_OPENERS_EACH):
        text = bare[index * step]
        opener = phrases.OPENERS[(first + index) % len(phrases.OPENERS)]
        opened.append(opener + (text if text.startswith("I ") or text.startswith("I'") else text[0].lower() + text[1:]))
    return opened


def _spoken(intent: str, slot: str) -> str:
    if intent == "add":
        return " plus ".join(lexicon.NUMBERS[int(term)] for term in slot.split("+"))
    return lexicon.NUMBERS[int(slot)] if intent == "count" else slot


def _all_wordings() -> list[Persona]:
    """Personas that together say every reply: each name in each style, and each shop in each style."""
    styles = wording.STYLES
    named = [Persona(name, style) for name in lexicon.NAMES for style in styles]
    return named + [Persona(lexicon.NAMES[0], style, shop) for shop in lexicon.SHOPS for style in styles]
