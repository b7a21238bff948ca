"""The codec's transformers: a few positions per call and row, attending to a ring of the row's last positions.

Here: layers, ring, window and rotary positions. Not here: which rows run, and the state's life (`stream.py`). The one rule: the ring is
written in place, at the new positions of the rows that run and nowhere else; a position is absolute and never wraps, only its place in
the ring does. Thread: tick.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.layers import linear
from gateway.engine.codec.weights import TakeTensor
from gateway.engine.graphs import whole_blocks

# Which repository's attention window to follow (specs/moshi-model.md section 4.1).
Window = Literal["moshi", "personaplex"]

NORM_EPS = 1e-5


def ring_capacity(config: MimiConfig, window: Window) -> int:
    """Return the positions that a ring must hold: those that the last frame of a call sees, and the other frames of the call.

    Kyutai's ring shows every position it holds. PersonaPlex's labels its oldest one as future once it has wrapped, and so hides it from
    both positions of a frame: exactly what a ring that is one shorter does.
    """
    return _visible(config, window) + config.call_positions - config.frame_positions


def _visible(config: MimiConfig, window: Window) -> int:
    return config.context if window == "moshi" else config.context - 1


class _Layer:
    def __init__(self, take: TakeTensor, prefix: str, config: MimiConfig) -> None:
        dim, hidden = config.dimension, config.hidden
        self._heads = (config.num_heads, config.head_dim)
        self._norm1 = (take(f"{prefix}norm1.weight", (dim,)), take(f"{prefix}norm1.bias", (dim,)))
        self._norm2 = (take(f"{prefix}norm2.weight", (dim,)), take(f"{prefix}norm2.bias", (dim,)))
        self._qkv = take(f"{prefix}self_attn.in_proj_weight", (3 * dim, dim)).t().contiguous()
        self._up = take(f"{prefix}linear1.weight", (hidden, dim)).t().contiguous()
        # LayerScale multiplies a branch's output per channel: the same as scaling the columns of its last matrix.
        scale1, scale2 = (take(f"{prefix}layer_scale_{i}.scale", (dim,)) for i in (1, 2))
        self._out = take(f"{prefix}self_attn.out_proj.weight", (dim, dim)).t().contiguous() * scale1
        self._down = take(f"{prefix}linear2.weight", (dim, hidden)).t().contiguous() * scale2

    def __call__(self, x: Tensor, ring: Tensor, rows: Tensor, places: Tensor, rotation: Tensor, mask: Tensor) -> Tensor:
        n, length, dim = x.shape
        h = functional.layer_norm(x, (dim,), *self._norm1, NORM_EPS)
        qkv = linear(h, self._qkv).view(n, length, 3, *self._heads)
        torch.view_as_complex(qkv.view(*qkv.shape[:-1], -1, 2)[:, :, :2]).mul_(rotation)  # rotates q and k where they lie
        ring.flatten(0, 1).index_copy_(0, places, qkv[:, :, 1:].flatten(0, 1))
        keys, values = ring.index_select(0, rows).transpose(1, 3).unbind(2)  # each [n, heads, capacity, head_dim]
        h = functional.scaled_dot_product_attention(qkv[:, :, 0].transpose(1, 2), keys, values, attn_mask=mask)
        x = x + linear(h.transpose(1, 2).flatten(2), self._out)
        h = functional.layer_norm(x, (dim,), *self._norm2, NORM_EPS)
        return x + linear(functional.gelu(linear(h, self._up)), self._down)


class StreamingTransformer:
    """Pre-norm transformer over [n, T, dimension], T positions per call."""

    def __init__(self, take: TakeTensor, prefix: str, config: MimiConfig, window: Window, device: torch.device) -> None:
        self._capacity, self._visible = ring_capacity(config, window), _visible(config, window)
        self._frame = config.frame_positions
        self._layers = [_Layer(take, f"{prefix}_transformer.transformer.layers.{i}.", config) for i in range(config.num_layers)]
        half = config.head_dim // 2
        self._frequencies = torch.exp(torch.arange(half, device=device) * (-math.log(config.max_period) / half))
        self._length = config.call_positions
        self._steps = torch.arange(self._length, device=device)
        self._places = torch.arange(self._capacity, device=device)

    def __call__(self, x: Tensor, ring: Tensor, rows: Tensor, start: Tensor) -> Tensor:
        """Advance `rows` by T positions.

        Args:
            x: [n, T, dimension].
            ring: [layers, slots, capacity, 2, heads, head_dim], updated in place at `rows`.
            rows: int64 [n], the slots that x belongs to.
            start: int64 [n], absolute position of x[:, 0].
        """
        count, scratch, length = x.shape[0], ring.shape[1] - 1, self._length
        # Once here, rather than before each product.
        x, rows, start = whole_blocks(x, length), whole_blocks(rows, length, fill=scratch), whole_blocks(start, length)
        positions = start[:, None] + self._steps  # [n, T]
        angles = positions.to(x.dtype)[..., None] * self._frequencies.to(x.dtype)
        rotation = torch.polar(torch.ones_like(angles), angles)[:, :, None, None]  # [n, T, 1, 1, head_dim / 2]
        places = (rows[:, None] * self._capacity + positions % self._capacity).flatten()
        mask = self._mask(positions, x.dtype)
        for i, layer in enumerate(self._layers):
            x = layer(x, ring[i], rows, places, rotation, mask)
        return x[:count]

    def _mask(self, positions: Tensor, dtype: torch.dtype) -> Tensor:
        # Once the frame is written, place s holds position last - (last - s) mod capacity, negative where nothing was written yet: the
        # ring holds [last + 1 - capacity, last], and position p sees [max(0, last + 1 - capacity), p]; the same for each frame of a
        # longer call, with the last position of that frame.
        last = positions[:, -1:]
        held = (last - (last - self._places) % self._capacity)[:, None]  # [n, 1, capacity]
        hidden = (held < 0) | (held > positions[..., None])
        if self._length > self._frame:
            hidden |= held < (positions // self._frame * self._frame + self._frame - self._visible)[..., None]
        return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill_(hidden, -math.inf)[:, None]
