"""Shape of a Mimi codec: Kyutai's codec JSON as one frozen value, or the built-in full size when a checkpoint names no JSON.

Here: reading and refusing. Not here: weights. The one rule: a setting that the code does not implement is refused, never ignored.
Thread: any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from gateway.errors import ConfigError

# Settings with only one implemented value; Kyutai's files spell all of them out.
_FIXED: dict[str, dict[str, Any]] = {
    "seanet": {"channels": 1, "causal": True, "n_residual_layers": 1, "activation": "ELU", "norm": "none", "pad_mode": "constant"},
    "transformer": {"causal": True, "gating": "none", "norm": "layer_norm", "positional_embedding": "rope"},
}
_FIXED["seanet"]["true_skip"] = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MimiConfig:
    """Sizes of the codec. The defaults are the official codec's.

    Source: kyutai-labs/moshi, moshi/models/loaders.py, `_mimi_config`.

    Raises:
        ConfigError: sizes that do not fit each other.
    """

    sample_rate: int = 24000  # Hz
    frame_rate: float = 12.5  # frames per second
    ratios: tuple[int, ...] = (8, 6, 5, 4)  # strides of the decoder, first to last; the encoder's are the reverse
    num_filters: int = 64  # channels next to the waveform
    dimension: int = 512  # channels of the latent and of the transformers
    kernel_size: int = 7
    residual_kernel_size: int = 3
    last_kernel_size: int = 3
    compress: int = 2  # a residual block's hidden channels are channels / compress
    num_heads: int = 8
    num_layers: int = 8  # in each of the two transformers
    context: int = 250  # ring capacity of the transformers, positions
    max_period: float = 10000.0  # base of the rotary embedding
    hidden: int = 2048  # feed-forward width of the transformers
    codebook_dim: int = 256
    codebook_size: int = 2048  # entries
    num_codebooks: int = 32  # in the file; `load_mimi` keeps fewer
    frames: int = 1  # of one call: a conversation runs frame by frame, training whole crops

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if min(value) < 1 if isinstance(value, tuple) else not value > 0:
                raise ConfigError(f"codec configuration: {field.name} must be positive, not {value}")
        stride = self.sample_rate / self.frame_rate / math.prod(self.ratios)
        if stride != int(stride) or stride < 2:
            raise ConfigError(f"codec configuration: {self.sample_rate} Hz over {self.frame_rate} frames/s does not fit {self.ratios}")
        if self.dimension % (2 * self.num_heads):
            raise ConfigError(f"codec configuration: dimension {self.dimension} needs an even head size, not {self.num_heads} heads")
        if self.context < 2 * self.frame_positions:
            raise ConfigError(f"codec configuration: context must be {2 * self.frame_positions} or more, not {self.context}")
        if self.num_codebooks < 2:
            raise ConfigError("codec configuration: needs one semantic and at least one acoustic codebook")

    @property
    def frame_samples(self) -> int:
        """Samples of one frame (1920)."""
        return self.frame_positions * math.prod(self.ratios)

    @property
    def frame_positions(self) -> int:
        """Transformer positions of one frame (2)."""
        return round(self.sample_rate / self.frame_rate / math.prod(self.ratios))

    @property
    def call_samples(self) -> int:
        """Samples of one call."""
        return self.frames * self.frame_samples

    @property
    def call_positions(self) -> int:
        """Transformer positions of one call."""
        return self.frames * self.frame_positions

    @property
    def slot_bytes(self) -> int:
        """Memory of one conversation's streams in float32: nearly all of it is the keys and values of both transformers."""
        return 2 * self.num_layers * 2 * self.context * self.dimension * 4

    @property
    def head_dim(self) -> int:
        """Channels of one attention head (64)."""
        return self.dimension // self.num_heads

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> MimiConfig:
        """Read Kyutai's codec configuration.

        Raises:
            ConfigError: a missing key, or a value that this codec does not implement; the message names it.
        """
        try:
            seanet, transformer, quantizer = raw["seanet"], raw["transformer"], raw["quantizer"]
            for part, fixed in _FIXED.items():
                for key, only in fixed.items():
                    _require(f"{part}.{key}", raw[part].get(key, only), only)
            dimension = int(seanet["dimension"])
            _require("channels", raw["channels"], 1)
            _require("transformer.d_model", transformer["d_model"], dimension)
            for key, value in (("input_dimension", dimension), ("output_dimension", dimension)):
                _require(f"quantizer.{key}", quantizer.get(key, value), value)
            return cls(
                sample_rate=int(raw["sample_rate"]),
                frame_rate=float(raw["frame_rate"]),
                ratios=tuple(int(ratio) for ratio in seanet["ratios"]),
                num_filters=int(seanet["n_filters"]),
                dimension=dimension,
                kernel_size=int(seanet["kernel_size"]),
                residual_kernel_size=int(seanet["residual_kernel_size"]),
                last_kernel_size=int(seanet["last_kernel_size"]),
                compress=int(seanet["compress"]),
                num_heads=int(transformer["num_heads"]),
                num_layers=int(transformer["num_layers"]),
                context=int(transformer["context"]),
                max_period=float(transformer["max_period"]),
                hidden=int(transformer["dim_feedforward"]),
                codebook_dim=int(quantizer["dimension"]),
                codebook_size=int(quantizer["bins"]),
                num_codebooks=int(quantizer["n_q"]),
            )
        except KeyError as error:
            raise ConfigError(f"codec configuration: {error} is missing") from error
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"codec configuration: {error}") from error


def _require(name: str, value: Any, only: Any) -> None:
    if value != only:
        raise ConfigError(f"codec configuration: {name} must be {only!r}, not {value!r}")
