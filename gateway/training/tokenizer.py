"""The text pieces of the bundled model: 512, trained on its own small world.

Ids as in the checkpoints whose layout it shares: unknown and end-of-padding 0, start 1, end 2, padding 3. The one rule: pieces never cross
a space, so that each piece of a sentence belongs to one word. Thread: any.
"""

from __future__ import annotations

import argparse
import itertools
import string
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from gateway.training import grammar, lexicon, wording
from gateway.training.persona import Persona
from gateway.training.wording import STYLES

PIECES = 512
FILE = "tokenizer.model"
_SYSTEM = "<system>"  # marks a persona text on both sides; one piece
_NAME_WEIGHT = 12  # how often each name is read in training, so that it becomes one piece and can be copied from the persona
_REPLY_WEIGHT = 4  # a reply must fit its speech at one piece a frame
_FACT_WEIGHT = 8  # the word that answers is best one piece, decided at once
_WORD_START = "\u2581"

# Rare in the corpus or absent, frequent in English: a persona that was never seen shall not fall apart into letters.
_COMMON_WORDS = (
    "the of and a to in is you that it he was for on are as with his they I at be this have from or one had by word but not what all "
    "were we when your can said there use an each which she do how their if will up other about out many then them these so some her "
    "would make like him into time has look two more write go see number no way could people my than first water been call who oil "
    "its now find long down day did get come made may part over new sound take only little work know place year live me back give "
    "most very after thing our just name good sentence man think say great where help through much before line right too mean old any "
    "same tell boy follow came want show also around form three small set put end does another well large must big even such because "
    "turn here why ask went men read need land different home us move try kind hand picture again change off play spell air away "
    "animal house point page letter mother answer found study still learn should world friendly polite calm company doctor school "
    "office hotel bank travel music customer service assistant"
)


class Encoder(Protocol):
    """What is needed of a SentencePieceProcessor."""

    def encode(self, text: str) -> list[int]:
        """Return the pieces of a text."""

    def id_to_piece(self, piece: int) -> str:
        """Return the text of a piece."""


def sentences() -> list[str]:
    """Return the texts that the pieces are trained on: what the assistant says and is told; what callers say is never encoded."""
    personas = [Persona(name).text for name in lexicon.NAMES for _ in range(_NAME_WEIGHT)]
    personas += [Persona(name, style, shop).text for style, shop, name in zip(
        itertools.cycle(STYLES), [shop for shop in lexicon.SHOPS for _ in range(_NAME_WEIGHT)], itertools.cycle(lexicon.NAMES)
    )]  # fmt: skip
    personas += [Persona(name, greets_first=True).text for name in lexicon.NAMES]
    facts = {word for slots in wording.FACTS.values() for text in slots.values() for word in text.strip(".").split()}
    return [*grammar.replies() * _REPLY_WEIGHT, *sorted(facts) * _FACT_WEIGHT, *personas, *_COMMON_WORDS.split()]


def train(target: Path, texts: Iterable[str]) -> None:
    """Train the pieces and write the model file; equal texts give an equal file."""
    import sentencepiece

    with open(target, "wb") as file:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(texts), model_writer=file, vocab_size=PIECES, model_type="unigram",
            unk_id=0, bos_id=1, eos_id=2, pad_id=3, user_defined_symbols=[_SYSTEM],
            normalization_rule_name="identity", character_coverage=1.0, num_threads=1, minloglevel=2,
            required_chars=string.ascii_letters + string.digits + ".,!?;:'\"-()",
        )  # fmt: skip


def by_word(encoder: Encoder, text: str) -> list[tuple[int, ...]]:
    """Return the pieces of each word of a text, in the encoding of the whole text.

    Raises:
        ValueError: the pieces do not fall into as many words as the text has.
    """
    groups: list[list[int]] = []
    for piece in encoder.encode(text):
        if encoder.id_to_piece(piece).startswith(_WORD_START) or not groups:
            groups.append([])
        groups[-1].append(piece)
    if len(groups) != len(text.split()):
        raise ValueError(f"{len(groups)} groups of pieces for {len(text.split())} words of {text!r}")
    return [tuple(group) for group in groups]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this stage's flags: none."""


def run(folder: Path, options: argparse.Namespace, *, progress: Callable[[str], None] = print) -> None:
    """Write the model file of the text pieces into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    train(folder / FILE, sentences())
    progress(f"{folder / FILE}: {PIECES} pieces, {(folder / FILE).stat().st_size} bytes")
