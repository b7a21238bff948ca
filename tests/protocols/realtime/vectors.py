"""The test vectors of specs/realtime.md section 6, read from tests/data/realtime/vectors.txt, and a player for them.

`C` lines are sent, `S` lines must be what the server says next, `S*` any number of it. Matching is that of subsets: keys which a vector
does not show may be there. "$x" binds a string or compares with what it was bound to, "$int" is any whole number, "$any" anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.protocols.realtime.rig import T80, Z80, Rig

PATH = Path(__file__).parents[2] / "data" / "realtime" / "vectors.txt"


def load() -> dict[str, list[str]]:
    """Lines by vector name."""
    vectors: dict[str, list[str]] = {}
    for line in PATH.read_text(encoding="utf-8").splitlines():
        if line.startswith("== "):
            vectors[line.split()[1]] = lines = []
        elif line.strip():
            lines.append(line)
    return vectors


VECTORS = load()


def mismatch(pattern: Any, actual: Any, names: dict[str, Any], path: str = "") -> str | None:
    """Say where `actual` differs from the pattern; None where it does not."""
    if isinstance(pattern, str) and pattern.startswith("$"):
        if pattern == "$any":
            return None
        if pattern == "$int":
            is_count = isinstance(actual, int) and not isinstance(actual, bool) and actual >= 0
            return None if is_count else f"{path}: {actual!r} is no whole number"
        if pattern == "$e":
            return None if isinstance(actual, str) and actual.startswith("event_") else f"{path}: {actual!r} is no event id"
        if not isinstance(actual, str):
            return f"{path}: {actual!r} is no string"
        return None if names.setdefault(pattern, actual) == actual else f"{path}: {actual!r} is not {pattern}, {names[pattern]!r}"
    if isinstance(pattern, dict):
        if not isinstance(actual, dict):
            return f"{path}: {actual!r} is no object"
        for key, value in pattern.items():
            if key not in actual:
                return f"{path}.{key} is missing"
            if found := mismatch(value, actual[key], names, f"{path}.{key}"):
                return found
        return None
    if path.endswith(".ignored"):
        return None if sorted(pattern) == sorted(actual) else f"{path}: {actual} is not {pattern}"
    if isinstance(pattern, list):
        if not isinstance(actual, list) or len(pattern) != len(actual):
            return f"{path}: {actual!r} is not as long as {pattern!r}"
        found = (mismatch(one, other, names, f"{path}[{i}]") for i, (one, other) in enumerate(zip(pattern, actual, strict=True)))
        return next(filter(None, found), None)
    return None if pattern == actual and type(pattern) is type(actual) else f"{path}: {actual!r} is not {pattern!r}"


class Player:
    """Plays one vector on a rig.

    Attributes:
        names: what "$x" stands for.
        matched: messages that answered an S line, the S* ones included.
    """

    def __init__(self, rig: Rig, vector: str) -> None:
        self.rig = rig
        self.names: dict[str, Any] = {}
        self.matched: list[dict[str, Any]] = []
        self._lines = VECTORS[vector]

    def bind(self, **names: str) -> Player:
        """Say what names stand for that earlier traffic has fixed."""
        self.names.update({f"${name}": value for name, value in names.items()})
        return self

    def play(self, *, at_comment: Callable[[], None] | None = None, wait_s: float = 0.0) -> None:
        """Play every line; `at_comment` is called where the vector has a remark, `wait_s` passes at most before each S line."""
        for i, line in enumerate(self._lines):
            kind, _, body = line.partition(" ")
            if kind == "C":
                # consecutive C lines are one packet
                if i and self._lines[i - 1].startswith("C "):
                    continue
                packet = []
                for other in self._lines[i:]:
                    if not other.startswith("C "):
                        break
                    packet.append(json.loads(other[2:].replace("$T80", T80).replace("$Z80", Z80)))
                self.rig.client(*(self._filled(message) for message in packet))
            elif kind in ("S", "Sb"):
                self._expect(json.loads(body), self._lines[i - 1].startswith("S*") if i else False, wait_s)
            elif kind == "S*" and json.loads(body)["type"] != "$any":
                while self.rig.sent and mismatch(json.loads(body), self.rig.sent[0], self.names) is None:
                    self.matched.append(self.rig.sent.pop(0))
            elif kind.startswith("#") and at_comment is not None:
                at_comment()

    def _filled(self, message: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.names.get(value, value) if isinstance(value, str) else value for key, value in message.items()}

    def _expect(self, pattern: dict[str, Any], may_skip: bool, wait_s: float) -> None:
        skipped = []
        until = self.rig.now + wait_s
        while True:
            while not self.rig.sent and self.rig.now < until:
                self.rig.run(0.005)
            assert self.rig.sent, f"nothing came, {pattern} was expected after {[m['type'] for m in skipped]}"
            message = self.rig.sent.pop(0)
            found = mismatch(pattern, message, self.names)
            self.matched.append(message)
            if found is None:
                return
            assert may_skip, f"{found}\nexpected {pattern}\ngot {message}"
            skipped.append(message)
