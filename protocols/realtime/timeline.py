"""What the caller wrote, where it stands on the input timeline, and what of it the model has heard (specs/realtime.md 4.2.5, 4.2.6, 3.11).

The timeline counts samples that the client wrote, after resampling and with what was cleared, suppressed or dropped; never the silence that
the session's clock put in between. The rule: consumed <= written, and both only ever rise. Thread: any, one at a time.
"""

from __future__ import annotations

import bisect
from collections import deque

MAX_PLACES = 1024  # frames whose place is remembered: more than the longest announced speech (60 s, 750 frames)
HISTORY_S = 3.0  # "the audio received in the 3 s before the clear" (4.2.5)
REPLAY_S = 2.0  # "After input_audio_buffer.clear, for 2 s"
KEY_BYTES = 80  # "a hash of 10 ms blocks is enough": 10 ms of G.711, the smallest format; live speech never repeats them
MAX_TRIES = 64  # places at which a repetition may begin: more is no audio, but somebody who wants to keep us busy
MAX_SAMPLE_BYTES = 4  # of float32; a multiple of every other size



class Timeline:
    """Positions in samples at the engine's rate."""

    def __init__(self, rate: int) -> None:
        self.written = 0
        self.consumed = 0
        self._rate = rate
        self._floor = 0  # end of the last segment or place of the last clear: no speech starts before it
        self._committed = 0  # up to where a commit has been made
        self._places: deque[tuple[int, int]] = deque(maxlen=MAX_PLACES)  # (frame_idx, first sample)

    @property
    def queued_ms(self) -> float:
        """Milliseconds that the model has not heard."""
        return (self.written - self.consumed) * 1000 / self._rate

    @property
    def can_commit(self) -> bool:
        """Whether anything was written since the last commit or clear."""
        return self.written > self._committed

    def has_heard(self, place: int) -> bool:
        """Whether the model has heard up to a place, but for what does not fill a frame."""
        return self.consumed + self._rate // 12 >= place

    def write(self, num_samples: int) -> None:
        """The client wrote so much."""
        self.written += num_samples

    def hear(self, frame_idx: int, real_samples: int, skipped_samples: int) -> None:
        """The model heard a frame; what was dropped before it counts as passed."""
        self.consumed = min(self.written, self.consumed + skipped_samples)
        self._places.append((frame_idx, self.consumed))
        self.consumed = min(self.written, self.consumed + real_samples)

    def suppress(self, num_samples: int) -> None:
        """The client wrote so much again: it counts, and the model has heard it already. Only while nothing waits."""
        self.written += num_samples
        self.consumed += num_samples

    def commit(self) -> None:
        """What was written up to now belongs to an item."""
        self._committed = self.written

    def clear(self) -> int:
        """Forget what waits; return its samples."""
        num_cleared = self.written - self.consumed
        self.consumed = self._committed = self.written
        self._floor = max(self._floor, self.written)
        return num_cleared

    def place(self, frame_idx: int) -> int:
        """Where a frame that the model has heard begins, in samples; of one that is not remembered, about there."""
        for known_idx, place in reversed(self._places):
            if known_idx <= frame_idx:
                return place if known_idx == frame_idx else self.consumed
        return self._places[0][1] if self._places else self.consumed

    def start_ms(self, onset_frame: int, prefix_ms: int) -> int:
        """Where speech that began in a frame starts, `prefix_ms` earlier, but never inside the segment before."""
        return max(self.place(onset_frame) * 1000 // self._rate - prefix_ms, self._floor * 1000 // self._rate)

    def end_ms(self, end_frame: int) -> int:
        """Where speech that ended before a frame ends; the next segment starts there at the earliest."""
        place = self.place(end_frame)
        self._floor = max(self._floor, place)
        return self._floor * 1000 // self._rate


class ReplayGuard:
    """Recognises audio that a client sends again after a clear (Pipecat re-sends half a second), so that it is not heard twice.

    Bytes are compared, in the input format. What is sent again is an end of what was heard, but where it begins shows only as it goes on:
    every append is judged together with those since the clear, so silence, which fits in many places, is no trap. What is skipped ends
    between two samples.
    """

    def __init__(self) -> None:
        self._history: deque[bytes] = deque()
        self._size = 0
        self._until_s = 0.0
        self._heard = b""  # what may come again; empty once it is over
        self._again = b""  # what came again since the clear
        self._num_skipped = 0  # bytes since the clear that were called known

    def note(self, data: bytes, bytes_per_s: int) -> None:
        """Remember what was received."""
        most = int(HISTORY_S * bytes_per_s)
        self._history.append(data[-most:])
        self._size += len(self._history[-1])
        while self._size - len(self._history[0]) >= most:
            self._size -= len(self._history.popleft())

    def clear(self, unheard_bytes: int, now: float) -> None:
        """The buffer was cleared while the last `unheard_bytes` had not been heard: those must be, should they come again."""
        received = b"".join(self._history)
        self._heard = received[: max(0, len(received) - unheard_bytes)]
        self._again = b""
        self._num_skipped = 0
        self._until_s = now + REPLAY_S

    def known_prefix(self, data: bytes, now: float, sample_bytes: int = MAX_SAMPLE_BYTES) -> int:
        """Return how many bytes at the beginning of an append the model has heard already."""
        num_known = 0
        if self._heard and now <= self._until_s:
            again = self._again + data
            if len(again) >= KEY_BYTES and again in self._heard:
                self._again = again
                self._num_skipped += len(data)
                return len(data)
            num_known = _overlap(self._heard, again)
        self._heard = self._again = b""
        # [skipped | this append]: the first sample that is heard begins at a multiple of its size, and not before what is skipped already
        num_whole = max(num_known // sample_bytes, -(-self._num_skipped // sample_bytes)) * sample_bytes
        num_now = min(num_whole - self._num_skipped, len(data))
        self._num_skipped += num_now
        return num_now


def _overlap(before: bytes, after: bytes) -> int:
    """Length of the longest end of `before`, of KEY_BYTES at least, with which `after` begins; 0 without one."""
    key = after[:KEY_BYTES]
    at = before.find(key) if len(key) == KEY_BYTES else -1
    for _ in range(MAX_TRIES):
        if at < 0:
            return 0
        end = before[at:]
        if after.startswith(end):
            return len(end)
        # They differ at `place`: what begins later agrees up to there and with that byte, or is too short to reach it.
        place = bisect.bisect_left(range(len(end)), True, key=lambda n: end[: n + 1] != after[: n + 1])
        longer = before.find(after[: place + 1], at + 1)
        at = longer if longer >= 0 else before.find(key, max(at + 1, len(before) - place))
    return 0
