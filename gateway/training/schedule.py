"""Training by the clock: a budget in minutes, a learning rate that follows it, checkpoints, one line of figures now and then.

Machines with an accelerator are often lent for minutes, so a run is told how long it may take rather than how many steps; a run that was
cut short goes on from its checkpoint with the time that it had left. Thread: any.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

WARM_UP = 0.02  # share of the budget in which the learning rate rises
SAVE_S = 60.0
REPORT_S = 10.0


class Clock:
    """The time of one training run; `elapsed_s` goes on where an earlier run stopped."""

    def __init__(self, minutes: float, elapsed_s: float = 0.0) -> None:
        self._budget_s = 60 * minutes
        self._started = time.monotonic() - elapsed_s

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    @property
    def share(self) -> float:
        """Of the budget that has passed, 0 to 1."""
        return min(1.0, self.elapsed_s / self._budget_s)

    def rate(self, peak: float) -> float:
        """Learning rate now: a short rise, then half a cosine down to nothing."""
        share = self.share
        return peak * min(1.0, share / WARM_UP) * 0.5 * (1 + math.cos(math.pi * share))


class Run:
    """Steps of a run until its time is over, with checkpoints and a progress line."""

    def __init__(self, name: str, folder: Path, minutes: float) -> None:
        self.name, self.path = name, folder / f"{name}.ckpt"
        self.state: dict[str, Any] = {}
        if self.path.exists():
            self.state = torch.load(self.path, map_location="cpu", weights_only=True)
        self.step = int(self.state.get("step", 0))
        self.clock = Clock(minutes, float(self.state.get("elapsed_s", 0.0)))
        self._figures: dict[str, float] = {}
        self._counts: dict[str, int] = {}

    def steps(self) -> Iterator[int]:
        """Yield step numbers until the time is over."""
        self._saved = reported = time.monotonic()
        first, wait_s = self.step, 0.0
        while self.clock.share < 1:
            yield self.step
            self.step += 1
            passed_s = time.monotonic() - reported
            if passed_s > wait_s:
                self._report((self.step - first) / passed_s)
                reported, first, wait_s = time.monotonic(), self.step, REPORT_S

    def note(self, **figures: float | torch.Tensor) -> None:
        """Average figures until the next report; tensors are read only then."""
        for name, value in figures.items():
            value = value.detach() if isinstance(value, torch.Tensor) else value
            self._figures[name] = self._figures.get(name, 0.0) + value  # type: ignore[assignment]
            self._counts[name] = self._counts.get(name, 0) + 1

    @property
    def is_time_to_save(self) -> bool:
        """Whether the last checkpoint is old."""
        return time.monotonic() - self._saved > SAVE_S

    def save(self, **parts: Any) -> None:
        """Write a checkpoint, whole or not at all."""
        self._saved = time.monotonic()
        temporary = self.path.with_suffix(".part")
        torch.save({"step": self.step, "elapsed_s": self.clock.elapsed_s, **parts}, temporary)
        temporary.replace(self.path)

    def _report(self, steps_a_second: float) -> None:
        figures = "  ".join(f"{name} {float(total) / self._counts[name]:.4g}" for name, total in self._figures.items())
        print(f"{self.name} {self.clock.share:4.0%}  step {self.step}  {steps_a_second:.1f}/s  {figures}", file=sys.stderr, flush=True)
        self._figures, self._counts = {}, {}
