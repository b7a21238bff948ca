"""The depth transformer: eight sequential steps that turn one temporal state into the assistant's eight codes.

Weights of all steps are stacked on a leading axis; the KV of a frame dies with it. PersonaPlex's steps 8 to 15 predict the user, whose real
codes replace them, so they are neither loaded nor run (specs: moshi-model section 10). Shapes are static: one CUDA graph a batch size.
Thread: tick.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gateway.engine.layout import CODEBOOKS, LMConfig
from gateway.engine.lm.sampling import Sampler
from gateway.engine.lm.weights import TensorSource

RMS_EPS = 1e-8  # added to the mean square, inside the root; source: kyutai-labs/moshi@e6a55d2 modules/transformer.py, rms_norm_f32

Norm = Callable[[Tensor, Tensor], Tensor]  # (x [..., D], alpha [D]) -> RMSNorm of x in its dtype


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

    def views(self) -> list[_StepViews]:
        """The weights of each step as the right-hand sides of products."""
        parts = (self.in_proj, self.out_proj, self.linear_in, self.linear_out)
        return [_StepViews(*(part[step].t() for part in parts)) for step in range(CODEBOOKS)]


@dataclasses.dataclass(frozen=True, slots=True)
class _StepViews:
    """One layer's weights of one step, each [inputs, outputs]; made once, because making a view costs as much as using it."""

    in_proj: Tensor
    out_proj: Tensor
    linear_in: Tensor
    linear_out: Tensor


class DepthTransformer(nn.Module):
    """Codes of one frame, given the temporal state and its text token."""

    def __init__(self, config: LMConfig, norm: Norm = rms_norm) -> None:
        """`norm` may be a faster RMSNorm of the platform, with RMS_EPS inside the root."""
        super().__init__()
        self.config = config
        self._norm = norm
        self.inputs = _parameter(CODEBOOKS, config.depth_dim, config.dim)
        self.text_table = _parameter(config.text_card + 1, config.depth_dim)
        self.code_tables = _parameter(CODEBOOKS - 1, config.card + 1, config.depth_dim)
        self.layers = nn.ModuleList(DepthLayer(config) for _ in range(config.depth_num_layers))
        self.heads = _parameter(CODEBOOKS, config.card, config.depth_dim)
        self._views: list[list[_StepViews]] = []  # [layer][step], made by the first frame

    def forward(self, hidden: Tensor, text: Tensor, forced: Tensor, sampler: Sampler) -> Tensor:
        """Run the steps.

        Args:
            hidden: [N, dim], the temporal transformer's state after its last norm.
            text: int64 [N], the text token of the position being made.
            forced: int64 [N, CODEBOOKS]; a code of 0 or more replaces the draw, -1 leaves it.
            sampler: draws the codes of each step.

        Returns:
            int64 [N, CODEBOOKS].
        """
        count, dim = hidden.shape[0], self.config.depth_dim
        if not self._views:
            self._views = [layer.views() for layer in self._depth_layers()]
        projected = F.linear(hidden, self.inputs.flatten(0, 1)).view(count, CODEBOOKS, dim).unbind(1)
        caches = hidden.new_empty(len(self.layers), CODEBOOKS, count, 3 * dim)
        forced_codes, is_forced = forced.unbind(1), (forced >= 0).unbind(1)
        codes: list[Tensor] = []
        embedded = self.text_table[text]
        for step in range(CODEBOOKS):
            x = projected[step] + embedded
            for layer, views, cache in zip(self._depth_layers(), self._views, caches, strict=True):
                x = self._layer(layer, views[step], x, step, cache)
            drawn = sampler.draw(step, F.linear(x, self.heads[step]).float())
            codes.append(torch.where(is_forced[step], forced_codes[step], drawn))
            if step < CODEBOOKS - 1:
                embedded = self.code_tables[step][codes[-1]]
        return torch.stack(codes, dim=1)

    def _layer(self, layer: DepthLayer, weights: _StepViews, x: Tensor, step: int, cache: Tensor) -> Tensor:
        """x [N, D]; cache [CODEBOOKS, N, 3 * D] holds query, key and value of each step and is filled up to `step` by this call."""
        count, dim = x.shape
        heads = self.config.depth_num_heads
        torch.mm(self._norm(x, layer.norm1), weights.in_proj, out=cache[step])
        if step == 0:
            mixed = cache[0, :, 2 * dim :]  # one key takes all the weight
        else:
            # Plain causal attention: step s sees steps 0..s, no positions (specs: moshi-model section 5).
            query, keys, values = cache[: step + 1].view(step + 1, count, 3, heads, dim // heads).permute(2, 1, 3, 0, 4).unbind(0)
            mixed = F.scaled_dot_product_attention(query[:, :, step:], keys, values).reshape(count, dim)
        x = torch.addmm(x, mixed, weights.out_proj)
        gate, value = torch.mm(self._norm(x, layer.norm2), weights.linear_in).chunk(2, dim=-1)
        return torch.addmm(x, F.silu(gate).mul_(value), weights.linear_out)

    def _depth_layers(self) -> list[DepthLayer]:
        return cast(list[DepthLayer], list(self.layers))

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
        if self.inputs.is_cpu:
            self._lay_out()

    def _lay_out(self) -> None:
        """Keep the weights in memory as [inputs, outputs], under the same shapes: a small product on a CPU is a fifth faster that way."""
        for name, parameter in self.named_parameters():
            if parameter.dim() == 3 and name not in ("inputs", "code_tables"):
                parameter.data = parameter.data.transpose(1, 2).contiguous().transpose(1, 2)


def _parameter(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
