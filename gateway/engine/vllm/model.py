"""The temporal transformer as a vLLM model, with the depth transformer beside it so that vLLM accounts for its memory.

`forward` takes input embeddings (the sum of 17 streams, written by the runner) and returns states after the last norm; `compute_logits`
keeps the states of the rows it was asked for, because the depth transformer reads the same ones. Thread: tick.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config.load import LoadConfig
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.platforms import current_platform

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.layout import LMConfig
from gateway.engine.lm.depth import RMS_EPS, DepthTransformer, rms_norm
from gateway.engine.lm.weights import TensorSource, load_embeddings, load_temporal_layer, randomise

LOAD_FORMAT = "duplex_gateway"
ARCHITECTURE = "DuplexTemporalModel"


def cpu_rms_norm(x: Tensor, alpha: Tensor) -> Tensor:
    """RMSNorm by vLLM's kernel for CPUs: 4 us where torch's, made of ten operations, takes 17 (16 x 96, one EPYC core)."""
    out = torch.empty_like(x)
    torch.ops._C.rms_norm(out, x, alpha, RMS_EPS)
    return out


class TemporalNorm(RMSNorm):
    """vLLM's norm; on a CPU vLLM itself would not take its own kernel."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return cpu_rms_norm(x, self.weight.data) if x.is_cpu else super().forward(x)


def product(layer: Any, x: Tensor) -> Tensor:
    """x through one of vLLM's linear layers; on a CPU straight through its packed weights, whose products of a row do not depend on the
    number of rows (oneDNN's, measured for 1 to 160 rows on AVX-512)."""
    out: Tensor = layer.cpu_linear(x, layer.weight, None) if x.is_cpu else layer(x)[0]
    return out


class TemporalLayer(nn.Module):
    """Pre-norm attention over the slot's paged KV, inside the sliding window, and gated feed-forward."""

    def __init__(self, config: LMConfig, window: int, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.norm1 = TemporalNorm(config.dim, eps=RMS_EPS)
        self.qkv_proj = QKVParallelLinear(config.dim, config.head_dim, config.num_heads, bias=False, prefix=f"{prefix}.qkv_proj")
        # Angles and rotation in float32 whatever the run dtype (specs: moshi-model section 4).
        self.rotary = get_rope(
            config.head_dim,
            max_position=vllm_config.model_config.max_model_len,
            is_neox_style=False,
            rope_parameters={"rope_type": "default", "rope_theta": float(config.max_period)},
            dtype=torch.float32,
        )
        self.attention = Attention(
            config.num_heads,
            config.head_dim,
            config.head_dim**-0.5,
            num_kv_heads=config.num_heads,
            cache_config=vllm_config.cache_config,
            per_layer_sliding_window=window,
            prefix=f"{prefix}.attention",
        )
        self.attention.use_direct_call = True  # vLLM's custom operators serve torch.compile, which this model never sees
        self.o_proj = RowParallelLinear(config.dim, config.dim, bias=False, prefix=f"{prefix}.o_proj")
        self.norm2 = TemporalNorm(config.dim, eps=RMS_EPS)
        self.gate_up = MergedColumnParallelLinear(config.dim, [config.hidden] * 2, bias=False, prefix=f"{prefix}.gate_up")
        self.act = SiluAndMul()
        self.down = RowParallelLinear(config.hidden, config.dim, bias=False, prefix=f"{prefix}.down")

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        query, key, value = product(self.qkv_proj, self.norm1(x)).chunk(3, dim=-1)
        query, key = self.rotary(positions, query.float().contiguous(), key.float().contiguous())
        mixed = self.attention(query.to(x.dtype), key.to(x.dtype), value)
        x = x + product(self.o_proj, mixed)
        return x + product(self.down, self.act(product(self.gate_up, self.norm2(x))))

    def parts(self) -> dict[str, Tensor]:
        """The tensors of this layer under the names of lm.weights.load_temporal_layer."""
        return {
            "in_proj": self.qkv_proj.weight,
            "out_proj": self.o_proj.weight,
            "norm1": self.norm1.weight,
            "norm2": self.norm2.weight,
            "linear_in": self.gate_up.weight,
            "linear_out": self.down.weight,
        }


class DuplexTemporalModel(nn.Module):
    """vLLM's view of a Moshi-class language model."""

    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__()
        checkpoint: Checkpoint = vllm_config.additional_config["checkpoint"]
        self.checkpoint = checkpoint
        config = self.config = checkpoint.lm
        self.embeddings = nn.Parameter(torch.empty(config.table_rows, config.dim), requires_grad=False)
        self.layers = nn.ModuleList(
            TemporalLayer(config, checkpoint.profile.window, vllm_config, f"{prefix}layers.{index}") for index in range(config.num_layers)
        )
        self.out_norm = TemporalNorm(config.dim, eps=RMS_EPS)
        self.text_linear = ReplicatedLinear(config.dim, config.text_card, bias=False, prefix=f"{prefix}text_linear")
        self.depth = DepthTransformer(config, cpu_rms_norm if current_platform.is_cpu() else rms_norm)
        self.last_hidden: Tensor | None = None

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Unused by a call (the runner writes every embedding); vLLM asks for it when it profiles."""
        return self.embeddings[input_ids]

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        assert inputs_embeds is not None, "this model reads embeddings only"
        x = inputs_embeds
        for layer in self.layers:
            x = layer(positions, x)
        normed: Tensor = self.out_norm(x)
        return normed

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Text logits [N, text_card] of the given states, which the depth transformer will read."""
        self.last_hidden = hidden_states
        return product(self.text_linear, hidden_states)

    def load(self) -> None:
        """Fill every weight from the checkpoint, or with noise when it has no file.

        Raises:
            ConfigError: a tensor is missing or misshapen.
        """
        if self.checkpoint.weights is None:
            randomise(self.named_parameters())
            return
        with TensorSource.open(self.checkpoint.weights) as source:
            load_embeddings(source, self.embeddings, self.config)
            for index, layer in enumerate(self.layers):
                load_temporal_layer(source, index, cast(TemporalLayer, layer).parts())
            source.read(self.out_norm.weight, "out_norm.alpha")
            source.read(self.text_linear.weight, "text_linear.weight")
            self.depth.load(source)


@register_model_loader(LOAD_FORMAT)
class CheckpointLoader(BaseModelLoader):
    """Hands loading to the model, which knows the official file."""

    def __init__(self, load_config: LoadConfig) -> None:
        super().__init__(load_config)

    def download_model(self, model_config: Any) -> None:
        """Nothing to do: engine.checkpoint has found the files."""

    def load_weights(self, model: nn.Module, model_config: Any) -> None:
        """Fill the weights in place."""
        assert isinstance(model, DuplexTemporalModel)
        with torch.no_grad():
            model.load()
