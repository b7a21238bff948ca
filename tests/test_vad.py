from __future__ import annotations

import asyncio
import importlib.util
import logging
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.wav import read_wav
from gateway.errors import ConfigError
from gateway.vad import VoiceActivity
from protocols.realtime.audio import Resampler
from protocols.realtime.detector import Activity, Loudness, SpeechDetector

RATE = 24_000
FRAME = 1920
DATA = Path(__file__).parent / "data"
WAIT_S = 30.0  # for results that take milliseconds

Pcm = np.ndarray


def level(pcm: Pcm, level_db: float) -> Pcm:
    """The recording with its loud frames at `level_db` dBFS (RMS)."""
    power = (frames(pcm) ** 2).mean(axis=1)
    return (pcm * 10 ** (level_db / 20) / np.sqrt(power[power > power.max() / 1000].mean())).astype(np.float32)


def speech(seconds: float = 6.0, level_db: float = -26.0) -> Pcm:
    """1 s of silence, a question of 3.6 s, silence."""
    said = level(read_wav(str(DATA / "realtime" / "question.wav")), level_db)
    return np.pad(said, (RATE, max(round(seconds * RATE) - RATE - said.size, 0)))[: round(seconds * RATE)]


def babble(seconds: float, level_db: float) -> Pcm:
    return np.resize(level(read_wav(str(DATA / "realtime" / "babble.wav")), level_db), round(seconds * RATE))


def noise(kind: str, seconds: float, level_db: float) -> Pcm:
    count = round(seconds * RATE)
    spectrum = np.fft.rfft(np.random.default_rng(3).standard_normal(count))
    if kind == "pink":
        spectrum /= np.sqrt(np.maximum(np.fft.rfftfreq(count, 1 / RATE), 20))
    return level(np.fft.irfft(spectrum, count).astype(np.float32), level_db)


def chords(seconds: float, level_db: float) -> Pcm:
    at_s = np.arange(round(seconds * RATE)) / RATE
    beat_s = at_s % 0.5
    music = sum(np.sin(2 * np.pi * hz * h * at_s) / h for hz in (220.0, 277.2, 329.6) for h in (1, 2, 3)) * np.exp(-3 * beat_s)
    drum = np.exp(-25 * beat_s) * np.sin(2 * np.pi * 70 * beat_s)
    return level((music + 2 * drum).astype(np.float32), level_db)


def frames(pcm: Pcm, frame: int = FRAME) -> Pcm:
    return pcm[: len(pcm) // frame * frame].reshape(-1, frame)


class Caller:
    """A detector, what it said, and how often it woke the loop."""

    def __init__(self, activity: VoiceActivity) -> None:
        self.woken = asyncio.Event()
        self.wakes = 0
        self.results: list[Activity] = []
        self.detector: SpeechDetector = activity.stream(self._wake)

    def _wake(self) -> None:
        self.wakes += 1
        self.woken.set()

    def feed(self, pcm: Pcm, first: int = 0, frame: int = FRAME) -> None:
        for frame_idx, samples in enumerate(frames(pcm, frame), first):
            self.detector.feed(frame_idx, samples)

    async def judged(self, count: int) -> list[float]:
        """Wait for so many results in all; return their probabilities."""
        async with asyncio.timeout(WAIT_S):
            while len(self.results) < count:
                await self.woken.wait()
                self.woken.clear()
                self.results += self.detector.take()
        assert [result.frame_idx for result in self.results] == list(range(count))
        return [result.probability for result in self.results]


async def judge(activity: VoiceActivity, pcm: Pcm) -> np.ndarray:
    caller = Caller(activity)
    caller.feed(pcm)
    return np.array(await caller.judged(len(frames(pcm))))


@pytest.fixture
async def activity() -> AsyncIterator[VoiceActivity]:
    activity = VoiceActivity(RATE)
    yield activity
    activity.stop()
    assert not activity.failed


class Gate:
    """Stands in front of the network: holds its calls back, counts them and their rows, or raises."""

    def __init__(self, activity: VoiceActivity, on_call: Callable[[], None] = lambda: None) -> None:
        self._network = activity._network
        self._on_call = on_call
        self.rows: list[int] = []
        activity._network = self

    def run(self, names: None, inputs: dict[str, Any]) -> Sequence[np.ndarray]:
        self.rows.append(len(inputs["input"]))
        self._on_call()
        result: Sequence[np.ndarray] = self._network.run(names, inputs)
        return result


# -- what is speech ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level_db", [-16, -26, -36])
async def test_speech_is_found_and_its_pauses_are_not(activity: VoiceActivity, level_db: float) -> None:
    pcm = speech(level_db=level_db)
    active = await judge(activity, pcm) >= 0.5
    loud = (frames(pcm) ** 2).mean(axis=1) > 10 ** ((level_db - 10) / 10)
    assert active[loud].mean() > 0.95
    assert not active[:11].any()  # the first second
    assert not active[-12:].any()  # the last
    assert np.flatnonzero(active)[0] <= np.flatnonzero(loud)[0] + 1


@pytest.mark.parametrize("level_db", [-20, -40])
@pytest.mark.parametrize("kind", ["white", "pink"])
async def test_noise_is_no_speech(activity: VoiceActivity, kind: str, level_db: float) -> None:
    assert (await judge(activity, noise(kind, 8, level_db))).max() < 0.3


async def test_music_and_silence_are_no_speech(activity: VoiceActivity) -> None:
    assert (await judge(activity, chords(8, -26))).max() < 0.5
    assert (await judge(activity, np.zeros(8 * RATE, np.float32))).max() < 0.1


@pytest.mark.parametrize("echo_db", [-30, -40])
async def test_the_echo_of_the_assistant_is_no_speech(activity: VoiceActivity, echo_db: float) -> None:
    """BR-056: the model's own voice comes back 200 ms later, with line noise. The network alone takes it for speech at -30 dB."""
    voices = [level(read_wav(str(DATA / "voices" / name)), -20) for name in ("af_heart.wav", "am_michael.wav")]
    spoken = np.concatenate([*voices, *voices])
    echo = np.pad(spoken, (RATE // 5, 0))[: spoken.size] * 10 ** (echo_db / 20) + noise("white", spoken.size / RATE, -65)
    assert (await judge(activity, spoken) >= 0.5).mean() > 0.8
    assert (await judge(activity, echo.astype(np.float32))).max() < 0.5


async def test_talk_in_the_background_is_found_only_until_its_level_is_known(activity: VoiceActivity) -> None:
    """BR-058: babble 10 dB below the caller's voice. Whoever speaks to the microphone is found in it all the same."""
    background = babble(20, -36)
    active = await judge(activity, background) >= 0.5
    assert active[25:].mean() < 0.25
    pcm = background.copy()
    said = speech(4.6)[RATE:]
    pcm[10 * RATE : 10 * RATE + said.size] += said
    active = await judge(activity, pcm) >= 0.5
    loud = np.flatnonzero((frames(np.pad(said, (10 * RATE, 0))) ** 2).mean(axis=1) > 10**-3.2)
    assert active[loud].mean() > 0.9


async def test_a_result_is_the_networks_best_window_as_far_as_the_level_allows(activity: VoiceActivity) -> None:
    pcm = speech(5) + noise("white", 5, -60)
    at_16k, num_read = Resampler(RATE, 16_000), 0
    samples, ends = np.zeros(64, np.float32), []  # the context of the first window is silence
    for frame in frames(pcm):
        samples = np.concatenate([samples, at_16k.push(frame)])
        ends.append((samples.size - 64) // 512)
    state, windows = np.zeros((2, 1, 128), np.float32), []
    for start in range(0, ends[-1] * 512, 512):
        inputs = {"input": samples[None, start : start + 64 + 512], "state": state, "sr": np.array(16_000)}
        probability, state = activity._network.run(None, inputs)
        windows.append(float(probability[0, 0]))
    meter = Loudness()
    loudness = [meter.take(frame) for frame in frames(pcm)]
    expected = []
    for frame_idx, end in enumerate(ends):
        expected.append(min(max(windows[num_read:end]), max(loudness[max(frame_idx - 2, 0) : frame_idx + 1])))
        num_read = end
    np.testing.assert_allclose(await judge(activity, pcm), expected, atol=1e-5)
    assert max(expected) > 0.9 > 0.1 > min(expected)


# -- one result for each frame -------------------------------------------------------------------------------------------------------


async def test_callers_in_one_batch_do_not_change_each_other(activity: VoiceActivity) -> None:
    sounds = [speech(4), noise("pink", 3, -30), speech(5, -30)[RATE // 3 :], babble(2, -26), np.zeros(RATE, np.float32)]
    alone = [await judge(activity, sound) for sound in sounds]
    gate = Gate(activity)
    callers = [Caller(activity) for _ in sounds]
    with activity._changed:  # so that the worker finds all of them at once
        for caller, sound in zip(callers, sounds, strict=True):
            caller.feed(sound)
    for caller, sound, expected in zip(callers, sounds, alone, strict=True):
        np.testing.assert_allclose(await caller.judged(len(frames(sound))), expected, atol=1e-5)
    assert max(gate.rows) == len(sounds)


async def test_how_the_frames_arrive_does_not_matter(activity: VoiceActivity) -> None:
    pcm = speech(5)
    expected = await judge(activity, pcm)
    caller = Caller(activity)
    for frame_idx, frame in enumerate(frames(pcm)):
        caller.detector.feed(frame_idx, frame)
        if frame_idx % 7 < 3:
            await caller.judged(frame_idx + 1)
    np.testing.assert_allclose(await caller.judged(len(expected)), expected, atol=1e-5)


async def test_a_worker_that_is_late_loses_nothing(activity: VoiceActivity) -> None:
    let_go = threading.Event()
    gate = Gate(activity, lambda: assert_set(let_go))
    caller = Caller(activity)
    caller.feed(speech(12))
    assert caller.detector.take() == []
    let_go.set()
    assert len(await caller.judged(150)) == 150
    assert set(gate.rows) == {1}


async def test_a_backlog_does_not_hold_up_the_others(activity: VoiceActivity) -> None:
    gate = Gate(activity)
    late, live = Caller(activity), Caller(activity)
    with activity._changed:
        late.feed(speech(12))
        live.feed(speech(1))
    await live.judged(12)
    assert len(gate.rows) <= 126  # 63 windows are 25 frames: the first round, and perhaps the next that runs by now; 375 are all
    await late.judged(150)


async def test_the_loop_is_woken_once_a_round(activity: VoiceActivity) -> None:
    caller = Caller(activity)
    with activity._changed:
        caller.feed(speech(1))
    await caller.judged(12)
    assert caller.wakes == 1


async def test_a_closed_detector_is_left_alone(activity: VoiceActivity) -> None:
    let_go = threading.Event()
    gate = Gate(activity, lambda: assert_set(let_go))
    closed, other = Caller(activity), Caller(activity)
    closed.feed(speech(4))
    while not gate.rows:
        await asyncio.sleep(0)
    closed.detector.close()  # some of its frames are with the network, the others wait
    other.feed(speech(1))
    let_go.set()
    await other.judged(12)
    assert closed.wakes == 0
    assert not activity._waiting
    assert not closed.detector.queue  # type: ignore[attr-defined]


async def test_results_for_a_loop_that_is_gone_are_dropped(activity: VoiceActivity) -> None:
    let_go, callers = threading.Event(), []

    async def call() -> None:
        callers.append(Caller(activity))
        callers[0].feed(speech(1))

    Gate(activity, lambda: assert_set(let_go))
    await asyncio.to_thread(asyncio.run, call())
    let_go.set()
    assert (await judge(activity, speech(2)) >= 0.5).any()


@pytest.mark.parametrize(("rate", "frame"), [(24_000, 240), (16_000, 1280), (48_000, 3840), (24_000, 1921)])
async def test_other_rates_and_frames_give_one_result_a_frame_too(rate: int, frame: int) -> None:
    pcm = speech(4)
    if rate != RATE:
        pcm = Resampler(RATE, rate).push(pcm)
    activity = VoiceActivity(rate)
    try:
        caller = Caller(activity)
        caller.feed(pcm, frame=frame)
        active = np.array(await caller.judged(len(frames(pcm, frame)))) >= 0.5
    finally:
        activity.stop()
    starts_s = np.flatnonzero(active) * frame / rate
    assert 0.9 < starts_s[0] < 1.3
    assert active[len(active) // 3 :].mean() > 0.6


# -- faults --------------------------------------------------------------------------------------------------------------------------


async def test_a_network_that_raises_finds_no_speech_from_then_on(caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise RuntimeError("broken")

    activity = VoiceActivity(RATE)
    try:
        Gate(activity, fail)
        with caplog.at_level(logging.ERROR):
            assert not (await judge(activity, speech(4))).any()
            assert not (await judge(activity, speech(4))).any()
        assert activity.failed
        assert len(caplog.records) == 1
    finally:
        activity.stop()


async def test_stopping_ends_the_worker_and_leaves_the_callers_without_results() -> None:
    activity = VoiceActivity(RATE)
    caller = Caller(activity)
    activity.stop()
    activity.stop()
    assert not activity._worker.is_alive()
    caller.feed(speech(1))
    caller.detector.close()
    assert caller.detector.take() == []


def test_what_is_missing_is_named_with_its_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"needs onnxruntime.*pip install onnxruntime.*--no-deps silero-vad"):
        VoiceActivity(RATE)
    monkeypatch.undo()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"weights of silero-vad.*--no-deps silero-vad"):
        VoiceActivity(RATE)
    old = importlib.machinery.ModuleSpec("silero_vad", None, is_package=True)
    old.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: old)
    with pytest.raises(ConfigError, match="silero-vad 5 or 6"):
        VoiceActivity(RATE)


def test_an_older_network_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import onnxruntime

    class Old:
        def __init__(self, *args: object, **kwargs: object) -> None: ...

        def get_inputs(self) -> list[Any]:
            return [type("Input", (), {"name": name}) for name in ("input", "sr", "h", "c")]

    monkeypatch.setattr(onnxruntime, "InferenceSession", Old)
    with pytest.raises(ConfigError, match="silero-vad 5 or 6"):
        VoiceActivity(RATE)


def test_neither_torch_nor_the_package_of_the_weights_is_imported() -> None:
    code = "import sys, gateway.vad as v; v.VoiceActivity(24000).stop(); assert not {'torch', 'silero_vad'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], timeout=60)


def assert_set(event: threading.Event) -> None:
    assert event.wait(WAIT_S)
