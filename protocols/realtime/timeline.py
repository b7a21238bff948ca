"""What the caller wrote, where it stands on the input timeline, and what of it the model has heard (specs/realtime.md 4.2.5, 4.2.6, 3.11).

The timeline counts samples that the client wrote, after resampling and with what was cleared, suppressed or dropped; never the silence that
the session's clock put in between. The rule: consumed <= written, and both only ever rise. Thread: any, one at a time.
"""

from __future__ import annotations

from collections import deque

MAX_PLACES = 1024  # frames whose place is remembered: more than the longest announced speech (60 s, 750 frames)
HISTORY_S = 3.0  # "the audio received in the 3 s before the clear" (4.2.5)
REPLAY_S = 2.0  # "After input_audio_buffer.clear, for 2 s"
KEY_BYTES = 160  # 10 ms of G.711 are 80 bytes, of PCM16 at 8 kHz 160: enough that live speech never repeats them

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

    def start_ms(self, onset_frame: int, prefix_ms: int) -> int:
        """Where speech that began in a frame starts, `prefix_ms` earlier, but never inside the segment before."""
        return max(self._place(onset_frame) * 1000 // self._rate - prefix_ms, self._floor * 1000 // self._rate, 0)

    def end_ms(self, end_frame: int) -> int:
        """Where speech that ended before a frame ends; the next segment starts there at the earliest."""
        place = self._place(end_frame)
        self._floor = max(self._floor, place)
        return self._floor * 1000 // self._rate

    def _place(self, frame_idx: int) -> int:
        for known_idx, place in reversed(self._places):
            if known_idx <= frame_idx:
                return place if known_idx == frame_idx else self.consumed
        return self._places[0][1] if self._places else self.consumed

class ReplayGuard:
    """Recognises audio that a client sends again after a clear (Pipecat re-sends half a second), so that it is not heard twice.

    Bytes are compared, in the input format: live speech never repeats them.
    """

    def __init__(self) -> None:
        self._history: deque[bytes] = deque()
        self._size = 0
        self._until_s = 0.0
        self._heard = b""  # what is still expected again
        self._is_matching = False

    def note(self, data: bytes, bytes_per_s: int) -> None:
        """Remember what was received."""
        self._history.append(data)
        self._size += len(data)
        while self._size - len(self._history[0]) > HISTORY_S * bytes_per_s:
            self._size -= len(self._history.popleft())

    def clear(self, unheard_bytes: int, now: float) -> None:
        """The buffer was cleared while the last `unheard_bytes` had not been heard: those must be, should they come again."""
        received = b"".join(self._history)
        self._heard = received[: max(0, len(received) - unheard_bytes)]
        self._until_s = now + REPLAY_S
        self._is_matching = False

    def known_prefix(self, data: bytes, now: float) -> int:
        """Return how many bytes at the beginning of an append the model has heard already."""
        if not self._heard or now > self._until_s or not data:
            self._heard = b""
            return 0
        if self._is_matching:
            return self._take(data, 0)
        key = data[:KEY_BYTES]
        at = self._heard.find(key) if len(data) >= KEY_BYTES else -1
        while at >= 0:
            if num_known := self._take(data, at):
                self._is_matching = bool(self._heard)
                return num_known
            at = self._heard.find(key, at + 1)
        self._heard = b""  # the first append after a clear is new: so is everything after it
        return 0

    def _take(self, data: bytes, at: int) -> int:
        """Compare an append with what is expected from `at` on; it must agree to the end of either."""
        size = min(len(data), len(self._heard) - at)
        if self._heard[at : at + size] != data[:size]:
            if at == 0 and self._is_matching:
                self._heard = b""
            return 0
        self._heard = self._heard[at + size :]
        return size
