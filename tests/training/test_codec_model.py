"""The codec in training is the engine's: same codes, same sound, gradients that are true."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
import torch

from gateway.engine.codec import MimiConfig, load_mimi
from gateway.engine.codec.weights import WeightFile
from gateway.training.codec_model import WINDOW, TrainedMimi

SMALL = golden.mimi_config()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    golden.write_mimi(tmp_path, SMALL)
    return tmp_path


def make(folder: Path) -> TrainedMimi:
    return TrainedMimi(MimiConfig.from_json(SMALL), WeightFile(folder / golden.MIMI_FILE).take, torch.device("cpu"))


def noise(rows: int, frames: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return 0.3 * torch.randn(rows, frames * 1920, generator=generator).cumsum(dim=1).sin()


def test_whole_recordings_have_the_codes_and_the_sound_of_a_conversation_far_past_the_window(folder: Path) -> None:
    trained, frames = make(folder), 200
    engine = load_mimi(folder / golden.MIMI_FILE, trained.config, num_slots=1, num_codebooks=trained.config.num_codebooks, window=WINDOW)
    pcm = noise(2, frames)
    codes = trained.encode_codes(pcm)
    assert torch.equal(codes[1], engine.encode_offline(pcm[1]))
    row = torch.zeros(1, dtype=torch.int64)
    spoken = torch.cat([engine.decode_rows(frame[None], row)[0] for frame in codes[1]])
    torch.testing.assert_close(trained.decode_codes(codes[1:])[0], spoken, atol=1e-5, rtol=0)


def test_gradients_reach_every_parameter_and_agree_with_differences(folder: Path) -> None:
    trained, pcm = make(folder), noise(2, 3)

    def loss() -> torch.Tensor:
        latents = trained.encode(pcm)
        return trained.decode(latents).square().mean()

    quantized = trained.quantize(trained.encode(pcm).flatten(0, 1))
    (loss() + quantized.commitment + quantized.latents.square().mean()).backward()
    assert [name for name, p in trained.parameters.items() if p.grad is None] == []
    name = "encoder.model.0.conv.conv.weight"
    parameter = trained.tensors[name]
    parameter.grad = None
    loss().backward()
    assert parameter.grad is not None
    at, step, values = int(parameter.grad.abs().argmax()), 1e-3, []
    for sign in (1, -2):
        with torch.no_grad():
            parameter.view(-1)[at] += sign * step
            values.append(float(loss().double()))
    assert (values[0] - values[1]) / (2 * step) == pytest.approx(float(parameter.grad.view(-1)[at]), rel=0.05)


def test_codebooks_move_towards_what_they_stand_for_and_dead_entries_are_revived(folder: Path) -> None:
    trained = make(folder)
    latents = torch.randn(4000, trained.config.dimension, generator=torch.Generator().manual_seed(2))
    first, replaced = float(trained.quantize(latents).commitment.detach()), 0
    for _ in range(60):
        replaced += trained.move_codebooks(trained.quantize(latents))
    assert float(trained.quantize(latents).commitment.detach()) < 0.7 * first
    assert replaced > 0
