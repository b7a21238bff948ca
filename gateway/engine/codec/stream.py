"""State of the codec's streams: tensors with a leading slot axis, and one scratch slot at their end for padding rows.

Here: allocation and reset. Not here: who reads and writes a row (`mimi.py` gathers and scatters, `transformer.py` writes the ring). The one
rule: the tensors are allocated once and only ever written in place, because CUDA graphs hold their addresses. Thread: tick.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from gateway.engine.codec.config import MimiConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Streams:
    """State of one direction (encoder or decoder) for `num_slots` streams and the scratch slot."""

    carried: Tensor  # [slots, width]: left contexts of every convolution
    ring: Tensor  # [layers, slots, capacity, 2, heads, head_dim]: rotated keys, and values
    positions: Tensor  # int64 [slots]: transformer positions consumed; 0 is a fresh stream

    @classmethod
    def allocate(
        cls, config: MimiConfig, *, num_slots: int, carry_width: int, capacity: int, device: torch.device, dtype: torch.dtype
    ) -> Streams:
        """Allocate fresh streams."""
        slots = num_slots + 1
        ring = (config.num_layers, slots, capacity, 2, config.num_heads, config.head_dim)
        return cls(
            torch.zeros(slots, carry_width, device=device, dtype=dtype),
            torch.zeros(ring, device=device, dtype=dtype),
            torch.zeros(slots, device=device, dtype=torch.int64),
        )

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """All of the state."""
        return self.carried, self.ring, self.positions

    def reset(self, rows: Tensor) -> None:
        """Make `rows` (int64 [n]) fresh. The ring is cleared too: a masked NaN would still poison a weighted sum."""
        self.carried.index_fill_(0, rows, 0)
        self.ring.index_fill_(1, rows, 0)
        self.positions.index_fill_(0, rows, 0)
