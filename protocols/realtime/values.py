"""A client's JSON value with the place where it stands, and typed readings of it.

The session object and the options of a response go by several names (GA, beta, Omni; specs/realtime.md 2.5), so a reading must know which
one the client used: an error names that path. The rule: JSON null means the same as an absent key, except where a caller asks with
`is_present`; clients write null for what they do not want to set. Thread: any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final

from protocols.realtime.fault import bad_value, excerpt, wrong_type

_ABSENT: Final = object()


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """One value of a client's message, or the place where one could be.

    Every reading returns None for what is absent or null, and raises EventError for a value of another type or out of range.
    """

    value: Any  # JSON; _ABSENT where the key is not there
    path: str  # dotted, from the message's root, which is ""

    def __getitem__(self, key: str) -> Value:
        """Return what the object has under `key`; of no object it is absent."""
        body = self.value if isinstance(self.value, Mapping) else {}
        return Value(body.get(key, _ABSENT), self._below(key))

    @property
    def is_present(self) -> bool:
        """The key is there, null or not."""
        return self.value is not _ABSENT

    @property
    def is_given(self) -> bool:
        """The key is there and not null."""
        return self.value is not _ABSENT and self.value is not None

    def or_else(self, alias: Value) -> Value:
        """Return this value, or the one under another name where this key is absent (2.4 step 3)."""
        return self if self.is_present else alias

    def object(self) -> Value:
        """Return this value, checked to be an object where it is given."""
        if self.is_given and not isinstance(self.value, Mapping):
            raise wrong_type(self.path, "an object", self.value)
        return self

    def unknown(self, known: Iterable[str]) -> list[str]:
        """Return the paths of the keys that are not in `known`."""
        names = set(self.value if isinstance(self.value, Mapping) else ()).difference(known)
        return [self._below(name) for name in sorted(names)]

    def text(self) -> str | None:
        """Read a string."""
        if not self.is_given:
            return None
        if not isinstance(self.value, str):
            raise wrong_type(self.path, "a string", self.value)
        return self.value

    def choice(self, names: Iterable[str]) -> str | None:
        """Read one of `names`."""
        text = self.text()
        if text is None or text in (known := tuple(names)):
            return text
        raise bad_value(self.path, f"must be one of {', '.join(known)}, not {excerpt(text)}")

    def boolean(self) -> bool | None:
        """Read true or false."""
        if not self.is_given:
            return None
        if not isinstance(self.value, bool):
            raise wrong_type(self.path, "true or false", self.value)
        return self.value

    def number(self, low: float = -math.inf, high: float = math.inf) -> float | None:
        """Read a number of low..high; whole ones stay int."""
        if not self.is_given:
            return None
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise wrong_type(self.path, "a number", self.value)
        if isinstance(self.value, float) and not math.isfinite(self.value):
            raise bad_value(self.path, "must be a finite number")
        if not low <= self.value <= high:
            raise bad_value(self.path, f"must be {low:g} to {high:g}" if high < math.inf else f"must be {low:g} or more")
        return self.value

    def integer(self, low: int, high: float = math.inf) -> int | None:
        """Read a whole number of low..high."""
        if self.is_given and not isinstance(self.value, int):
            raise wrong_type(self.path, "a whole number", self.value)
        number = self.number(low, high)
        return None if number is None else int(number)

    def floored(self, low: int, high: float = math.inf) -> int | None:
        """Read a number of low..high; a fraction is cut off first."""
        number = self.number()
        return None if number is None else Value(math.floor(number), self.path).integer(low, high)

    def items(self) -> list[Value] | None:
        """Read a list."""
        if not self.is_given:
            return None
        if not isinstance(self.value, list):
            raise wrong_type(self.path, "a list", self.value)
        return [Value(item, f"{self.path}.{index}") for index, item in enumerate(self.value)]

    def _below(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key
