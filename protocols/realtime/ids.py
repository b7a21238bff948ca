"""Identifiers of the Realtime wire: a prefix and 21 base62 characters (specs/realtime.md 2.1). Thread: any."""

from __future__ import annotations

import secrets
import string

_BASE62 = string.digits + string.ascii_letters
_LENGTH = 21  # 125 random bits
MAX_ITEM_ID_CHARS = 64  # "Client-provided item ids are accepted if they are 1-64 characters long"


def new(prefix: str) -> str:
    """Make an identifier such as item_4f..."""
    number = secrets.randbits(125)
    digits = []
    for _ in range(_LENGTH):
        number, digit = divmod(number, 62)
        digits.append(_BASE62[digit])
    return f"{prefix}_{''.join(digits)}"
