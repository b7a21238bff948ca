"""Train the language model on endless made-up conversations.

Losses: the text row (words count more than padding), the assistant's codes (the first codebook counts most; silence is thinned out), and
what the auxiliary heads should have heard: the user's phones, words and question. Every batch is mixed, spoiled and encoded afresh.
Here: the loop. Not here: the model, batches. Thread: main.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import deque
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.weights import WeightFile
from gateway.engine.layout import CODEBOOKS, LMConfig
from gateway.training.bank import UNKNOWN_PHONE, SpeechBank
from gateway.training.codec_model import TrainedMimi
from gateway.training.corpus import OWN_CODES, read_index
from gateway.training.dialogues import PAD, intent_classes
from gateway.training.lm_batches import SHOPS, Answers, Assembler, DialogueStream, Rows, Script, corrupted
from gateway.training.lm_model import Hearing, TrainedLM
from gateway.training.rollout import Examination
from gateway.training.schedule import Run
from gateway.training.voices import VoicePrompts, voice_prompts

PEAK_RATE = 1.5e-3
BETAS = (0.9, 0.98)
WEIGHT_DECAY = 0.1
PAD_WEIGHT = 0.3  # of text padding
OVERLAP_WEIGHT = 2.0  # of all text where the user has begun to speak over the assistant: there, padding is a decision
NAME_WEIGHT = 4.0  # of the assistant's own name: one word in many, and the only one that the prompt alone decides
SILENCE_SHARE = 0.1  # of the assistant's silent frames that train the codes
CODEBOOK_WEIGHTS = (4.0, 1.5, 1.5, 1.0, 1.0, 1.0, 1.0, 1.0)
AUDIO, PHONE, WORD, INTENT, PERSONA = 1.0, 0.4, 0.3, 0.4, 0.3  # weights beside the text loss
PHONE_DELAY, WORD_DELAY, INTENT_DELAY = 1, 3, 1  # positions after which the heads are asked: acoustic codes come one late, words end later
LENGTH = 400  # positions of a sequence
FRAMES = 340  # of its conversation at most, 27 s; prompts have 60 positions or more
LONG_LENGTH, LONG_FRAMES = 1200, 1140  # of every LONG_EVERYth new batch, which has rows / LONG_SHARE rows
LONG_EVERY, LONG_SHARE = 3, 4
KEPT, REUSED = 64, 3  # batches kept, and steps on one of them after each step on a new one: making a batch costs more than four steps
PERSONA_SHARE = 0.04  # of the positions outside questions whose state is asked who the persona is
EXAMINE_S = 150.0


class LMTrainer:
    """Model, heads and optimiser of one run."""

    def __init__(
        self, config: LMConfig, num_words: int, device: torch.device, run: Run, initial: Path | None, window: int, rate: float
    ) -> None:
        torch.manual_seed(run.step)
        self.lm = TrainedLM(config, window).to(device)
        if initial:
            self.lm.load(initial)
        self._has_heads = initial is None  # no checkpoint holds them, and what new ones say would harm what is there
        self.hearing = Hearing(config, num_words, 1 + len(intent_classes()), 1 + len(SHOPS)).to(device)
        named = [*self.lm.named_parameters(), *self.hearing.named_parameters()]
        plain = [p for name, p in named if p.dim() < 2 or "embeddings" in name or "table" in name]
        decayed = [p for name, p in named if not (p.dim() < 2 or "embeddings" in name or "table" in name)]
        groups = [{"params": plain, "weight_decay": 0.0}, {"params": decayed, "weight_decay": WEIGHT_DECAY}]
        self.optimizer = torch.optim.AdamW(groups, lr=PEAK_RATE, betas=BETAS, fused=True)
        self._weights = torch.tensor(CODEBOOK_WEIGHTS, device=device) / sum(CODEBOOK_WEIGHTS)
        self._run, self._device, self._rate = run, device, rate
        if run.state:
            for part in ("lm", "hearing", "optimizer"):
                getattr(self, part).load_state_dict(run.state[part])

    def step(self, batch: Rows) -> None:
        """One descent."""
        with torch.autocast(self._device.type, torch.bfloat16, enabled=self._device.type == "cuda"):
            hidden = self.lm(corrupted(batch, self.lm.config.card))
            text = self._text_loss(hidden, batch)
            loss = text + AUDIO * self._audio_loss(hidden, batch)
            if self._has_heads:
                loss = loss + self._hearing_loss(hidden, batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.lm.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self._run.clock.rate(self._rate)
        self.optimizer.step()
        self._run.note(text=text)

    def save(self) -> None:
        """Write a checkpoint of the run."""
        self._run.save(lm=self.lm.state_dict(), hearing=self.hearing.state_dict(), optimizer=self.optimizer.state_dict())

    def _text_loss(self, hidden: Tensor, batch: Rows) -> Tensor:
        wanted, weight = batch.targets[..., 0], text_weights(batch)
        loss = F.cross_entropy(self.lm.text_logits(hidden).flatten(0, 1).float(), wanted.flatten(), reduction="none")
        with torch.no_grad():
            is_word = ((wanted != PAD) & batch.is_live).flatten()
            self._run.note(text_words=loss[is_word].mean())
        return (loss * weight.flatten()).sum() / weight.sum()

    def _audio_loss(self, hidden: Tensor, batch: Rows) -> Tensor:
        is_drawn = torch.rand(batch.speaking.shape, device=hidden.device) < SILENCE_SHARE
        is_kept = batch.is_live & (batch.speaking | batch.overlap | is_drawn)
        chosen = is_kept.flatten().nonzero()[:, 0]
        targets = batch.targets.flatten(0, 1)[chosen]
        logits = self.lm.code_logits(hidden.flatten(0, 1)[chosen], targets[:, 0], targets[:, 1:])
        losses = F.cross_entropy(logits.flatten(0, 1).float(), targets[:, 1:].flatten(), reduction="none").view(-1, CODEBOOKS)
        audio = losses.mean(dim=0) @ self._weights
        self._run.note(audio=audio)
        return audio

    def _hearing_loss(self, hidden: Tensor, batch: Rows) -> Tensor:
        heard = self.hearing(hidden)
        phones = torch.where(batch.phones == UNKNOWN_PHONE, -100, batch.phones)
        phone = _delayed(heard.phones, phones, batch.is_live, PHONE_DELAY)
        word = _delayed(heard.words, batch.words, batch.is_live, WORD_DELAY)
        intent = _delayed(heard.intents, torch.where(batch.intents == 0, -100, batch.intents), batch.is_live, INTENT_DELAY)
        # The persona is asked for where a question has just ended and now and then elsewhere, also when the prompt is out of sight: layers
        # hand it on.
        is_asked = (batch.intents > 0) | (torch.rand(batch.intents.shape, device=hidden.device) < PERSONA_SHARE)
        row, at = (is_asked & batch.is_live & (batch.names > 0)[:, None]).nonzero().unbind(1)
        names = F.cross_entropy(heard.names[row, at].float(), batch.names[row], reduction="sum")
        shops = F.cross_entropy(heard.shops[row, at].float(), batch.shops[row], reduction="sum")
        persona = (names + shops) / max(1, len(row))
        self._run.note(phone=phone, word=word, intent=intent, persona=persona)
        return PHONE * phone + WORD * word + INTENT * intent + PERSONA * persona


def text_weights(batch: Rows) -> Tensor:
    """What each text target counts, [B, L - 1]; nothing in the prompt."""
    wanted = batch.targets[..., 0]
    weight = torch.where(batch.overlap, OVERLAP_WEIGHT, torch.where(wanted == PAD, PAD_WEIGHT, 1.0))
    is_name = (wanted == batch.names[:, None]) & (batch.names > 0)[:, None]
    return torch.where(is_name, NAME_WEIGHT * weight, weight) * batch.is_live


def _delayed(logits: Tensor, wanted: Tensor, is_live: Tensor, delay: int) -> Tensor:
    """Cross entropy of logits [B, T, ..., V] asked `delay` positions after the frame that `wanted` int64 [B, T, ...] describes."""
    shape = is_live.shape + (1,) * (wanted.dim() - 2)
    wanted = torch.where(is_live.view(shape), wanted, -100)[:, :-delay]
    logits = logits[:, delay:]
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), wanted.reshape(-1), reduction="sum", ignore_index=-100)
    return loss / (wanted != -100).sum().clamp(min=1)


class BatchSource:
    """Batches of many short conversations, and at times of a few long ones: a call goes on when its prompt has left the window."""

    def __init__(self, bank: SpeechBank, mimi: TrainedMimi, config: LMConfig, prompts: VoicePrompts, options: argparse.Namespace) -> None:
        own: dict[str, Tensor] = {}
        for corpus in options.corpus:
            if (corpus / OWN_CODES).exists():
                own |= torch.load(corpus / OWN_CODES, weights_only=True)
        answers = Answers(bank, mimi, own)
        self._kinds = []
        for length, frames, rows in ((LENGTH, FRAMES, options.rows), (LONG_LENGTH, LONG_FRAMES, max(1, options.rows // LONG_SHARE))):
            stream = DialogueStream(bank.index, str(options.tokenizer), prompts, config, frames, rows)
            generator = torch.Generator().manual_seed(time.time_ns() % 2**31)
            loader: DataLoader[list[Script]] = DataLoader(stream, batch_size=None, num_workers=options.workers, generator=generator)
            self._kinds.append((Assembler(bank, mimi, config, prompts.profile.silence_codes, length, answers), iter(loader)))
        self._kept: deque[Rows] = deque(maxlen=KEPT)
        self._drawn = 0

    def draw(self) -> Rows:
        """Return a new batch, or one that was seen before (REUSED)."""
        turn, self._drawn = self._drawn % (1 + REUSED), self._drawn + 1
        if turn:
            return self._kept[random.randrange(len(self._kept))]
        assembler, scripts = self._kinds[self._drawn // (1 + REUSED) % LONG_EVERY == LONG_EVERY - 1]
        self._kept.append(assembler(next(scripts)))
        return self._kept[-1]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--corpus", type=Path, nargs="+", required=True, help="packed corpora")
    parser.add_argument("--heldout", type=Path, help="packed corpus of speakers for examinations")
    parser.add_argument("--codec", type=Path, required=True, help="trained mimi.safetensors, frozen")
    parser.add_argument("--sizes", type=Path, required=True, help="folder with config.json and mimi.json of the model to train")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--initial", type=Path, help="language model to go on from, without the auxiliary heads")
    parser.add_argument("--rate", type=float, default=PEAK_RATE, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--prompts", type=Path, help="prompts.pt of the stage that made it; default: new ones from the corpus")
    parser.add_argument("--minutes", type=float, default=15.0, help="time to take")
    parser.add_argument("--rows", type=int, default=64, help="conversations in a batch")
    parser.add_argument("--questions", type=int, default=192, help="of an examination")
    parser.add_argument("--workers", type=int, default=8, help="processes that make scripts")


def run(folder: Path, options: argparse.Namespace) -> None:
    """Train and write `folder/model.safetensors`, `folder/prompts.pt` and examinations."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.set_float32_matmul_precision("high")
    raw = json.loads((options.sizes / "config.json").read_text())
    config, codec = LMConfig.from_json(raw), MimiConfig.from_json(json.loads((options.sizes / "mimi.json").read_text()))
    bank = SpeechBank.load([*options.corpus, *([options.heldout] if options.heldout else [])], device)
    num_own = sum(len(read_index(corpus)) for corpus in options.corpus)
    mimi = TrainedMimi(codec, WeightFile(options.codec).take, device)
    own = bank.restricted(num_own)
    prompts = VoicePrompts.load(options.prompts, raw, config) if options.prompts else voice_prompts(own, mimi, raw, config)
    prompts.save(folder / "prompts.pt")
    progress = Run("lm", folder, options.minutes)
    trainer = LMTrainer(config, 1 + len(bank.index.vocabulary), device, progress, options.initial, prompts.profile.window, options.rate)
    source = BatchSource(own, mimi, config, prompts, options)
    examination = None
    if options.heldout:
        examination = Examination(bank, num_own, mimi, config, prompts, options.tokenizer, options.questions)
    _train(trainer, progress, source, examination, folder)


def _train(trainer: LMTrainer, progress: Run, source: BatchSource, examination: Examination | None, folder: Path) -> None:
    examined = time.monotonic()
    for _ in progress.steps():
        trainer.step(source.draw())
        if progress.is_time_to_save:
            trainer.save()
        if examination is not None and time.monotonic() - examined > EXAMINE_S:
            examination.report(trainer.lm)
            trainer.lm.save(folder / "model.safetensors")
            examined = time.monotonic()
    trainer.save()
    trainer.lm.save(folder / "model.safetensors")
    if examination is not None:
        examination.report(trainer.lm, keep=folder / "examination.pt")
