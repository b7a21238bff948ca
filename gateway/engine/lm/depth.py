"""The depth transformer: eight sequential steps that turn one temporal state into the assistant's eight codes.

Weights of all steps are stacked on a leading axis; the KV of a frame dies with it. PersonaPlex's steps 8 to 15 predict the user, whose real
codes replace them, so they are neither loaded nor run (specs: moshi-model section 10). Shapes are static: one CUDA graph a batch size.
Thread: tick.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gateway.engine.layout import CODEBOOKS, LMConfig
from gateway.engine.lm.weights import TensorSource

RMS_EPS = 1e-8  # added to the mean square, inside the root; source: kyutai-labs/moshi@e6a55d2 modules/transformer.py, rms_norm_f32

StepSampler = Callable[[int, Tensor], Tensor]  # (step, logits [N, card]) -> codes int64 [N]


def rms_norm(x: Tensor, alpha: Tensor) -> Tensor:
    """RMSNorm in float32 with the weight applied before the cast back; x [..., D], alpha [D]."""
    return F.rms_norm(x.float(), alpha.shape, alpha.float(), RMS_EPS).to(x.dtype)


class DepthLayer(nn.Module):
    """One layer's weights for all steps."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        dim, hidden = config.depth_dim, config.depth_hidden
        self.norm1 = _parameter(dim)
        self.norm2 = _parameter(dim)
        self.in_proj = _parameter(CODEBOOKS, 3 * dim, dim)
        self.out_proj = _parameter(CODEBOOKS, dim, dim)
        self.linear_in = _parameter(CODEBOOKS, 2 * hidden, dim)
        self.linear_out = _parameter(CODEBOOKS, dim, hidden)

    def forward(self, x: Tensor, step: int, keys: Tensor, values: Tensor) -> Tensor:
        """x [N, D]; keys and values [N, H, CODEBOOKS, D / H] are filled up to `step` by this call."""
        count, dim = x.shape
        heads = keys.shape[1]
        query, key, value = F.linear(rms_norm(x, self.norm1), self.in_proj[step]).view(count, 3, heads, dim // heads).unbind(1)
        keys[:, :, step] = key
        values[:, :, step] = value
        # Plain causal attention: step s sees steps 0..s, no positions (specs: moshi-model section 5).
        mixed = F.scaled_dot_product_attention(query[:, :, None], keys[:, :, : step + 1], values[:, :, : step + 1])
        x = x + F.linear(mixed.reshape(count, dim), self.out_proj[step])
        gate, value = F.linear(rms_norm(x, self.norm2), self.linear_in[step]).chunk(2, dim=-1)
        return x + F.linear(F.silu(gate) * value, self.linear_out[step])


class DepthTransformer(nn.Module):
    """Codes of one frame, given the temporal state and its text token."""

    def __init__(self, config: LMConfig) -> None:
        super().__init__()
        self.config = config
        self.inputs = _parameter(CODEBOOKS, config.depth_dim, config.dim)
        self.text_table = _parameter(config.text_card + 1, config.depth_dim)
        self.code_tables = _parameter(CODEBOOKS - 1, config.card + 1, config.depth_dim)
        self.layers = nn.ModuleList(DepthLayer(config) for _ in range(config.depth_num_layers))
        self.heads = _parameter(CODEBOOKS, config.card, config.depth_dim)

    def forward(self, hidden: Tensor, text: Tensor, forced: Tensor, sample_step: StepSampler) -> Tensor:
        """Run the steps.

        Args:
            hidden: [N, dim], the temporal transformer's state after its last norm.
            text: int64 [N], the text token of the position being made.
            forced: int64 [N, CODEBOOKS]; a code of 0 or more replaces the draw, -1 leaves it.
            sample_step: draws the codes of one step.

        Returns:
            int64 [N, CODEBOOKS].
        """
        count, heads = hidden.shape[0], self.config.depth_num_heads
        caches = hidden.new_empty(len(self.layers), 2, count, heads, CODEBOOKS, self.config.depth_dim // heads)
        codes: list[Tensor] = []
        embedded = self.text_table[text]
        for step in range(CODEBOOKS):
            x = F.linear(hidden, self.inputs[step]) + embedded
            for layer, (keys, values) in zip(self.layers, caches, strict=True):
                x = layer(x, step, keys, values)
            drawn = sample_step(step, F.linear(x, self.heads[step]))
            codes.append(torch.where(forced[:, step] >= 0, forced[:, step], drawn))
            if step < CODEBOOKS - 1:
                embedded = self.code_tables[step][codes[-1]]
        return torch.stack(codes, dim=1)

    def load(self, source: TensorSource) -> None:
        """Fill the weights from an official file.

        Raises:
            ConfigError: a tensor is missing or misshapen.
        """
        source.read(self.text_table, "depformer_text_emb.weight")
        for step in range(CODEBOOKS):
            source.read(self.inputs[step], f"depformer_in.{step}.weight")
            source.read(self.heads[step], f"linears.{step}.weight")
            if step < CODEBOOKS - 1:
                source.read(self.code_tables[step], f"depformer_emb.{step}.weight")
        for index, layer in enumerate(self.layers):
            base = f"depformer.layers.{index}."
            for part in ("in_proj", "out_proj"):
                fused = (f"{base}self_attn.{part}_weight", f"{base}self_attn.{part}.weight")
                source.read_steps(getattr(layer, part), fused, f"{base}self_attn.{part}s.{{}}.weight")
            for part in ("norm1", "norm2"):
                source.read(getattr(layer, part), f"{base}{part}.alpha")
            for part in ("linear_in", "linear_out"):
                for step in range(CODEBOOKS):
                    source.read(getattr(layer, part)[step], f"{base}gating.{step}.{part}.weight")


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
