"""Pieces suit what the assistant says, and nothing in English is unknown to them."""

from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from gateway.engine.prompt import wrap_persona
from gateway.training import grammar, lexicon, tokenizer
from gateway.training.persona import HELD_OUT, Persona
from gateway.training.tokenizer import by_word


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> sentencepiece.SentencePieceProcessor:
    folder = tmp_path_factory.mktemp("pieces")
    tokenizer.train(folder / tokenizer.FILE, tokenizer.sentences())
    assert (folder / tokenizer.FILE).stat().st_size < 60_000
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / tokenizer.FILE))


def test_ids_are_those_of_the_checkpoint(encoder: sentencepiece.SentencePieceProcessor) -> None:
    assert encoder.get_piece_size() == tokenizer.PIECES
    assert [encoder.unk_id(), encoder.bos_id(), encoder.eos_id(), encoder.pad_id()] == [0, 1, 2, 3]


def test_the_pieces_of_the_words_are_the_pieces_of_the_sentence(encoder: sentencepiece.SentencePieceProcessor) -> None:
    for text in grammar.replies():
        words = by_word(encoder, text)
        assert [piece for word in words for piece in word] == encoder.encode(text)
        assert [encoder.decode(list(word)) for word in words] == text.split()


def test_names_are_one_piece_and_so_is_a_capital(encoder: sentencepiece.SentencePieceProcessor) -> None:
    for word in (*lexicon.NAMES, *lexicon.CAPITALS.values()):
        assert len(encoder.encode(word)) == 1, word
        assert by_word(encoder, f"My name is {word}.")[3][0] == encoder.encode(word)[0]


@pytest.mark.parametrize("persona", [Persona("Nova"), *HELD_OUT, Persona("Jasper", "cheerful", "Corner Books", True)], ids=lambda p: p.text)
def test_a_persona_is_short(encoder: sentencepiece.SentencePieceProcessor, persona: Persona) -> None:
    pieces = encoder.encode(wrap_persona(persona.text))
    assert len(pieces) <= 34
    assert encoder.decode(pieces).split() == wrap_persona(persona.text).split()


@pytest.mark.parametrize(
    "text", ["You enjoy having a good conversation.", "Your name is Zaphod; you sell 42 fjords (cheap)!", "\"Quoted\", it's fine?"]
)
def test_unseen_english_comes_back_whole(encoder: sentencepiece.SentencePieceProcessor, text: str) -> None:
    assert encoder.unk_id() not in encoder.encode(text)
    assert encoder.decode(encoder.encode(text)) == text


def test_the_same_texts_give_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        tokenizer.train(tmp_path / name, tokenizer.sentences())
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_pieces_that_do_not_fit_the_words_are_refused() -> None:
    class Odd:
        def encode(self, text: str) -> list[int]:
            return [1, 2]

        def id_to_piece(self, piece: int) -> str:
            return "x"

    with pytest.raises(ValueError, match="1 groups of pieces for 2 words"):
        by_word(Odd(), "two words")
