"""The playback ledger of one call: how much of the assistant's audio was made, sent, heard and written down.

Four cursors in milliseconds of media time since the first output sample, and the words by the time they belong to. The one rule:
generated_ms >= sent_ms >= played_ms >= committed_ms, and each only ever rises. An acknowledgement that is late, doubled or out of order
changes nothing; one that claims more than was sent counts as what was sent. Pure: no clock, no asyncio. Thread: any, one at a time.
"""

from __future__ import annotations

from collections import deque

MAX_TEXTS = 8192  # words that wait for an acknowledgement; wires that never acknowledge would otherwise collect a call's whole text


class PlaybackLedger:
    """Cursors and unheard text of one call.

    Attributes:
        generated_ms: end of the last frame that the model produced.
        sent_ms: end of the last frame that was handed to the wire.
        played_ms: what the client says its listener has heard.
        committed_ms: what has entered the transcript.
    """

    def __init__(self) -> None:
        self.generated_ms = 0
        self.sent_ms = 0
        self.played_ms = 0
        self.committed_ms = 0
        self._texts: deque[tuple[int, str]] = deque(maxlen=MAX_TEXTS)  # (end of its frame in ms, text), times never fall

    def generate(self, end_ms: int) -> None:
        """Record that audio up to `end_ms` exists."""
        self.generated_ms = max(self.generated_ms, end_ms)

    def send(self, end_ms: int) -> None:
        """Record that audio up to `end_ms` went to the wire."""
        self.sent_ms = max(self.sent_ms, min(end_ms, self.generated_ms))

    def play(self, played_ms: int) -> None:
        """Take a client's acknowledgement."""
        self.played_ms = max(self.played_ms, min(played_ms, self.sent_ms))

    def add_text(self, end_ms: int, text: str) -> None:
        """Record text that belongs to the frame ending at `end_ms`."""
        self._texts.append((end_ms, text))

    def cut(self) -> None:
        """Forget the text that was not heard: after a barge-in nobody will play its audio."""
        while self._texts and self._texts[-1][0] > self.played_ms:
            self._texts.pop()

    def heard_text(self) -> str:
        """Text of the frames that were played to their end and are not committed yet."""
        return "".join(text for end_ms, text in self._texts if end_ms <= self.played_ms)

    def commit(self) -> str:
        """Move the heard text into the transcript: return it and forget it."""
        heard = self.heard_text()
        while self._texts and self._texts[0][0] <= self.played_ms:
            self._texts.popleft()
        self.committed_ms = self.played_ms
        return heard
