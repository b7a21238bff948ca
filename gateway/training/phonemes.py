"""English text to phonemes: espeak-ng's, spelt with the symbols that Kokoro was trained on.

Not here: the aligner's ARPAbet (`alignment`). The one rule: punctuation stays where it was, because Kokoro speaks it; espeak-ng therefore
gets the pieces between it, one a line. Thread: any, one at a time.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable

# espeak-ng joins the two halves of a diphthong or affricate with a tie; longer patterns first.
_COMMON = (
    ("ʔn̩", "tᵊn"), ("ʔ", "t"), ("a^ɪ", "I"), ("a^ʊ", "W"), ("d^ʒ", "ʤ"), ("t^ʃ", "ʧ"), ("e^ɪ", "A"), ("ɔ^ɪ", "Y"),
    ("ə^l", "ᵊl"), ("n̩", "ᵊn"), ("l̩", "ᵊl"), ("m̩", "ᵊm"), ("ɚ", "əɹ"), ("ɐ", "ə"), ("r", "ɹ"), ("x", "k"), ("ç", "k"),
    ("ɬ", "l"), ("ʲ", ""), ("̃", ""),
)  # fmt: skip
_ACCENTS = {
    "en-us": (("o^ʊ", "O"), ("ɜːɹ", "ɜɹ"), ("ɜː", "ɜɹ"), ("ɪ^ə", "iə"), ("ː", "")),
    "en-gb": (("e^ə", "ɛː"), ("i^ə", "ɪə"), ("ə^ʊ", "Q"), ("o^ʊ", "Q")),
}
# What the rules of spelling get wrong.
_SPOKEN = {"mm-hm": "um hum", "uh-huh": "uh huh", "hmm": "hum", "la": "lah", "ba": "bah", "baa": "bah", "ah": "ahh", "tra": "trah"}

_PIECE = re.compile(r"[^,.!?;:]+|[,.!?;:]")


class Phonemizer:
    """Phonemes of texts in one accent, remembered."""

    def __init__(self, accent: str) -> None:
        """Make one for `en-us` or `en-gb`."""
        self._accent = accent
        self._known: dict[str, str] = {}

    def learn(self, texts: Iterable[str]) -> None:
        """Look up many texts in one run of the program.

        Raises:
            OSError: espeak-ng is not installed.
            ValueError: it answered with another number of lines.
        """
        pieces = sorted({piece for text in texts for piece in _pieces(text) if piece not in self._known})
        if not pieces:
            return
        command = ["espeak-ng", "-q", "--ipa=3", "--tie=^", "-v", self._accent]
        done = subprocess.run(command, input="\n".join(map(_respelt, pieces)) + "\n", capture_output=True, text=True, check=True)
        lines = done.stdout.split("\n")[:-1] if done.stdout.endswith("\n") else done.stdout.split("\n")
        if len(lines) != len(pieces):
            raise ValueError(f"espeak-ng answered {len(lines)} lines for {len(pieces)} phrases")
        self._known.update(zip(pieces, (spell(line, self._accent) for line in lines), strict=True))

    def __call__(self, text: str) -> str:
        """Return the phonemes of one text, with its punctuation."""
        self.learn([text])
        out = ""
        for piece in _PIECE.findall(text):
            if piece.strip() in self._known:
                out += " " * (out != "") + self._known[piece.strip()]
            else:
                out += piece.strip()
        return out


def spell(ipa: str, accent: str) -> str:
    """Return one line of espeak-ng's phonemes in Kokoro's symbols."""
    for old, new in _COMMON + _ACCENTS[accent]:
        ipa = ipa.replace(old, new)
    return ipa.replace("^", "").strip()


def _pieces(text: str) -> list[str]:
    return [piece.strip() for piece in _PIECE.findall(text) if re.search(r"\w", piece)]


def _respelt(piece: str) -> str:
    return " ".join(_SPOKEN.get(word.lower(), word) for word in piece.split())
