"""The tick thread: it owns the engine, waits for frames, steps, and hands the results to the event loop.

A tick is gather -> close and open rows -> one engine step -> scatter. There is no metronome: the thread sleeps until a slot has a whole
frame or something to prefill or to clear, waits up to `coalesce_ms` more for peers that are due, and steps; an idle server sleeps on.
The one rule: after `start` only this thread calls the engine's tick methods, and each tick posts exactly one callback to the loop. (That
queue is bounded without a counter: a loop that stalls pushes no frames, so at most an inbox of further ticks can follow.)
Lateness is measured here. Time is an argument; `tick_once` never waits, so tests can drive it by hand on any thread.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable

from gateway.engine.base import Engine
from gateway.errors import ConfigError, EngineError
from gateway.metrics import Metrics
from gateway.slots import Scattered, SlotState, SlotTable

logger = logging.getLogger(__name__)

COALESCE_MS = 5.0
RECENT_FRAMES = 2  # a slot that delivered nothing for longer is not waited for
STEP_SAMPLES = 100  # steps that the p95 looks back over: 8 s at full cadence
MIN_STEP_SAMPLES = 20  # fewer say nothing about a 95th percentile
DEGRADED_SHARE = 0.9  # of a frame's duration
STALE_S = 2.0  # without a step for so long, old step times say nothing about the next caller's
HUNG_S = 1.0  # a step that has not come back for so long makes the server degraded, whatever the earlier ones took
LATE_WARNING_S = 10.0  # at most one log line for late ticks in so many seconds


class TickerState(enum.Enum):
    """What the tick thread can do for a caller."""

    LOADING = "loading"
    RUNNING = "running"
    FAILED = "failed"  # see `Ticker.failure`; for good
    STOPPED = "stopped"


class Ticker:
    """Runs one engine on one slot table.

    Attributes:
        engine: its `info`, `prepare` and `piece` may be used from any thread once the state is RUNNING.
        state: changes on the tick thread.
        failure: why the state is FAILED: an EngineError, or a ConfigError when the engine could not be loaded with this configuration.
        progress: the last line the engine said while loading.
        failed: set (on the loop) when the state is FAILED; the process should then exit.
        frame_s: duration of a frame in seconds, once loaded.
    """

    def __init__(
        self,
        engine: Engine,
        slots: SlotTable,
        metrics: Metrics,
        *,
        coalesce_ms: float = COALESCE_MS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.engine = engine
        self.slots = slots
        self.state = TickerState.LOADING
        self.failure: EngineError | ConfigError | None = None
        self.progress = ""
        self.failed = asyncio.Event()
        self.frame_s = math.inf
        self._metrics = metrics
        self._coalesce_s = coalesce_ms / 1000
        self._clock = clock
        self._loaded = asyncio.Event()  # set as well when loading failed
        self._loop: asyncio.AbstractEventLoop | None = None  # until `start`, results are handed over in place
        self._on_tick: Callable[[Scattered], None] = _ignore
        self._on_failed: Callable[[Exception], None] = _ignore
        self._thread: threading.Thread | None = None
        self._is_stopping = False  # guarded by slots.cond
        self._step_times: deque[float] = deque(maxlen=STEP_SAMPLES)  # tick thread only
        self._p95_step_s = 0.0
        self._last_step_s = -math.inf  # clock when the last step came back
        self._step_started_s: float | None = None
        self._last_warning_s = -math.inf

    # Public: event loop

    def connect(self, on_tick: Callable[[Scattered], None], on_failed: Callable[[Exception], None]) -> None:
        """Say who takes the results, before `start`. Both are called on the loop. Thread: loop."""
        self._on_tick = on_tick
        self._on_failed = on_failed

    def start(self) -> None:
        """Start the thread: load the engine, then tick. Call once, inside the running loop. Thread: loop."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._run, name="tick", daemon=True)  # a hung device must not keep the process alive
        self._thread.start()

    async def wait_loaded(self) -> None:
        """Wait until the engine is loaded. Thread: loop.

        Raises:
            ConfigError: this machine or checkpoint cannot serve this configuration.
            EngineError: whatever else kept the engine from loading.
        """
        await self._loaded.wait()
        if self.failure is not None:
            raise self.failure

    async def stop(self, timeout_s: float = 10.0) -> bool:
        """End the thread after the tick it is in, and free the device; return whether it ended in time. Thread: loop."""
        with self.slots.cond:
            self._is_stopping = True
            self.slots.cond.notify_all()
        if self._thread is None:
            return True
        await asyncio.to_thread(self._thread.join, timeout_s)
        return not self._thread.is_alive()

    @property
    def p95_step_s(self) -> float:
        """95th percentile of the last steps that had live callers, in seconds; 0.0 while there are too few. Thread: any."""
        return self._p95_step_s

    @property
    def is_degraded(self) -> bool:
        """Whether another caller would make the others late. Thread: any."""
        now = self._clock()
        started_s = self._step_started_s
        if started_s is not None and now - started_s > HUNG_S:
            return True
        return self._p95_step_s > DEGRADED_SHARE * self.frame_s and now - self._last_step_s < STALE_S

    # Public: tick thread

    def load(self) -> None:
        """Load the engine. Thread: tick.

        Raises:
            ConfigError: from the engine, or because it has another number of rows than the table.
        """
        self.engine.load(self._report)
        info = self.engine.info
        if info.num_slots != self.slots.num_slots:
            raise ConfigError(f"the engine has {info.num_slots} slots, the gateway was configured for {self.slots.num_slots}")
        self.frame_s = info.frame_samples / info.sample_rate
        self.state = TickerState.RUNNING
        self._hand_over(self._loaded.set)

    def tick_once(self) -> None:
        """Do one tick without waiting. Thread: tick.

        Raises:
            Exception: whatever the engine raised; the ticker is of no use afterwards.
        """
        started_s = self._clock()
        gathered = self.slots.gather(self.engine.info.frame_samples)
        self._metrics.backlog_frames.set(gathered.max_backlog)
        for slot_idx in gathered.closings:
            self.engine.close(slot_idx)
        if gathered.closings and self.slots.count(SlotState.IDLE) == self.slots.num_slots:
            self._forget_steps()
        for opening in gathered.openings:
            self.engine.open(opening.slot_idx, opening.prompt, opening.sampling)
        output = None
        if gathered.needs_step:
            self._step_started_s = self._clock()
            output = self.engine.step(gathered.batch)
            self._measure(self._clock() - self._step_started_s, len(gathered.rows))
            self._step_started_s = None
        scattered = self.slots.scatter(gathered, output)
        if gathered.needs_step:
            self._metrics.tick_seconds.observe(self._clock() - started_s)
        self._hand_over(self._on_tick, scattered)

    # Private

    def _run(self) -> None:
        try:
            self.load()
            while self._wait():
                self.tick_once()
            self.engine.shutdown()
            self.state = TickerState.STOPPED
        except BaseException as error:  # SystemExit of a library, too: a thread that dies of it says nothing, and callers wait for ever
            self._fail(error)

    def _wait(self) -> bool:
        """Sleep until a tick is worth its while; return False when the thread should end."""
        slots = self.slots
        with slots.cond:
            while not self._is_stopping and not slots.has_work():
                slots.cond.wait()
            now = self._clock()
            deadline_s = now + self._coalesce_s
            while not self._is_stopping and now < deadline_s and slots.is_worth_waiting(now, RECENT_FRAMES * self.frame_s):
                slots.cond.wait(deadline_s - now)
                now = self._clock()
            return not self._is_stopping

    def _measure(self, step_s: float, num_rows: int) -> None:
        self._metrics.step_seconds.observe(step_s)
        self._metrics.batch_rows.observe(num_rows)
        if not num_rows:
            return  # a step that only prefills makes nobody wait for audio
        now = self._clock()
        self._last_step_s = now
        self._step_times.append(step_s)
        if len(self._step_times) >= MIN_STEP_SAMPLES:
            self._p95_step_s = sorted(self._step_times)[math.ceil(0.95 * len(self._step_times)) - 1]
        if step_s <= self.frame_s:
            return
        self._metrics.ticks_late.inc()
        if now - self._last_warning_s >= LATE_WARNING_S:
            self._last_warning_s = now
            logger.warning("late: a step took %.0f ms, a frame lasts %.0f ms (%d callers)", step_s * 1e3, self.frame_s * 1e3, num_rows)

    def _forget_steps(self) -> None:
        """The last caller has left: the next one finds an empty server, whatever it was like before."""
        self._step_times.clear()
        self._p95_step_s = 0.0

    def _fail(self, error: BaseException) -> None:
        was_loading = self.state is TickerState.LOADING
        if was_loading and isinstance(error, ConfigError):
            logger.error("cannot load the engine: %s", error)
        else:
            logger.error("the engine failed", exc_info=error)
        if isinstance(error, EngineError | ConfigError):
            failure = error
        else:
            failure = EngineError(str(error) or type(error).__name__)
            failure.__cause__ = error
        self.failure = failure
        self.state = TickerState.FAILED
        self._hand_over(self._settle, failure)

    def _settle(self, error: Exception) -> None:
        self.failed.set()
        self._loaded.set()
        self._on_failed(error)

    def _hand_over(self, function: Callable[..., object], *args: object) -> None:
        if self._loop is None:
            function(*args)
            return
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody is left to tick for
            with self.slots.cond:
                self._is_stopping = True

    def _report(self, line: str) -> None:
        self.progress = line
        logger.info("%s", line)


def _ignore(_: object) -> None:
    return None
