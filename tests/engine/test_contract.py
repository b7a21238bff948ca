"""The contract of engine.base.Engine, the same tests for the fake and for the real engine with the tiny model.

On one CPU thread the real engine's codes are exact; its PCM may differ by rounding between batch sizes (products of another shape sum in
another order), hence the tolerance of 1e-4, 80 dB below full scale.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.engine.base import Engine, FrameBatch, Prompt
from gateway.engine.fake import PAD_ID, FakeEngine
from gateway.errors import ConfigError
from protocols.events import SamplingOptions

NUM_SLOTS = 4
TOLERANCE = 1e-4

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning")


@pytest.fixture(scope="module", params=["fake", "tiny"])
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    if request.param == "fake":
        engine: Engine = FakeEngine(NUM_SLOTS)
    else:
        from gateway.engine.moshi import MoshiEngine

        engine = MoshiEngine("tiny", num_slots=NUM_SLOTS, max_call_frames=2000, dtype="float32", gpu_memory_utilization=0.2)
    engine.load(lambda line: None)
    yield engine
    engine.shutdown()


class Rows:
    """Drives rows of an engine; `heard` and `said` collect each row's PCM and text ids."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.heard: dict[int, list[NDArray[np.float32]]] = {}
        self.said: dict[int, list[int]] = {}

    def open(
        self, slot_idx: int, *, seed: int = 1, voice: str | None = None, persona: str = "", greedy: bool = False, wild: bool = False
    ) -> None:
        """Open a row and step until its prompt is in the model; a `wild` one draws what a sure model would never say."""
        sampling = dataclasses.replace(self.engine.info.sampling, text_seed=seed, audio_seed=seed)
        if greedy:
            sampling = dataclasses.replace(sampling, text_temperature=0.0, audio_temperature=0.0)
        if wild:
            sampling = dataclasses.replace(sampling, text_temperature=2.0, audio_temperature=3.0, text_topk=0, audio_topk=0)
        self.engine.open(slot_idx, self.prompt(voice, persona), sampling)
        self.heard[slot_idx], self.said[slot_idx] = [], []
        for _ in range(100):
            if self.step({})[slot_idx]:
                return
        raise AssertionError("the prompt never completed")

    def prompt(self, voice: str | None, persona: str) -> Prompt:
        return self.engine.prepare(voice or self.engine.info.default_voice, persona)

    def step(
        self, frames: dict[int, NDArray[np.float32]], steered: tuple[int, ...] = (), biases: dict[int, float] | None = None
    ) -> NDArray[np.bool_]:
        """One step with the given frames; returns the rows that became ready."""
        info = self.engine.info
        batch = FrameBatch(
            pcm=np.full((info.num_slots, info.frame_samples), 0.123, dtype=np.float32),  # rubbish in rows that have no frame
            exec_mask=np.isin(np.arange(info.num_slots), list(frames)),
            steer_mask=np.isin(np.arange(info.num_slots), steered),
            pad_bias=np.array([(biases or {}).get(slot_idx, 0.0) for slot_idx in range(info.num_slots)], dtype=np.float32),
        )
        for slot_idx, frame in frames.items():
            batch.pcm[slot_idx] = frame
        output = self.engine.step(batch)
        for slot_idx in frames:
            self.heard[slot_idx].append(output.pcm[slot_idx].copy())
            self.said[slot_idx].append(int(output.text_ids[slot_idx]))
        return output.ready_mask

    def close(self, slot_idx: int) -> tuple[NDArray[np.float32], list[int]]:
        self.engine.close(slot_idx)
        return np.stack(self.heard.pop(slot_idx)), self.said.pop(slot_idx)


@pytest.fixture
def rows(engine: Engine) -> Iterator[Rows]:
    rows = Rows(engine)
    yield rows
    for slot_idx in list(rows.heard):
        engine.close(slot_idx)


def speech(engine: Engine, count: int, seed: int = 0) -> NDArray[np.float32]:
    """Frames [count, S] of something like a voice."""
    rng = np.random.default_rng(seed)
    time_s = np.arange(count * engine.info.frame_samples) / engine.info.sample_rate
    pitch = 140 + 40 * np.sin(2 * np.pi * 1.3 * time_s)
    voiced = 0.2 * np.sign(np.sin(2 * np.pi * pitch * time_s)) * (np.sin(2 * np.pi * 2 * time_s) > 0)
    sound = voiced + 0.01 * rng.standard_normal(len(time_s))
    return sound.astype(np.float32).reshape(count, -1)


def same(left: tuple[NDArray[np.float32], list[int]], right: tuple[NDArray[np.float32], list[int]]) -> bool:
    return left[1] == right[1] and bool(np.abs(left[0] - right[0]).max() < TOLERANCE)


def solo(rows: Rows, frames: NDArray[np.float32], slot_idx: int = 0, **options: object) -> tuple[NDArray[np.float32], list[int]]:
    rows.open(slot_idx, **options)  # type: ignore[arg-type]
    for frame in frames:
        rows.step({slot_idx: frame})
    return rows.close(slot_idx)


def test_info_is_complete(engine: Engine) -> None:
    info = engine.info
    assert info.num_slots == NUM_SLOTS
    assert info.voices == tuple(sorted(info.voices))
    missing = [field.name for field in dataclasses.fields(SamplingOptions) if getattr(info.sampling, field.name) is None]
    assert missing == ["text_seed", "audio_seed"]


def test_a_masked_row_is_unchanged(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 24)
    expected = solo(rows, frames)
    rows.open(0)
    rows.open(1)
    rng, at = np.random.default_rng(5), 0
    for frame in frames:
        while rng.random() < 0.5:  # row 0 has no frame here
            rows.step({1: frames[at % len(frames)]})
            at += 1
        rows.step({0: frame})
    assert same(rows.close(0), expected)


def test_a_reset_row_equals_a_fresh_one(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 12)
    expected = solo(rows, frames, slot_idx=2)
    solo(rows, speech(engine, 9, seed=3), slot_idx=2, seed=99)
    assert same(solo(rows, frames, slot_idx=2), expected)


def test_every_slot_gives_the_same_call(rows: Rows, engine: Engine) -> None:
    """linto-ai/linto-stt#89: one stream was broken for its whole life. Random order, first use and later ones, greedy."""
    frames = speech(engine, 6)
    order = np.random.default_rng(0).permutation(np.repeat(np.arange(NUM_SLOTS), 3))
    calls = [solo(rows, frames, slot_idx=int(slot_idx), greedy=True) for slot_idx in order]
    assert all(np.array_equal(call[0], calls[0][0]) and call[1] == calls[0][1] for call in calls)


def test_a_row_depends_neither_on_its_neighbours_nor_on_the_batch_size(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 16)
    expected = solo(rows, frames, voice=engine.info.voices[0], persona="Your name is Sam.")
    for slot_idx, voice in ((3, engine.info.voices[1]), (1, engine.info.voices[0])):
        rows.open(slot_idx, seed=40 + slot_idx, voice=voice, persona="Your name is Iris.")
    rows.open(0, voice=engine.info.voices[0], persona="Your name is Sam.")
    noise = speech(engine, 16, seed=8)
    for i, frame in enumerate(frames):
        others = {slot_idx: noise[(i + slot_idx) % 16] for slot_idx in (1, 3) if (i + slot_idx) % 3}
        rows.step({0: frame, **others})
    assert same(rows.close(0), expected)


def test_the_same_seed_gives_the_same_call_and_another_seed_another(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 16)
    first, again, other = (solo(rows, frames, seed=seed, wild=True) for seed in (7, 7, 8))
    assert same(first, again)
    assert not same(first, other)


def test_callers_with_other_voices_never_mix(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 12)
    expected = [solo(rows, frames, voice=voice, persona="Your name is Nova.") for voice in engine.info.voices]
    for slot_idx, voice in enumerate(engine.info.voices):
        rows.open(slot_idx, voice=voice, persona="Your name is Nova.")
    for frame in frames:
        rows.step(dict.fromkeys(range(len(expected)), frame))
    for slot_idx, call in enumerate(expected):
        assert same(rows.close(slot_idx), call)


def test_a_caller_who_joins_does_not_disturb_the_others(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 14)
    expected = solo(rows, frames)
    rows.open(0)
    for i, frame in enumerate(frames):
        if i == 4:
            sampling = dataclasses.replace(engine.info.sampling, text_seed=1, audio_seed=1)
            engine.open(1, rows.prompt(engine.info.voices[1], "Your name is Oliver. " * 3), sampling)
        if i == 9:
            engine.close(1)
        rows.step({0: frame})
    assert same(rows.close(0), expected)


def test_callers_who_join_together_take_no_step_from_a_live_one(rows: Rows, engine: Engine) -> None:
    """Two prompts once used up a step's tokens while a live row had just been paused behind them in vLLM's queue."""
    frames = speech(engine, 20)
    expected = solo(rows, frames)
    rows.open(0)
    sampling = dataclasses.replace(engine.info.sampling, text_seed=1, audio_seed=1)
    for slot_idx in (1, 2, 3):
        engine.open(slot_idx, rows.prompt(engine.info.voices[1], "Your name is Oliver and you like long walks. " * 4), sampling)
    for frame in frames:
        rows.step({})
        rows.step({0: frame})
    assert same(rows.close(0), expected)
    for slot_idx in (1, 2, 3):
        engine.close(slot_idx)


def test_a_row_closed_during_its_prompt_leaves_nothing_behind(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 8)
    expected = solo(rows, frames, slot_idx=1)
    sampling = dataclasses.replace(engine.info.sampling, text_seed=5, audio_seed=5)
    for _ in range(3):
        engine.open(1, rows.prompt(engine.info.voices[1], "Your name is Jane."), sampling)
        engine.close(1)
    assert same(solo(rows, frames, slot_idx=1), expected)


def test_a_steered_row_is_silent_in_words_and_the_others_are_not_touched(rows: Rows, engine: Engine) -> None:
    frames = speech(engine, 12)
    expected = solo(rows, frames)
    rows.open(0)
    rows.open(1)
    for i, frame in enumerate(frames):
        rows.step({0: frame, 1: frame}, steered=(1,) if 3 <= i < 8 else ())
    assert same(rows.close(0), expected)
    pcm, text = rows.close(1)
    # Steps 3 to 7 are steered; an engine may say what it drew one step later, as Moshi does.
    assert all(engine.piece(token) == b"" for token in text[4:8])
    assert pcm.shape == expected[0].shape


@pytest.mark.parametrize("greedy", [False, True])
def test_a_pad_bias_makes_its_row_speak_and_touches_no_other(rows: Rows, engine: Engine, greedy: bool) -> None:
    frames = speech(engine, 14)
    expected = solo(rows, frames, greedy=greedy)
    rows.open(0, greedy=greedy)
    rows.open(1, greedy=greedy)
    for i, frame in enumerate(frames):
        rows.step({0: frame, 1: frame}, biases={1: -30.0} if 3 <= i < 9 else None)
    assert same(rows.close(0), expected)
    pcm, text = rows.close(1)
    assert text[:3] == expected[1][:3]
    assert same((pcm[:3], text[:3]), (expected[0][:3], expected[1][:3]))  # until the bias, what is without
    # An engine may say what it drew one step later, as Moshi does.
    assert PAD_ID not in text[4:9]
    assert PAD_ID in expected[1][4:9]
    # The bias is of the step and not of the slot: the next caller has none.
    assert same(solo(rows, frames, slot_idx=1, greedy=greedy), expected)


def test_window_rows_are_at_hand(rows: Rows, engine: Engine) -> None:
    rows.open(0)
    before = len(engine.window_rows(0))
    for frame in speech(engine, 5):
        rows.step({0: frame})
    window = engine.window_rows(0)
    assert window.dtype == np.int32
    assert len(window) == before + 5
    assert window[-5:, 0].tolist() == rows.said[0]


def test_unknown_voices_and_endless_personas_are_refused(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="unknown voice"):
        engine.prepare("nobody", "")
    with pytest.raises(ConfigError):
        engine.prepare(None, "very long indeed " * 2000)
    assert engine.prepare(f"{engine.info.voices[0]}.pt", "").voice_prompt == engine.info.voices[0]


def test_special_ids_say_nothing(engine: Engine) -> None:
    assert [engine.piece(token) for token in range(4)] == [b""] * 4
