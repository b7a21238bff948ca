"""Speech for the session clock, with a frame of 80 samples at 1 kHz: a sample is a millisecond."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gateway.clock import ClockFrame, InputClock

S = 80
RATE = 1000
T0 = 1000.0  # on the grid


def ramp(start: int, num: int) -> NDArray[np.float32]:
    """Loud audio whose every sample says where it stands: 1, 2, 3, ..."""
    return np.arange(start + 1, start + num + 1, dtype=np.float32)


def silence(num: int) -> NDArray[np.float32]:
    return np.zeros(num, np.float32)


def armed(now: float = T0, **options: float) -> InputClock:
    clock = InputClock(S, RATE, **options)
    clock.start(now)
    return clock


def take_all(clock: InputClock, now: float) -> list[ClockFrame]:
    frames = []
    while (frame := clock.take(now)) is not None:
        frames.append(frame)
    return frames


def speak(clock: InputClock, ms: int, *, start_ms: int = 0, now: float = T0, piece_ms: int = 20, loud: bool = True) -> list[ClockFrame]:
    """A microphone: a piece every `piece_ms`, and the clock looked at every 10 ms. Its pieces come when their audio is over."""
    frames = []
    for at in range(0, ms, 10):
        if at % piece_ms == 0:
            piece = ramp(start_ms + at, piece_ms) if loud else silence(piece_ms)
            clock.push(piece, now + at / 1000)
        frames += take_all(clock, now + at / 1000)
    return frames
