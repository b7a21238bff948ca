"""Where the codec's tensors come from: an official safetensors file, or random numbers of the same shapes.

Here: spellings, shape checks, errors that name the tensor. Not here: what a tensor is for. The one rule: a layer asks for a tensor by its
official name and shape and gets exactly that, in float32, or a ConfigError. Thread: any.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gateway.errors import ConfigError

# Name and shape in, float32 tensor on the CPU out.
TakeTensor = Callable[[str, tuple[int, ...]], Tensor]

# Ends of official names and how other exports spell them (specs/moshi-model.md section 11.2).
_SPELLINGS = {
    ".in_proj_weight": (".in_projs.0.weight", ".in_proj.weight"),
    ".out_proj.weight": (".out_projs.0.weight",),
    ".cluster_usage": (".cluster_size",),
    ".embedding_sum": (".embed_sum", ".embed_avg"),
}


class WeightFile:
    """An open codec file; `take` is a TakeTensor.

    Raises:
        ConfigError: no such file, or not a safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            file: Any = safe_open(str(path), framework="pt")  # untyped library
            self._names = frozenset(file.keys())
        except (OSError, SafetensorError) as error:
            raise ConfigError(f"{path}: not a readable safetensors file: {error}") from error
        self._file = file

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Read one tensor.

        Raises:
            ConfigError: missing under every spelling, another shape, or not floating point.
        """
        found = next((spelling for spelling in _spellings(name) if spelling in self._names), None)
        if found is None:
            raise ConfigError(f"{self._path}: tensor {name} is missing, expected shape {list(shape)}")
        tensor: Tensor = self._file.get_tensor(found)
        if tuple(tensor.shape) != shape:
            raise ConfigError(f"{self._path}: tensor {found} must have shape {list(shape)}, found {list(tensor.shape)}")
        if not tensor.is_floating_point():
            raise ConfigError(f"{self._path}: tensor {found} must be floating point, found {tensor.dtype}")
        return tensor.float()


def _spellings(name: str) -> tuple[str, ...]:
    for end, others in _SPELLINGS.items():
        if name.endswith(end):
            return (name, *(name.removesuffix(end) + other for other in others))
    return (name,)


def random_tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    """Return random values that keep signals at a sensible size, the same for the same name: a TakeTensor for benchmarks."""
    generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
    if name.endswith((".cluster_usage", "norm1.weight", "norm2.weight")):
        return torch.ones(shape)
    if name.endswith(".bias"):
        return torch.zeros(shape)
    if name.endswith(".scale"):
        return torch.full(shape, 0.1)
    fan_in = math.prod(shape[1:]) if not name.endswith(".embedding_sum") else 1
    return torch.randn(shape, generator=generator) / math.sqrt(fan_in)
