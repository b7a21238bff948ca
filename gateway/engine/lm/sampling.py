"""Per-row, counter-based sampling: a draw depends on (seed, position, codebook) and the logits, on nothing else.

No generator state exists, so batching, skipped steps and the neighbours of a row cannot change a call (DESIGN section 2). Every function
has static shapes and no synchronisation: all of it runs inside a CUDA graph. Thread: tick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gateway.engine.layout import CODEBOOKS, SPECIAL_TEXT_IDS
from protocols.events import MAX_PENALTY_CONTEXT, SamplingOptions

# Multipliers of splitmix64 (Steele, Lea, Flood 2014), as signed 64-bit integers: torch's int64 product wraps like the unsigned one.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_MIX_1 = 0xBF58476D1CE4E5B9 - 2**64
_MIX_2 = 0x94D049BB133111EB - 2**64
_UNIFORM_BITS = 23  # (k + 0.5) / 2**23 is exact in float32, so never 0 and never 1


def _shift(x: Tensor, bits: int) -> Tensor:
    """Logical right shift of int64."""
    return (x >> bits) & ((1 << (64 - bits)) - 1)


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shift(x, 30)) * _MIX_1
    x = (x ^ _shift(x, 27)) * _MIX_2
    return x ^ _shift(x, 31)


def uniform(seed: Tensor, position: Tensor, codebooks: range, card: int) -> Tensor:
    """Uniform draws in (0, 1), float32 [N, len(codebooks), card], for int64 [N] seeds and positions.

    Codebook 0 is text, 1 + s is depth step s.
    """
    streams = torch.arange(codebooks.start, codebooks.stop, device=seed.device)
    index = torch.arange(1, card + 1, device=seed.device) * _GAMMA
    key = _mix(_mix(_mix(seed + _GAMMA) + position)[:, None] + streams)
    bits = _shift(_mix(key[..., None] + index), 64 - _UNIFORM_BITS)
    return (bits.float() + 0.5) * 2.0**-_UNIFORM_BITS


def gumbel(seed: Tensor, position: Tensor, codebooks: range, card: int) -> Tensor:
    """As `uniform`, turned into standard Gumbel noise: adding it to log-probabilities makes the arg-max a draw."""
    return -torch.log(-torch.log(uniform(seed, position, codebooks, card)))


def sample(logits: Tensor, temperature: Tensor, topk: Tensor, noise: Tensor, bias: Tensor | None = None) -> Tensor:
    """Draw one id per row.

    Args:
        logits: float32 [N, V].
        temperature: float32 [N]; 0 takes the largest logit.
        topk: int64 [N]; ids kept by probability; 0 keeps all. Ties with the k-th are kept too.
        noise: float32 [N, V] from `gumbel`.
        bias: float32 [N, V] or None, added to the log-probabilities after the temperature and before top-k.

    Returns:
        int64 [N]. The arg-max of p / e over kept ids with e ~ Exp(1), which draws with probability proportional to p
        (specs: moshi-model section 7), here in the log domain.
    """
    card = logits.shape[-1]
    is_greedy = (temperature <= 0)[:, None]
    scaled = logits / torch.where(temperature > 0, temperature, 1.0)[:, None]
    if bias is not None:
        scaled = scaled + bias
    kept = torch.where(topk > 0, topk, card).clamp(max=card)
    threshold = scaled.sort(dim=-1, descending=True).values.gather(1, kept[:, None] - 1)
    noisy = torch.where(scaled >= threshold, scaled + noise, -torch.inf)
    return torch.where(is_greedy, logits, noisy).argmax(dim=-1)


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling settings of every slot as tensors, one row a slot and one spare; and the recent words of its text."""

    text_temperature: Tensor  # float32 [B + 1]
    text_topk: Tensor  # int64 [B + 1]
    text_seed: Tensor  # int64 [B + 1]
    audio_temperature: Tensor
    audio_topk: Tensor
    audio_seed: Tensor
    pad_mult: Tensor  # float32 [B + 1]
    penalty: Tensor  # float32 [B + 1]
    penalty_context: Tensor  # int64 [B + 1]
    words: Tensor  # int64 [B + 1, MAX_PENALTY_CONTEXT], ring of text tokens that are not special
    num_words: Tensor  # int64 [B + 1], words ever written

    @classmethod
    def empty(cls, num_rows: int, device: torch.device) -> SamplingRows:
        real: Any = {"device": device, "dtype": torch.float32}
        whole: Any = {"device": device, "dtype": torch.int64}
        return cls(
            text_temperature=torch.zeros(num_rows, **real),
            text_topk=torch.zeros(num_rows, **whole),
            text_seed=torch.zeros(num_rows, **whole),
            audio_temperature=torch.zeros(num_rows, **real),
            audio_topk=torch.zeros(num_rows, **whole),
            audio_seed=torch.zeros(num_rows, **whole),
            pad_mult=torch.zeros(num_rows, **real),
            penalty=torch.ones(num_rows, **real),
            penalty_context=torch.zeros(num_rows, **whole),
            words=torch.zeros(num_rows, MAX_PENALTY_CONTEXT, **whole),
            num_words=torch.zeros(num_rows, **whole),
        )

    def set(self, row: int, options: SamplingOptions) -> None:
        """Take the settings of a new call; every field of `options` must be set."""
        assert options.repetition_penalty is not None
        assert options.repetition_penalty_context is not None
        for name in ("text_temperature", "text_topk", "text_seed", "audio_temperature", "audio_topk", "audio_seed", "pad_mult"):
            getattr(self, name)[row] = getattr(options, name)
        self.penalty[row] = options.repetition_penalty
        self.penalty_context[row] = options.repetition_penalty_context
        self.num_words[row] = 0

    def sample_text(self, rows: Tensor, logits: Tensor, position: Tensor, padding_id: int) -> Tensor:
        """Draw the text token of `position` for int64 [N] rows from logits [N, V]; int64 [N]."""
        logits = self._penalise(rows, logits.float())
        bias = torch.zeros_like(logits)
        bias[:, padding_id] = self.pad_mult[rows]
        noise = gumbel(self.text_seed[rows], position, range(1), logits.shape[-1])[:, 0]
        return sample(logits, self.text_temperature[rows], self.text_topk[rows], noise, bias)

    def audio_sampler(self, rows: Tensor, position: Tensor, card: int) -> Callable[[int, Tensor], Tensor]:
        """A function (depth step, logits [N, card]) -> codes int64 [N] for one frame; the noise of all its steps is made at once."""
        noise = gumbel(self.audio_seed[rows], position, range(1, 1 + CODEBOOKS), card)
        temperature, topk = self.audio_temperature[rows], self.audio_topk[rows]
        return lambda step, logits: sample(logits.float(), temperature, topk, noise[:, step])

    def note_text(self, rows: Tensor, text: Tensor) -> None:
        """Remember a word for the repetition penalty; special ids are not words."""
        is_word = text >= SPECIAL_TEXT_IDS
        slot = self.num_words[rows] % MAX_PENALTY_CONTEXT
        self.words[rows, slot] = torch.where(is_word, text, self.words[rows, slot])
        self.num_words[rows] = self.num_words[rows] + is_word

    def _penalise(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Damp each distinct word among the last `penalty_context` ones: divide if >= 0, else multiply (Rust backend's rule)."""
        age = (self.num_words[rows, None] - 1 - torch.arange(MAX_PENALTY_CONTEXT, device=logits.device)) % MAX_PENALTY_CONTEXT
        is_recent = age < torch.minimum(self.penalty_context[rows], self.num_words[rows])[:, None]
        hits = torch.zeros_like(logits).scatter_reduce_(1, self.words[rows], is_recent.to(logits.dtype), "amax")
        penalty = self.penalty[rows, None]
        damped = torch.where(logits >= 0, logits / penalty, logits * penalty)
        return torch.where(hits > 0, damped, logits)
