"""Admission and the register of sessions: who gets a slot, who waits, who is refused, and how everybody is sent home.

A slot is claimed before the prompt is prepared, often long before, so that a full server refuses at once and nobody takes the slot from
under a caller whose prompt is being prepared. A session that ends, at whatever moment, gives its slot back itself (`Session.end`); the
manager only offers it to the next in line. The one rule: first come, first served; nobody is admitted past a waiting caller. Thread: loop.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import functools
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping

from gateway.calls import CallInfo, count_late, describe_call
from gateway.engine.base import EngineInfo
from gateway.errors import NoFreeSlot, SessionGone
from gateway.limits import SessionSettings
from gateway.metrics import Direction, DropReason, Metrics
from gateway.session import Session
from gateway.slots import Occupant, Scattered, SlotState, SlotTable
from gateway.ticker import Ticker, TickerState
from protocols.errors import ErrorKind
from protocols.events import Ended, Failed, Open, Queued, Reprime, SamplingOptions

logger = logging.getLogger(__name__)

SWEEP_S = 1.0  # how often idle callers are looked for, while there are sessions at all
CLEARING_S = 2.0  # how long a caller is let wait for a slot that is only being cleared, though there is no queue: a tick does it
SEED_BITS = 53  # random seeds survive a client that reads JSON numbers as doubles


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionSettings:
    """What callers get who ask for nothing special, and how long they may wait."""

    queue_s: float = 0.0  # longest wait for a slot in seconds; 0 refuses at once
    queue_limit: int | None = None  # callers that may wait; None: as many as there are slots
    default_persona: str | None = None  # for callers that send none; None: the checkpoint's own
    default_voice: str | None = None  # for callers that ask for none; None: the checkpoint's own


class Health(enum.Enum):
    """The gateway in one word, for /health."""

    LOADING = "loading"
    READY = "ready"
    DEGRADED = "degraded"  # serves its callers, admits no more
    DRAINING = "draining"
    FAILED = "failed"  # the process should be restarted


@dataclasses.dataclass(slots=True)
class _Waiter:
    """A caller in the queue."""

    session: Session
    claimed: asyncio.Future[None]  # done when the session holds a slot
    position: int = 0  # as last told


class SessionManager:
    """Opens sessions on one ticker and its slots.

    Attributes:
        is_draining: no new callers any more.
    """

    def __init__(
        self,
        ticker: Ticker,
        slots: SlotTable,
        metrics: Metrics,
        admission: AdmissionSettings,
        session: SessionSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.is_draining = False
        self._ticker = ticker
        self._slots = slots
        self._metrics = metrics
        self._settings = admission
        self._session_settings = session
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self._late_before: dict[str, int] = {}  # late ticks of the server when a session came
        self._queue: deque[_Waiter] = deque()
        self._is_empty = asyncio.Event()
        self._is_empty.set()
        self._sweep: asyncio.TimerHandle | None = None
        metrics.sessions_open.set_function(lambda: len(self._sessions))
        metrics.slots_used.set_function(lambda: slots.num_slots - slots.count(SlotState.IDLE))
        ticker.connect(self._on_tick, self._on_failed)

    # Public

    def open_session(self, protocol: str, faults: Callable[[], Mapping[str, int]] = dict) -> Session:
        """Make a session for a new connection; it holds nothing before Reserve or Open. `close` it in any case. Thread: loop.

        Args:
            faults: what the wire could not use, by name; asked when the session ends, for its line in the log.
        """
        session = Session(
            secrets.token_hex(8),
            protocol,
            self._slots,
            self._session_settings,
            self._metrics,
            self,
            clock=self._clock,
            faults=faults,
        )
        self._sessions[session.session_id] = session
        self._late_before[session.session_id] = count_late(self._metrics)
        self._is_empty.clear()
        if self._sweep is None:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_and_rearm)
        return session

    def get(self, session_id: str) -> Session:
        """Look a session up.

        Raises:
            SessionGone: it has ended, or never was.
        """
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionGone("no such session")
        return session

    def call(self, session_id: str) -> CallInfo:
        """Tell how a call is going.

        Raises:
            SessionGone: it has ended, or never was.
        """
        session = self.get(session_id)
        num_late = count_late(self._metrics) - self._late_before[session_id]
        return describe_call(session, self._slots, self._clock(), num_late)

    def calls(self) -> list[CallInfo]:
        """Tell how every call is going, the oldest first."""
        return [self.call(session_id) for session_id in self._sessions]

    @property
    def num_sessions(self) -> int:
        """Sessions that have not ended."""
        return len(self._sessions)

    @property
    def num_queued(self) -> int:
        """Callers that wait for a slot."""
        return len(self._queue)

    @property
    def open_s(self) -> float:
        """Seconds after which a connection that has not asked for a call is ended."""
        return min(self._session_settings.open_s, self._session_settings.idle_s)

    @property
    def health(self) -> Health:
        """What to answer on /health."""
        if self._ticker.state in (TickerState.FAILED, TickerState.STOPPED):
            return Health.FAILED
        if self.is_draining:
            return Health.DRAINING
        if self._ticker.state is TickerState.LOADING:
            return Health.LOADING
        return Health.DEGRADED if self._ticker.is_degraded else Health.READY

    def refusal(self) -> NoFreeSlot | None:
        """Return why a caller that came now would be refused at once, or None: for answers before an upgrade. Thread: loop."""
        try:
            self._check_open()
            self._check_room()
            self._check_speed()
        except NoFreeSlot as reason:
            return reason
        return None

    async def drain(self, grace_s: float) -> None:
        """Refuse new callers, give the present ones `grace_s` seconds to finish, then end them. Thread: loop."""
        self.is_draining = True
        for waiter in tuple(self._queue):
            waiter.session.end(_SHUTDOWN)
        try:
            async with asyncio.timeout(grace_s):
                await self._is_empty.wait()
        except TimeoutError:
            logger.info("ending %d calls after %g s of grace", self.num_sessions, grace_s)
        finally:
            self._end_all(_SHUTDOWN)

    def sweep(self) -> None:
        """End the sessions whose time is up, for whatever reason, and look at the queue. Thread: loop."""
        now = self._clock()
        for session in tuple(self._sessions.values()):
            session.expire(now)
        self._serve_queue()

    # Sessions' side: their Host

    @property
    def engine_info(self) -> EngineInfo | None:
        """What the engine says of itself; None while it cannot serve anybody."""
        return self._ticker.engine.info if self._ticker.state is TickerState.RUNNING else None

    async def reserve(self, session: Session) -> None:
        """Let a session claim a slot, after those who wait already.

        Raises:
            NoFreeSlot: and the session must be ended.
        """
        self._check_open()
        self._check_room()  # first: a full server says that it is full, however slow it is
        self._check_speed()
        if self._queue or not self._slots.count(SlotState.IDLE):
            await self._wait_in_queue(session)
        else:
            session.claim()

    async def prime(self, session: Session, event: Open | Reprime) -> None:
        """Prepare a prompt and arm a session with it; one that holds no slot reserves one first.

        Raises:
            NoFreeSlot: and the session must be ended.
            ConfigError: a voice or persona that cannot be served; likewise.
        """
        if session.slot_idx is None:
            await self.reserve(session)
        engine = self._ticker.engine
        voice_prompt = self._settings.default_voice if event.voice_prompt is None else event.voice_prompt
        persona = self._settings.default_persona if event.persona is None else event.persona
        prompt = await asyncio.to_thread(engine.prepare, voice_prompt, persona)
        max_frames = event.max_frames if isinstance(event, Open) else None
        session.arm(engine, prompt, resolve_sampling(event.sampling, engine.info.sampling), max_frames)

    def on_end(self, session: Session) -> None:
        """Forget a session that has ended, in any state, and has given its slot back."""
        self._sessions.pop(session.session_id, None)
        self._late_before.pop(session.session_id, None)
        for waiter in self._queue:
            if waiter.session is session:
                self._queue.remove(waiter)
                break
        self._serve_queue()  # an unopened slot is idle at once; an opened one after its next tick
        if not self._sessions:
            self._is_empty.set()
            if self._sweep is not None:
                self._sweep.cancel()
                self._sweep = None

    # Private: admission

    def _check_open(self) -> None:
        if self.is_draining:
            raise NoFreeSlot(ErrorKind.SHUTDOWN, "the server is shutting down")
        match self._ticker.state:
            case TickerState.LOADING:
                raise NoFreeSlot(ErrorKind.LOADING, "the model is still loading", retry_after_s=10)
            case TickerState.FAILED:
                raise NoFreeSlot(ErrorKind.INTERNAL, "the engine has failed", retry_after_s=30)
            case TickerState.STOPPED:
                raise NoFreeSlot(ErrorKind.SHUTDOWN, "the server is shutting down")

    def _check_speed(self) -> None:
        if self._ticker.is_degraded:
            raise NoFreeSlot(ErrorKind.OVERLOADED, "the server is too slow for another caller at the moment")

    def _check_room(self) -> None:
        """Raise NoFreeSlot when a caller could not even wait."""
        num_waiting = len(self._queue)
        num_coming = self._slots.count(SlotState.IDLE) + self._slots.count(SlotState.DRAINING)  # a tick away at most
        if num_waiting < num_coming:
            return
        limit = self._slots.num_slots if self._settings.queue_limit is None else self._settings.queue_limit
        if not self._settings.queue_s:
            raise NoFreeSlot(ErrorKind.CAPACITY, f"every slot is taken ({self._slots.num_slots} of {self._slots.num_slots})")
        if num_waiting >= num_coming + limit:
            raise NoFreeSlot(ErrorKind.CAPACITY, "every slot is taken and the queue is full")

    async def _wait_in_queue(self, session: Session) -> None:
        waiter = _Waiter(session, asyncio.get_running_loop().create_future())
        self._queue.append(waiter)
        self._tell_positions()
        wait_s = self._settings.queue_s or CLEARING_S
        try:
            async with asyncio.timeout(wait_s):
                await waiter.claimed
        except TimeoutError:
            raise NoFreeSlot(ErrorKind.CAPACITY, f"no slot became free in {wait_s:g} s") from None

    def _serve_queue(self) -> None:
        """Give idle slots to those who wait, in order."""
        while self._queue and not self._ticker.is_degraded and self._slots.count(SlotState.IDLE):
            waiter = self._queue.popleft()
            if waiter.claimed.done():
                continue  # its time ran out in this very moment; it is about to say so
            waiter.session.claim()
            waiter.claimed.set_result(None)
        self._tell_positions()

    def _tell_positions(self) -> None:
        """Tell every waiting caller its place, when it has changed."""
        if not self._settings.queue_s:
            return  # who waits now waits for one tick only
        for position, waiter in enumerate(tuple(self._queue), start=1):
            if waiter.position != position:
                waiter.position = position
                waiter.session.tell(Queued(position=position))

    # Private: callbacks

    def _on_tick(self, scattered: Scattered) -> None:
        if scattered.num_late:
            self._metrics.count_dropped(Direction.OUT, DropReason.RELEASED, scattered.num_late)
        for occupant in scattered.ready:
            self._guard(occupant, occupant.on_ready)
        for occupant, answer in scattered.answers:
            self._guard(occupant, functools.partial(occupant.on_answer, answer))
        if scattered.num_freed:
            self._serve_queue()

    @staticmethod
    def _guard(occupant: Occupant, deliver: Callable[[], None]) -> None:
        """Deliver to one session; whatever goes wrong there costs nobody else a frame."""
        try:
            deliver()
        except Exception:
            logger.exception("a session could not take its output")
            occupant.end(Failed(kind=ErrorKind.INTERNAL, detail="internal error"))

    def _on_failed(self, error: Exception) -> None:
        """The engine is gone: so is every call."""
        self._end_all(Failed(kind=ErrorKind.INTERNAL, detail="the engine has failed"))

    def _end_all(self, last: Ended | Failed) -> None:
        for session in tuple(self._sessions.values()):
            session.end(last)

    def _sweep_and_rearm(self) -> None:
        self._sweep = None
        self.sweep()
        if self._sessions:
            self._sweep = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep_and_rearm)


_SHUTDOWN = Failed(kind=ErrorKind.SHUTDOWN, detail="the server is shutting down")


def resolve_sampling(asked: SamplingOptions, defaults: SamplingOptions) -> SamplingOptions:
    """Fill the fields that a caller left open: seeds at random, the rest from the checkpoint. Thread: any."""
    names = [field.name for field in dataclasses.fields(SamplingOptions)]
    chosen = {name: getattr(defaults if getattr(asked, name) is None else asked, name) for name in names}
    for name in ("text_seed", "audio_seed"):
        if chosen[name] is None:
            chosen[name] = secrets.randbits(SEED_BITS)
    return SamplingOptions(**chosen)
