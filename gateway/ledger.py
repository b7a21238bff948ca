"""The playback ledger of one call: how much of the assistant's audio was made, sent and heard.

Three cursors in milliseconds of media time since the first output sample. The one rule: generated_ms >= sent_ms >= played_ms, and each only
ever rises. An acknowledgement that is late, doubled or out of order changes nothing; one that claims more than was sent counts as what was
sent. What of it enters a transcript is the business of the wires that have one. Pure: no clock, no asyncio. Thread: any, one at a time.

Media time counts every frame that the model made. A client cannot: it never saw those that were dropped, after a barge-in or because it
read too slowly. So it acknowledges a place in the audio that was *sent* to it, and the gaps between what was sent lead from there to media
time. What it got and threw away itself counts as passed.

    media      [0, 240)  dropped [240, 400)  [400, 560)
    delivered  [0, 240)                      [240, 400)      played 320 is 480 of media time; played 240 is 240
"""

from __future__ import annotations

from collections import deque

MAX_GAPS = 1024  # kept for a wire that never acknowledges; before the oldest of them too little counts as played, never too much


class PlaybackLedger:
    """Cursors of one call.

    Attributes:
        generated_ms: end of the last frame that the model produced.
        sent_ms: end of the last frame that was handed to the wire.
        played_ms: what the client says its listener has heard, in media time.
    """

    def __init__(self) -> None:
        self.generated_ms = 0
        self.sent_ms = 0
        self.played_ms = 0
        self._delivered_ms = 0  # sent_ms without the gaps
        self._skipped_ms = 0  # gaps before the last acknowledgement
        self._gaps: deque[tuple[int, int]] = deque(maxlen=MAX_GAPS)  # (place in what was delivered, gaps up to and with this one in ms)

    def generate(self, end_ms: int) -> None:
        """Record that audio up to `end_ms` exists."""
        self.generated_ms = max(self.generated_ms, end_ms)

    def send(self, start_ms: int, end_ms: int) -> None:
        """Record that the audio [start_ms, end_ms) went to the wire, and that what lies between it and the audio before never will."""
        start_ms, end_ms = max(start_ms, self.sent_ms), min(end_ms, self.generated_ms)
        if start_ms >= end_ms:
            return
        if start_ms > self.sent_ms:
            self._gaps.append((self._delivered_ms, start_ms - self._delivered_ms))
        self._delivered_ms += end_ms - start_ms
        self.sent_ms = end_ms

    def play(self, delivered_ms: int) -> None:
        """Take a client's acknowledgement: so much of the audio that was sent to it has been heard."""
        while self._gaps and self._gaps[0][0] < delivered_ms:
            self._skipped_ms = self._gaps.popleft()[1]
        self.played_ms = max(self.played_ms, min(delivered_ms + self._skipped_ms, self.sent_ms))
