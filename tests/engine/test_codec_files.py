"""Codec files and configurations: every spelling that is in use loads, everything else is refused with the tensor or key named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from gateway.engine.codec import Mimi, MimiConfig, load_mimi
from gateway.errors import ConfigError

CONFIG = golden.mimi_config()
FULL = golden.mimi_config(
    n_filters=64, dimension=512, heads=8, layers=8, hidden=2048, context=250, codebook_dim=256, bins=2048, n_q=32
)  # the official codec
Weights = dict[str, np.ndarray]


def load(folder: Path, weights: Weights | None = None, config: MimiConfig | None = None) -> Mimi:
    """Load the golden codec, or other weights in its place."""
    golden.write_mimi(folder)
    path = folder / golden.MIMI_FILE
    if weights is not None:
        save_file(weights, path)
    return load_mimi(path, config or MimiConfig.from_json(CONFIG), num_slots=1, window="moshi")


def outputs(mimi: Mimi) -> tuple[torch.Tensor, torch.Tensor]:
    pcm = torch.from_numpy(golden.golden_uniform("pcm", 1920).astype(np.float32))[None] - 0.5
    mask = torch.tensor([True])
    codes = mimi.encode(pcm, mask)
    return codes, mimi.decode(codes, mask)


RENAMED = {
    "split": {".in_proj_weight": ".in_projs.0.weight", ".out_proj.weight": ".out_projs.0.weight"},
    "module": {".in_proj_weight": ".in_proj.weight"},
    "old sum": {"._initialized": ".inited", ".cluster_usage": ".cluster_size", ".embedding_sum": ".embed_sum"},
    "old avg": {"._initialized": ".inited", ".cluster_usage": ".cluster_size", ".embedding_sum": ".embed_avg"},
}


@pytest.mark.parametrize("ends", RENAMED.values(), ids=RENAMED)
def test_other_spellings_load_to_the_same_codec(tmp_path: Path, ends: dict[str, str]) -> None:
    renamed = {}
    for name, value in golden.golden_codec_weights(CONFIG).items():
        end = next((end for end in ends if name.endswith(end)), "")
        renamed[name.removesuffix(end) + ends.get(end, "")] = value
    assert len(renamed.keys() - golden.codec_shapes(CONFIG).keys()) > 3
    for a, b in zip(outputs(load(tmp_path, renamed)), outputs(load(tmp_path)), strict=True):
        assert torch.equal(a, b)


def test_half_precision_file_is_cast_up_before_use(tmp_path: Path) -> None:
    half = {name: value.astype(np.float16) for name, value in golden.golden_codec_weights(CONFIG).items()}
    single = {name: value.astype(np.float32) for name, value in half.items()}
    for a, b in zip(outputs(load(tmp_path, half)), outputs(load(tmp_path, single)), strict=True):
        assert torch.equal(a, b)


def test_surplus_codebooks_are_not_needed_and_missing_ones_are(tmp_path: Path) -> None:
    weights = golden.golden_codec_weights(CONFIG)
    config = MimiConfig.from_json({**CONFIG, "quantizer": {**CONFIG["quantizer"], "n_q": 32}})
    assert load(tmp_path, weights, config).num_codebooks == 8
    golden.write_mimi(tmp_path)
    with pytest.raises(ConfigError, match="2 to 8 for this codec, not 9"):
        load_mimi(tmp_path / golden.MIMI_FILE, MimiConfig.from_json(CONFIG), num_slots=1, num_codebooks=9, window="moshi")


NEEDED = [  # one of each kind
    "encoder.model.0.conv.conv.weight",
    "encoder.model.10.block.3.conv.conv.bias",
    "decoder.model.11.convtr.convtr.weight",
    "decoder.model.2.convtr.convtr.bias",
    "encoder_transformer.transformer.layers.1.self_attn.in_proj_weight",
    "decoder_transformer.transformer.layers.0.self_attn.out_proj.weight",
    "decoder_transformer.transformer.layers.1.norm2.bias",
    "encoder_transformer.transformer.layers.0.layer_scale_1.scale",
    "quantizer.rvq_first.input_proj.weight",
    "quantizer.rvq_rest.vq.layers.6._codebook.cluster_usage",
    "quantizer.rvq_first.vq.layers.0._codebook.embedding_sum",
    "downsample.conv.conv.conv.weight",
    "upsample.convtr.convtr.convtr.weight",
]


@pytest.mark.parametrize("name", NEEDED)
def test_a_missing_tensor_is_named(tmp_path: Path, name: str) -> None:
    weights = golden.golden_codec_weights(CONFIG)
    del weights[name]
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, weights)
    shape = str(list(golden.codec_shapes(CONFIG)[name]))
    assert all(part in str(caught.value) for part in (golden.MIMI_FILE, name, "missing", shape))


def test_a_misshapen_tensor_is_named_with_both_shapes(tmp_path: Path) -> None:
    weights = golden.golden_codec_weights(CONFIG)
    name = "decoder.model.8.convtr.convtr.weight"
    weights[name] = np.zeros((3, 5), np.float32)
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, weights)
    assert all(part in str(caught.value) for part in (golden.MIMI_FILE, name, "[16, 8, 10]", "[3, 5]"))


def test_integers_in_place_of_weights_are_refused(tmp_path: Path) -> None:
    weights: Any = golden.golden_codec_weights(CONFIG)
    weights["encoder.model.0.conv.conv.bias"] = np.zeros(4, np.int32)
    with pytest.raises(ConfigError, match=r"encoder\.model\.0\.conv\.conv\.bias must be floating point"):
        load(tmp_path, weights)


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    config = MimiConfig.from_json(CONFIG)
    for content in (None, b"", b"not safetensors at all", b"\x08\0\0\0\0\0\0\0{bad json"):
        path = tmp_path / "codec.safetensors"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"codec\.safetensors: not a readable safetensors file"):
            load_mimi(path, config, num_slots=1, window="moshi")


def test_the_default_is_the_official_size_and_asks_for_the_official_tensors() -> None:
    table = golden.codec_shapes(FULL)
    assert len(table) == 318
    assert MimiConfig.from_json(FULL) == MimiConfig()
    assert (MimiConfig().frame_samples, MimiConfig().frame_positions, MimiConfig().head_dim) == (1920, 2, 64)
    asked: dict[str, tuple[int, ...]] = {}

    def take(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        asked[name] = shape
        return torch.ones(1).expand(shape)

    mimi = Mimi(take, MimiConfig(), num_slots=0, window="moshi")
    assert asked.items() <= table.items()
    unused = {name for name in table.keys() - asked.keys() if not name.endswith("_initialized")}
    assert unused == {name for name in table if ".rvq_rest.vq.layers." in name and int(name.split(".")[4]) >= 7} - {
        name for name in table if name.endswith("_initialized")
    }
    state = mimi.new_streams(0, mimi.encoder.carry_width + mimi.decoder.carry_width)  # the scratch slot alone: one encoder's rings
    assert state.ring.numel() == 8 * 2 * 8 * 250 * 64  # specs/moshi-model.md section 11.3


BAD_CONFIGS: list[tuple[str, dict[str, Any], str]] = [
    ("seanet", {"norm": "weight_norm"}, r"seanet\.norm must be 'none', not 'weight_norm'"),
    ("seanet", {"n_residual_layers": 3}, r"seanet\.n_residual_layers must be 1"),
    ("seanet", {"ratios": [8, 6, 5, 7]}, "does not fit"),
    ("seanet", {"ratios": 8}, "codec configuration"),
    ("seanet", {"n_filters": 0}, "num_filters must be positive"),
    ("transformer", {"positional_embedding": "sin"}, r"transformer\.positional_embedding must be 'rope'"),
    ("transformer", {"d_model": 64}, r"transformer\.d_model must be 32"),
    ("transformer", {"num_heads": 32}, "even head size"),
    ("transformer", {"context": 3}, "context must be 4 or more"),
    ("quantizer", {"n_q": 1}, "one acoustic codebook"),
    ("quantizer", {"bins": "many"}, "many"),
    ("quantizer", {"input_dimension": 99}, r"quantizer\.input_dimension must be 32"),
]


@pytest.mark.parametrize(("part", "change", "message"), BAD_CONFIGS)
def test_a_configuration_that_is_not_implemented_is_refused(part: str, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MimiConfig.from_json({**CONFIG, part: {**CONFIG[part], **change}})


def test_a_missing_key_is_named() -> None:
    for part, key in (("seanet", "n_filters"), ("transformer", "context"), ("quantizer", "bins")):
        raw = {**CONFIG, part: {name: value for name, value in CONFIG[part].items() if name != key}}
        with pytest.raises(ConfigError, match=f"'{key}' is missing"):
            MimiConfig.from_json(raw)


def test_arguments_that_cannot_be_served_are_refused(tmp_path: Path) -> None:
    golden.write_mimi(tmp_path)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"window": "kyutai"}, "moshi or personaplex, not 'kyutai'"),
        ({"dtype": torch.bfloat16}, "float32, not torch.bfloat16"),
        ({"num_codebooks": 1}, "2 to 8 for this codec, not 1"),
    ]
    for arguments, message in wrong:
        with pytest.raises(ConfigError, match=message):
            load_mimi(tmp_path / golden.MIMI_FILE, MimiConfig.from_json(CONFIG), **{"num_slots": 1, "window": "moshi", **arguments})
