"""The temporal transformer as a vLLM model, with the depth transformer beside it so that vLLM accounts for its memory.

`forward` takes input embeddings (the sum of 17 streams, written by the runner) and returns states after the last norm; `compute_logits`
keeps the states of the rows it was asked for, because the depth transformer reads the same ones. Thread: tick.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.config.load import LoadConfig
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.activation import SiluAndMul
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.layernorm import RMSNorm
from vllm.model_executor.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, ReplicatedLinear, RowParallelLinear
from vllm.model_executor.layers.rotary_embedding import get_rope
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader
from vllm.platforms import current_platform

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.graphs import trace
from gateway.engine.layout import LMConfig
from gateway.engine.lm.depth import RMS_EPS, DepthTransformer, rms_norm
from gateway.engine.lm.weights import TensorSource, load_embeddings, load_temporal_layer, randomise

LOAD_FORMAT = "duplex_gateway"
ARCHITECTURE = "DuplexTemporalModel"

PACKED_ROWS = 32  # number of rows that oneDNN is to pack weights for, as vLLM has it

_CPU_EPS = torch.tensor(RMS_EPS)
# Of vLLM's attention metadata: the tensors of a step.
_STEP_TENSORS = ("query_start_loc", "seq_lens", "block_table", "slot_mapping", "scheduler_metadata")


def cpu_rms_norm(x: Tensor, alpha: Tensor) -> Tensor:
    """RMSNorm in five operations: 6 us where torch's own takes 15 (float32 16 x 96, traced, one EPYC core)."""
    if x.dtype != torch.float32:
        return rms_norm(x, alpha)
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return (x * torch.addcmul(_CPU_EPS, norm, norm, value=1 / len(alpha)).rsqrt_()).mul_(alpha)


class TemporalNorm(RMSNorm):
    """vLLM's norm; on a CPU one that can be traced."""

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

    @property
    def products(self) -> tuple[Any, ...]:
        """The linear layers in the order of a pass."""
        return self.qkv_proj, self.o_proj, self.gate_up, self.down

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


class TracedPass:
    """The temporal forward pass of a CPU, in float32, as one TorchScript call.

    Called one by one from Python its two hundred operations each give the interpreter's lock away and wait for it again. The weights are
    packed by oneDNN under PyTorch's name for what vLLM's own operator does, bit for bit the same, because PyTorch cannot trace the other;
    attention stays vLLM's, with this step's metadata and the caches as arguments of the trace.
    """

    def __init__(self, model: DuplexTemporalModel, metadata: dict[str, Any]) -> None:
        """Take the weights of the model's layers over, and trace nothing yet; `metadata` is of any step."""
        self._layers = [cast(TemporalLayer, layer) for layer in model.layers]
        self._out_norm = model.out_norm
        self._metadata = metadata[self._layers[0].attention.layer_name]
        assert all(metadata[layer.attention.layer_name] is self._metadata for layer in self._layers), "one group of caches"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as in graphs.trace
            self._product = torch.jit.script(_packed_product)
        packed = []
        for linear in (linear for layer in self._layers for linear in layer.products):
            packed.append(torch.ops.mkldnn._reorder_linear_weight(linear.weight.data, PACKED_ROWS))
            linear.weight = nn.Parameter(linear.weight.new_empty(0), requires_grad=False)
        self._state = (*(layer.attention.kv_cache for layer in self._layers), *packed)
        self._script: Callable[..., Tensor] | None = None

    def __call__(self, embeds: Tensor, positions: Tensor, metadata: dict[str, Any]) -> Tensor:
        """Return states after the last norm [N, dim] for embeddings [N, dim] at int64 [N] positions."""
        step = metadata[self._layers[0].attention.layer_name]
        arguments = (*self._state, embeds, positions, *(getattr(step, name) for name in _STEP_TENSORS))
        if self._script is None:
            self._script = trace(self._run, arguments)  # writes to the caches what the call below writes again
        return self._script(*arguments)

    def _run(self, *arguments: Tensor) -> Tensor:
        layers = self._layers
        caches, packed = arguments[: len(layers)], iter(arguments[len(layers) : 5 * len(layers)])
        x, positions, *tensors = arguments[5 * len(layers) :]
        step = dataclasses.replace(self._metadata, num_actual_tokens=x.shape[0], **dict(zip(_STEP_TENSORS, tensors, strict=True)))
        cosine, sine = layers[0].rotary.cos_sin_cache.index_select(0, positions).chunk(2, dim=-1)
        rotation = torch.complex(cosine, sine)[:, None, None]  # [N, 1, 1, head_dim / 2]
        for layer, cache in zip(layers, caches, strict=True):
            attention = layer.attention
            qkv = self._product(layer.norm1(x), next(packed)).view(-1, 3, attention.num_heads, attention.head_size)
            pairs = qkv.view(-1, 3, attention.num_heads, attention.head_size // 2, 2)
            torch.view_as_complex(pairs[:, :2]).mul_(rotation)  # rotates q and k where they lie
            query, key, value = qkv.unbind(1)
            mixed = torch.empty_like(query, memory_format=torch.contiguous_format)
            attention.impl.do_kv_cache_update(attention, key, value, cache, step.slot_mapping)
            attention.impl.forward(attention, query, key, value, cache, step, mixed)
            x = x + self._product(mixed.flatten(1), next(packed))
            gate, up = self._product(layer.norm2(x), next(packed)).chunk(2, dim=-1)
            x = x + self._product(torch.nn.functional.silu(gate).mul_(up), next(packed))
        return cast(Tensor, self._out_norm(x))


def _packed_product(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], None)
    return out


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
        self._is_traced = current_platform.is_cpu() and vllm_config.model_config.dtype == torch.float32
        self._trace: TracedPass | None = None  # made by the first pass, which knows vLLM's cache
        if self._is_traced:
            for layer in self.layers:
                for linear in cast(TemporalLayer, layer).products:
                    linear._cpu_skip_gemm_dispatch = True  # vLLM's packed weights cannot be traced: TracedPass packs them

    def embed_input_ids(self, input_ids: Tensor) -> Tensor:
        """Unused by a call (the runner writes every embedding); vLLM asks for it when it profiles."""
        return self.embeddings[input_ids]

    def forward(
        self, input_ids: Tensor | None, positions: Tensor, intermediate_tensors: Any = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        assert inputs_embeds is not None, "this model reads embeddings only"
        metadata = get_forward_context().attn_metadata if self._is_traced else None
        if metadata is not None:
            self._trace = self._trace or TracedPass(self, cast(dict[str, Any], metadata))
            return self._trace(inputs_embeds, positions, cast(dict[str, Any], metadata))
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
