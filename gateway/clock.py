"""The session clock of Clock.REALTIME: which 80 ms of audio the model hears at which moment, however the caller sends it.

Sections are those of specs/realtime.md. The rule: one frame for each tick, and nothing of the caller's is lost without being counted. Audio
waits here; at a tick a frame of it leaves, padded with digital silence if the caller is late by more than the grace time (4.2.3). What
comes late after such silence, and what a caller's clock gains on ours, makes a backlog, and that is shortened in silence first (4.2.4).
Uploads ("bulk") are heard to the last sample. Pure: time is an argument, monotonic seconds. Thread: any, one at a time.

Ticks lie on a grid of 20 ms that all sessions share, so that callers fall into four classes and share their steps: a step for eight costs
little more than one for a single caller. That delays the first tick, and so the whole call, by less than 20 ms; after a stall the grid is
kept without delay.

    start          frame + jitter queued, or 120 ms passed (80 ms after a pause): t0, on the grid
    tick k         due at t0 + k * frame, given at once when a whole frame is there, padded at due + grace when it is not
    more than 400 ms late: t0 moves to the present, ticks that were missed are not made up for
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from protocols.events import MAX_REPLAY_FRAMES

JITTER_MS, GRACE_MS = 40.0, 40.0
MAX_INPUT_MS = 120_000.0
START_S = 0.12  # "or 120 ms after arming" (4.2.2)
RESUME_S = 0.08  # "resumes within one tick" (4.1)
GRID_S = 0.02
EARLY_S = 1e-6  # a timer may fire so much too soon
STALL_S = 0.4  # "after a stall > 400 ms t0 is moved" (4.2.1)

# 4.2.4, in seconds of audio unless it says otherwise
BULK_APPEND_S = 1.0  # more than this in one piece is an upload,
BULK_BURST_S, BURST_WINDOW_S = 2.0, 0.5  # and so is more than 2 s within 500 ms on the wall,
LIVE_AGAIN_S = 2.0  # but no longer than this where audio at a live pace follows: until nothing waits, a stall would last for ever
LONG_S, LONG_FOR_S, SHORT_S = 0.4, 2.0, 0.16  # a backlog so long for so long is skipped through, where it is silent, until it is so short
QUIET_POWER = 1e-5  # mean square at -50 dBFS
TOO_LONG_S, CUT_TO_S = 1.5, 0.4  # a longer backlog is cut, down to this,
DRIFT_S, DRIFT_WINDOW_S = 0.2, 10.0  # by what was padded before and 200 ms in 10 s

Pcm = NDArray[np.float32]


class ClockFrame(NamedTuple):
    """What the model hears in one tick."""

    pcm: Pcm  # float32 [S], nobody else's
    real_samples: int  # of the caller, for the first time; they come first, the rest is silence
    skipped_samples: int  # of the caller, dropped before these because too much waited
    is_replay: bool = False  # all of it was given before


class InputClock:
    """The clock of one session.

    Attributes:
        dropped_samples: of the caller, dropped in all because too much waited.

    Args:
        jitter_ms: audio beyond a frame that waits before the first tick.
        grace_ms: how long a tick waits for a frame that is not whole.
        max_input_ms: audio that may wait; what does not fit is refused whole.
    """

    def __init__(
        self,
        frame_samples: int,
        sample_rate: int,
        *,
        jitter_ms: float = JITTER_MS,
        grace_ms: float = GRACE_MS,
        max_input_ms: float = MAX_INPUT_MS,
    ) -> None:
        self.dropped_samples = 0
        self._frame_samples = frame_samples
        self._rate = sample_rate
        self._frame_s = frame_samples / sample_rate
        self._grace_s = grace_ms / 1000
        self._start_samples = frame_samples + round(sample_rate * jitter_ms / 1000)
        self._max_samples = round(sample_rate * max_input_ms / 1000)
        self._waiting: deque[Pcm] = deque()
        self._num_waiting = 0  # samples in it
        self._replays: deque[Pcm] = deque()
        self._given: deque[Pcm] = deque(maxlen=MAX_REPLAY_FRAMES)  # the last frames with real samples
        self._is_armed = False
        self._is_running = True
        self._is_starting = False  # the first tick is due at t0 at the latest, sooner when enough waits
        self._t0_s = 0.0
        self._tick_idx = 0
        self._skipped = 0  # samples dropped since the last frame
        self._excess = _Excess(sample_rate)

    # Public

    @property
    def waiting_samples(self) -> int:
        """Samples of the caller that the model has not been given."""
        return self._num_waiting

    @property
    def due_s(self) -> float:
        """When `take` has a frame, if nothing is pushed before: -inf is at once, inf is never."""
        if not self._is_armed or not self._is_running:
            return math.inf
        if self._replays:
            return -math.inf
        return self._tick_s if self._num_waiting >= self._frame_samples else self._tick_s + self._grace_s

    def start(self, now: float) -> None:
        """The model listens from now on."""
        self._is_armed = True
        if self._is_running:
            self._begin(now, START_S)

    def stop(self) -> None:
        """The model does not listen any more, until `start`; what waits goes on waiting."""
        self._is_armed = False

    def pause(self) -> None:
        """Stop ticking until `resume` or `push`."""
        self._is_running = False

    def resume(self, now: float) -> None:
        """Tick on; the time in between never was."""
        if self._is_running:
            return
        self._is_running = True
        if self._is_armed:
            self._begin(now, RESUME_S)

    def push(self, pcm: Pcm, now: float) -> int:
        """Take float32 [N] of the caller; return how many samples were refused because too much waits, 0 or N."""
        if not pcm.size:
            return 0
        self.resume(now)
        if self._num_waiting + pcm.size > self._max_samples:
            self.dropped_samples += pcm.size
            return pcm.size
        self._excess.arrive(pcm.size, now)
        self._waiting.append(pcm)
        self._num_waiting += pcm.size
        if self._is_starting:
            self._hasten(now)
        return 0

    def take(self, now: float) -> ClockFrame | None:
        """Return the frame that is due at `now`, None when none is. Call it again until it returns None."""
        if now + EARLY_S < self.due_s:
            return None
        if self._replays:
            return ClockFrame(self._replays.popleft(), 0, 0, is_replay=True)
        if now - self._tick_s > STALL_S:
            self._t0_s, self._tick_idx = math.floor(now / GRID_S) * GRID_S, 0
            if now + EARLY_S < self.due_s:
                return None
        self._is_starting = False
        self._tick_idx += 1
        self._skip(self._excess.cut(self._num_waiting, now))
        pcm, num_real = self._next_frame()
        if self._excess.may_skip(pcm, num_real):
            self._count_skipped(num_real)
            pcm, num_real = self._next_frame()
        self._excess.pad(self._frame_samples - num_real)
        if not self._num_waiting:
            self._excess.drain()
        if num_real:
            self._given.append(pcm)
        skipped, self._skipped = self._skipped, 0
        return ClockFrame(pcm, num_real, skipped)

    def put_back(self, frames: Iterable[ClockFrame]) -> None:
        """Undo the last `take`s: the model has not heard these frames, oldest first."""
        for frame in reversed(list(frames)):
            if frame.is_replay:
                self._replays.appendleft(frame.pcm)
                continue
            if frame.real_samples:
                self._waiting.appendleft(frame.pcm[: frame.real_samples])
                self._num_waiting += frame.real_samples
                self._given.pop()
            self._skipped += frame.skipped_samples
            self._excess.pad(frame.real_samples - self._frame_samples)

    def clear(self) -> None:
        """Forget the caller's audio that waits."""
        self._waiting.clear()
        self._num_waiting = 0
        self._excess.drain()

    def replay(self, num_frames: int) -> None:
        """Give the last frames with audio of the caller again, before anything else and without waiting for ticks."""
        self._replays = deque(list(self._given)[-num_frames:] if num_frames else ())

    # Private

    @property
    def _tick_s(self) -> float:
        return self._t0_s + self._tick_idx * self._frame_s

    def _begin(self, now: float, within_s: float) -> None:
        self._t0_s, self._tick_idx = _next_on_grid(now + within_s), 0
        self._is_starting = True
        self._hasten(now)

    def _hasten(self, now: float) -> None:
        if self._num_waiting >= self._start_samples:
            self._t0_s = min(self._t0_s, _next_on_grid(now))
            self._is_starting = False

    def _next_frame(self) -> tuple[Pcm, int]:
        """Take a frame off the queue, padded if need be, and its number of real samples."""
        pcm = np.zeros(self._frame_samples, np.float32)
        filled = 0
        while self._waiting and filled < self._frame_samples:
            oldest = self._waiting[0]
            num_samples = min(oldest.size, self._frame_samples - filled)
            pcm[filled : filled + num_samples] = oldest[:num_samples]
            filled += num_samples
            self._forget(num_samples)
        return pcm, filled

    def _skip(self, num_samples: int) -> None:
        self._count_skipped(num_samples)
        while num_samples:
            num_now = min(num_samples, self._waiting[0].size)
            self._forget(num_now)
            num_samples -= num_now

    def _forget(self, num_samples: int) -> None:
        """Take samples off the oldest piece that waits, which has at least so many."""
        oldest = self._waiting.popleft()
        if num_samples < oldest.size:
            self._waiting.appendleft(oldest[num_samples:])
        self._num_waiting -= num_samples

    def _count_skipped(self, num_samples: int) -> None:
        self._skipped += num_samples
        self.dropped_samples += num_samples


class _Excess:
    """How long the backlog may be, and what may be done about it (4.2.4). In samples."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._is_bulk = False
        self._bulk_s = -math.inf  # when an upload was last seen
        self._arrivals: deque[tuple[float, int]] = deque()  # (time, samples) within the burst window
        self._num_arrived = 0  # samples in it
        self._gap_debt = 0  # silence put in for audio that had not come
        self._long_since_s: float | None = None
        self._is_skipping = False
        self._drift_left = float(round(DRIFT_S * rate))
        self._drift_s = -math.inf  # time of that

    def arrive(self, num_samples: int, now: float) -> None:
        """The caller sent something: is it an upload?"""
        self._arrivals.append((now, num_samples))
        self._num_arrived += num_samples
        while now - self._arrivals[0][0] > BURST_WINDOW_S:
            self._num_arrived -= self._arrivals.popleft()[1]
        if num_samples > BULK_APPEND_S * self._rate or self._num_arrived > BULK_BURST_S * self._rate:
            self._is_bulk, self._bulk_s = True, now
        elif now - self._bulk_s > LIVE_AGAIN_S:
            self._is_bulk = False  # it goes on at a microphone's pace: what came at once had been held up on its way

    def drain(self) -> None:
        """Nothing waits: "Becomes live again when the backlog is empty"."""
        self._is_bulk = self._is_skipping = False
        self._long_since_s = None

    def pad(self, num_samples: int) -> None:
        """Silence was put in; below 0: taken out again, or audio dropped for it."""
        self._gap_debt = max(0, self._gap_debt + num_samples)

    def cut(self, num_waiting: int, now: float) -> int:
        """Look at the backlog at a tick; return how many of its oldest samples must go."""
        backlog_s = num_waiting / self._rate
        if self._is_bulk or backlog_s <= LONG_S:
            self._long_since_s = None
        elif self._long_since_s is None:
            self._long_since_s = now
        elif now - self._long_since_s >= LONG_FOR_S:
            self._is_skipping = True
        if self._is_bulk or backlog_s <= SHORT_S:
            self._is_skipping = False
        if self._is_bulk or backlog_s <= TOO_LONG_S:
            return 0
        drift_left = DRIFT_S * self._rate
        self._drift_left = min(drift_left, self._drift_left + (now - self._drift_s) * drift_left / DRIFT_WINDOW_S)
        self._drift_s = now
        num_cut = min(num_waiting - round(CUT_TO_S * self._rate), self._gap_debt + int(self._drift_left))
        self._drift_left -= max(0, num_cut - self._gap_debt)
        self.pad(-num_cut)
        return num_cut

    def may_skip(self, pcm: Pcm, num_real: int) -> bool:
        """Whether the frame that is next is silence that need not be heard."""
        if not self._is_skipping or num_real < pcm.size or float(np.dot(pcm, pcm)) >= QUIET_POWER * pcm.size:
            return False
        self.pad(-num_real)  # late audio that silence stood for is one frame less
        return True


def _next_on_grid(at_s: float) -> float:
    return math.ceil(at_s / GRID_S - 1e-6) * GRID_S  # what is a hair behind a point of the grid is on it
