"""The language model in training is the engine's: same states, same logits, a file that the engine reads."""

from __future__ import annotations

from pathlib import Path

import golden
import numpy as np
import pytest
import torch
from lm_reference import PlainTemporal, golden_checkpoint

from gateway.engine.layout import CODEBOOKS
from gateway.engine.prompt import stagger as stagger_one
from gateway.training.lm_model import TrainedLM, stagger


class Recorder:
    """A sampler that keeps the logits."""

    def __init__(self) -> None:
        self.logits: list[torch.Tensor] = []

    def draw(self, step: int, logits: torch.Tensor) -> torch.Tensor:
        self.logits.append(logits)
        return logits.argmax(dim=-1)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[TrainedLM, PlainTemporal, Path]:
    checkpoint = golden_checkpoint(tmp_path, golden.A4, "moshi")
    assert checkpoint.weights is not None
    model = TrainedLM(checkpoint.lm, checkpoint.profile.window)
    model.load(checkpoint.weights)
    return model, PlainTemporal(checkpoint), checkpoint.weights


def draw_rows(model: TrainedLM, count: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(0, min(model.config.card, model.config.text_card), (count, length, 17), generator=generator)


@torch.no_grad()
def test_states_and_text_logits_are_those_of_the_plain_transformer(trained: tuple[TrainedLM, PlainTemporal, Path]) -> None:
    model, plain, _ = trained
    rows = draw_rows(model, 2, 3 * plain.window)  # far past the window
    hidden = model(rows)
    for row in range(2):
        states, logits = plain(rows[row])
        torch.testing.assert_close(hidden[row], states, atol=2e-4, rtol=1e-4)
        torch.testing.assert_close(model.text_logits(hidden[row]), logits, atol=2e-4, rtol=1e-4)


@torch.no_grad()
def test_row_by_row_behind_a_past_is_the_same_as_all_at_once(trained: tuple[TrainedLM, PlainTemporal, Path]) -> None:
    model, _, _ = trained
    rows = draw_rows(model, 2, model.window)
    pasts = model.pasts()
    states = [model(rows[:, :3], pasts), *(model(rows[:, i : i + 1], pasts) for i in range(3, model.window))]
    torch.testing.assert_close(torch.cat(states, dim=1), model(rows), atol=2e-4, rtol=1e-4)
    with pytest.raises(ValueError, match="1 rows behind"):
        model(rows[:, :1], pasts)  # the window would have to slide


@torch.no_grad()
def test_all_depth_steps_at_once_give_what_they_give_one_by_one(trained: tuple[TrainedLM, PlainTemporal, Path]) -> None:
    model, _, _ = trained
    rows = draw_rows(model, 1, 9)
    hidden, text, codes = model(rows)[0], rows[0, :, 0], rows[0, :, 1 : 1 + CODEBOOKS]
    recorder = Recorder()
    model.depth(hidden, text, codes, recorder)  # type: ignore[arg-type]
    together = model.code_logits(hidden, text, codes)
    torch.testing.assert_close(together, torch.stack(recorder.logits, dim=1), atol=2e-4, rtol=1e-4)


def test_the_file_holds_what_the_engine_expects(trained: tuple[TrainedLM, PlainTemporal, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    model, _, original = trained
    model.save(tmp_path / "saved.safetensors")
    saved, wanted = load_file(tmp_path / "saved.safetensors"), load_file(original)
    for name, tensor in saved.items():
        assert tensor.shape == wanted[name].shape, name
        torch.testing.assert_close(tensor.float(), wanted[name].float(), atol=1e-2, rtol=1e-2)
    assert set(saved) <= set(wanted)


def test_rows_are_staggered_as_the_engine_does_it(trained: tuple[TrainedLM, PlainTemporal, Path]) -> None:
    model, _, _ = trained
    frames = draw_rows(model, 3, 12)
    for row, given in zip(stagger(frames, model.config), frames, strict=True):
        np.testing.assert_array_equal(row.numpy(), stagger_one(model.config, given.numpy()))
