"""The core of the gateway on a FakeEngine, driven by hand: no thread, no clock, no sleep. Each tick checks the whole slot table."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry

from gateway.engine.fake import FakeEngine, expected_audio
from gateway.intake import ClockedIntake
from gateway.limits import SessionSettings
from gateway.manager import AdmissionSettings, SessionManager
from gateway.metrics import Metrics
from gateway.outbox import EventStream
from gateway.session import Session
from gateway.slots import SlotState, SlotTable
from gateway.state import SessionState
from gateway.ticker import Ticker
from protocols.events import AudioIn, AudioOut, Clock, Heard, Open, Pacing, SamplingOptions, ServerEvent, TextDelta

S = 4  # samples of a frame
RATE = 50  # Hz, so that a frame lasts 80 ms
FRAME_S = 0.08


class FakeClock:
    """Monotonic seconds that pass when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


def frame(value: float, num_frames: int = 1) -> NDArray[np.float32]:
    """Constant audio."""
    return np.full(S * num_frames, value, dtype=np.float32)


def check_table(slots: SlotTable, engine: FakeEngine) -> None:
    """Assert what must hold between any two operations."""
    for slot in slots.slots:
        is_held = slot.occupant is not None
        assert is_held == (slot.state in (SlotState.PREFILL, SlotState.LIVE)), slot
        assert len(slot.inbox) <= slots.inbox_frames
        assert slot.credit is None or 0 <= slot.credit <= slots.outbox_frames, slot
        assert slot.steer_frames >= 0
        assert slot.frames_left >= 0
        if not is_held:
            assert not slot.inbox
            assert slot.to_open is None
            assert not slot.is_in_engine
            assert not slot.is_armed
            assert not slot.to_close
            assert slot.pad_bias == 0
        if isinstance(slot.occupant, Session):
            assert slot.occupant.slot_idx == slot.slot_idx
            assert slot.occupant.epoch == slot.epoch
            assert slot.occupant.state is not SessionState.CLOSED
            if isinstance(slot.occupant._intake, ClockedIntake):
                assert len(slot.inbox) <= slot.occupant._intake.num_pending <= 2
    expected = [slot.slot_idx for slot in slots.slots if slot.is_in_engine or slot.state is SlotState.DRAINING]
    assert engine.open_rows == expected


class Rig:
    """One manager, one ticker that is ticked by hand, one fake engine."""

    def __init__(
        self,
        num_slots: int = 2,
        *,
        admission: AdmissionSettings | None = None,
        session: SessionSettings | None = None,
        inbox_frames: int = 12,
        outbox_frames: int = 12,
        is_loaded: bool = True,
        **engine: Any,
    ) -> None:
        self.clock = FakeClock()
        self.engine = FakeEngine(num_slots, frame_samples=S, sample_rate=RATE, sleep=self.clock.advance, **engine)
        self.slots = SlotTable(num_slots, inbox_frames=inbox_frames, outbox_frames=outbox_frames)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.ticker = Ticker(self.engine, self.slots, self.metrics, clock=self.clock)
        self.manager = SessionManager(
            self.ticker,
            self.slots,
            self.metrics,
            admission or AdmissionSettings(),
            session or SessionSettings(),
            clock=self.clock,
        )
        if is_loaded:
            self.ticker.load()

    def tick(self, num_ticks: int = 1) -> None:
        for _ in range(num_ticks):
            self.ticker.tick_once()
            check_table(self.slots, self.engine)

    def run_clocks(self) -> None:
        """Do what the timers of the session clocks would do by now."""
        for session in tuple(self.manager._sessions.values()):
            if isinstance(session._intake, ClockedIntake):
                session._intake.advance()

    def pass_time(self, num_frames: float = 1.0) -> None:
        """Let time pass in quarters of a frame: session clocks tick, and the engine steps."""
        for _ in range(round(num_frames * 4)):
            self.clock.advance(FRAME_S / 4)
            self.run_clocks()
            self.tick()

    def states(self) -> list[SlotState]:
        return [slot.state for slot in self.slots.slots]

    def sample(self, name: str, **labels: str) -> float:
        """Value of a metric, 0.0 where it was never touched."""
        return self.registry.get_sample_value(name, labels) or 0.0

    async def open(self, *, seed: int = 1, pacing: Pacing = Pacing.LIVE, protocol: str = "test", **fields: Any) -> Session:
        """Open a session and let its admission come to its end, whatever it is."""
        session = self.manager.open_session(protocol)
        sampling = SamplingOptions(audio_seed=seed, text_seed=0)
        await session.push(Open(pacing=pacing, sampling=sampling, **fields))
        await self.admitted(session)
        return session

    async def live(self, **fields: Any) -> tuple[Session, AsyncIterator[ServerEvent]]:
        """Open a session and tick until it is LIVE; its Ready is taken."""
        session = await self.open(**fields)
        while session.state is SessionState.PREFILL:
            self.tick()
        assert session.state is SessionState.LIVE
        stream = session.events()
        await anext(stream)
        return session, stream

    async def admitted(self, session: Session) -> None:
        tasks = [task for task in asyncio.all_tasks() if task.get_name() == f"admit {session.session_id}"]
        if tasks:
            await asyncio.wait(tasks)
        await asyncio.sleep(0)


async def read(stream: AsyncIterator[ServerEvent]) -> list[ServerEvent]:
    """Take what waits now."""
    events: list[ServerEvent] = []
    try:
        while True:
            async with asyncio.timeout(0):
                events.append(await anext(stream))
    except (TimeoutError, StopAsyncIteration):
        return events


def audio(events: list[ServerEvent]) -> list[AudioOut]:
    return [event for event in events if isinstance(event, AudioOut)]


def heard(events: list[ServerEvent]) -> list[Heard]:
    return [event for event in events if isinstance(event, Heard)]


def text(events: list[ServerEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def exchange(rig: Rig, session: Session, stream: AsyncIterator[ServerEvent], values: list[float]) -> list[ServerEvent]:
    """Push one frame per value, tick after each, and take what comes."""
    events: list[ServerEvent] = []
    for value in values:
        await session.push(AudioIn(pcm=frame(value)))
        rig.tick()
        events += await read(stream)
    return events


# -- Calls on a session clock -------------------------------------------------------------------------------------------------------


async def realtime(rig: Rig, **fields: Any) -> tuple[Session, EventStream]:
    """A live call on a session clock; nothing has ticked yet."""
    session, _ = await rig.live(clock=Clock.REALTIME, **fields)
    return session, session.events()


async def say(rig: Rig, session: Session, stream: EventStream, values: list[float]) -> list[ServerEvent]:
    """A microphone: one frame per value, at its time."""
    events: list[ServerEvent] = []
    for value in values:
        await session.push(AudioIn(pcm=frame(value)))
        rig.pass_time()
        events += await read(stream)
    return events


def check_pairs(events: list[ServerEvent], seed: int, previous: NDArray[np.float32] | None = None) -> None:
    """Every audio that came is the model's answer to what is said to have been heard in that frame."""
    previous = frame(0.0) if previous is None else previous
    answers = {event.frame_idx: event.pcm for event in audio(events)}
    for event in heard(events):
        if event.frame_idx in answers:
            np.testing.assert_allclose(answers[event.frame_idx], expected_audio(event.pcm, previous, seed), atol=1e-6)
        previous = event.pcm
