"""What stands between the audio of one caller and its slot: one intake for each kind of session clock.

An intake decides when a frame goes into the slot and knows which frames are not answered yet; the session decides what a caller may do and
says what came back. The rule: a frame that went in is answered once or taken back, and `num_pending` says how many are neither.
Thread: loop.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable

from gateway.clock import ClockFrame, InputClock
from gateway.engine.base import EngineInfo
from gateway.errors import SessionGone
from gateway.limits import SessionSettings
from gateway.slots import InFrame, PushResult
from protocols.audio import FrameAssembler, Pcm
from protocols.errors import LocalProtocolError
from protocols.events import Pacing

Feed = Callable[[InFrame], PushResult]  # puts a frame into the slot
OnDropped = Callable[[int], None]  # is told how many frames were dropped because too much waits

MAX_PENDING = 2  # frames of a clocked session that may be on their way: one in the model, one for the next step


class FrameIntake:
    """Clock.FRAMES: what the caller sends goes in, a frame as soon as it is whole.

    Audio of a Pacing.SCRIPT caller waits inside `push` and `flush`, for the slot and for room in its inbox; that of a live one never does.

    Attributes:
        num_accepted: frames that went in.
        num_pending: frames in the inbox or in the engine: accepted, not dropped, not answered.
    """

    def __init__(self, pacing: Pacing, inbox_frames: int, feed: Feed, on_dropped: OnDropped) -> None:
        self.num_accepted = 0
        self.num_pending = 0
        self._pacing = pacing
        self._inbox_frames = inbox_frames
        self._feed = feed
        self._on_dropped = on_dropped
        self._assembler: FrameAssembler | None = None
        self._frame_samples = 0
        self._is_live = False
        self._is_closed = False
        self._early_samples = 0  # of live audio before Ready
        self._may_go_on = asyncio.Event()  # wakes a push that waits for the slot or for room in its inbox

    def arm(self, info: EngineInfo) -> None:
        """The slot takes frames from now on."""
        self._frame_samples = info.frame_samples
        self._assembler = FrameAssembler(info.frame_samples)
        self._may_go_on.set()

    def ready(self) -> None:
        """The model listens from now on."""
        self._is_live = True

    def close(self) -> None:
        """The session is over: whoever waits in here gets SessionGone."""
        self._is_closed = True
        self._may_go_on.set()

    async def push(self, pcm: Pcm) -> None:
        """Take float32 [N] of the caller.

        Raises:
            SessionGone: the session ended meanwhile.
        """
        if self._pacing is Pacing.LIVE and not self._is_live:
            self._early_samples += pcm.size  # specs/moshi-protocol.md 3.2: live audio before Ready is dropped
            return
        while self._assembler is None:
            await self._wait_to_go_on()
        if self._pacing is Pacing.LIVE:  # what the inbox would drop at once is not even cut into frames: one message may hold minutes
            pcm, num_dropped = self._assembler.skip(pcm, self._inbox_frames)
            self._on_dropped(num_dropped)
        for frame in self._assembler.push(pcm):
            await self._push_frame(InFrame(frame, frame.size))

    async def flush(self) -> None:
        """Pad the last partial frame and send it in.

        Raises:
            SessionGone: the session ended meanwhile.
        """
        tail = None if self._assembler is None else self._assembler.flush()
        if tail is not None:
            await self._push_frame(InFrame(*tail))

    def answered(self) -> None:
        """One frame came back."""
        self.num_pending -= 1
        self._may_go_on.set()

    def take_early_frames(self) -> int:
        """Return how many frames of live audio came before Ready, and forget them; 0 while nobody knows what a frame is."""
        if not self._frame_samples:
            return 0
        num_frames, self._early_samples = self._early_samples // self._frame_samples, 0
        return num_frames

    async def _push_frame(self, frame: InFrame) -> None:
        self._raise_if_closed()
        while (result := self._feed(frame)) is PushResult.FULL:
            await self._wait_to_go_on()
        self.num_accepted += 1
        if result is PushResult.DROPPED_OLDEST:
            self._on_dropped(1)
        else:
            self.num_pending += 1

    async def _wait_to_go_on(self) -> None:
        self._may_go_on.clear()
        await self._may_go_on.wait()
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise SessionGone("the session has ended")


class ClockedIntake:
    """Clock.REALTIME: one frame goes in for each tick of an `InputClock`, on a timer of the event loop.

    At most MAX_PENDING frames are on their way, so the inbox drops nothing, and the frames that were given and the answers that come make
    pairs. A clock that is stopped or paused has no timer.

    Attributes:
        num_accepted: frames that went in and were not taken back.

    Args:
        now: monotonic seconds.
    """

    def __init__(
        self,
        info: EngineInfo,
        settings: SessionSettings,
        inbox_frames: int,
        feed: Feed,
        on_dropped: OnDropped,
        now: Callable[[], float],
    ) -> None:
        self.num_accepted = 0
        self._clock = InputClock(
            info.frame_samples,
            info.sample_rate,
            jitter_ms=settings.input_jitter_ms,
            grace_ms=settings.input_grace_ms,
            max_input_ms=settings.input_max_ms,
        )
        self._frame_samples = info.frame_samples
        self._max_pending = min(MAX_PENDING, inbox_frames)
        self._feed = feed
        self._on_dropped = on_dropped
        self._now = now
        self._given: deque[ClockFrame] = deque()  # not answered yet, oldest first
        self._num_dropped = 0  # frames that `on_dropped` was told of
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = math.inf  # when it is due
        self._is_closed = False

    @property
    def num_pending(self) -> int:
        """Frames in the inbox or in the engine."""
        return len(self._given)

    def arm(self, info: EngineInfo) -> None:
        """Ignored: the clock waits for `ready`."""

    def ready(self) -> None:
        """The model listens from now on."""
        self._clock.start(self._now())
        self.advance()

    def close(self) -> None:
        """The session is over."""
        self._is_closed = True
        self._set_timer(math.inf, 0.0)

    async def push(self, pcm: Pcm) -> None:
        """Take float32 [N] of the caller; a paused clock runs again. Never waits."""
        self._clock.push(pcm, self._now())
        self.advance()

    async def flush(self) -> None:
        """Cannot be done: the clock goes on and on.

        Raises:
            LocalProtocolError: always.
        """
        raise LocalProtocolError("the input of a realtime clock has no end: hang up")

    def run(self, is_running: bool) -> None:
        """Let the clock run, or pause it."""
        if is_running:
            self._clock.resume(self._now())
        else:
            self._clock.pause()
        self.advance()

    def clear(self, num_unheard: int) -> None:
        """Forget what waits, and the newest `num_unheard` frames that were given: the inbox has dropped them."""
        self._take_back(num_unheard)
        self._clock.clear()
        self.advance()

    def disarm(self, num_unheard: int, replay_frames: int) -> None:
        """The model forgets what it has heard and listens again after `ready`.

        Args:
            num_unheard: of the frames that were given; the inbox has dropped them, and the next prompt hears them.
            replay_frames: of the frames before those, to be heard again first.
        """
        self._take_back(num_unheard)
        self._clock.stop()
        self._clock.replay(replay_frames)
        self.advance()

    def take_early_frames(self) -> int:
        """None: what came before Ready waits."""
        return 0

    def answered(self) -> ClockFrame:
        """One frame came back: return what the model heard in it."""
        frame = self._given.popleft()
        self.advance()
        return frame

    def advance(self) -> None:
        """Give the slot what is due, and see to it that this is called again in time."""
        if self._is_closed:
            return
        now = self._now()
        while len(self._given) < self._max_pending and (frame := self._clock.take(now)) is not None:
            self._given.append(frame)
            self.num_accepted += 1
            self._feed(InFrame(frame.pcm, frame.pcm.size))
        self._set_timer(self._clock.due_s if len(self._given) < self._max_pending else math.inf, now)
        num_dropped = self._clock.dropped_samples // self._frame_samples
        if num_dropped > self._num_dropped:
            num_new, self._num_dropped = num_dropped - self._num_dropped, num_dropped
            self._on_dropped(num_new)

    def _take_back(self, num_frames: int) -> None:
        frames = [self._given.pop() for _ in range(num_frames)]
        self.num_accepted -= num_frames
        self._clock.put_back(reversed(frames))

    def _set_timer(self, due_s: float, now: float) -> None:
        if self._timer is not None:
            if due_s == self._timer_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s < math.inf:
            self._timer_s = due_s
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.advance()
