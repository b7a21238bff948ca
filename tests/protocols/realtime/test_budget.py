from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from protocols.realtime.budget import Budget


def test_no_more_than_the_limit_fits_into_any_window() -> None:
    budget = Budget(2, 1.0)
    assert [budget.spend(now) for now in (0.0, 0.5, 0.9, 1.0, 1.0, 1.5, 1.6)] == [True, True, False, True, False, True, False]


def test_it_tells_when_the_next_event_fits() -> None:
    budget = Budget(2, 10.0)
    assert budget.free_s(3.0) == 3.0
    budget.spend(3.0)
    assert budget.free_s(3.0) == 3.0
    budget.spend(4.0)
    assert [budget.free_s(now) for now in (-math.inf, 4.0, 20.0)] == [13.0, 13.0, 20.0]


@given(
    limit=st.integers(1, 4),
    window_s=st.sampled_from([0.1, 1.0, 10.0]),
    times=st.lists(st.floats(0, 1000, allow_subnormal=False), min_size=1, max_size=30).map(sorted),
)
def test_an_event_at_the_time_that_was_told_always_fits(limit: int, window_s: float, times: list[float]) -> None:
    budget = Budget(limit, window_s)
    spent = [now for now in times if budget.spend(now)]
    assert all(later >= earlier + window_s for earlier, later in zip(spent, spent[limit:], strict=False))
    assert budget.spend(budget.free_s(times[-1]))
