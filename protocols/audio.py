"""Audio constants of our wires and the assembler that turns chunks of any length into exact frames.

No codec, no file, no resampling lives here. The rule: a sample that went in comes out exactly once and in order, whatever the chunking.
Thread: any, one at a time per object.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 24_000  # Hz, every audio wire of this gateway but the G.711 formats of Realtime
FRAME_SAMPLES = SAMPLE_RATE * 2 // 25  # 1920 samples, 80 ms: the Mimi frame
# source: kyutai-labs/moshi@e6a55d2 moshi/moshi/models/loaders.py, SAMPLE_RATE and FRAME_RATE

Pcm = NDArray[np.float32]


class FrameAssembler:
    """Carve exact frames out of chunks of any length."""

    def __init__(self, frame_samples: int) -> None:
        if frame_samples < 1:
            raise ValueError(f"frame_samples must be 1 or more, not {frame_samples}")
        self._frame_samples = frame_samples
        self._partial = np.zeros(frame_samples, np.float32)
        self._filled = 0  # samples of _partial that are real

    @property
    def pending_samples(self) -> int:
        """Samples that wait for the rest of their frame."""
        return self._filled

    def push(self, pcm: Pcm) -> list[Pcm]:
        """Take float32 [N], return the float32 [frame_samples] frames it completes, oldest first.

        Frames may be views of `pcm`: neither may be written to afterwards.
        """
        frames: list[Pcm] = []
        start = 0
        if self._filled:
            start = min(self._frame_samples - self._filled, pcm.size)
            self._partial[self._filled : self._filled + start] = pcm[:start]
            self._filled += start
            if self._filled < self._frame_samples:
                return frames
            frames.append(self._partial)
            self._partial = np.zeros(self._frame_samples, np.float32)  # the old one belongs to the caller now
            self._filled = 0
        end = start + (pcm.size - start) // self._frame_samples * self._frame_samples
        frames.extend(pcm[at : at + self._frame_samples] for at in range(start, end, self._frame_samples))
        self._filled = pcm.size - end
        self._partial[: self._filled] = pcm[end:]
        return frames

    def skip(self, pcm: Pcm, max_frames: int) -> tuple[Pcm, int]:
        """Throw away so many of the oldest whole frames that `push` of what is returned gives at most `max_frames`; and their number."""
        num_skipped = (self._filled + pcm.size) // self._frame_samples - max_frames
        if num_skipped <= 0:
            return pcm, 0
        start = num_skipped * self._frame_samples - self._filled  # never negative: less than a frame waits
        self._filled = 0
        return pcm[start:], num_skipped

    def flush(self) -> tuple[Pcm, int] | None:
        """Return the last partial frame padded with zeros and its number of real samples; None when nothing waits."""
        if not self._filled:
            return None
        frame, num_real = self._partial, self._filled
        frame[num_real:] = 0
        self._partial = np.zeros(self._frame_samples, np.float32)
        self._filled = 0
        return frame, num_real
