"""When each word and phone of a recording begins, by forced alignment with pocketsphinx.

Not here: what is stored of it (`packing`). The one rule: a recording that cannot be aligned says so; its words are then laid out by length
and it has no phones. Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.training.corpus import PHONES, SAMPLE_RATE
from gateway.training.grammar import plain

_RATE = 16_000  # Hz, the aligner's
_HOP = SAMPLE_RATE // 100  # samples of ours per aligner frame of 10 ms
_MARGINS = (20, 33, 12, 5)  # frames of silence put on both sides, which its models expect; where one length fails, another works
_FILLERS = ("<", "[", "+")  # first letters of what is no word
_SIL = PHONES.index("SIL")

# Not in the aligner's dictionary.
_WORDS = {
    "bla": "B L AA", "gabble": "G AE B AH L", "lubba": "L AH B AH", "oink": "OY NG K", "tra": "T R AA", "wubba": "W AH B AH",
    "mm": "AH M", "hm": "HH AH M", "uh": "AH", "huh": "HH AH", "hmm": "HH AH M", "baa": "B AA", "ba": "B AA", "la": "L AA", "zed": "Z EH D",
}  # fmt: skip
_OTHERS = {"z": "Z EH D", "la": "L AA", "ba": "B AA"}  # further pronunciations


@dataclasses.dataclass(frozen=True, slots=True)
class Alignment:
    """Times in samples at SAMPLE_RATE.

    Attributes:
        words: first sample of each word of `text.split()`.
        phones: first sample and index into PHONES; empty when the recording could not be aligned.
    """

    words: tuple[int, ...]
    phones: tuple[tuple[int, int], ...]


class Aligner:
    """One loaded aligner."""

    def __init__(self) -> None:
        """Load the acoustic model and the dictionary that come with pocketsphinx."""
        import pocketsphinx

        self._decoder: Any = pocketsphinx.Decoder(lm=None, cmn="batch", loglevel="FATAL")
        for word, phones in _WORDS.items():
            if self._decoder.lookup_word(word) is None:
                self._decoder.add_word(word, phones, True)
        for word, phones in _OTHERS.items():
            self._decoder.add_word(f"{word}(9)", phones, True)

    def align(self, pcm: NDArray[np.float32], text: str) -> Alignment:
        """Return the times of a recording, float32 [N] at SAMPLE_RATE, laid out by length where alignment fails."""
        spoken = [plain(word).split() for word in text.split()]
        words = [word for group in spoken for word in group]
        if not words or any(self._decoder.lookup_word(word) is None for word in words):
            return uniform(len(pcm), text)
        firsts = np.cumsum([0] + [len(group) for group in spoken[:-1]])
        best = uniform(len(pcm), text)
        for margin in _MARGINS:
            starts, phones = self._decode(_prepare(pcm, margin), words)
            if starts:
                best = Alignment(
                    tuple(_sample(starts[first] - margin, len(pcm)) for first in firsts),
                    _merged([(_sample(start - margin, len(pcm)), phone) for start, phone in phones]),
                )
            if phones:
                break
        return best

    def _decode(self, pcm: bytes, words: list[str]) -> tuple[list[int], list[tuple[int, int]]]:
        """Frames at which the words start, and the phones; empty where they are not all found."""
        decoder = self._decoder
        decoder.set_align_text(" ".join(words))
        try:
            self._pass(pcm)
            segments = [(segment.word.partition("(")[0], segment.start_frame) for segment in decoder.seg() or ()]
            segments = [(word, start) for word, start in segments if not word.startswith(_FILLERS)]
        except RuntimeError:
            return [], []
        if [word for word, _ in segments] != words:
            return [], []
        starts = [start for _, start in segments]
        try:
            decoder.set_alignment()  # only now: with nothing to align the library crashes
            self._pass(pcm)
            alignment = decoder.get_alignment()  # owns what it yields: keep it until all is read
            return starts, [(phone.start, _phone(phone.name)) for entry in alignment for phone in entry]
        except RuntimeError:
            return starts, []

    def _pass(self, pcm: bytes) -> None:
        self._decoder.start_utt()
        self._decoder.process_raw(pcm, full_utt=True)
        self._decoder.end_utt()


def uniform(samples: int, text: str) -> Alignment:
    """Return word times in proportion to the letters before them."""
    words = text.split()
    ends = np.cumsum([len(word) for word in words])
    return Alignment(tuple(int(samples * start / ends[-1]) for start in [0, *ends[:-1]]), ())


# Private


def _prepare(pcm: NDArray[np.float32], margin: int) -> bytes:
    """int16 at the aligner's rate between margins of faint noise."""
    from scipy.signal import resample_poly

    wave = resample_poly(pcm.astype(np.float64), _RATE, SAMPLE_RATE)
    silence = np.zeros(margin * _RATE // 100)
    wave = np.concatenate([silence, wave, silence])
    noise = np.random.default_rng(0).normal(0, 4, len(wave))
    return bytes(np.clip(wave * 32767 + noise, -32768, 32767).astype(np.int16).tobytes())


def _sample(frame: int, samples: int) -> int:
    return min(max(0, frame * _HOP), samples - 1)


def _phone(name: str) -> int:
    return PHONES.index(name) if name in PHONES else _SIL


def _merged(phones: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Phones with one entry per sample: the margins shrink to nothing, and the last phone at a place counts."""
    return tuple(dict(phones).items())
