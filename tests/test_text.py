from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.text import TextAssembler


def test_whole_pieces_pass_as_they_are() -> None:
    assembler = TextAssembler()
    assert [assembler.push(piece) for piece in (b" Hello", b"", b" na", "ïve".encode())] == [" Hello", "", " na", "ïve"]
    assert assembler.flush() == ""


def test_byte_pieces_are_held_until_the_character_is_complete() -> None:
    assembler = TextAssembler()
    assert [assembler.push(bytes([byte])) for byte in "€😀".encode()] == ["", "", "€", "", "", "", "😀"]


def test_special_ids_do_not_break_a_character() -> None:
    assembler = TextAssembler()
    assert [assembler.push(piece) for piece in (b"\xe2", b"", b"\x82", b"", b"\xac")] == ["", "", "", "", "€"]


def test_an_incomplete_character_becomes_a_mark_before_the_next_word() -> None:
    assembler = TextAssembler()
    assert assembler.push(b"\xe2") == ""
    assert assembler.push(b"\x82") == ""
    assert assembler.push(b" word") == "\ufffd word"


def test_an_incomplete_character_becomes_a_mark_at_the_end() -> None:
    assembler = TextAssembler()
    assembler.push(b"\xf0\x9f")
    assert assembler.flush() == "\ufffd"
    assert assembler.push(b"again") == "again"
    assert assembler.flush() == ""


@given(st.text(), st.data())
def test_any_split_gives_the_same_text(text: str, data: st.DataObject) -> None:
    raw = text.encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)))))
    assembler = TextAssembler()
    pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    assert "".join(assembler.push(piece) for piece in pieces) + assembler.flush() == text


@given(st.lists(st.binary(max_size=3)))
def test_any_bytes_give_what_the_whole_would_give(pieces: list[bytes]) -> None:
    assembler = TextAssembler()
    assert "".join(map(assembler.push, pieces)) + assembler.flush() == b"".join(pieces).decode(errors="replace")
