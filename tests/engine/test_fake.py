from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from gateway.engine.base import FrameBatch, FrameOutput
from gateway.engine.fake import PAD_ID, FakeEngine, expected_audio
from gateway.errors import ConfigError, EngineError
from protocols.events import SamplingOptions

S = 4


def loaded(num_slots: int = 2, **options: object) -> FakeEngine:
    engine = FakeEngine(num_slots, frame_samples=S, sample_rate=50, **options)  # type: ignore[arg-type]
    engine.load(lambda line: None)
    return engine


def sampling(engine: FakeEngine, seed: int) -> SamplingOptions:
    return dataclasses.replace(engine.info.sampling, audio_seed=seed, text_seed=0)


def step(engine: FakeEngine, frames: dict[int, float], steered: tuple[int, ...] = ()) -> FrameOutput:
    num_slots = engine.info.num_slots
    pcm = np.zeros((num_slots, S), dtype=np.float32)
    exec_mask = np.zeros(num_slots, dtype=np.bool_)
    steer_mask = np.zeros(num_slots, dtype=np.bool_)
    for slot_idx, value in frames.items():
        pcm[slot_idx] = value
        exec_mask[slot_idx] = True
    steer_mask[list(steered)] = True
    return engine.step(FrameBatch(pcm=pcm, exec_mask=exec_mask, steer_mask=steer_mask))


def full(value: float) -> np.ndarray:
    return np.full(S, value, dtype=np.float32)


@pytest.mark.parametrize(("persona", "num_steps"), [("", 1), ("a b c d", 1), ("a b c d e", 2), ("a " * 13, 3)])
def test_prefill_takes_a_chunk_per_step(persona: str, num_steps: int) -> None:
    engine = loaded(prefill_rows=8)
    engine.open(1, engine.prepare(None, persona), sampling(engine, 1))
    assert [step(engine, {}).ready_mask.tolist() for _ in range(4)] == [[False, at == num_steps - 1] for at in range(4)]


def test_a_masked_row_is_unchanged_and_rows_do_not_mix() -> None:
    engine = loaded()
    for slot_idx, seed in enumerate((1, 2)):
        engine.open(slot_idx, engine.prepare(None, ""), sampling(engine, seed))
    step(engine, {})
    step(engine, {0: 0.1, 1: 0.7})
    before = engine.window_rows(1)
    for _ in range(3):
        step(engine, {0: 0.1})
    np.testing.assert_array_equal(engine.window_rows(1), before)
    np.testing.assert_array_equal(step(engine, {0: 0.1, 1: 0.8}).pcm[1], expected_audio(full(0.8), full(0.7), 2))


def test_a_steered_row_is_silent_and_still_hears() -> None:
    engine = loaded()
    engine.open(0, engine.prepare(None, ""), sampling(engine, 1))
    step(engine, {})
    output = step(engine, {0: 0.3}, steered=(0,))
    assert not output.pcm.any()
    assert output.text_ids[0] == PAD_ID
    np.testing.assert_array_equal(step(engine, {0: 0.4}).pcm[0], expected_audio(full(0.4), full(0.3), 1))


def test_a_reopened_row_equals_a_fresh_one() -> None:
    engine = loaded()
    outputs = []
    for _ in range(2):
        engine.open(0, engine.prepare(None, ""), sampling(engine, 1))
        step(engine, {})
        outputs.append([step(engine, {0: value}) for value in (0.1, 0.2)])
        engine.close(0)
    for first, second in zip(*outputs, strict=True):
        np.testing.assert_array_equal(first.pcm, second.pcm)
        np.testing.assert_array_equal(first.text_ids, second.text_ids)


def test_the_contract_is_enforced() -> None:
    engine = loaded()
    prompt = engine.prepare("alto", "")
    with pytest.raises(EngineError, match="not ready"):
        step(engine, {0: 0.1})
    with pytest.raises(EngineError, match="unset"):
        engine.open(0, prompt, engine.info.sampling)
    engine.open(0, prompt, sampling(engine, 1))
    with pytest.raises(EngineError, match="open already"):
        engine.open(0, prompt, sampling(engine, 1))
    with pytest.raises(EngineError, match="not ready"):
        step(engine, {0: 0.1})
    engine.close(0)
    with pytest.raises(EngineError, match="not open"):
        engine.close(0)
    with pytest.raises(EngineError, match="not open"):
        engine.window_rows(0)
    with pytest.raises(ConfigError, match="known voices: alto, tenor"):
        engine.prepare("../../etc/passwd", "")
    with pytest.raises(ConfigError, match="at most"):
        engine.prepare(None, "word " * 600)


def test_failures_come_as_told() -> None:
    engine = loaded(fail_at_step=1)
    step(engine, {})
    with pytest.raises(EngineError, match="injected"):
        step(engine, {})
    with pytest.raises(ConfigError, match="no"):
        FakeEngine(1, load_error=ConfigError("no")).load(lambda line: None)


def test_a_bias_makes_a_row_eager_or_reluctant_to_speak_and_touches_no_other() -> None:
    engine = loaded()
    for slot_idx in range(2):
        engine.open(slot_idx, engine.prepare(None, ""), sampling(engine, 1))
    step(engine, {})
    said = []
    for bias in (0.0, 0.0, -4.0, -4.0, 4.0, 4.0):
        pcm, both = np.zeros((2, S), dtype=np.float32), np.ones(2, dtype=np.bool_)
        batch = FrameBatch(pcm=pcm, exec_mask=both, steer_mask=~both, pad_bias=np.array([bias, 0.0], dtype=np.float32))
        said.append((engine.step(batch).text_ids != PAD_ID).tolist())
    assert said == [[True, True], [False, False], [True, True], [True, False], [False, True], [False, False]]


def test_a_batch_without_a_bias_has_zeros() -> None:
    both = np.ones(2, dtype=np.bool_)
    batch = FrameBatch(pcm=np.zeros((2, S), dtype=np.float32), exec_mask=both, steer_mask=both)
    assert (batch.pad_bias.tolist(), batch.pad_bias.dtype) == ([0.0, 0.0], np.float32)
