"""How much of one assistant item exists, was sent, was heard, and stands in the transcript (specs/realtime.md 4.8).

Four marks in milliseconds of item time. The rule: generated_ms >= sent_ms >= played_ms >= committed_ms, each only ever rises; a report that
says otherwise is clamped, never an error, and after a truncation nothing moves any more. For clients that never acknowledge, what was heard
is estimated: it is played in real time from the first frame that was sent on. An estimate enters the marks only when it is settled. Time is
an argument. Thread: any, one at a time.
"""

from __future__ import annotations

import re
from typing import NamedTuple

# A word that was cut in two: its end, which is more than punctuation, and its beginning. Ideographs and kana stand for themselves.
_REST_OF_WORD = re.compile(r"\S*\w")
_LAST_WORD = re.compile(r"[^\s\u2e80-\u9fff]*\Z")

SETTLE_S = 2.0  # "2000 ms + (sent - played estimate) passed without a truncate"


class Piece(NamedTuple):
    """Text of one frame."""

    start_ms: int  # of its frame, in item time
    text: str


class Watermarks:
    """The marks and the words of one item.

    Attributes:
        generated_ms, sent_ms, played_ms, committed_ms: see above.
        is_sealed: truncated; final.
        is_settled: what was heard is known, by a truncation, or because none can be expected any more.
    """

    def __init__(self, *, has_acks: bool = False) -> None:
        """`has_acks`: the client promised `playback.ack`; nothing is estimated then, nor after the first that comes unpromised."""
        self.generated_ms = 0
        self.sent_ms = 0
        self.played_ms = 0
        self.committed_ms = 0
        self.is_sealed = False
        self.is_settled = False
        self._has_acks = has_acks
        self._acknowledged_ms = 0  # played, with no word on what is committed
        self._pieces: list[Piece] = []
        self._num_sent = 0  # pieces that went to the transport
        self._first_sent_s: float | None = None
        self._ended_s: float | None = None
        self._heard_at_end_ms: int | None = None  # the estimate when the user took the floor

    def generate(self, end_ms: int, text: str = "") -> None:
        """A frame ending at `end_ms` was assigned to the item, with its text."""
        if self.is_sealed:
            return
        if text:
            self._pieces.append(Piece(self.generated_ms, text))
        self.generated_ms = max(self.generated_ms, end_ms)

    def send_text(self) -> None:
        """The next piece of text was handed to the transport."""
        if not self.is_sealed:
            self._num_sent += 1

    def send(self, end_ms: int, now: float) -> None:
        """The audio up to `end_ms` was handed to the transport."""
        if self.is_sealed:
            return
        if self._first_sent_s is None:
            self._first_sent_s = now
        self.sent_ms = max(self.sent_ms, min(end_ms, self.generated_ms))

    def end(self, now: float, *, was_interrupted: bool) -> None:
        """The response is over; `was_interrupted`: by the user's turn, at which a client flushes what it has not played."""
        if self._ended_s is None:
            self._ended_s = now
            self._heard_at_end_ms = self._estimate(now) if was_interrupted and not self._has_acks else None
            if not self.is_sealed:
                self.committed_ms = max(self.committed_ms, self._acknowledged_ms)

    def acknowledge(self, played_ms: int, committed_ms: int | None, now: float) -> None:
        """Take `playback.ack`; late and lower ones change nothing."""
        self.settle(now)
        self._has_acks = True
        if self.is_sealed:
            return
        self.played_ms = max(self.played_ms, min(played_ms, self.sent_ms))
        heard_ms = min(played_ms if committed_ms is None else committed_ms, self.played_ms)
        if committed_ms is None and self._ended_s is None:
            self._acknowledged_ms = max(self._acknowledged_ms, heard_ms)  # "or played_ms if absent and the response is done"
        else:
            self.committed_ms = max(self.committed_ms, heard_ms)

    def truncate(self, end_ms: int, now: float) -> int:
        """Seal the item where its listener stopped hearing it; return the place. A later call can only lower it to what is committed."""
        self.settle(now)
        if self.is_sealed:  # "the smaller value wins unless committed is higher": committed is the seal
            return self.committed_ms
        sealed_ms = max(self.committed_ms, min(end_ms, self.sent_ms))
        self.played_ms = max(self.played_ms, sealed_ms)
        self.committed_ms = sealed_ms
        self.is_sealed = self.is_settled = True
        return sealed_ms

    def settle(self, now: float) -> None:
        """Take what was heard for final, once no truncation can be expected any more; without acknowledgements commit the estimate."""
        if self.is_sealed or self._ended_s is None or now < self._settled_s(self._ended_s):
            return
        self.is_settled = True
        if not self._has_acks:
            heard_ms = self.sent_ms if self._heard_at_end_ms is None else self._heard_at_end_ms
            self.played_ms = self.committed_ms = max(self.played_ms, heard_ms)

    def played_by(self, now: float) -> int:
        """The best guess of what has been heard: acknowledgements, or the estimate."""
        return self.played_ms if self._has_acks or self.is_sealed else max(self.played_ms, self._estimate(now))

    def text(self) -> str:
        """Every word, sent or not."""
        return "".join(piece.text for piece in self._pieces)

    def transcript(self) -> str:
        """The words that count: those that were heard where that is known and less than what was sent, otherwise those that were sent."""
        if self.is_sealed or (self.is_settled and self.committed_ms < self.sent_ms):
            return self.text_until(self.committed_ms)
        return "".join(piece.text for piece in self._pieces[: self._num_sent])

    def text_until(self, end_ms: int) -> str:
        """The text of all frames that begin before `end_ms`, without a word that goes on after it."""
        text = "".join(piece.text for piece in self._pieces if piece.start_ms < end_ms)
        rest = self.text()[len(text) :]
        if _REST_OF_WORD.match(rest):
            text = _LAST_WORD.sub("", text)
        return text.rstrip()

    # Private

    def _settled_s(self, ended_s: float) -> float:
        """When an item that ended then can count as heard."""
        return ended_s + SETTLE_S + (self.sent_ms - self._estimate(ended_s)) / 1000

    def _estimate(self, now: float) -> int:
        """min(sent, now - time of the first send), in milliseconds."""
        if self._first_sent_s is None:
            return 0
        return min(self.sent_ms, max(0, int((now - self._first_sent_s) * 1000)))
