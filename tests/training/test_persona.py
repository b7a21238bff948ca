"""A persona's text says all that its replies depend on, and some personas are kept for evaluation."""

from __future__ import annotations

import dataclasses
import random

import pytest

from gateway.training import lexicon
from gateway.training.persona import HELD_OUT, Persona, draw, read
from gateway.training.wording import STYLES


@pytest.mark.parametrize(
    ("persona", "text"),
    [
        (Persona("Nova"), "Your name is Nova."),
        (Persona("Nova", "cheerful", "Luna Bakery"), "Your name is Nova. You are cheerful. You work for Luna Bakery."),
        (Persona("Tom", "", "City Bikes"), "Your name is Tom. You work for City Bikes."),
        (Persona("Iris", "brief", "", True), "Your name is Iris. You are brief. Greet the caller first."),
    ],
)
def test_text_and_value_are_the_same_thing(persona: Persona, text: str) -> None:
    assert persona.text == text
    assert read(text) == persona


@pytest.mark.parametrize(
    "text", ["", "You are cheerful.", "Your name is Zaphod.", "Your name is Nova. You are rude.", "Your name is Nova. Hello."]
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"persona text|unknown"):
        read(text)


def test_drawn_personas_cover_the_world_without_the_held_out_ones() -> None:
    rng = random.Random(7)
    drawn = [draw(rng) for _ in range(20_000)]
    assert not any(persona.is_held_out for persona in drawn)
    assert {persona.name for persona in drawn} == set(lexicon.NAMES)
    assert {persona.style for persona in drawn} == {"", *STYLES}
    assert {persona.shop for persona in drawn} == {"", *lexicon.SHOPS}
    assert 0.1 < sum(persona.greets_first for persona in drawn) / len(drawn) < 0.15
    assert sum(persona == Persona(persona.name) for persona in drawn) > len(drawn) / 5


def test_the_same_seed_draws_the_same_personas() -> None:
    assert [draw(random.Random(3)) for _ in range(5)] == [draw(random.Random(3)) for _ in range(5)]


def test_held_out_combinations_are_six_and_stay_held_out_when_they_greet() -> None:
    assert len(set(HELD_OUT)) == 6
    for persona in HELD_OUT:
        assert persona.is_held_out
        assert dataclasses.replace(persona, greets_first=True).is_held_out
        assert not Persona(persona.name).is_held_out
