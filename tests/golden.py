"""Closed-form weights for the numeric tests: every value follows from its tensor's name and index, so no file has to be stored.

Here: the generator, the tensor tables of the LM and of the codec, and writers of complete checkpoint folders in the official layout.
Not here: golden outputs (each test keeps its own) and any model code; numpy and safetensors only. The one rule: names and shapes are
those of the official files, written down independently of the loaders that they test. Thread: any.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

Shapes = dict[str, tuple[int, ...]]
Kind = Literal["lm", "codec"]

LM_FILE = "model.safetensors"
MIMI_FILE = "mimi.safetensors"
MIMI_CONFIG_FILE = "mimi.json"
CONTEXT = 12  # frames: capacity of the temporal ring of both golden LMs

# The two golden LMs. A2 has heads of 16, which vLLM's CPU attention refuses; A4 has heads of 32.
A2 = {
    "dim": 64,
    "heads": 4,
    "layers": 2,
    "hidden": 176,
    "text_card": 320,
    "card": 2048,
    "depth_dim": 32,
    "depth_heads": 4,
    "depth_layers": 2,
    "depth_hidden": 88,
}
A4 = {
    "dim": 128,
    "heads": 4,
    "layers": 2,
    "hidden": 352,
    "text_card": 320,
    "card": 2048,
    "depth_dim": 64,
    "depth_heads": 2,
    "depth_layers": 2,
    "depth_hidden": 176,
}


# -- Generator -------------------------------------------------------------------------------------------------------------------------


def golden_uniform(name: str, size: int) -> NDArray[np.float64]:
    """Return float64 [size] in [0, 1): a 32-bit mix of index plus crc32 of the name."""
    x = np.arange(size, dtype=np.uint64) + np.uint64(zlib.crc32(name.encode()))
    x &= np.uint64(0xFFFFFFFF)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x ^= x >> np.uint64(shift)
        x = (x * np.uint64(factor)) & np.uint64(0xFFFFFFFF)
    x ^= x >> np.uint64(16)
    return x.astype(np.float64) / 2.0**32


def golden_tensor(name: str, shape: tuple[int, ...], kind: Kind) -> NDArray[np.float32]:
    """Return the golden value of one tensor, float32 of `shape`."""
    u = golden_uniform(name, math.prod(shape))
    value = _lm_value(name, shape, u) if kind == "lm" else _codec_value(name, shape, u)
    return value.astype(np.float32).reshape(shape)


def _lm_value(name: str, shape: tuple[int, ...], u: NDArray[np.float64]) -> NDArray[np.float64]:
    s = 2 * u - 1
    if name.endswith("alpha"):
        return 1 + 0.2 * s
    if name.startswith(("emb.", "text_emb.", "depformer_emb.", "depformer_text_emb.")):
        return 0.5 * s
    return 2 * s / math.sqrt(shape[1])


def _codec_value(name: str, shape: tuple[int, ...], u: NDArray[np.float64]) -> NDArray[np.float64]:
    s = 2 * u - 1
    if name.endswith("_initialized"):
        return np.ones_like(u)
    if name.endswith("cluster_usage"):
        return 1 + u
    if name.endswith("embedding_sum"):
        return 0.6 * s
    if ".norm1." in name or ".norm2." in name:
        return 1 + 0.2 * s if name.endswith("weight") else 0.05 * s
    if name.endswith(".scale"):
        return 0.5 + 0.2 * s
    if name.endswith("bias"):
        return 0.05 * s
    if "convtr" in name:
        inputs = 1 if name.startswith("upsample.") else shape[0]  # the upsampler is depth-wise
        return 1.7 * s / math.sqrt(inputs * shape[2] / 2)
    return 1.7 * s / math.sqrt(math.prod(shape[1:]))


# -- LM --------------------------------------------------------------------------------------------------------------------------------


def lm_shapes(
    dim: int,
    heads: int,
    layers: int,
    hidden: int,
    text_card: int,
    card: int,
    depth_dim: int,
    depth_layers: int,
    depth_hidden: int,
    steps: int,
    n_q: int = 16,
    depth_heads: int = 1,
) -> Shapes:
    """Return every tensor of an LM file. Heads change no shape; they are taken so that `lm_shapes(**A2, steps=16)` reads well."""
    assert dim % heads == 0
    assert depth_dim % depth_heads == 0
    shapes: Shapes = {f"emb.{k}.weight": (card + 1, dim) for k in range(n_q)}
    shapes |= {"text_emb.weight": (text_card + 1, dim), "out_norm.alpha": (1, 1, dim), "text_linear.weight": (text_card, dim)}
    for layer in range(layers):
        prefix = f"transformer.layers.{layer}."
        shapes |= _attention_shapes(prefix, dim, 1)
        shapes |= _gating_shapes(f"{prefix}gating.", dim, hidden)
    for layer in range(depth_layers):
        prefix = f"depformer.layers.{layer}."
        shapes |= _attention_shapes(prefix, depth_dim, steps)
        for step in range(steps):
            shapes |= _gating_shapes(f"{prefix}gating.{step}.", depth_dim, depth_hidden)
    shapes["depformer_text_emb.weight"] = (text_card + 1, depth_dim)
    shapes |= {f"depformer_emb.{step}.weight": (card + 1, depth_dim) for step in range(steps - 1)}
    shapes |= {f"depformer_in.{step}.weight": (depth_dim, dim) for step in range(steps)}
    shapes |= {f"linears.{step}.weight": (card, depth_dim) for step in range(steps)}
    return shapes


def _attention_shapes(prefix: str, dim: int, steps: int) -> Shapes:
    return {
        f"{prefix}self_attn.in_proj_weight": (steps * 3 * dim, dim),
        f"{prefix}self_attn.out_proj.weight": (steps * dim, dim),
        f"{prefix}norm1.alpha": (1, 1, dim),
        f"{prefix}norm2.alpha": (1, 1, dim),
    }


def _gating_shapes(prefix: str, dim: int, hidden: int) -> Shapes:
    return {f"{prefix}linear_in.weight": (2 * hidden, dim), f"{prefix}linear_out.weight": (dim, hidden)}


def lm_config(
    dim: int,
    heads: int,
    layers: int,
    hidden: int,
    text_card: int,
    card: int,
    depth_dim: int,
    depth_layers: int,
    depth_hidden: int,
    steps: int,
    n_q: int = 16,
    depth_heads: int = 1,
    context: int = CONTEXT,
) -> dict[str, Any]:
    """Return Kyutai's flat `config.json` for such an LM, with greedy sampling as its default."""
    assert 2 * int(4.125 * dim) // 3 == hidden, "hidden must be what hidden_scale 4.125 gives"
    assert 2 * int(4.125 * depth_dim) // 3 == depth_hidden
    half = [0] + [1] * (n_q // 2 - 1)
    return {
        "dim": dim,
        "text_card": text_card,
        "existing_text_padding_id": 3,
        "n_q": n_q,
        "dep_q": steps,
        "card": card,
        "num_heads": heads,
        "num_layers": layers,
        "hidden_scale": 4.125,
        "causal": True,
        "layer_scale": None,
        "context": context,
        "max_period": 10000,
        "gating": "silu",
        "norm": "rms_norm_f32",
        "positional_embedding": "rope",
        "depformer_dim": depth_dim,
        "depformer_dim_feedforward": int(4.125 * depth_dim),
        "depformer_num_heads": depth_heads,
        "depformer_num_layers": depth_layers,
        "depformer_layer_scale": None,
        "depformer_multi_linear": True,
        "depformer_context": 8,
        "depformer_max_period": 10000,
        "depformer_gating": "silu",
        "depformer_pos_emb": "none",
        "depformer_weights_per_step": True,
        "delays": [0, *half, *half],
        "moshi_name": LM_FILE,
        "mimi_name": MIMI_FILE,
        "mimi_config_name": MIMI_CONFIG_FILE,
        "tokenizer_name": "tokenizer.model",
        "model_type": "moshi",
        "lm_gen_config": {"temp": 0.0, "temp_text": 0.0, "top_k": 250, "top_k_text": 25},
    }


def golden_lm_weights(shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return every tensor of `shapes` by the LM rule."""
    return {name: golden_tensor(name, shape, "lm") for name, shape in shapes.items()}


def write_lm(folder: Path, params: Mapping[str, int], steps: int) -> Path:
    """Write `config.json` and the LM file of a golden LM (fp32) into `folder` and return it.

    The configuration names a codec and a tokenizer; `write_mimi` adds the first, the second is the caller's.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(lm_config(**params, steps=steps), indent=1))
    save_file(golden_lm_weights(lm_shapes(**params, steps=steps)), folder / LM_FILE)
    return folder


# -- Codec -----------------------------------------------------------------------------------------------------------------------------


def mimi_config(
    *,
    n_filters: int = 4,
    dimension: int = 32,
    heads: int = 4,
    layers: int = 2,
    hidden: int = 64,
    context: int = 10,
    codebook_dim: int = 16,
    bins: int = 64,
    n_q: int = 8,
) -> dict[str, Any]:
    """Return Kyutai's codec configuration of the golden codec; `bins=2048` makes one that fits the golden LMs."""
    seanet = {"channels": 1, "dimension": dimension, "causal": True, "n_filters": n_filters, "n_residual_layers": 1, "activation": "ELU"}
    seanet |= {"compress": 2, "dilation_base": 2, "kernel_size": 7, "residual_kernel_size": 3, "last_kernel_size": 3, "norm": "none"}
    seanet |= {"pad_mode": "constant", "ratios": [8, 6, 5, 4], "true_skip": True}
    transformer = {"d_model": dimension, "num_heads": heads, "num_layers": layers, "causal": True, "layer_scale": 0.01, "context": context}
    transformer |= {"conv_layout": True, "max_period": 10000, "gating": "none", "norm": "layer_norm", "positional_embedding": "rope"}
    transformer |= {"dim_feedforward": hidden, "input_dimension": dimension, "output_dimensions": [dimension]}
    quantizer = {"dimension": codebook_dim, "n_q": n_q, "bins": bins, "input_dimension": dimension, "output_dimension": dimension}
    top = {"sample_rate": 24000, "channels": 1, "frame_rate": 12.5}
    return {**top, "seanet": seanet, "transformer": transformer, "quantizer": quantizer}


def codec_shapes(config: Mapping[str, Any]) -> Shapes:
    """Return every tensor of a codec file for Kyutai's codec configuration."""
    dim, filters = config["seanet"]["dimension"], config["seanet"]["n_filters"]
    wide = filters * 16
    shapes: Shapes = {}
    shapes |= _conv("encoder.model.0.conv.conv", 1, filters, 7)
    for i, stride in enumerate((4, 5, 6, 8)):
        channels = filters << i
        shapes |= _residual(f"encoder.model.{3 * i + 1}", channels)
        shapes |= _conv(f"encoder.model.{3 * i + 3}.conv.conv", channels, 2 * channels, 2 * stride)
    shapes |= _conv("encoder.model.14.conv.conv", wide, dim, 3)
    shapes |= _conv("decoder.model.0.conv.conv", dim, wide, 7)
    for i, stride in enumerate((8, 6, 5, 4)):
        channels = wide >> (i + 1)
        prefix = f"decoder.model.{3 * i + 2}.convtr.convtr"
        shapes |= {f"{prefix}.weight": (2 * channels, channels, 2 * stride), f"{prefix}.bias": (channels,)}
        shapes |= _residual(f"decoder.model.{3 * i + 3}", channels)
    shapes |= _conv("decoder.model.14.conv.conv", filters, 1, 3)
    shapes["downsample.conv.conv.conv.weight"] = (dim, dim, 4)
    shapes["upsample.convtr.convtr.convtr.weight"] = (dim, 1, 4)
    hidden = config["transformer"]["dim_feedforward"]
    for side in ("encoder", "decoder"):
        for layer in range(config["transformer"]["num_layers"]):
            shapes |= _codec_layer(f"{side}_transformer.transformer.layers.{layer}.", dim, hidden)
    return shapes | _codebook_shapes(config, dim)


def _conv(prefix: str, inputs: int, outputs: int, kernel: int) -> Shapes:
    return {f"{prefix}.weight": (outputs, inputs, kernel), f"{prefix}.bias": (outputs,)}


def _residual(prefix: str, channels: int) -> Shapes:
    return _conv(f"{prefix}.block.1.conv.conv", channels, channels // 2, 3) | _conv(
        f"{prefix}.block.3.conv.conv", channels // 2, channels, 1
    )


def _codec_layer(prefix: str, dim: int, hidden: int) -> Shapes:
    shapes: Shapes = {f"{prefix}self_attn.in_proj_weight": (3 * dim, dim), f"{prefix}self_attn.out_proj.weight": (dim, dim)}
    for i in (1, 2):
        shapes |= {f"{prefix}norm{i}.weight": (dim,), f"{prefix}norm{i}.bias": (dim,), f"{prefix}layer_scale_{i}.scale": (dim,)}
    return shapes | {f"{prefix}linear1.weight": (hidden, dim), f"{prefix}linear2.weight": (dim, hidden)}


def _codebook_shapes(config: Mapping[str, Any], dim: int) -> Shapes:
    width, bins, n_q = (config["quantizer"][key] for key in ("dimension", "bins", "n_q"))
    shapes: Shapes = {}
    for part, count in (("first", 1), ("rest", n_q - 1)):
        prefix = f"quantizer.rvq_{part}."
        shapes |= {f"{prefix}input_proj.weight": (width, dim, 1), f"{prefix}output_proj.weight": (dim, width, 1)}
        for i in range(count):
            book = f"{prefix}vq.layers.{i}._codebook."
            shapes |= {f"{book}embedding_sum": (bins, width), f"{book}cluster_usage": (bins,), f"{book}_initialized": (1,)}
    return shapes


def golden_codec_weights(config: Mapping[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Return every tensor of the codec by the codec rule."""
    return {name: golden_tensor(name, shape, "codec") for name, shape in codec_shapes(config).items()}


def write_mimi(folder: Path, config: Mapping[str, Any] | None = None) -> Path:
    """Write `mimi.json` and the codec file (fp32) into `folder` and return it; without `config`, the golden codec of 64 entries."""
    folder.mkdir(parents=True, exist_ok=True)
    config = mimi_config() if config is None else config
    (folder / MIMI_CONFIG_FILE).write_text(json.dumps(config, indent=1))
    save_file(golden_codec_weights(config), folder / MIMI_FILE)
    return folder
