"""Figures, intervals and verdicts."""

import pytest

from gateway.training.evaluation.measures import Measure, median, number, share, table, wilson


@pytest.mark.parametrize(
    ("good", "total", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (90, 100, 0.8256, 0.9448)],  # R 4.3, prop.test(correct = FALSE)
)
def test_the_interval_is_wilson_s(good: int, total: int, low: float, high: float) -> None:
    assert wilson(good, total) == pytest.approx((low, high), abs=5e-4)


@pytest.mark.parametrize(
    ("measure", "is_reached"),
    [
        (share("a", [True] * 9 + [False], 0.9), True),
        (share("a", [True] * 8 + [False] * 2, 0.9), False),
        (share("a", [True] * 1 + [False] * 9, 0.1, is_ceiling=True), True),
        (share("a", [True] * 2 + [False] * 8, 0.1, is_ceiling=True), False),
        (share("a", [], 0.9), False),  # what was not measured is not reached
        (share("a", [], 0.1, is_ceiling=True), False),
        (share("a", [False]), None),
        (number("a", 0.039, 100, "ms", 0.040), True),
        (number("a", 0.041, 100, "ms", 0.040), False),
        (number("a", float("inf"), 100, "ms", 0.040), False),
        (number("a", None, 0, "ms", 0.040), False),
        (number("a", 0.1, 3, "ms"), None),
    ],
)
def test_a_bar_is_reached_or_missed(measure: Measure, is_reached: bool | None) -> None:
    assert measure.is_reached is is_reached


def test_the_table_words_every_figure() -> None:
    text = table(
        [
            share("only reported", [True, False]),
            share("right", [True] * 9 + [False], 0.9),
            share("nothing", [], 0.9),
            number("tick", 0.0415, 200, "ms", 0.040, note="(busy)"),
            number("calls", 2, 30, "calls"),
        ]
    )
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines == [
        "figure 95 % interval of bar",
        "right 90.0 % 59.6 to 98.2 % 10 ≥ 90.0 % reached",
        "nothing not measured 0 ≥ 90.0 % MISSED",
        "tick 42 ms 200 ≤ 40 ms MISSED (busy)",
        "only reported 50.0 % 9.5 to 90.5 % 2",
        "calls 2 calls 30",
    ]


@pytest.mark.parametrize(("values", "middle"), [([], None), ([3.0], 3.0), ([3.0, 1.0, 2.0], 2.0), ([1.0, 2.0, 3.0, float("inf")], 2.0)])
def test_the_median_is_one_of_the_values(values: list[float], middle: float | None) -> None:
    assert median(values) == middle
