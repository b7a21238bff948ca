"""The tables of words hold what the grammar promises."""

from __future__ import annotations

import pytest

from gateway.training import lexicon


def test_tables_have_their_sizes() -> None:
    sizes = {
        "names": len(set(lexicon.NAMES)),
        "shops": len(lexicon.SHOPS),
        "capitals": len(lexicon.CAPITALS),
        "colours": len(lexicon.COLOURS),
        "animals": len(lexicon.ANIMAL_SOUNDS),
        "opposites": len(lexicon.OPPOSITES),
        "sums": len(set(lexicon.SUMS)),
    }
    assert sizes == {"names": 60, "shops": 8, "capitals": 20, "colours": 12, "animals": 12, "opposites": 16, "sums": 20}


def test_the_names_of_the_first_version_are_kept() -> None:
    first = ("Nova", "Alex", "Maya", "Oliver", "Jane", "Peter", "Iris", "Sam", "Laura", "David", "Emma", "Tom")
    assert lexicon.NAMES[: len(first)] == first


@pytest.mark.parametrize("table", [lexicon.CAPITALS, lexicon.ANIMAL_SOUNDS, lexicon.OPPOSITES], ids=["capitals", "animals", "opposites"])
def test_no_two_keys_have_one_answer(table: dict[str, str]) -> None:
    assert len(set(table.values())) == len(table)


def test_an_opposite_is_not_asked_from_both_sides() -> None:
    assert not set(lexicon.OPPOSITES) & set(lexicon.OPPOSITES.values())


def test_sums_stay_within_the_number_words() -> None:
    assert all(a >= 1 and b >= 1 and a + b < len(lexicon.NUMBERS) for a, b in lexicon.SUMS)


def test_shops_are_told_apart_by_every_fact() -> None:
    for fact in ("name", "menu", "price", "hours", "address"):
        assert len({getattr(shop, fact) for shop in lexicon.SHOPS.values()}) == len(lexicon.SHOPS)
