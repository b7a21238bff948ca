"""Speech of Kokoro-82M through onnxruntime, by one voice or a blend of two.

Not here: which voices exist for whom (`speech`), and the files (`sources`). The one rule: a speaker is a name, so that its speech can be
made again anywhere. Thread: any, one at a time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.training import graph, sources
from gateway.training.phonemes import Phonemizer

SAMPLE_RATE = 24_000
_STYLE_ROWS = 510  # styles of a voice, by number of phonemes; also the longest input


class Kokoro:
    """One loaded model."""

    def __init__(self, cache: Path, threads: int = 1) -> None:
        """Load the model and the voices.

        Raises:
            sources.SourceError: a file cannot be had.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(_fast_model(cache)), options, providers=["CPUExecutionProvider"])
        self._symbols = sources.symbols(cache)
        self._voices = sources.voices(cache)
        self.phonemizers = {"en-us": Phonemizer("en-us"), "en-gb": Phonemizer("en-gb")}

    def say(self, speaker: str, text: str, speed: float) -> NDArray[np.float32]:
        """Return speech, float32 [N] at SAMPLE_RATE.

        Raises:
            KeyError: no such voice.
            ValueError: the text is too long, or nothing of it can be said.
        """
        phonemes = self.phonemizers[accent(speaker)](text)
        tokens = [self._symbols[symbol] for symbol in phonemes if symbol in self._symbols]
        if not 0 < len(tokens) <= _STYLE_ROWS:
            raise ValueError(f"{len(tokens)} phonemes in {text!r}: must be 1 to {_STYLE_ROWS}")
        inputs = {
            "tokens": np.array([[0, *tokens, 0]], np.int64),
            "style": self._row(speaker, len(tokens) - 1),
            "speed": np.array([speed], np.float32),
        }
        (audio, *_) = self._session.run(None, inputs)
        return np.asarray(audio, np.float32).reshape(-1)

    def _row(self, speaker: str, row: int) -> NDArray[np.float32]:
        """float32 [1, 256], the style of a speaker for so many phonemes."""
        style = sum(weight * self._voices[voice][row].astype(np.float64) for voice, weight in parts(speaker))
        return np.asarray(style, np.float32).reshape(1, -1)


def _fast_model(cache: Path) -> Path:
    """File of the model with faster convolutions, made on the first call."""
    is_signed = graph.is_exact()
    path = cache.expanduser() / f"kokoro-v1.0.{'int8' if is_signed else 'uint8'}-products.onnx"
    if not path.exists():
        graph.rewrite(sources.model(cache), path, is_signed=is_signed)
    return path


def blend(first: str, second: str, percent: int) -> str:
    """Return the speaker that is so many percent of the first voice and otherwise the second."""
    return f"blend:{first}+{second}@{percent}"


def parts(speaker: str) -> list[tuple[str, float]]:
    """Return the voices of a speaker with their weights."""
    if not speaker.startswith("blend:"):
        return [(speaker, 1.0)]
    pair, percent = speaker.removeprefix("blend:").split("@")
    first, second = pair.split("+")
    return [(first, int(percent) / 100), (second, 1 - int(percent) / 100)]


def accent(speaker: str) -> str:
    """Return the accent that suits a speaker's first voice: British for British ones, else American."""
    return "en-gb" if parts(speaker)[0][0].startswith("b") else "en-us"
