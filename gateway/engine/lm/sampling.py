"""Per-row, counter-based sampling: a draw depends on (seed, position, codebook) and the logits, on nothing else.

No generator state exists, so batching, skipped steps and the neighbours of a row cannot change a call (DESIGN section 2). Every function
has static shapes and no synchronisation: all of it runs inside a CUDA graph, or inside a trace of a CPU, which must not remember a
setting as a number. Thread: tick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
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
    return (x >> bits).bitwise_and_((1 << (64 - bits)) - 1)


def _half_mix(x: Tensor) -> Tensor:
    """splitmix64's mixing without its last line, x ^ (x >>> 31), which leaves the upper 31 bits as they are. Writes to x."""
    x.bitwise_xor_(_shift(x, 30)).mul_(_MIX_1)
    return x.bitwise_xor_(_shift(x, 27)).mul_(_MIX_2)


def _mix(x: Tensor) -> Tensor:
    x = _half_mix(x)
    return x.bitwise_xor_(_shift(x, 31))


def uniform(seed: Tensor, position: Tensor, codebooks: range, card: int) -> Tensor:
    """Uniform draws in (0, 1), float32 [N, len(codebooks), card], for int64 [N] seeds and positions.

    Codebook 0 is text, 1 + s is depth step s.
    """
    streams = torch.arange(codebooks.start, codebooks.stop, device=seed.device)
    index = torch.arange(1, card + 1, device=seed.device).mul_(_GAMMA)
    key = _mix(_mix(_mix(seed + _GAMMA) + position)[:, None] + streams)
    bits = _shift(_half_mix(key[..., None] + index), 64 - _UNIFORM_BITS)
    return bits.float().add_(0.5).mul_(2.0**-_UNIFORM_BITS)


def gumbel(seed: Tensor, position: Tensor, codebooks: range, card: int) -> Tensor:
    """As `uniform`, turned into standard Gumbel noise: adding it to log-probabilities makes the arg-max a draw."""
    return uniform(seed, position, codebooks, card).log_().neg_().log_().neg_()


class Sampler:
    """The draws of one frame for N rows: what its steps share is made once.

    Args:
        temperature: float32 [N]; 0 takes the largest logit.
        topk: int64 [N]; ids kept by probability; 0 keeps all. Ties with the k-th are kept too.
        noise: float32 [N, steps, V] from `gumbel`; belongs to the sampler from now on.
    """

    def __init__(self, temperature: Tensor, topk: Tensor, noise: Tensor) -> None:
        is_greedy, card = temperature <= 0, noise.shape[-1]
        self._divisor = temperature.masked_fill(is_greedy, 1.0)[:, None]
        self._noise = noise.masked_fill_(is_greedy[:, None, None], 0.0).unbind(1)
        kept = topk.masked_fill(topk <= 0, card).clamp_(max=card)[:, None]
        self._place = card - kept  # of the smallest id kept, in ascending order
        if topk.is_cpu:
            self._keeps_all = kept == card
            self._last = kept.masked_fill(self._keeps_all, 1) - 1  # of the smallest id kept, in descending order
            self._num_sorted = self._last.max() + 1

    def draw(self, step: int, logits: Tensor, lift: tuple[int, Tensor] | None = None) -> Tensor:
        """Draw one id per row.

        Args:
            step: of the frame.
            logits: float32 [N, V].
            lift: an id and float32 [N], added to its log-probability after the temperature and before top-k.

        Returns:
            int64 [N]. The arg-max of p / e over kept ids with e ~ Exp(1), which draws with probability proportional to p
            (specs: moshi-model section 7), here in the log domain.
        """
        scaled = logits / self._divisor
        if lift is not None:
            scaled[:, lift[0]] += lift[1]
        return (scaled + self._noise[step]).masked_fill_(scaled < self._smallest_kept(scaled), -torch.inf).argmax(dim=-1)

    def _smallest_kept(self, scaled: Tensor) -> Tensor:
        if not scaled.is_cpu:
            return scaled.sort(dim=-1).values.gather(1, self._place)
        # Only as many are sorted as some row keeps: 42 us for 25 of 16 x 512, 119 for 250, 160 for all (one EPYC core). The number stays a
        # tensor, because a trace would remember an integer.
        largest: Tensor = scaled.topk(self._num_sorted, dim=-1).values  # type: ignore[arg-type]
        return largest.gather(1, self._last).masked_fill_(self._keeps_all, -torch.inf)


@dataclasses.dataclass(frozen=True, slots=True)
class SamplingRows:
    """The sampling settings of every slot as tensors, one row a slot and one spare; and the recent words of its text."""

    text_temperature: Tensor  # float32 [B + 1]
    text_topk: Tensor  # int64 [B + 1]
    text_seed: Tensor  # int64 [B + 1]
    audio_temperature: Tensor
    audio_topk: Tensor
    audio_seed: Tensor
    padding: Tensor  # float32 [B + 1], added to padding's log-probability after the temperature: the three below together
    penalty: Tensor  # float32 [B + 1]
    penalty_context: Tensor  # int64 [B + 1]
    words: Tensor  # int64 [B + 1, MAX_PENALTY_CONTEXT], ring of text tokens that are not special
    num_words: Tensor  # int64 [B + 1], words ever written
    pad_mult: NDArray[np.float32]  # [B + 1]; 0 for greedy text, which knows no pad_mult (specs: moshi-model section 7)
    pad_scale: NDArray[np.float32]  # [B + 1], 1 / temperature; 1 for greedy text
    pad_bias: NDArray[np.float32]  # [B + 1], of this step, before the temperature: it weighs the same for careful and for wild texts

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
            padding=torch.zeros(num_rows, **real),
            penalty=torch.ones(num_rows, **real),
            penalty_context=torch.zeros(num_rows, **whole),
            words=torch.zeros(num_rows, MAX_PENALTY_CONTEXT, **whole),
            num_words=torch.zeros(num_rows, **whole),
            pad_mult=np.zeros(num_rows, dtype=np.float32),
            pad_scale=np.ones(num_rows, dtype=np.float32),
            pad_bias=np.zeros(num_rows, dtype=np.float32),
        )

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """What a draw reads and writes, in the order of `on`."""
        return tuple(getattr(self, name) for name in _TENSORS)

    def on(self, tensors: Sequence[Tensor]) -> SamplingRows:
        """These settings with `tensors` in place of their own, as the arguments of a function that is traced."""
        own: dict[str, Any] = dict(zip(_TENSORS, tensors, strict=True))
        return dataclasses.replace(self, **own)

    def set(self, row: int, options: SamplingOptions) -> None:
        """Take the settings of a new call; every field of `options` must be set."""
        assert options.repetition_penalty is not None
        assert options.repetition_penalty_context is not None
        assert options.text_temperature is not None
        for name in ("text_temperature", "text_topk", "text_seed", "audio_temperature", "audio_topk", "audio_seed"):
            getattr(self, name)[row] = getattr(options, name)
        is_greedy = options.text_temperature <= 0
        self.pad_mult[row] = 0.0 if is_greedy else options.pad_mult
        self.pad_scale[row] = 1.0 if is_greedy else 1.0 / options.text_temperature
        self._weigh_padding(row)
        self.penalty[row] = options.repetition_penalty
        self.penalty_context[row] = options.repetition_penalty_context
        self.num_words[row] = 0

    def set_pad_bias(self, bias: NDArray[np.float32]) -> None:
        """Take the biases of this step, float32 [B]; only what differs from the step before touches the device."""
        for row in np.flatnonzero(self.pad_bias[: len(bias)] != bias).tolist():
            self.pad_bias[row] = bias[row]
            self._weigh_padding(row)

    def sample_text(self, rows: Tensor, logits: Tensor, position: Tensor, padding_id: int) -> Tensor:
        """Draw the text token of `position` for int64 [N] rows from logits [N, V]; int64 [N]."""
        logits = self._penalise(rows, logits.float())
        noise = gumbel(self.text_seed[rows], position, range(1), logits.shape[-1])
        sampler = Sampler(self.text_temperature[rows], self.text_topk[rows], noise)
        return sampler.draw(0, logits, (padding_id, self.padding[rows]))

    def audio_sampler(self, rows: Tensor, position: Tensor, card: int) -> Sampler:
        """The sampler of one frame's codes, one step a codebook; the noise of all of them is made at once."""
        noise = gumbel(self.audio_seed[rows], position, range(1, 1 + CODEBOOKS), card)
        return Sampler(self.audio_temperature[rows], self.audio_topk[rows], noise)

    def note_text(self, rows: Tensor, text: Tensor) -> None:
        """Remember a word for the repetition penalty; special ids are not words."""
        is_word = text >= SPECIAL_TEXT_IDS
        slot = self.num_words[rows] % MAX_PENALTY_CONTEXT
        self.words[rows, slot] = torch.where(is_word, text, self.words[rows, slot])
        self.num_words[rows] = self.num_words[rows] + is_word

    def _weigh_padding(self, row: int) -> None:
        self.padding[row] = float(self.pad_mult[row] + self.pad_scale[row] * self.pad_bias[row])

    def _penalise(self, rows: Tensor, logits: Tensor) -> Tensor:
        """Damp each distinct word among the last `penalty_context` ones: divide if >= 0, else multiply (Rust backend's rule)."""
        age = (self.num_words[rows, None] - 1 - torch.arange(MAX_PENALTY_CONTEXT, device=logits.device)) % MAX_PENALTY_CONTEXT
        is_recent = age < torch.minimum(self.penalty_context[rows], self.num_words[rows])[:, None]
        hits = torch.zeros_like(logits).scatter_reduce_(1, self.words[rows], is_recent.to(logits.dtype), "amax")
        penalty = self.penalty[rows, None]
        damped = torch.where(logits >= 0, logits / penalty, logits * penalty)
        return torch.where(hits > 0, damped, logits)


_TENSORS = tuple(field.name for field in dataclasses.fields(SamplingRows) if field.type == "Tensor")
