"""Bytes of text tokens in, whole characters out.

A tokenizer falls back to single bytes for characters that are not in its vocabulary, so one token may carry a third of a character. The
one rule: what leaves here is valid UTF-8, and no byte is lost without a U+FFFD in its place. Thread: any, one at a time.
"""

from __future__ import annotations

import codecs


class TextAssembler:
    """Incremental UTF-8 of one call."""

    def __init__(self) -> None:
        # "replace" does what is wanted here: an incomplete character is held back, and when the next byte does not continue it (a
        # whole-word piece never does) it turns into U+FFFD before that piece.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, piece: bytes) -> str:
        """Take one token's bytes (b"" for special tokens); return the text that is complete now, often ""."""
        return self._decoder.decode(piece)

    def flush(self) -> str:
        """End the text: an incomplete character becomes U+FFFD. The assembler is fresh afterwards."""
        text = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return text
