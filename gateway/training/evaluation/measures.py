"""Figures with their uncertainty and the bar they have to reach.

The one rule: a figure that was not measured is not reached. Pure. Thread: any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

_Z = 1.959964  # of the normal distribution, two-sided 95 %


@dataclasses.dataclass(frozen=True, slots=True)
class Measure:
    """One line of the report.

    Attributes:
        name: what was measured.
        value: share, seconds or count; None if nothing could be measured.
        low, high: 95 % interval; equal to the value where it is no share.
        count: of how many.
        unit: "%" for shares in [0, 1], "ms" for seconds, or a word.
        bar: what must be reached; None for figures that are only reported.
        is_ceiling: the value must not exceed the bar, instead of reaching it.
        note: what else to know.
    """

    name: str
    value: float | None
    low: float
    high: float
    count: int
    unit: str = "%"
    bar: float | None = None
    is_ceiling: bool = False
    note: str = ""

    @property
    def is_reached(self) -> bool | None:
        """Whether the bar is reached; None without one."""
        if self.bar is None:
            return None
        if self.value is None:
            return False
        return self.value <= self.bar if self.is_ceiling else self.value >= self.bar


def share(name: str, outcomes: Iterable[bool], bar: float | None = None, *, is_ceiling: bool = False, note: str = "") -> Measure:
    """Measure how many outcomes are true, with Wilson's interval."""
    found = list(outcomes)
    if not found:
        return Measure(name, None, 0.0, 1.0, 0, bar=bar, is_ceiling=is_ceiling, note=note)
    low, high = wilson(sum(found), len(found))
    return Measure(name, sum(found) / len(found), low, high, len(found), bar=bar, is_ceiling=is_ceiling, note=note)


def number(name: str, value: float | None, count: int, unit: str, bar: float | None = None, note: str = "") -> Measure:
    """Report a number that must not exceed the bar."""
    shown = 0.0 if value is None else value
    return Measure(name, value, shown, shown, count, unit=unit, bar=bar, is_ceiling=True, note=note)


def wilson(good: int, total: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share (E. B. Wilson 1927); `total` must not be 0."""
    portion = good / total
    spread = _Z * math.sqrt(portion * (1 - portion) / total + _Z**2 / (4 * total**2))
    centre, scale = portion + _Z**2 / (2 * total), 1 + _Z**2 / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def median(values: Iterable[float]) -> float | None:
    """Return the middle value, the lower of two; None of nothing."""
    ordered = sorted(values)
    return ordered[(len(ordered) - 1) // 2] if ordered else None


def table(measures: Iterable[Measure]) -> str:
    """Word the figures, one a line, those with a bar first."""
    rows = [("", "figure", "95 % interval", "of", "bar", "")]
    for measure in sorted(measures, key=lambda measure: measure.bar is None):
        verdict = {True: "reached", False: "MISSED", None: ""}[measure.is_reached]
        bar = "" if measure.bar is None else f"{'≤' if measure.is_ceiling else '≥'} {_worded(measure.bar, measure.unit)}"
        has_interval = measure.value is not None and measure.low < measure.high
        interval = f"{100 * measure.low:.1f} to {100 * measure.high:.1f} %" if has_interval else ""
        figure = "not measured" if measure.value is None else _worded(measure.value, measure.unit)
        rows.append((measure.name, figure, interval, str(measure.count), bar, f"{verdict} {measure.note}".strip()))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return "\n".join("  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[5]]).rstrip() for row in rows)


def _worded(value: float, unit: str) -> str:
    match unit:
        case "%":
            return f"{100 * value:.1f} %"
        case "ms":
            return f"{1000 * value:.0f} ms"
        case _:
            return f"{value:.3g} {unit}"
