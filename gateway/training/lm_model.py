"""The language model as something to train: a plain temporal transformer beside the engine's own depth transformer.

Here: parameters under official names, whole sequences at once, the auxiliary heads that teach it to hear and that no checkpoint holds. Not
here: data, losses, the loop. The one rule: `tests/training/test_lm_model.py` holds this forward pass to the engine's. Thread: any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gateway.engine.layout import CODEBOOKS, ROW_WIDTH, LMConfig
from gateway.engine.lm.depth import RMS_EPS, DepthLayer, DepthTransformer
from gateway.training.corpus import PHONES
from gateway.training.mixing import SUBFRAMES

INIT_STD = 0.02


class Past:
    """Keys and values of one layer, [B, heads, positions so far, head_dim] each."""

    def __init__(self) -> None:
        self.size = 0
        self._parts: tuple[Tensor, Tensor] | None = None

    def extend(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append further positions; return all."""
        if self._parts is not None:
            key, value = torch.cat((self._parts[0], key), dim=2), torch.cat((self._parts[1], value), dim=2)
        self._parts, self.size = (key, value), key.shape[2]
        return key, value


class TemporalLayer(nn.Module):
    """Pre-norm attention and gated feed-forward over whole sequences."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        dim, hidden = config.dim, config.hidden
        self.num_heads = config.num_heads
        self.norm1 = nn.Parameter(torch.ones(dim))
        self.norm2 = nn.Parameter(torch.ones(dim))
        self.in_proj = nn.Parameter(torch.randn(3 * dim, dim) / math.sqrt(dim))
        self.out_proj = nn.Parameter(torch.randn(dim, dim) * INIT_STD)
        self.linear_in = nn.Parameter(torch.randn(2 * hidden, dim) / math.sqrt(dim))
        self.linear_out = nn.Parameter(torch.randn(dim, hidden) * INIT_STD)

    def forward(self, x: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor | None, past: Past | None) -> Tensor:
        rows, length, dim = x.shape
        qkv = F.linear(_norm(x, self.norm1), self.in_proj).view(rows, length, 3, self.num_heads, -1)
        query, key, value = qkv.transpose(1, 3).unbind(2)  # each [B, heads, T, head_dim]
        query, key = _rotate(query, rotation), _rotate(key, rotation)
        if past is not None:
            key, value = past.extend(key, value)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=mask is None and key.shape[2] == length)
        x = x + F.linear(mixed.transpose(1, 2).reshape(rows, length, dim), self.out_proj)
        gate, up = F.linear(_norm(x, self.norm2), self.linear_in).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * up, self.linear_out)


class TrainedLM(nn.Module):
    """The language model.

    Args:
        config: its sizes.
        window: positions that a query sees, its own included; as `Profile.window` of the checkpoint.
    """

    def __init__(self, config: LMConfig, window: int) -> None:
        super().__init__()
        self.config, self.window = config, window
        self.embeddings = nn.Parameter(torch.randn(config.table_rows, config.dim) * INIT_STD)
        self.layers = nn.ModuleList(TemporalLayer(config) for _ in range(config.num_layers))
        self.out_norm = nn.Parameter(torch.ones(config.dim))
        self.text_linear = nn.Parameter(torch.randn(config.text_card, config.dim) * INIT_STD)
        self.depth = DepthTransformer(config)
        for name, parameter in self.depth.named_parameters():
            parameter.requires_grad_()
            if "norm" in name:
                nn.init.ones_(parameter)
            elif name.startswith(("text_table", "code_tables")):
                nn.init.normal_(parameter, std=INIT_STD)
            else:
                nn.init.normal_(parameter, std=1 / math.sqrt(parameter.shape[-1]))
        self.starts: Tensor
        self.register_buffer("starts", torch.tensor(config.table_starts), persistent=False)

    def forward(self, rows: Tensor, pasts: Sequence[Past] | None = None) -> Tensor:
        """States after the last norm [B, T, dim] of int64 [B, T, ROW_WIDTH] rows from position 0, or one row behind the `pasts`.

        Raises:
            ValueError: more than one row behind others, or a past longer than the window.
        """
        length, first = rows.shape[1], pasts[0].size if pasts else 0
        if first and (length > 1 or first >= self.window):
            raise ValueError(f"{length} rows behind {first}: must be one, and inside the window of {self.window}")
        x = F.embedding(rows + self.starts, self.embeddings).sum(dim=2)
        half = self.config.head_dim // 2
        frequencies = self.config.max_period ** (-torch.arange(half, device=x.device) / half)
        angle = torch.arange(first, first + length, device=x.device)[:, None] * frequencies
        rotation = angle.cos(), angle.sin()
        mask = None
        if length > self.window:
            places = torch.arange(length, device=x.device)
            distance = places[:, None] - places
            mask = (distance >= 0) & (distance < self.window)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotation, mask, pasts[index] if pasts else None)
        return _norm(x, self.out_norm)

    def pasts(self) -> list[Past]:
        """Return an empty past."""
        return [Past() for _ in self.layers]

    def text_logits(self, hidden: Tensor) -> Tensor:
        """Text logits [..., text_card] of states."""
        return F.linear(hidden, self.text_linear)

    def code_logits(self, hidden: Tensor, text: Tensor, codes: Tensor) -> Tensor:
        """Logits of the assistant's codes, given the right ones: all steps of the depth transformer at once.

        Args:
            hidden: [N, dim].
            text: int64 [N], token of the position being made.
            codes: int64 [N, CODEBOOKS].

        Returns:
            [N, CODEBOOKS, card].
        """
        depth, count = self.depth, len(hidden)
        tables = [depth.text_table, *depth.code_tables]
        read = torch.cat((text[:, None], codes[:, :-1]), dim=1)
        given = [F.embedding(read[:, step], table) for step, table in enumerate(tables)]
        x = torch.stack(given) + F.linear(hidden, depth.inputs.flatten(0, 1)).view(count, CODEBOOKS, -1).transpose(0, 1)
        for layer in depth.layers:
            assert isinstance(layer, DepthLayer)
            x = self._depth_layer(layer, x)
        return torch.bmm(x, depth.heads.transpose(1, 2)).transpose(0, 1)

    def _depth_layer(self, layer: DepthLayer, x: Tensor) -> Tensor:
        """x [CODEBOOKS, N, D]; each step has weights of its own and sees itself and the steps before."""
        steps, count, dim = x.shape
        qkv = torch.bmm(_norm(x, layer.norm1), layer.in_proj.transpose(1, 2))
        query, key, value = qkv.view(steps, count, 3, self.config.depth_num_heads, -1).permute(2, 1, 3, 0, 4).unbind(0)
        scores = torch.einsum("nhqd,nhkd->nhqk", query, key) / math.sqrt(query.shape[-1])
        future = torch.ones(steps, steps, dtype=torch.bool, device=x.device).triu(1)
        mixed = torch.einsum("nhqk,nhkd->qnhd", scores.float().masked_fill(future, -torch.inf).softmax(-1).to(value.dtype), value)
        x = x + torch.bmm(mixed.reshape(steps, count, dim), layer.out_proj.transpose(1, 2))
        gate, up = torch.bmm(_norm(x, layer.norm2), layer.linear_in.transpose(1, 2)).chunk(2, dim=-1)
        return x + torch.bmm(F.silu(gate) * up, layer.linear_out.transpose(1, 2))

    def official(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint under official names."""
        config, depth = self.config, self.depth
        text_start, *starts = config.table_starts
        named = {f"emb.{k}.weight": self.embeddings[start : start + config.card + 1] for k, start in enumerate(starts)}
        named |= {"text_emb.weight": self.embeddings[text_start:], "text_linear.weight": self.text_linear}
        named["out_norm.alpha"] = self.out_norm.view(1, 1, -1)
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, TemporalLayer)
            base = f"transformer.layers.{index}."
            named |= {f"{base}self_attn.in_proj_weight": layer.in_proj, f"{base}self_attn.out_proj.weight": layer.out_proj}
            named |= {f"{base}gating.{part}.weight": getattr(layer, part) for part in ("linear_in", "linear_out")}
            named |= {f"{base}{part}.alpha": getattr(layer, part).view(1, 1, -1) for part in ("norm1", "norm2")}
        named["depformer_text_emb.weight"] = depth.text_table
        for step in range(CODEBOOKS):
            named |= {f"depformer_in.{step}.weight": depth.inputs[step], f"linears.{step}.weight": depth.heads[step]}
            if step < CODEBOOKS - 1:
                named[f"depformer_emb.{step}.weight"] = depth.code_tables[step]
        for index, layer in enumerate(depth.layers):
            assert isinstance(layer, DepthLayer)
            base = f"depformer.layers.{index}."
            named |= {f"{base}self_attn.in_proj_weight": layer.in_proj.flatten(0, 1)}
            named |= {f"{base}self_attn.out_proj.weight": layer.out_proj.flatten(0, 1)}
            named |= {f"{base}{part}.alpha": getattr(layer, part).view(1, 1, -1) for part in ("norm1", "norm2")}
            for part in ("linear_in", "linear_out"):
                named |= {f"{base}gating.{step}.{part}.weight": getattr(layer, part)[step] for step in range(CODEBOOKS)}
        return named

    def save(self, path: Path) -> None:
        """Write the official file in bfloat16."""
        from safetensors.torch import save_file

        save_file({name: tensor.detach().to("cpu", torch.bfloat16).contiguous() for name, tensor in self.official().items()}, path)

    @torch.no_grad()
    def load(self, path: Path) -> None:
        """Take the values of an official file."""
        from safetensors.torch import load_file

        stored = load_file(path)
        for name, tensor in self.official().items():
            tensor.copy_(stored[name].reshape(tensor.shape))


@dataclasses.dataclass(frozen=True, slots=True)
class Heard:
    """What the auxiliary heads make of states [..., dim]."""

    phones: Tensor  # [..., SUBFRAMES, phones]
    words: Tensor  # [..., words]
    intents: Tensor  # [..., intents]
    names: Tensor  # [..., text_card]
    shops: Tensor  # [..., shops]


class Hearing(nn.Module):
    """Heads that ask the temporal states what the user has said and who the persona is; they exist in training alone."""

    def __init__(self, config: LMConfig, num_words: int, num_intents: int, num_shops: int) -> None:
        super().__init__()
        self.phones = nn.Linear(config.dim, SUBFRAMES * len(PHONES))
        self.words = nn.Linear(config.dim, num_words)
        self.intents = nn.Linear(config.dim, num_intents)
        self.names = nn.Linear(config.dim, config.text_card)
        self.shops = nn.Linear(config.dim, num_shops)

    def forward(self, hidden: Tensor) -> Heard:
        phones = self.phones(hidden).view(*hidden.shape[:-1], SUBFRAMES, len(PHONES))
        return Heard(phones, self.words(hidden), self.intents(hidden), self.names(hidden), self.shops(hidden))


def stagger(frames: Tensor, config: LMConfig) -> Tensor:
    """Rows int64 [B, L, ROW_WIDTH] of frames [B, L, ROW_WIDTH], as `gateway.engine.prompt.stagger` lays them out."""
    rows = frames.clone()
    initial = torch.full((ROW_WIDTH,), config.audio_initial, device=frames.device)
    initial[0] = config.text_initial
    rows[:, 0] = initial
    for first in (2, 2 + CODEBOOKS):
        acoustic = slice(first, first + CODEBOOKS - 1)
        rows[:, 2:, acoustic] = frames[:, 1:-1, acoustic]
        rows[:, 1:2, acoustic] = config.audio_initial
    return rows


def _norm(x: Tensor, alpha: Tensor) -> Tensor:
    return F.rms_norm(x.float(), alpha.shape, alpha.float(), RMS_EPS).to(x.dtype)


def _rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate neighbouring pairs of [..., T, head_dim], in float32."""
    cos, sin = rotation
    even, odd = x.float().view(*x.shape[:-1], -1, 2).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)
