from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.audio import FRAME_SAMPLES, SAMPLE_RATE, FrameAssembler


def test_a_frame_is_80_ms() -> None:
    assert FRAME_SAMPLES * 1000 == SAMPLE_RATE * 80


@given(st.integers(1, 7), st.lists(st.integers(0, 20), max_size=12))
def test_any_chunking_gives_the_same_frames(frame_samples: int, sizes: list[int]) -> None:
    total = np.arange(1, sum(sizes) + 1, dtype=np.float32)
    assembler = FrameAssembler(frame_samples)
    frames, at = [], 0
    for size in sizes:
        frames += assembler.push(total[at : at + size])
        at += size
    assert all(frame.shape == (frame_samples,) and frame.dtype == np.float32 for frame in frames)
    assert assembler.pending_samples == total.size % frame_samples
    tail = assembler.flush()
    if tail is None:
        assert total.size % frame_samples == 0
    else:
        frame, num_real = tail
        assert num_real == total.size % frame_samples
        assert not frame[num_real:].any()
        frames.append(frame[:num_real])
    np.testing.assert_array_equal(np.concatenate([np.empty(0, np.float32), *frames]), total)


def test_a_frame_handed_out_is_not_written_to_later() -> None:
    assembler = FrameAssembler(4)
    assembler.push(np.full(3, 1, np.float32))
    (first,) = assembler.push(np.full(3, 2, np.float32))
    assembler.push(np.full(9, 3, np.float32))
    assembler.flush()
    assembler.push(np.full(3, 4, np.float32))
    assert first.tolist() == [1, 1, 1, 2]


def test_flush_forgets_and_pads_with_zeros_even_where_older_samples_lay() -> None:
    assembler = FrameAssembler(4)
    assembler.push(np.full(3, 9, np.float32))
    assert assembler.flush() is not None
    assert assembler.flush() is None
    assembler.push(np.full(1, 1, np.float32))
    frame, num_real = assembler.flush() or (None, 0)
    assert frame is not None
    assert (frame.tolist(), num_real) == ([1, 0, 0, 0], 1)


@given(st.integers(1, 7), st.lists(st.tuples(st.integers(0, 40), st.integers(0, 4)), max_size=12))
def test_skipping_keeps_the_newest_frames_and_their_edges(frame_samples: int, chunks: list[tuple[int, int]]) -> None:
    total = np.arange(1, sum(size for size, _ in chunks) + 1, dtype=np.float32)
    assembler, at = FrameAssembler(frame_samples), 0
    for size, max_frames in chunks:
        begun = at // frame_samples  # the frame that the first of these samples belongs to
        chunk, num_skipped = assembler.skip(total[at : at + size], max_frames)
        frames = assembler.push(chunk)
        at += size
        ended = at // frame_samples
        assert len(frames) == min(max_frames, ended - begun)
        assert num_skipped == ended - begun - len(frames)
        assert assembler.pending_samples == at % frame_samples
        for frame, frame_idx in zip(frames, range(ended - len(frames), ended), strict=True):
            np.testing.assert_array_equal(frame, total[frame_idx * frame_samples : (frame_idx + 1) * frame_samples])


def test_a_frame_has_at_least_one_sample() -> None:
    with pytest.raises(ValueError, match="frame_samples"):
        FrameAssembler(0)
