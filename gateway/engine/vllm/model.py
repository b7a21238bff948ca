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
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.layout import LMConfig
from gateway.engine.lm.depth import RMS_EPS, DepthTransformer
from gateway.engine.lm.weights import TensorSource, load_embeddings, load_temporal_layer, randomise

LOAD_FORMAT = "duplex_gateway"
ARCHITECTURE = "DuplexTemporalModel"


class TemporalAttention(nn.Module):
    """Multi-head attention over the slot's paged KV, inside the sliding window."""

    def __init__(self, config: LMConfig, window: int, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.qkv_proj = QKVParallelLinear(config.dim, config.head_dim, config.num_heads, bias=False, prefix=f"{prefix}.qkv_proj")
        self.o_proj = RowParallelLinear(config.dim, config.dim, bias=False, prefix=f"{prefix}.o_proj")
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

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        qkv, _ = self.qkv_proj(x)
        query, key, value = qkv.chunk(3, dim=-1)
        query, key = self.rotary(positions, query.float().contiguous(), key.float().contiguous())
        mixed = self.attention(query.to(x.dtype), key.to(x.dtype), value)
        out, _ = self.o_proj(mixed)
        return out


class TemporalLayer(nn.Module):
    """Pre-norm attention and gated feed-forward."""

    def __init__(self, config: LMConfig, window: int, vllm_config: VllmConfig, prefix: str) -> None:
        super().__init__()
        self.norm1 = RMSNorm(config.dim, eps=RMS_EPS)
        self.attention = TemporalAttention(config, window, vllm_config, prefix)
        self.norm2 = RMSNorm(config.dim, eps=RMS_EPS)
        self.gate_up = MergedColumnParallelLinear(config.dim, [config.hidden] * 2, bias=False, prefix=f"{prefix}.gate_up")
        self.act = SiluAndMul()
        self.down = RowParallelLinear(config.hidden, config.dim, bias=False, prefix=f"{prefix}.down")

    def forward(self, positions: Tensor, x: Tensor) -> Tensor:
        x = x + self.attention(positions, self.norm1(x))
        gated, _ = self.gate_up(self.norm2(x))
        out, _ = self.down(self.act(gated))
        return x + out

    def parts(self) -> dict[str, Tensor]:
        """The tensors of this layer under the names of lm.weights.load_temporal_layer."""
        return {
            "in_proj": self.attention.qkv_proj.weight,
            "out_proj": self.attention.o_proj.weight,
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
        self.out_norm = RMSNorm(config.dim, eps=RMS_EPS)
        self.text_linear = nn.Parameter(torch.empty(config.text_card, config.dim), requires_grad=False)
        self.depth = DepthTransformer(config)
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
        return self.out_norm(x)

    def compute_logits(self, hidden_states: Tensor) -> Tensor:
        """Text logits [N, text_card] of the given states, which the depth transformer will read."""
        self.last_hidden = hidden_states
        return nn.functional.linear(hidden_states, self.text_linear)

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
            source.read(self.text_linear, "text_linear.weight")
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
