"""Two recognisers that read the answers' audio, independent of the model and of each other.

Whisper tiny.en writes down whatever it hears; pocketsphinx chooses among the allowed replies. Both are optional packages: one that is
missing is skipped, and the report says so. The one rule: a recogniser never learns what the answer should have been. Thread: any, one at a
time; `read_all` belongs in a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from gateway.training import grammar, sources
from gateway.training.evaluation.signals import RATE, Pcm

ASR_RATE = 16_000  # Hz, of both
_MOST_PIECES = 100  # of one answer; on sounds that are no words Whisper repeats itself without end, and the alphabet takes 60
_PAD_S = 0.3  # of silence around an answer: both were trained on sentences that do not begin at the first sample


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What the recognisers heard in one answer; None where one is missing."""

    whisper: str | None
    sphinx: str | None


class Whisper:
    """Whisper tiny.en through CTranslate2."""

    def __init__(self, cache: Path) -> None:
        """Load the weights, downloaded into `cache` if they are not there.

        Raises:
            ImportError: faster-whisper is not installed.
            sources.SourceError: the weights cannot be had.
        """
        from faster_whisper import WhisperModel

        folder = sources.recogniser(cache)
        self._model = WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True)

    def read(self, pcm: Pcm) -> str:
        """Write down what is said in audio at RATE."""
        segments, _ = self._model.transcribe(
            _for_asr(pcm), language="en", beam_size=1, temperature=0.0, condition_on_previous_text=False, without_timestamps=True,
            max_new_tokens=_MOST_PIECES,
        )  # fmt: skip
        return " ".join(segment.text.strip() for segment in segments)


class Sphinx:
    """pocketsphinx with a JSGF grammar of sentences."""

    def __init__(self, sentences: Iterable[str]) -> None:
        """Allow these sentences.

        Raises:
            ImportError: pocketsphinx is not installed.
        """
        import pocketsphinx

        self._decoder: Any = pocketsphinx.Decoder(samprate=ASR_RATE, loglevel="FATAL", lm=None)
        self.left_out: list[str] = []  # sentences with a word that no dictionary knows
        self._said: dict[str, str] = {}
        for sentence in sentences:
            words = _dictionary_words(sentence)
            unknown = {word for word in words if self._decoder.lookup_word(word) is None}
            for word in unknown & _EXTRA.keys():
                self._decoder.add_word(word, _EXTRA[word], True)
            if unknown - _EXTRA.keys():
                self.left_out.append(sentence)
            else:
                self._said.setdefault(" ".join(words), grammar.plain(sentence))
        rule = " | ".join(f"( {' '.join(words.split())} )" for words in self._said)
        self._decoder.add_jsgf_string("replies", f"#JSGF V1.0; grammar replies; public <reply> = {rule};")
        self._decoder.activate_search("replies")

    def read(self, pcm: Pcm) -> str:
        """Return the allowed sentence that audio at RATE is most like, in `grammar.plain` form; empty if it is like none."""
        self._decoder.start_utt()
        samples = np.clip(_for_asr(pcm) * 32767, -32768, 32767).astype(np.int16)
        self._decoder.process_raw(samples.tobytes(), full_utt=True)
        self._decoder.end_utt()
        hypothesis = self._decoder.hyp()
        return self._said.get(re.sub(r"\(\d+\)", "", hypothesis.hypstr), "") if hypothesis is not None else ""


def missing(cache: Path) -> list[str]:
    """Say which recognisers cannot be used here, and why."""
    found = []
    for name, load in (("whisper", lambda: Whisper(cache)), ("pocketsphinx", lambda: Sphinx(["Hello."]))):
        try:
            load()
        except (ImportError, sources.SourceError) as error:
            found.append(f"{name}: {error}")
    return found


def read_all(answers: Sequence[Pcm], cache: Path) -> list[Reading]:
    """Read answers with every recogniser there is."""
    whisper, sphinx = _recognisers(cache)
    return [Reading(whisper.read(pcm) if whisper else None, sphinx.read(pcm) if sphinx else None) for pcm in answers]


# -- Comparing what was heard with what was written --------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Return the words of a transcript as the assistant would write them: numbers in words, British spelling, no punctuation."""
    for sign, word in _SIGNS.items():
        text = text.replace(sign, f" {word} ")
    text = re.sub(r"\b[A-Z]{3,}\b", lambda match: " ".join(match[0]), text)  # the alphabet, run together
    text = re.sub(r"\$(\d+)", r"\1 dollars", text)
    spoken: list[str] = []
    for word in grammar.plain(text).split():
        number = _number(int(word)) if word.isdigit() and len(word) < 4 else _SPELLINGS.get(word, word).split()
        spoken += number
    return spoken


def word_error_rate(said: str, heard: str) -> float:
    """Return errors (substituted, left out, inserted) per word of `said`; words joined or split alike are none."""
    reference, hypothesis = words(said), words(heard)
    if "".join(reference) == "".join(hypothesis):
        return 0.0
    row = list(range(len(hypothesis) + 1))
    for i, word in enumerate(reference, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(hypothesis, 1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (word != other))
    return row[-1] / max(1, len(reference))


# Private

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen", "fourteen",
    "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_SPELLINGS = {
    "ok": "okay", "color": "colour", "favorite": "favourite", "gray": "grey", "apologise": "apologize",
    "i'm": "i am", "it's": "it is", "don't": "do not", "can't": "cannot",
}  # fmt: skip
_SIGNS = {"%": "percent", "=": "is", "+": "plus", "-": ""}
# ARPAbet of words that are in the replies and not in pocketsphinx's dictionary.
_EXTRA = {"bleat": "B L IY T"}


@functools.cache
def _recognisers(cache: Path) -> tuple[Whisper | None, Sphinx | None]:
    whisper = sphinx = None
    with contextlib.suppress(ImportError, sources.SourceError):
        whisper = Whisper(cache)
    with contextlib.suppress(ImportError):
        sphinx = Sphinx(grammar.replies())
    return whisper, sphinx


def _number(value: int) -> list[str]:
    if value >= 100:
        return [_ONES[value // 100], "hundred", *(_number(value % 100) if value % 100 else ())]
    if value < 20:
        return [_ONES[value]]
    return [_TENS[value // 10], *([_ONES[value % 10]] if value % 10 else [])]


def _dictionary_words(sentence: str) -> list[str]:
    """The words of a sentence as pocketsphinx's dictionary spells them: a letter by itself has a full stop, but for "a" and "i"."""
    plain = grammar.plain(sentence).split()
    is_alphabet = len(plain) == 26
    return [f"{word}." if len(word) == 1 and (is_alphabet or word not in "ai") else word for word in plain]


def _for_asr(pcm: Pcm) -> Pcm:
    """The samples at ASR_RATE between a little silence."""
    from scipy.signal import resample_poly

    ratio = Fraction(ASR_RATE, RATE)
    quiet = np.zeros(round(_PAD_S * ASR_RATE), np.float32)
    return np.concatenate([quiet, resample_poly(pcm, ratio.numerator, ratio.denominator).astype(np.float32), quiet])
