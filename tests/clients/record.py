"""One line of a capture: what passed between a client and the gateway, when and which way; JSON lines on disk.

`capture` writes them, `validate` and `brackets` read them. One file holds one connection. Thread: any.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A message or the end of one direction."""

    line: int  # 1-based
    is_client: bool  # sent by the client
    seconds: float  # since the connection was opened
    event: dict[str, Any] | None = None  # the message, where it was a JSON object
    data: str | None = None  # the message, where it was something else; binary in hexadecimal
    close_code: int | None = None  # the direction ended so; 1006 without a close frame

    def dumps(self) -> str:
        """One line of JSON, without the defaults."""
        values = dataclasses.asdict(self)
        return json.dumps({key: value for key, value in values.items() if value is not None and key != "line"})


def loads(lines: Iterable[str]) -> Iterator[Record]:
    """Read the lines of one capture."""
    for line, text in enumerate(lines, start=1):
        yield Record(line=line, **json.loads(text))


def load(path: Path) -> list[Record]:
    """Read a capture file."""
    return list(loads(path.read_text(encoding="utf-8").splitlines()))


def capture(*events: tuple[str, dict[str, Any]], close_code: int | None = None) -> list[Record]:
    """Write a capture by hand: ("C" or "S", event) pairs, one second apart, and the server's close."""
    records = [
        Record(line=line, is_client=who == "C", seconds=float(line), event=event) for line, (who, event) in enumerate(events, start=1)
    ]
    if close_code is not None:
        records.append(Record(line=len(records) + 1, is_client=False, seconds=len(records) + 1.0, close_code=close_code))
    return records
