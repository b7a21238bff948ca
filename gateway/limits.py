"""When a session ends by itself: nothing asked for, nobody heard, or all its time used. And the settings that say so.

Decisions only: nothing is ended and nobody is told here. The one rule: a session that waits for us, in the queue or for its prompt, is
never idle. Nor is one that has reserved a slot, or whose clock supplies its frames: who pushes such events keeps an idle time of its own.
Media time is counted in frames, wall time in monotonic seconds; a call has a limit in both, so that one which is fed a frame
now and then cannot hold its slot for ever. Thread: loop.
"""

from __future__ import annotations

import dataclasses
import math

from gateway.clock import GRACE_MS, JITTER_MS, MAX_INPUT_MS
from gateway.engine.base import EngineInfo
from protocols.errors import ErrorKind
from protocols.events import Clock, Ended, EndReason, Failed, Warned


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Limits of every session, and the margins of those with a clock."""

    open_s: float = 10.0  # seconds after which a connection that has not asked for a call is ended; at most idle_s
    idle_s: float = 60.0  # seconds without a whole frame from the caller after which the call ends
    max_call_s: float | None = None  # seconds after Ready, of media and of wall time, that a call may last; None leaves it to the engine
    warn_s: float = 10.0  # seconds before the limit at which the caller is told
    input_jitter_ms: float = JITTER_MS  # Clock.REALTIME: audio beyond a frame that waits before the first frame is heard
    input_grace_ms: float = GRACE_MS  # Clock.REALTIME: how long a frame that is not whole is waited for before it is padded
    input_max_ms: float = MAX_INPUT_MS  # Clock.REALTIME: audio that may wait; a piece that does not fit is refused


class Limits:
    """The limits of one session."""

    def __init__(self, settings: SessionSettings, now: float) -> None:
        self._settings = settings
        self._is_open = False
        self._has_clock = False
        self._ready_s: float | None = None
        self._heard_s = now
        self._max_frames = 0
        self._warn_frames = 0  # frames after which the coming limit is announced; 0: never
        self._has_warned = False

    def reserve(self) -> None:
        """The caller has asked for a slot: what it waits for now is us."""
        self._is_open = True

    def open(self, clock: Clock) -> None:
        """The caller has asked for a call: likewise."""
        self._is_open = True
        self._has_clock = clock is Clock.REALTIME

    def arm(self, info: EngineInfo, asked_frames: int | None) -> int:
        """Settle the length of the call; `asked_frames` is the caller's own limit. Return it in frames."""
        frame_s = info.frame_samples / info.sample_rate
        max_call_s = self._settings.max_call_s
        server_frames = info.max_frames if max_call_s is None else max(1, int(max_call_s / frame_s))
        self._max_frames = min(info.max_frames, server_frames, asked_frames or info.max_frames)
        self._warn_frames = max(0, self._max_frames - math.ceil(self._settings.warn_s / frame_s))
        return self._max_frames

    def ready(self, now: float) -> None:
        """The model listens, for the first time or with another prompt: from now on the caller's time counts."""
        self._heard_s = now
        if self._ready_s is None:
            self._ready_s = now

    def hear(self, now: float) -> None:
        """The caller has done its part: sent a whole frame, or read one of a long answer. Less than a frame is none."""
        self._heard_s = now

    def check_frames(self, num_frames: int) -> Ended | Warned | None:
        """What is due after so many answered frames."""
        if num_frames >= self._max_frames:
            return _OVER
        return self._warn() if num_frames == self._warn_frames else None

    def check_time(self, now: float) -> Ended | Failed | Warned | None:
        """What is due at `now`."""
        settings = self._settings
        if self._ready_s is None:
            open_s = min(settings.open_s, settings.idle_s)
            if self._is_open or now - self._heard_s <= open_s:
                return None
            return Failed(kind=ErrorKind.IDLE, detail=f"no call was opened within {open_s:g} s")
        if not self._has_clock and now - self._heard_s > settings.idle_s:
            return Failed(kind=ErrorKind.IDLE, detail=f"no audio for {settings.idle_s:g} s")
        if settings.max_call_s is None:
            return None
        left_s = self._ready_s + settings.max_call_s - now
        if left_s <= 0:
            return _OVER
        return self._warn() if left_s <= settings.warn_s < settings.max_call_s else None

    def _warn(self) -> Warned | None:
        if self._has_warned:
            return None
        self._has_warned = True
        return Warned(detail=f"this call ends in {self._settings.warn_s:g} seconds")


_OVER = Ended(reason=EndReason.LIMIT, detail="the call reached its length limit")
