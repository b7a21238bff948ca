from __future__ import annotations

import asyncio
import logging
import threading
import time

import pytest
from core import RATE, Rig, S, audio, frame, read
from prometheus_client import CollectorRegistry

from gateway.engine.base import FrameBatch, FrameOutput
from gateway.engine.fake import FakeEngine
from gateway.errors import ConfigError, EngineError, GatewayError
from gateway.limits import SessionSettings
from gateway.manager import AdmissionSettings, Health, SessionManager
from gateway.metrics import Metrics
from gateway.slots import Scattered, SlotTable
from gateway.ticker import MIN_STEP_SAMPLES, STALE_S, Ticker, TickerState
from protocols.errors import ErrorKind
from protocols.events import AudioIn, Ended, EndOfInput, EndReason, Failed, Open, Pacing, Ready

UNIT_S = 0.05  # the one scaled unit of the tests that must wait for a real thread


class Gate(FakeEngine):
    """A fake engine whose steps wait to be let through, and which remembers the size of each batch."""

    def __init__(self, num_slots: int) -> None:
        super().__init__(num_slots, frame_samples=S, sample_rate=RATE)
        self.has_begun = threading.Event()
        self.may_go = threading.Event()
        self.batch_sizes: list[int] = []
        self.threads: set[str] = set()

    def step(self, batch: FrameBatch) -> FrameOutput:
        self.has_begun.set()
        assert self.may_go.wait(10)
        self.threads.add(threading.current_thread().name)
        self.batch_sizes.append(int(batch.exec_mask.sum()))
        return super().step(batch)


class Real:
    """A ticker on its own thread."""

    def __init__(self, engine: FakeEngine, num_slots: int, *, coalesce_ms: float = 0.0) -> None:
        self.engine = engine
        self.slots = SlotTable(num_slots)
        self.metrics = Metrics(CollectorRegistry())
        self.ticker = Ticker(engine, self.slots, self.metrics, coalesce_ms=coalesce_ms)
        self.manager = SessionManager(self.ticker, self.slots, self.metrics, AdmissionSettings(), SessionSettings())

    async def __aenter__(self) -> Real:
        self.ticker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.manager.drain(0)
        assert await self.ticker.stop()


# -- on this thread ------------------------------------------------------------------------------------------------------------------


async def test_all_ready_callers_go_in_one_step() -> None:
    rig = Rig(num_slots=8)
    sessions = [await rig.live(seed=seed) for seed in range(8)]
    steps_before = rig.engine.num_steps
    for session, _ in sessions:
        await session.push(AudioIn(pcm=frame(0.1)))
    rig.tick()
    assert rig.engine.num_steps == steps_before + 1
    assert [len(audio(await read(stream))) for _, stream in sessions] == [1] * 8
    assert rig.sample("gateway_batch_rows_sum") == 8


async def test_a_tick_without_frames_does_not_step() -> None:
    rig = Rig()
    session, _ = await rig.live()
    steps_before = rig.engine.num_steps
    await session.close()
    rig.tick(3)
    assert rig.engine.num_steps == steps_before
    assert rig.engine.open_rows == []


async def test_late_steps_are_counted_and_only_those_that_somebody_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(step_seconds=0.1)
    session, _ = await rig.live()  # a slow prefill makes nobody late
    assert rig.sample("gateway_ticks_late_total") == 0
    for _ in range(3):
        await session.push(AudioIn(pcm=frame(0.1)))
        rig.tick()
    rig.engine.step_seconds = 0.07
    await session.push(AudioIn(pcm=frame(0.1)))
    rig.tick()
    assert rig.sample("gateway_ticks_late_total") == 3
    assert rig.sample("gateway_step_seconds_count") == 5
    assert rig.sample("gateway_tick_seconds_sum") == pytest.approx(0.47)
    assert [record.levelno for record in caplog.records if record.name == "gateway.ticker"] == [logging.WARNING]


@pytest.mark.parametrize(("step_s", "is_degraded"), [(0.05, False), (0.075, True)])
async def test_slow_steps_make_the_server_degraded_until_they_are_old_news(step_s: float, is_degraded: bool) -> None:
    rig = Rig(step_seconds=step_s)
    session, stream = await rig.live()
    for _ in range(MIN_STEP_SAMPLES):
        assert not rig.ticker.is_degraded
        await session.push(AudioIn(pcm=frame(0.1)))
        rig.tick()
        await read(stream)
    assert rig.ticker.p95_step_s == pytest.approx(step_s)
    assert rig.ticker.is_degraded is is_degraded
    rig.clock.advance(STALE_S)
    assert not rig.ticker.is_degraded


async def test_slow_steps_are_forgotten_when_the_last_caller_has_left() -> None:
    """On a busy machine a script slowed itself down, and the empty server refused its next caller for two seconds."""
    rig = Rig(step_seconds=0.075)
    session, stream = await rig.live()
    other, _ = await rig.live()
    for _ in range(MIN_STEP_SAMPLES):
        await session.push(AudioIn(pcm=frame(0.1)))
        rig.tick()
        await read(stream)
    await session.close()
    rig.tick()
    assert rig.ticker.is_degraded  # for the other one's sake
    await other.close()
    rig.tick()
    assert not rig.ticker.is_degraded
    assert rig.ticker.p95_step_s == 0.0


async def test_a_few_slow_steps_among_many_do_not_degrade() -> None:
    rig = Rig(step_seconds=0.01)
    session, stream = await rig.live()
    for step_idx in range(100):
        rig.engine.step_seconds = 0.5 if step_idx % 25 == 0 else 0.01
        await session.push(AudioIn(pcm=frame(0.1)))
        rig.tick()
        await read(stream)
    assert rig.ticker.p95_step_s == pytest.approx(0.01)
    assert not rig.ticker.is_degraded


async def test_a_hung_step_makes_the_server_degraded() -> None:
    seen: list[bool] = []
    rig = Rig()
    session, _ = await rig.live()

    def hang(seconds: float) -> None:
        rig.clock.advance(seconds)
        seen.append(rig.ticker.is_degraded)

    rig.engine._sleep = hang
    rig.engine.step_seconds = 3.0
    await session.push(AudioIn(pcm=frame(0.1)))
    rig.tick()
    assert seen == [True]
    assert not rig.ticker.is_degraded


async def test_the_longest_backlog_is_shown() -> None:
    rig = Rig()
    session, _ = await rig.live()
    await rig.live()
    await session.push(AudioIn(pcm=frame(0.1, 5)))
    rig.tick()
    assert rig.sample("gateway_backlog_frames") == 4


def test_an_engine_of_another_size_is_refused() -> None:
    ticker = Ticker(FakeEngine(3), SlotTable(2), Metrics(CollectorRegistry()))
    with pytest.raises(ConfigError, match="3 slots"):
        ticker.load()


# -- on its own thread ---------------------------------------------------------------------------------------------------------------


async def test_a_script_gets_its_answer_through_the_real_thread() -> None:
    engine = FakeEngine(2, frame_samples=S, sample_rate=RATE)
    async with Real(engine, 2) as real:
        await real.ticker.wait_loaded()
        assert real.ticker.state is TickerState.RUNNING
        session = real.manager.open_session("test")
        await session.push(Open(pacing=Pacing.SCRIPT))
        sender = asyncio.create_task(session.push(AudioIn(pcm=frame(0.1, 300))))
        sender.add_done_callback(lambda _: asyncio.ensure_future(session.push(EndOfInput())))
        async with asyncio.timeout(10):
            events = [event async for event in session.events()]
    assert isinstance(events[0], Ready)
    assert [event.frame_idx for event in audio(events)] == list(range(300))
    assert events[-1] == Ended(reason=EndReason.FINISHED)
    assert engine.is_shut_down
    assert real.ticker.state is TickerState.STOPPED


async def test_an_idle_server_sleeps() -> None:
    real = Real(FakeEngine(2, frame_samples=S, sample_rate=RATE), 2)
    looked = threading.Event()
    has_work = real.slots.has_work

    def spy() -> bool:
        looked.set()
        return has_work()

    real.slots.has_work = spy  # type: ignore[method-assign]
    async with real:
        assert await asyncio.to_thread(looked.wait, 10)
        looked.clear()
        await asyncio.sleep(2 * UNIT_S)
        assert not looked.is_set()


async def test_only_the_tick_thread_steps_and_only_the_loop_is_called_back() -> None:
    engine = Gate(1)
    engine.may_go.set()
    called_on: set[str] = set()
    async with Real(engine, 1) as real:
        on_tick = real.ticker._on_tick

        def spy(scattered: Scattered) -> None:
            called_on.add(threading.current_thread().name)
            on_tick(scattered)

        real.ticker._on_tick = spy
        await real.ticker.wait_loaded()
        session = real.manager.open_session("test")
        await session.push(Open())
        assert isinstance(await anext(session.events()), Ready)
    assert engine.threads == {"tick"}
    assert called_on == {threading.current_thread().name}


async def test_a_step_is_held_back_for_a_peer_that_is_due() -> None:
    engine = Gate(2)
    engine.may_go.set()
    async with Real(engine, 2, coalesce_ms=10_000) as real:
        await real.ticker.wait_loaded()
        sessions = [real.manager.open_session("test") for _ in range(2)]
        for session in sessions:
            await session.push(Open())
        streams = [session.events() for session in sessions]
        for stream in streams:
            assert isinstance(await anext(stream), Ready)
        real.ticker.frame_s = 100.0  # both stay "recent", however slow this machine is
        engine.batch_sizes.clear()
        for session in sessions:
            await session.push(AudioIn(pcm=frame(0.1)))
        for stream in streams:
            await anext(stream)
        first = list(engine.batch_sizes)
        for session in reversed(sessions):
            await session.push(AudioIn(pcm=frame(0.1)))
            await asyncio.sleep(UNIT_S)
        assert engine.batch_sizes == [*first, 2]


async def test_frames_that_arrive_during_a_step_go_together_in_the_next() -> None:
    engine = Gate(4)
    engine.may_go.set()
    async with Real(engine, 4) as real:
        await real.ticker.wait_loaded()
        sessions = [real.manager.open_session("test") for _ in range(4)]
        for session in sessions:
            await session.push(Open())
            await anext(session.events())
        engine.batch_sizes.clear()
        engine.may_go.clear()
        engine.has_begun.clear()
        await sessions[0].push(AudioIn(pcm=frame(0.1)))
        assert await asyncio.to_thread(engine.has_begun.wait, 10)
        for session in sessions[1:]:
            await session.push(AudioIn(pcm=frame(0.1)))
        engine.may_go.set()
        for session in sessions:
            assert len(audio([await anext(session.events())])) == 1
        assert engine.batch_sizes == [1, 3]


async def test_a_failing_step_ends_every_call_within_a_second_and_admits_nobody(caplog: pytest.LogCaptureFixture) -> None:
    engine = FakeEngine(2, frame_samples=S, sample_rate=RATE, fail_at_step=3)
    async with Real(engine, 2) as real:
        await real.ticker.wait_loaded()
        sessions = [real.manager.open_session("test") for _ in range(3)]
        streams = [session.events() for session in sessions]
        for session, stream in zip(sessions[:2], streams, strict=False):
            await session.push(Open())
            assert isinstance(await anext(stream), Ready)
        started_s = time.monotonic()
        await sessions[0].push(AudioIn(pcm=frame(0.1, 4)))
        async with asyncio.timeout(5):
            await real.ticker.failed.wait()
            ends = [[event async for event in stream][-1] for stream in streams[:2]]
        assert time.monotonic() - started_s < 1.0
        assert ends == [Failed(kind=ErrorKind.INTERNAL, detail="the engine has failed")] * 2
        assert isinstance(real.ticker.failure, EngineError)
        assert real.manager.num_sessions == 0
        late = real.manager.open_session("test")
        await late.push(Open())
        last = await anext(late.events())
        assert isinstance(last, Failed)
        assert last.kind is ErrorKind.INTERNAL
    assert "failure injected" in caplog.text


@pytest.mark.parametrize("error", [ConfigError("no such checkpoint"), RuntimeError("out of memory")])
async def test_an_engine_that_cannot_load_says_why(error: Exception) -> None:
    async with Real(FakeEngine(1, load_error=error), 1) as real:
        with pytest.raises(GatewayError) as raised:
            await real.ticker.wait_loaded()
        assert raised.value is real.ticker.failure
        if isinstance(error, ConfigError):
            assert raised.value is error
        else:  # told with its traceback here, and not a second time by whoever ends the process
            assert isinstance(raised.value, EngineError)
            assert raised.value.__cause__ is error
        assert real.ticker.state is TickerState.FAILED
        assert real.ticker.failed.is_set()
        assert real.ticker.progress == "loading the fake engine"


@pytest.mark.parametrize("error", [SystemExit(3), GeneratorExit()])
async def test_what_ends_a_thread_in_silence_fails_the_engine_aloud(error: BaseException, caplog: pytest.LogCaptureFixture) -> None:
    """SystemExit is no Exception: the thread used to die of it without a word, with /health "ok" and every call waiting."""
    engine = Gate(1)
    engine.may_go.set()
    async with Real(engine, 1) as real:
        await real.ticker.wait_loaded()
        session = real.manager.open_session("test")
        stream = session.events()
        await session.push(Open())
        assert isinstance(await anext(stream), Ready)

        def leave(batch: FrameBatch) -> FrameOutput:
            raise error

        engine.step = leave  # type: ignore[method-assign]
        await session.push(AudioIn(pcm=frame(0.1)))
        async with asyncio.timeout(5):
            await real.ticker.failed.wait()
        assert await anext(stream) == Failed(kind=ErrorKind.INTERNAL, detail="the engine has failed")
        assert isinstance(real.ticker.failure, EngineError)
        assert real.ticker.failure.__cause__ is error
        assert real.manager.health is Health.FAILED
    assert type(error).__name__ in caplog.text


def test_a_loop_that_is_gone_ends_the_thread() -> None:
    engine = Gate(1)
    real_ticker: list[Real] = []

    async def main() -> None:
        real = Real(engine, 1)
        real_ticker.append(real)
        real.ticker.start()
        await real.ticker.wait_loaded()
        session = real.manager.open_session("test")
        await session.push(Open())
        assert await asyncio.to_thread(engine.has_begun.wait, 10)
        await session.close()

    asyncio.run(main())
    engine.may_go.set()
    thread = real_ticker[0].ticker._thread
    assert thread is not None
    thread.join(10)
    assert not thread.is_alive()
    assert engine.is_shut_down


async def test_a_ticker_that_never_started_stops() -> None:
    assert await Rig().ticker.stop()
