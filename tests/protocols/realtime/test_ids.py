from __future__ import annotations

import re

from protocols.realtime import ids


def test_an_id_is_its_prefix_and_21_base62_characters_and_never_comes_twice() -> None:
    made = [ids.new("item") for _ in range(1000)]
    assert all(re.fullmatch(r"item_[0-9A-Za-z]{21}", item_id) for item_id in made)
    assert len(set(made)) == 1000
    assert len({char for item_id in made for char in item_id[5:]}) == 62
    assert max(map(len, made)) <= ids.MAX_ITEM_ID_CHARS
