"""Functions captured once and then run without the interpreter: as CUDA graphs on a GPU, as TorchScript on a CPU.

Here: `GraphedCall`, used by the codec and the depth transformer, `trace`, used by the temporal transformer too, and the blocks of rows
that a CPU multiplies. Not here: what is captured, and vLLM's own graphs. The one rule: after `warm_up` nothing is captured or compiled.

On a GPU there is one graph a batch size: a call copies its rows into static buffers, fills the rest of the bucket with padding rows, and
replays; padding rows must be harmless to the function: they name a scratch slot that no caller owns. On a CPU one trace serves every number
of rows, the call's own or whole blocks of them, and its thousand operations run without Python's lock, which the event loop holds often
enough to slow them: with 8 Realtime and 8 /api/chat callers a step took 153 ms for 97 ms of work, traced 76 ms (two EPYC cores).
Thread: tick.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar, cast

import torch
from torch import Tensor

Out = TypeVar("Out", Tensor, tuple[Tensor, ...])

# MKL multiplies rows in blocks of 4; left-over rows go through kernels that sum in another order, and then a row's result would
# depend on how many neighbours it has. Padded to whole blocks, each row comes out bit for bit the same in any batch (measured for
# 1 and 2 threads on an AMD EPYC with AVX-512; on an Intel Xeon, rows of small products still differed in the last place). Four rows
# cost what two cost.
ROW_BLOCK = 4

TRACED_ROWS = 3  # of the trace of a CPU: neither 1, which broadcasts, nor a whole block
WARM_UP_RUNS = 3  # before a capture: lets cuBLAS and the allocator settle (PyTorch's CUDA graph notes ask for a few)


def whole_blocks(x: Tensor, positions: int = 1, fill: int = 0) -> Tensor:
    """Return x [n, ...] with rows of `fill` behind it, so that rows of `positions` positions fill whole blocks; x itself on a GPU."""
    block = ROW_BLOCK // math.gcd(ROW_BLOCK, positions)
    if not x.is_cpu or block == 1:
        return x
    padding = -x.shape[0] % block
    if padding or torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # a trace must serve every number of rows
        x = torch.cat((x, x.new_full((padding, *x.shape[1:]), fill)))
    return x


def trace(fn: Callable[..., Out], example: tuple[Tensor, ...]) -> Callable[..., Out]:
    """Record what `fn` does with `example` as TorchScript, which then runs without the interpreter and its lock.

    Only for a CPU and for a function of tensors alone: numbers, and tensors that are no arguments, are remembered as they are now. What it
    writes to must therefore be an argument.
    """
    with warnings.catch_warnings():
        # PyTorch recommends torch.compile instead, which needs a compiler at run time; and a warning for every size that is recorded.
        warnings.simplefilter("ignore")
        script = torch.jit.trace(fn, example, check_trace=False)  # type: ignore[no-untyped-call]

    def run(*arguments: Tensor) -> Out:
        # Its optimiser would profile the shapes and start over for other numbers of rows.
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return cast(Out, script(*arguments))

    return run


@dataclasses.dataclass(frozen=True, slots=True)
class _Capture(Generic[Out]):
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]  # the first `bucket` rows of the shared static buffers
    outputs: Out  # written by every replay


class GraphedCall(Generic[Out]):
    """A function `fn(*state, *inputs) -> tensor or tensors`, inputs and outputs [n, ...], with no wait for the device inside.

    Args:
        fn: the function; its shapes follow from n, and no value of a tensor decides what it does.
        pad: one padding row for each input, [1, ...], on the device on which the calls run.
        state: tensors that the function updates in place, at addresses that never change.
        pool: memory pool shared with other graphs of the same stream (`torch.cuda.graph_pool_handle()`); None gives it its own.
        traced: on a CPU, trace the function when it warms up. Only for one that is all tensors, and tried with several n.
        blocks: on a CPU, fill the rows up to whole blocks, for a function that does not see to its products itself.
    """

    def __init__(
        self,
        fn: Callable[..., Out],
        pad: tuple[Tensor, ...],
        *,
        state: tuple[Tensor, ...] = (),
        pool: Any = None,
        traced: bool = False,
        blocks: bool = False,
    ) -> None:
        self._fn: Callable[..., Out] = fn
        self._pad = pad
        self._state = state
        self._pool = pool
        self._traced = traced
        self._blocks = blocks
        self._device = pad[0].device
        self._script: Callable[..., Out] | None = None
        self._captures: dict[int, _Capture[Out]] = {}  # bucket -> capture, ascending once warmed up

    @torch.inference_mode()
    def warm_up(self, buckets: Sequence[int]) -> None:
        """Capture a graph for each batch size in `buckets` (CUDA), or trace once and run each (CPU), on padding rows. Call it once."""
        sizes = sorted(set(buckets))
        if not sizes or sizes[0] < 1 or self._captures:
            raise ValueError(f"buckets must be positive and captured once, not {list(buckets)}")
        if self._device.type != "cuda":
            if self._traced:
                example = (*self._state, *self._rows(TRACED_ROWS))
                self._plain(*example)  # what the function makes in its first run is not part of the trace
                self._script = trace(self._plain, example)
            for size in sizes:
                self._run(self._rows(size))
            return
        buffers = self._rows(sizes[-1])
        pool = self._pool if self._pool is not None else torch.cuda.graph_pool_handle()
        # Largest first: the smaller ones then live in the memory that it reserved.
        captures = {size: self._capture(tuple(buffer[:size] for buffer in buffers), pool) for size in reversed(sizes)}
        self._captures = {size: captures[size] for size in sizes}

    def _rows(self, count: int) -> tuple[Tensor, ...]:
        return tuple(row.expand(count, *row.shape[1:]).contiguous() for row in self._pad)

    def _capture(self, inputs: tuple[Tensor, ...], pool: Any) -> _Capture[Out]:
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            stream.wait_stream(torch.cuda.current_stream(self._device))
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP_RUNS):
                    self._fn(*self._state, *inputs)
            torch.cuda.current_stream(self._device).wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=pool, stream=stream):
                outputs = self._fn(*self._state, *inputs)
            return _Capture(graph, inputs, outputs)

    @torch.inference_mode()
    def __call__(self, *inputs: Tensor) -> Out:
        """Run on n rows; the returned tensors belong to the caller.

        Raises:
            ValueError: more rows than the largest captured bucket.
        """
        count = inputs[0].shape[0]
        if not self._captures:
            return self._run(inputs)
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

    def _run(self, inputs: tuple[Tensor, ...]) -> Out:
        """Run on a CPU."""
        run = self._plain if self._script is None else self._script
        return run(*self._state, *inputs)

    def _plain(self, *arguments: Tensor) -> Out:
        """The function itself on a CPU, on whole blocks of rows if it asks for them; this is what a trace records."""
        state, inputs = arguments[: len(self._state)], arguments[len(self._state) :]
        count = inputs[0].shape[0]
        rows = -count % ROW_BLOCK
        if not self._blocks or not (rows or torch.jit.is_tracing()):  # type: ignore[attr-defined, no-untyped-call]  # any number of rows
            return self._fn(*state, *inputs)
        padded = (torch.cat((value, pad.expand(rows, *pad.shape[1:]))) for value, pad in zip(inputs, self._pad, strict=True))
        outputs = self._fn(*state, *padded)
        if isinstance(outputs, Tensor):
            return outputs[:count]
        return cast(Out, tuple(output[:count] for output in outputs))
