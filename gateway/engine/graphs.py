"""CUDA graphs for functions whose tensors have a leading batch axis: capture once per batch size, replay for ever.

Here: `GraphedCall`, used by the codec and the depth transformer. Not here: what is captured, and vLLM's own graphs. The one rule: after
`warm_up` nothing is captured or compiled; a call copies its rows into static buffers, fills the rest of the bucket with padding rows,
and replays. Padding rows must be harmless to the function: they name a scratch slot that no caller owns. On a CPU every call goes straight
through, with its own rows or with whole blocks of them. Thread: tick.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

Out = TypeVar("Out", Tensor, tuple[Tensor, ...])

# MKL multiplies rows in blocks of 4; left-over rows go through kernels that sum in another order, and then a row's result would
# depend on how many neighbours it has. Padded to whole blocks, each row comes out bit for bit the same in any batch (measured for
# 1 and 2 threads, AVX-512). Four rows cost what two cost.
ROW_BLOCK = 4

WARM_UP_RUNS = 3  # before a capture: lets cuBLAS and the allocator settle (PyTorch's CUDA graph notes ask for a few)


def padding_rows(count: int, positions: int, device: torch.device) -> int:
    """How many rows of `positions` positions make `count` of them fill whole blocks; none on a GPU."""
    block = ROW_BLOCK // math.gcd(ROW_BLOCK, positions)
    return -count % block if device.type == "cpu" else 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Capture(Generic[Out]):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]  # the first `bucket` rows of the shared static buffers
    outputs: Out  # written by every replay


class GraphedCall(Generic[Out]):
    """A function `fn(*inputs) -> tensor or tensors`, each [n, ...], with shapes static for a given n and no wait for the device inside.

    Args:
        fn: the function; it may update state in place, at addresses that never change.
        pad: one padding row for each input, [1, ...], on the device on which the calls run.
        pool: memory pool shared with other graphs of the same stream (`torch.cuda.graph_pool_handle()`); None gives it its own.
        blocks: on a CPU, fill the rows up to whole blocks, for a function that does not see to its products itself.
    """

    def __init__(self, fn: Callable[..., Out], pad: tuple[Tensor, ...], *, pool: Any = None, blocks: bool = False) -> None:
        self._fn: Callable[..., Out] = fn
        self._pad = pad
        self._pool = pool
        self._blocks = blocks
        self._device = pad[0].device
        self._captures: dict[int, _Capture[Out]] = {}  # bucket -> capture, ascending once warmed up

    @torch.inference_mode()
    def warm_up(self, buckets: Sequence[int]) -> None:
        """Capture one graph for each batch size in `buckets` (CUDA), or run each once (CPU), on padding rows only. Call it once."""
        sizes = sorted(set(buckets))
        if not sizes or sizes[0] < 1 or self._captures:
            raise ValueError(f"buckets must be positive and captured once, not {list(buckets)}")
        if self._device.type != "cuda":
            for size in sizes:
                self._fn(*(row.expand(size, *row.shape[1:]).contiguous() for row in self._pad))
            return
        buffers = tuple(row.expand(sizes[-1], *row.shape[1:]).contiguous() for row in self._pad)
        pool = self._pool if self._pool is not None else torch.cuda.graph_pool_handle()
        # Largest first: the smaller ones then live in the memory that it reserved.
        captures = {size: self._capture(tuple(buffer[:size] for buffer in buffers), pool) for size in reversed(sizes)}
        self._captures = {size: captures[size] for size in sizes}

    def _capture(self, inputs: tuple[Tensor, ...], pool: Any) -> _Capture[Out]:
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_RUNS):
                    self._fn(*inputs)
            torch.cuda.current_stream(self._device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                outputs = self._fn(*inputs)
            return _Capture(graph, inputs, outputs)

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> Out:
        """Run on n rows; the returned tensors belong to the caller.

        Raises:
            ValueError: more rows than the largest captured bucket.
        """
        count = inputs[0].shape[0]
        if not self._captures:
            return self._fill_blocks(inputs, count) if self._blocks else self._fn(*inputs)
        bucket = next((size for size in self._captures if size >= count), None)
        if bucket is None:
            raise ValueError(f"{count} rows, but graphs were captured for at most {max(self._captures)}")
        capture = self._captures[bucket]
        for static, value, pad in zip(capture.inputs, inputs, self._pad, strict=True):
            static[:count].copy_(value, non_blocking=True)
            # Never skip this: an earlier call's rows still stand there, and replaying them would advance live slots.
            static[count:].copy_(pad.expand(bucket - count, *pad.shape[1:]))
        capture.graph.replay()
        # A copy, because the next replay writes to the same memory.
        if isinstance(capture.outputs, Tensor):
            return capture.outputs[:count].clone()
        return cast(Out, tuple(output[:count].clone() for output in capture.outputs))

    def _fill_blocks(self, inputs: tuple[Tensor, ...], count: int) -> Out:
        if not (padding := padding_rows(count, 1, self._device)):
            return self._fn(*inputs)
        pairs = zip(inputs, self._pad, strict=True)
        outputs = self._fn(*(torch.cat((value, pad.expand(padding, *pad.shape[1:]))) for value, pad in pairs))
        if isinstance(outputs, Tensor):
            return outputs[:count]
        return cast(Out, tuple(output[:count] for output in outputs))
