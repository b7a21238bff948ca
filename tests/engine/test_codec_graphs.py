"""Batch buckets of `GraphedCall`: what is padded, what is returned, and, where there is a GPU, that a replay equals the plain call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import golden
import pytest
import torch
from torch import Tensor

from gateway.engine.codec import Mimi, MimiConfig, load_mimi
from gateway.engine.graphs import GraphedCall, _Capture, whole_blocks

SCRATCH = 3


class Counter:
    """Three slots and a scratch slot, each adding up what it is given: the smallest function with state."""

    def __init__(self) -> None:
        self.sums = torch.zeros(SCRATCH + 1)
        self.batches: list[int] = []

    def __call__(self, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        self.batches.append(len(rows))
        sums = self.sums.index_select(0, rows) + values
        self.sums.index_copy_(0, rows, sums)
        return sums, -sums


class Replay:
    """Stands in for a CUDA graph: runs the function on the static inputs and writes into the static outputs."""

    def __init__(self, fn: Any, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        self.fn, self.inputs, self.outputs = fn, inputs, outputs

    def replay(self) -> None:
        for static, value in zip(self.outputs, self.fn(*self.inputs), strict=True):
            static.copy_(value)


def bucketed(counter: Counter, sizes: tuple[int, ...]) -> GraphedCall[tuple[Tensor, ...]]:
    """A GraphedCall as a warm-up on CUDA would leave it: one static buffer for all buckets."""
    pad = (torch.zeros(1), torch.tensor([SCRATCH]))
    call = GraphedCall[tuple[Tensor, ...]](counter, pad)
    buffers = tuple(row.expand(sizes[-1]).contiguous() for row in pad)
    for size in sizes:
        inputs = tuple(buffer[:size] for buffer in buffers)
        outputs = (torch.zeros(size), torch.zeros(size))
        graph: Any = Replay(counter, inputs, outputs)
        call._captures[size] = _Capture(graph, inputs, outputs)
    return call


def test_smaller_call_after_a_larger_one_leaves_the_other_rows_alone() -> None:
    counter = Counter()
    call = bucketed(counter, (1, 3))
    sums, negative = call(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 2]))
    assert (sums.tolist(), negative.tolist()) == ([1, 2, 3], [-1, -2, -3])
    again, _ = call(torch.tensor([10.0, 20.0]), torch.tensor([2, 0]))  # in the bucket of 3: its third row must be padding
    assert again.tolist() == [13, 21]
    assert counter.sums[:SCRATCH].tolist() == [21, 2, 13]
    assert sums.tolist() == [1, 2, 3], "what was returned belongs to the caller"
    assert call(torch.tensor([5.0]), torch.tensor([1]))[0].tolist() == [7]
    assert counter.batches == [3, 3, 1]


def test_more_rows_than_the_largest_bucket_are_refused() -> None:
    call = bucketed(Counter(), (1, 2))
    with pytest.raises(ValueError, match="3 rows, but graphs were captured for at most 2"):
        call(torch.zeros(3), torch.arange(3))


def test_on_a_cpu_each_call_runs_its_own_rows_and_warm_up_runs_the_scratch_slot() -> None:
    counter = Counter()
    call = GraphedCall[tuple[Tensor, ...]](counter, (torch.ones(1), torch.tensor([SCRATCH])))
    call.warm_up([2, 1, 2])
    assert counter.batches == [1, 2]
    assert counter.sums[:SCRATCH].tolist() == [0, 0, 0]
    call(torch.ones(3), torch.arange(3))
    assert counter.batches[-1] == 3


def add_up(sums: Tensor, values: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """As Counter, on tensors only, with a sum over whole blocks of rows in between."""
    blocks = whole_blocks(values, fill=7)
    added = sums.index_select(0, rows) + blocks[: values.shape[0]]
    sums.index_copy_(0, rows, added)
    return added, blocks.sum().expand(values.shape[0])


def test_on_a_cpu_one_trace_serves_every_number_of_rows_and_keeps_the_state() -> None:
    plain, traced = torch.zeros(10), torch.zeros(10)
    call = GraphedCall[tuple[Tensor, ...]](add_up, (torch.ones(1), torch.tensor([9])), state=(traced,), traced=True)
    call.warm_up([1, 2, 4])
    assert call._script is not None
    assert traced[:9].tolist() == [0.0] * 9
    for count in (5, 1, 9, 4, 2, 3, 8, 7, 6, 1):
        values, rows = torch.arange(count) + 0.5, torch.arange(count).flip(0)
        for found, expected in zip(call(values, rows), add_up(plain, values, rows), strict=True):
            assert torch.equal(found, expected), f"{count} rows"
        assert torch.equal(traced[:9], plain[:9])


def test_the_traced_codec_equals_the_plain_one_to_the_last_bit(tmp_path: Path) -> None:
    golden.write_mimi(tmp_path)
    config = MimiConfig.from_json(golden.mimi_config())
    plain, traced = (load_mimi(tmp_path / golden.MIMI_FILE, config, num_slots=9, window="moshi") for _ in range(2))
    traced.warm_up([1, 9])
    assert traced._encode._script is not None
    assert traced._decode._script is not None
    generator = torch.Generator().manual_seed(4)
    for i in range(30):
        mask = torch.rand(9, generator=generator) < (i % 9 + 1) / 9
        pcm = torch.rand(9, 1920, generator=generator) - 0.5
        if i == 15:
            for mimi in (plain, traced):
                mimi.reset(torch.arange(9) == 4)
        codes = plain.encode(pcm, mask)
        assert torch.equal(traced.encode(pcm, mask), codes)
        assert torch.equal(traced.decode(codes, mask), plain.decode(codes, mask)), f"step {i}, {int(mask.sum())} rows"
        for ours, theirs in ((plain.encoder_streams, traced.encoder_streams), (plain.decoder_streams, traced.decoder_streams)):
            assert torch.equal(ours.carried[:9], theirs.carried[:9])
            assert torch.equal(ours.ring[:, :9], theirs.ring[:, :9])
            assert torch.equal(ours.positions[:9], theirs.positions[:9])


@pytest.mark.parametrize(("count", "batch"), [(1, 4), (3, 4), (4, 4), (5, 8)])
def test_on_a_cpu_a_call_may_ask_for_whole_blocks_of_rows(count: int, batch: int) -> None:
    counter = Counter()
    counter.sums = torch.zeros(9)
    call = GraphedCall[tuple[Tensor, ...]](counter, (torch.zeros(1), torch.tensor([8])), blocks=True)
    sums, negative = call(torch.arange(count) + 1.0, torch.arange(count))
    assert counter.batches == [batch]
    assert sums.tolist() == [1.0 + i for i in range(count)]
    assert negative.tolist() == [-1.0 - i for i in range(count)]
    assert counter.sums.tolist() == [*sums.tolist(), *[0.0] * (9 - count)]


def test_a_trace_may_run_on_whole_blocks_of_rows_and_leaves_the_padding_out() -> None:
    def block_sums(sums: Tensor, values: Tensor, rows: Tensor) -> Tensor:
        sums.index_copy_(0, rows, sums.index_select(0, rows) + values)
        return torch.stack((values, values.sum().expand_as(values)), dim=1)

    sums = torch.zeros(10)
    call = GraphedCall[Tensor](block_sums, (torch.full((1,), 100.0), torch.tensor([9])), state=(sums,), traced=True, blocks=True)
    call.warm_up([1])
    sums.zero_()
    for count, padding in ((1, 3), (4, 0), (6, 2), (3, 1)):
        values = torch.arange(count) + 1.0
        assert call(values, torch.arange(count)).tolist() == [[float(value), float(values.sum()) + 100 * padding] for value in values]
    assert sums[:7].tolist() == [4.0, 6.0, 9.0, 8.0, 5.0, 6.0, 0.0]


@pytest.mark.parametrize("buckets", [[], [0, 1], [-1]])
def test_impossible_buckets_are_refused(buckets: list[int]) -> None:
    with pytest.raises(ValueError, match="buckets"):
        GraphedCall[tuple[Tensor, ...]](Counter(), (torch.ones(1), torch.tensor([SCRATCH]))).warm_up(buckets)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_captured_codec_equals_the_plain_one_and_pauses_are_kept(tmp_path: Path) -> None:
    golden.write_mimi(tmp_path)

    def make() -> Mimi:
        config = MimiConfig.from_json(golden.mimi_config())
        return load_mimi(tmp_path / golden.MIMI_FILE, config, num_slots=4, window="personaplex", device="cuda")

    plain, captured = make(), make()
    captured.warm_up([1, 2, 4])
    generator = torch.Generator().manual_seed(1)
    for i in range(40):
        mask = torch.rand(4, generator=generator) < 0.6
        pcm = torch.rand(4, 1920, generator=generator) - 0.5
        if i == 20:
            for mimi in (plain, captured):
                mimi.reset(torch.tensor([False, True, False, False]))
        codes = plain.encode(pcm, mask)
        # The captured batch is padded, so cuBLAS may round otherwise and a near-tie may flip; a wrong row would differ everywhere.
        assert (captured.encode(pcm, mask) == codes).float().mean() > 0.9
        torch.testing.assert_close(captured.decode(codes, mask), plain.decode(codes, mask), atol=1e-4, rtol=0)
    assert torch.equal(plain.encoder_streams.positions[:4], captured.encoder_streams.positions[:4])
