"""Who the assistant is in a call: name, style and workplace, as a text prompt and as a value.

What a persona says is in `grammar`. The one rule: a text names everything that the replies depend on, so a persona that does not state a
style is cheerful and one that states no shop has none. Pure. Thread: any.
"""

from __future__ import annotations

import dataclasses
import random
import re

from gateway.training import lexicon
from gateway.training.wording import STYLES

_TEXT = re.compile(r"Your name is (\w+)\.(?: You are (\w+)\.)?(?: You work for ([\w ]+)\.)?( Greet the caller first\.)?")


@dataclasses.dataclass(frozen=True, slots=True)
class Persona:
    """One role of the assistant.

    Attributes:
        name: one of `lexicon.NAMES`.
        style: one of STYLES, or empty: cheerful without saying so.
        shop: one of `lexicon.SHOPS`, or empty.
        greets_first: the assistant speaks before the caller does.
    """

    name: str
    style: str = ""
    shop: str = ""
    greets_first: bool = False

    @property
    def text(self) -> str:
        """The text prompt."""
        parts = [f"Your name is {self.name}."]
        if self.style:
            parts.append(f"You are {self.style}.")
        if self.shop:
            parts.append(f"You work for {self.shop}.")
        if self.greets_first:
            parts.append("Greet the caller first.")
        return " ".join(parts)

    @property
    def wording(self) -> int:
        """Column of the styled replies."""
        return STYLES.index(self.style or STYLES[0])

    @property
    def is_held_out(self) -> bool:
        """True of the combinations that training never sees, whoever speaks first."""
        return dataclasses.replace(self, greets_first=False) in HELD_OUT


HELD_OUT = (
    Persona("Nova", "formal", "Luna Bakery"),
    Persona("Oliver", "brief", "River Hotel"),
    Persona("Maya", "cheerful", "City Bikes"),
    Persona("Peter", "formal", "Star Pizza"),
    Persona("Iris", "brief", ""),
    Persona("Tom", "cheerful", "Happy Pets"),
)


def read(text: str) -> Persona:
    """Return the persona of a text prompt.

    Raises:
        ValueError: the text is not one that `Persona.text` makes.
    """
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not a persona text: {text!r}")
    name, style, shop, greets = match.groups()
    persona = Persona(name, style or "", shop or "", greets is not None)
    if persona.name not in lexicon.NAMES or persona.style not in ("", *STYLES) or persona.shop not in ("", *lexicon.SHOPS):
        raise ValueError(f"unknown name, style or shop: {text!r}")
    return persona


def draw(rng: random.Random) -> Persona:
    """Return a random persona for training, never one of HELD_OUT.

    A quarter states neither style nor shop, as the bundled default does; an eighth greets first.
    """
    while True:
        persona = Persona(rng.choice(lexicon.NAMES), greets_first=rng.random() < 0.125)
        if rng.random() < 0.75:
            style = rng.choice(("", *STYLES))
            persona = dataclasses.replace(persona, style=style, shop=rng.choice(list(lexicon.SHOPS)) if rng.random() < 0.6 else "")
        if not persona.is_held_out:
            return persona
