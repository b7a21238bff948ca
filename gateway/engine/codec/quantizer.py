"""Split residual vector quantizer: one semantic codebook, then the acoustic ones, both fed from the same latent.

Here: nearest neighbour search and its inverse. Not here: training. Only the codebooks in use are kept. Thread: tick.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gateway.engine.codec.config import MimiConfig
from gateway.engine.codec.layers import linear
from gateway.engine.codec.weights import TakeTensor
from gateway.engine.graphs import whole_blocks

USAGE_FLOOR = 1e-5  # source: kyutai-labs/moshi, quantization/core_vq.py: usage is clamped before the division


class SplitQuantizer:
    """Latents to codes and back, codebook 0 from `rvq_first`, the others from `rvq_rest`."""

    def __init__(self, take: TakeTensor, config: MimiConfig, num_codebooks: int) -> None:
        dim, width, size = config.dimension, config.codebook_dim, config.codebook_size
        self._size = size
        prefixes = ["quantizer.rvq_first.", *["quantizer.rvq_rest."] * (num_codebooks - 1)]
        parts = ("quantizer.rvq_first.", "quantizer.rvq_rest.")
        inputs = [take(f"{part}input_proj.weight", (width, dim, 1))[:, :, 0].t() for part in parts]
        outputs = {part: take(f"{part}output_proj.weight", (dim, width, 1))[:, :, 0].t() for part in parts}
        self._input = torch.cat(inputs, dim=1)  # [dimension, 2 * width]
        self._books: list[Tensor] = []  # each [size, width]
        tables = []
        for i, prefix in enumerate(prefixes):
            book = f"{prefix}vq.layers.{max(0, i - 1)}._codebook."
            usage = take(f"{book}cluster_usage", (size,)).clamp(min=USAGE_FLOOR)
            self._books.append(take(f"{book}embedding_sum", (size, width)) / usage[:, None])
            tables.append(self._books[-1] @ outputs[prefix])
        # Half the squared distance to entry e, less a term that is the same for all entries: e.e / 2 - x.e.
        self._search = [(-book.t().contiguous(), book.square().sum(dim=1) / 2) for book in self._books]
        self._table = torch.cat(tables)  # [num_codebooks * size, dimension]: entries behind their output projection
        self._offsets = torch.arange(num_codebooks, device=self._table.device) * size

    def encode(self, latent: Tensor) -> Tensor:
        """Return int64 [n, num_codebooks] for latent [n, dimension]."""
        count = latent.shape[0]
        semantic, residual = linear(whole_blocks(latent), self._input).chunk(2, dim=1)
        codes = [linear(semantic, *self._search[0]).argmin(dim=1)]
        for book, search in zip(self._books[1:], self._search[1:], strict=True):
            codes.append(linear(residual, *search).argmin(dim=1))
            residual = residual - book.index_select(0, codes[-1])
        return torch.stack(codes, dim=1)[:count]

    def decode(self, codes: Tensor) -> Tensor:
        """Return latent [n, dimension] for int64 [n, num_codebooks]; codes are clamped to the codebook (see `Mimi.decode`)."""
        index = codes.clamp(0, self._size - 1) + self._offsets
        return torch.nn.functional.embedding(index, self._table).sum(dim=1)
