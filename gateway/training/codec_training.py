"""Train the codec: spectra, phones on the first codebook, moving codebooks, and discriminators for the decoder at the end.

Half of the users' crops go in as a microphone would hand them over and are to come out clean: the codes then carry the speech and not the
room. The phone loss makes the first codebook say what was said, which is what the language model needs in order to understand. Here: the
loop. Not here: the model, the losses. Thread: main.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.weights import WeightFile, random_tensor
from gateway.training.bank import UNKNOWN_PHONE, SpeechBank
from gateway.training.codec_model import Quantized, TrainedMimi
from gateway.training.corpus import PHONES, SAMPLE_RATE
from gateway.training.dialogues import FRAME, Dialogue, Placement
from gateway.training.losses import Discriminators, SpectralLoss
from gateway.training.mixing import SUBFRAMES, Batch, render, spoil, vary_level
from gateway.training.persona import Persona
from gateway.training.schedule import Run

PEAK_RATE = 1e-3
BETAS = (0.8, 0.99)
CROP_FRAMES = 13  # 1.04 s
LONG_FRAMES = 48  # 3.84 s, one step in LONG_EVERY, so that the transformers see their whole window
LONG_EVERY = 6
USER_SHARE = 0.45  # of the rows; the decoder serves the assistant, the encoder both
SPOILED_SHARE = 0.6  # of the users' rows
COMMITMENT, PHONE, REAL, MATCHING = 0.1, 0.15, 0.1, 2.0  # weights beside the spectral loss


class PhoneHead(nn.Module):
    """Phones of a frame's quarters from the vector of its first codebook; exists in training alone."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, 256), nn.GELU(), nn.Linear(256, SUBFRAMES * len(PHONES)))

    def loss(self, semantic: Tensor, phones: Tensor) -> tuple[Tensor, Tensor]:
        """Cross entropy and accuracy for semantic [n, width] and phones int64 [n, SUBFRAMES]."""
        logits = self.layers(semantic).view(-1, len(PHONES))
        wanted = torch.where(phones == UNKNOWN_PHONE, -100, phones).flatten()
        right = (logits.argmax(dim=-1) == wanted)[wanted > 0].float().mean()
        return F.cross_entropy(logits, wanted), right


class CropMaker:
    """Draws batches of crops: one clip a row, in the user's or the assistant's channel."""

    def __init__(self, bank: SpeechBank, seed: int) -> None:
        self._bank, self._rng = bank, random.Random(seed)
        clips = bank.index.clips
        self._users = [i for i, clip in enumerate(clips) if clip.role == "user"]
        self._assistants = [i for i, clip in enumerate(clips) if clip.role == "assistant"]

    def draw(self, rows: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
        """What goes in [B, N], what should come out [B, N], and phones int64 [B, T, SUBFRAMES]."""
        crops = [self._crop(frames) for _ in range(rows)]
        batch: Batch = render(self._bank, crops, frames)
        is_user = torch.tensor([crop.placements[0].is_user for crop in crops], device=batch.user.device)[:, None]
        clean = vary_level(torch.where(is_user, batch.user, batch.assistant))
        is_spoiled = is_user & (torch.rand_like(clean[:, :1]) < SPOILED_SHARE)
        given = torch.where(is_spoiled, spoil(clean, torch.zeros_like(clean)), clean)
        phones = torch.where(is_user[..., None], batch.phones[:, 0], batch.phones[:, 1])
        return given, clean, phones

    def _crop(self, frames: int) -> Dialogue:
        rng, size = self._rng, frames * FRAME
        is_user = rng.random() < USER_SHARE or not self._assistants
        clip = self._bank.index.clips[rng.choice(self._users if is_user and self._users else self._assistants)]
        rate = rng.uniform(0.88, 1.14) if is_user else rng.uniform(0.97, 1.03)
        placements, offset = [], rng.randint(-int(clip.length / rate * 0.75), int(size * 0.6))
        skipped, at = (int(-offset * rate), 0) if offset < 0 else (0, offset)
        while at < size:
            length = min(clip.length - skipped, int((size - at) * rate))
            placements.append(Placement(is_user, at, clip.start + skipped, length, rate, 1.0))
            at += int(length / rate) + rng.randint(SAMPLE_RATE // 10, SAMPLE_RATE)
            skipped = 0
        dialogue = Dialogue.silent(Persona("Nova"), "", 0)
        dialogue.placements = placements
        return dialogue


class CodecTrainer:
    """Model, heads and optimisers of one run."""

    def __init__(self, config: MimiConfig, initial: Path | None, device: torch.device, run: Run, rate: float) -> None:
        take = WeightFile(initial).take if initial else _fresh
        self.mimi = TrainedMimi(config, take, device)
        self.phones = PhoneHead(config.codebook_dim).to(device)
        self.spectral = SpectralLoss().to(device)
        self.critics = Discriminators().to(device)
        self.optimizer = torch.optim.AdamW(
            [*self.mimi.parameters.values(), *self.phones.parameters()], lr=PEAK_RATE, betas=BETAS, weight_decay=0.0, fused=True
        )
        self.critic_optimizer = torch.optim.AdamW(self.critics.parameters(), lr=3e-4, betas=BETAS, fused=True)
        self.is_fresh = initial is None and not run.state
        self._run, self._rate = run, rate
        if run.state:
            self._restore()

    def step(self, given: Tensor, wanted: Tensor, phones: Tensor) -> None:
        """Encoder, quantiser and decoder together."""
        latents = self.mimi.encode(given)
        quantized = self.mimi.quantize(latents.flatten(0, 1))
        is_open = self.is_fresh and self._run.clock.share < 0.1  # without quantisation first: codebooks start from good latents
        made = self.mimi.decode(latents if is_open else quantized.latents.view(latents.shape))
        spectral = self.spectral(made, wanted)
        phone, right = self.phones.loss(quantized.semantic, phones.flatten(0, 1))
        loss = spectral + PHONE * phone + (0 if is_open else COMMITMENT) * quantized.commitment
        self._descend(self.optimizer, loss, list(self.mimi.parameters.values()), self._rate)
        self.move(quantized)
        self._run.note(spectral=spectral, phone=phone, phone_right=right, commit=quantized.commitment)

    def move(self, quantized: Quantized) -> None:
        """Let the codebooks follow."""
        self._run.note(replaced=self.mimi.move_codebooks(quantized))

    def polish(self, given: Tensor, wanted: Tensor) -> None:
        """The decoder alone, against discriminators."""
        with torch.no_grad():
            latents = self.mimi.encode(given)
            quantized = self.mimi.quantize(latents.flatten(0, 1))
        made = self.mimi.decode(quantized.latents.detach().view(latents.shape))
        own = self.critics.own_loss(made, wanted)
        self._descend(self.critic_optimizer, own, list(self.critics.parameters()), 3e-4)
        spectral = self.spectral(made, wanted)
        real, matching = self.critics.codec_loss(made, wanted)
        decoder = {name: p for name, p in self.mimi.parameters.items() if name.startswith(("decoder", "upsample"))}
        self._descend(self.optimizer, spectral + REAL * real + MATCHING * matching, list(decoder.values()), self._rate)
        self._run.note(spectral=spectral, real=real, matching=matching, critics=own)

    def save(self) -> None:
        """Write a checkpoint of the run."""
        self._run.save(
            tensors={name: tensor.detach() for name, tensor in self.mimi.tensors.items()},
            phones=self.phones.state_dict(),
            critics=self.critics.state_dict(),
            optimizer=self.optimizer.state_dict(),
            critic_optimizer=self.critic_optimizer.state_dict(),
        )

    def _descend(self, optimizer: torch.optim.Optimizer, loss: Tensor, parameters: list[Tensor], peak: float) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = self._run.clock.rate(peak)
        optimizer.step()

    def _restore(self) -> None:
        state = self._run.state
        with torch.no_grad():
            for name, tensor in state["tensors"].items():
                self.mimi.tensors[name].copy_(tensor)
        for part in ("phones", "critics", "optimizer", "critic_optimizer"):
            getattr(self, part).load_state_dict(state[part])


def _fresh(name: str, shape: tuple[int, ...]) -> Tensor:
    """Initial values: as a benchmark's, which keep signals at a sensible size, but a quiet last layer and empty branches."""
    tensor = random_tensor(name, shape)
    if name.endswith(".scale"):
        return torch.full(shape, 0.01)
    return tensor * 0.1 if name == "decoder.model.14.conv.conv.weight" else tensor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="packed corpora")
    parser.add_argument("--sizes", type=Path, required=True, help="mimi.json of the codec to train")
    parser.add_argument("--initial", type=Path, help="codec to start from; without it from nothing")
    parser.add_argument("--minutes", type=float, default=10.0, help="time to take")
    parser.add_argument("--rate", type=float, default=PEAK_RATE, help="peak learning rate")
    parser.add_argument("--polish", type=float, default=0.3, help="share of the time for the discriminators")
    parser.add_argument("--rows", type=int, default=64, help="crops in a batch")


def run(folder: Path, options: argparse.Namespace) -> None:
    """Train and write `folder/mimi.safetensors`."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    bank = SpeechBank.load(options.corpus, device)
    progress = Run("codec", folder, options.minutes)
    trainer = CodecTrainer(MimiConfig.from_json(json.loads(options.sizes.read_text())), options.initial, device, progress, options.rate)
    maker = CropMaker(bank, seed=progress.step)
    for step in progress.steps():
        is_long = step % LONG_EVERY == LONG_EVERY - 1
        frames, rows = (LONG_FRAMES, max(1, options.rows // 4)) if is_long else (CROP_FRAMES, options.rows)
        given, wanted, phones = maker.draw(rows, frames)
        if progress.clock.share < 1 - options.polish:
            trainer.step(given, wanted, phones)
        else:
            trainer.polish(given, wanted)
        if progress.is_time_to_save:
            trainer.save()
    trainer.save()
    trainer.mimi.save(folder / "mimi.safetensors")
