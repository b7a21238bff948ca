"""Read the language model's tensors out of an official checkpoint file, one at a time, in every spelling.

The file is memory-mapped and each tensor is copied straight into its place, so that the peak of host memory is one tensor. The rule:
nothing is guessed; a tensor that is missing or has another shape is named, with the shape it should have. Thread: tick.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gateway.engine.layout import LMConfig
from gateway.errors import ConfigError


class TensorSource:
    """Named tensors of one safetensors file."""

    def __init__(self, path: Path, file: Any) -> None:
        self._path = path
        self._file = file
        self._names = frozenset(file.keys())

    @classmethod
    @contextmanager
    def open(cls, path: Path) -> Iterator[TensorSource]:
        """Open a file for reading.

        Raises:
            ConfigError: not a safetensors file.
        """
        try:
            manager = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{path}: not a readable safetensors file ({error})") from error
        with manager as file:
            yield cls(path, file)

    def read(self, target: Tensor, *names: str) -> None:
        """Copy the first existing of `names` into `target`, cast to its dtype.

        Raises:
            ConfigError: none exists, or the shape differs.
        """
        name = self._find(*names)
        tensor = self._file.get_tensor(name)
        if tensor.numel() != target.numel() or tensor.squeeze().shape != target.squeeze().shape:
            raise ConfigError(f"{self._path}: {name} has shape {list(tensor.shape)}, expected {list(target.shape)}")
        target.copy_(tensor.reshape(target.shape))

    def read_steps(self, target: Tensor, fused: tuple[str, ...], split: str) -> None:
        """Copy the per-step blocks [S, R, C] of a tensor that is fused along its first axis or split into `split.format(step)`.

        A file may hold more steps than are needed (PersonaPlex: 16); the rest is ignored (specs: moshi-model section 3.1).

        Raises:
            ConfigError: as `read`; the height must be a multiple of one block.
        """
        if split.format(0) in self._names:
            for step in range(target.shape[0]):
                self.read(target[step], split.format(step))
            return
        name = self._find(*fused)
        tensor = self._file.get_slice(name)
        shape = list(tensor.get_shape())
        steps, rows, columns = target.shape
        if len(shape) != 2 or shape[1] != columns or shape[0] % rows or shape[0] < steps * rows:
            raise ConfigError(f"{self._path}: {name} has shape {shape}, expected [{steps} x {rows} or more, {columns}]")
        target.copy_(tensor[: steps * rows].reshape(target.shape))

    def _find(self, *names: str) -> str:
        for name in names:
            if name in self._names:
                return name
        raise ConfigError(f"{self._path}: the tensor {names[0]} is missing")


def load_embeddings(source: TensorSource, table: Tensor, config: LMConfig) -> None:
    """Fill the stacked table [config.table_rows, dim]."""
    text_start, *starts = config.table_starts
    for k, start in enumerate(starts):
        source.read(table[start : start + config.card + 1], f"emb.{k}.weight")
    source.read(table[text_start:], "text_emb.weight")


def embed_rows(table: Tensor, starts: Tensor, rows: Tensor) -> Tensor:
    """Sum of the 17 embeddings of each row: one gather from the stacked table, added up in float32.

    Args:
        table: [config.table_rows, dim].
        starts: int64 [ROW_WIDTH], config.table_starts.
        rows: int64 [N, ROW_WIDTH].

    Returns:
        [N, dim] in the table's dtype.
    """
    return table[rows + starts].sum(dim=1, dtype=torch.float32).to(table.dtype)


def load_temporal_layer(source: TensorSource, layer: int, parts: dict[str, Tensor]) -> None:
    """Fill one temporal layer; `parts` has in_proj, out_proj, norm1, norm2, linear_in, linear_out."""
    base = f"transformer.layers.{layer}."
    source.read(parts["in_proj"], *(f"{base}self_attn.{name}" for name in ("in_proj_weight", "in_proj.weight", "in_projs.0.weight")))
    source.read(parts["out_proj"], f"{base}self_attn.out_proj.weight", f"{base}self_attn.out_projs.0.weight")
    for name in ("norm1", "norm2"):
        source.read(parts[name], f"{base}{name}.alpha")
    for name in ("linear_in", "linear_out"):
        source.read(parts[name], f"{base}gating.{name}.weight")


def randomise(tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Fill parameters with small noise: speed does not depend on their values, so benchmarks need no file."""
    for name, tensor in tensors:
        if "norm" in name:
            tensor.fill_(1.0)
        else:
            generator = torch.Generator(device=tensor.device).manual_seed(0)
            tensor.normal_(0.0, 0.02, generator=generator)
