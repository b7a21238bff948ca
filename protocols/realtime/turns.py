"""Who has the floor: user activity and the state of the model in, the few turn events that clients understand out (specs/realtime.md 4.5).

`speech_started` makes stock clients flush their speaker, so it is not a report of activity but the announcement that the turn changes; what
does not change it ("mhm") is never mentioned. The rule: every Started is followed by exactly one Stopped. Frames are counted, time is not
read; the model is never influenced from here, the effects are for the caller to carry out. Thread: any, one at a time.

A *stretch* is speech of the user with gaps of at most GAP_FRAMES. It is unannounced at first; U1 to U4 announce it; U5 ends an announced
one, a longer gap an unannounced one (U6, a backchannel). A stretch that had begun when a response opened leaves that response alone (U7).
"""

from __future__ import annotations

import dataclasses
import enum
from typing import NamedTuple

GAP_FRAMES = 5  # "gaps <= 400 ms allowed" (U2)
USER_TURN_FRAMES = 3  # "user active >= 200 ms" (U1), in whole frames of 80 ms
YIELD_FRAMES = 3  # ">= 240 ms" of user and of quiet (U3, U4)
END_FRAMES = 8  # "user inactive >= 600 ms" (U5), in whole frames
END_OVERLAPPED_FRAMES = 2  # ">= 160 ms" when the model has begun to speak (U5)
CLASSIC_FRAMES = 2  # "speech_started after 2 active frames (160 ms)" (4.5.3)


class Rule(enum.Enum):
    """Which table decides."""

    SILENT = "silent"  # turn_detection null: nothing is announced
    NATIVE = "native"  # 4.5.2
    CLASSIC = "classic"  # 4.5.3: the user's speech always takes the floor
    LISTEN_ONLY = "listen_only"  # U1, U5, U6


class Cause(enum.Enum):
    """Why speech was announced; the values are on the wire (x_duplex.cause)."""

    USER_TURN = "user_turn"
    OVERLAP = "overlap"
    YIELD = "yield"


class Effect(enum.Enum):
    """What happens to the response that is open or pending."""

    NONE = "none"
    BARGE_IN = "barge_in"  # it is cancelled and the model is made to stop
    YIELDED = "yielded"  # it is cancelled; the model has stopped already
    HAND_OVER = "hand_over"  # it is complete: the model had finished before the user began
    DROP_PENDING = "drop_pending"  # it was asked for and has not begun: cancelled


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TurnPolicy:
    """The settings that decide."""

    rule: Rule
    interrupts: bool = True  # whether the user's speech may cancel a response
    overlap_frames: int = 12  # of user and model voiced together that make a barge-in (NATIVE)
    silence_frames: int = 7  # inactive frames that end an announced stretch (CLASSIC)
    max_frames: int = 750  # longest announced stretch


class ModelView(NamedTuple):
    """The model's side at one frame."""

    is_open: bool = False  # a response with speech
    is_pending: bool = False  # a response that was asked for, without speech yet
    opened_frame: int = -1  # when the open one began
    is_voiced: bool = False
    quiet_frames: int = 0  # quiet frames in a row, this one included


class Started(NamedTuple):
    """Announce the user's speech."""

    onset_frame: int
    cause: Cause
    overlap_frames: int
    effect: Effect


class Stopped(NamedTuple):
    """The announced speech is over."""

    end_frame: int  # the frame after its last active one


class Backchannel(NamedTuple):
    """Speech that changed nothing, for clients that want to know."""

    num_frames: int
    overlap_frames: int


TurnEvent = Started | Stopped | Backchannel


@dataclasses.dataclass(slots=True)
class _Stretch:
    onset_frame: int
    last_frame: int  # last active one
    active_frames: int = 0
    overlap_frames: int = 0
    is_announced: bool = False
    is_continued: bool = False  # the one before it reached its limit, and the user went on


class TurnTracker:
    """Turn taking of one call.

    Attributes:
        policy: may be exchanged between two frames.
        is_active: whether the user spoke in the last frame.
        inactive_frames: frames since then.
    """

    def __init__(self, policy: TurnPolicy) -> None:
        self.policy = policy
        self.is_active = False
        self.inactive_frames = 0
        self._run_frames = 0  # active frames in a row
        self._stretch: _Stretch | None = None

    @property
    def is_announced(self) -> bool:
        """Whether a Started waits for its Stopped."""
        return self._stretch is not None and self._stretch.is_announced

    def step(self, frame_idx: int, is_active: bool, model: ModelView) -> list[TurnEvent]:
        """Take one frame of the user beside the model's frame of the same step; return what to announce, in order."""
        self.is_active = is_active
        self.inactive_frames = 0 if is_active else self.inactive_frames + 1
        self._run_frames = self._run_frames + 1 if is_active else 0
        events: list[TurnEvent] = []
        stretch = self._stretch
        if stretch is not None and not is_active and (over := self._end_of(stretch, model)) is not None:
            self._stretch = None
            return [over]
        if is_active:
            if stretch is None:
                stretch = self._stretch = _Stretch(frame_idx, frame_idx)
            elif stretch.is_announced and frame_idx - stretch.onset_frame >= self.policy.max_frames:
                events.append(Stopped(stretch.last_frame + 1))
                stretch = self._stretch = _Stretch(frame_idx, frame_idx, is_continued=True)
            stretch.last_frame = frame_idx
            stretch.active_frames += 1
            if model.is_open and model.is_voiced:
                stretch.overlap_frames += 1
            # Not in a gap: "mhm" right before a pause of the model is over by then, and stays a backchannel (U6).
            if not stretch.is_announced and (started := self._judge(stretch, model)) is not None:
                stretch.is_announced = True
                events.append(started)
        return events

    def close(self) -> Stopped | None:
        """End the stretch now, for a commit, a clear or another policy; return the Stopped that is due."""
        stretch, self._stretch = self._stretch, None
        return Stopped(stretch.last_frame + 1) if stretch is not None and stretch.is_announced else None

    # Private

    def _end_of(self, stretch: _Stretch, model: ModelView) -> TurnEvent | None:
        """Whether the user's inactivity has ended the stretch."""
        if not stretch.is_announced:
            return Backchannel(stretch.active_frames, stretch.overlap_frames) if self.inactive_frames > GAP_FRAMES else None
        if self.policy.rule is Rule.CLASSIC:
            enough = self.policy.silence_frames
        else:
            has_answer = model.is_open and model.opened_frame >= stretch.onset_frame  # "model opened a response" (U5)
            enough = END_OVERLAPPED_FRAMES if has_answer else END_FRAMES
        return Stopped(stretch.last_frame + 1) if self.inactive_frames >= enough else None

    def _judge(self, stretch: _Stretch, model: ModelView) -> Started | None:
        """Whether the stretch changes the turn now."""
        if stretch.is_continued and model.is_open:
            return None  # "then a new started if speech goes on and no response is open" (4.5)
        match self.policy.rule:
            case Rule.SILENT:
                return None
            case Rule.CLASSIC:
                return self._classic(stretch, model)
            case _:
                return self._native(stretch, model)

    def _classic(self, stretch: _Stretch, model: ModelView) -> Started | None:
        if self._run_frames < CLASSIC_FRAMES:  # in a row: two clicks are no speech
            return None
        return self._started(stretch, Cause.OVERLAP if model.is_open else Cause.USER_TURN, self._interruption(model))

    def _native(self, stretch: _Stretch, model: ModelView) -> Started | None:
        if not model.is_open:
            if stretch.active_frames < USER_TURN_FRAMES:
                return None
            return self._started(stretch, Cause.USER_TURN, self._interruption(model))  # U1
        is_own_turn = stretch.onset_frame <= model.opened_frame  # U7: the model chose to speak into the user's speech
        if is_own_turn or self.policy.rule is Rule.LISTEN_ONLY:
            return None
        if stretch.overlap_frames >= self.policy.overlap_frames:  # U2
            return self._started(stretch, Cause.OVERLAP, self._interruption(model))
        if stretch.active_frames >= YIELD_FRAMES and model.quiet_frames >= YIELD_FRAMES:
            quiet_since = stretch.last_frame - model.quiet_frames + 1
            if quiet_since <= stretch.onset_frame:  # U4
                return self._started(stretch, Cause.USER_TURN, Effect.HAND_OVER)
            return self._started(stretch, Cause.YIELD, Effect.YIELDED if self.policy.interrupts else Effect.NONE)  # U3
        return None

    def _interruption(self, model: ModelView) -> Effect:
        if not self.policy.interrupts or self.policy.rule is Rule.LISTEN_ONLY:
            return Effect.NONE
        if model.is_open:
            return Effect.BARGE_IN
        return Effect.DROP_PENDING if model.is_pending else Effect.NONE

    @staticmethod
    def _started(stretch: _Stretch, cause: Cause, effect: Effect) -> Started:
        return Started(stretch.onset_frame, cause, stretch.overlap_frames, effect)
