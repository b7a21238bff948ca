"""What the browser's microphone hears: a WAV file of a synthetic voice, and how two sounds are compared. No browser here."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray
from scipy.signal import correlate, resample_poly

RATE = 24_000
DEVICE_RATE = 48_000  # of the file: the browser's capture runs at it
SENTENCES = ("Hello. What time do you open in the morning?", "Thank you. Can I book a table for two people?")
PAUSE_S = 4.5  # after each sentence, for the answer

Pcm = NDArray[np.float32]


@functools.cache
def microphone_file() -> Path:
    """A WAV file: a second of silence, then sentences and pauses. The browser plays it again and again."""
    folder = Path(tempfile.mkdtemp(prefix="microphone-"))
    pieces: list[Pcm] = [np.zeros(DEVICE_RATE, np.float32)]
    for sentence in SENTENCES:
        pieces += [_say(sentence, folder), np.zeros(round(PAUSE_S * DEVICE_RATE), np.float32)]
    path = folder / "microphone.wav"
    soundfile.write(path, np.concatenate(pieces), DEVICE_RATE, subtype="PCM_16")
    return path


def microphone_pcm() -> Pcm:
    """The same at the server's rate."""
    pcm, _ = soundfile.read(microphone_file(), dtype="float32")
    return resample_poly(pcm, 1, DEVICE_RATE // RATE).astype(np.float32)


def _say(sentence: str, folder: Path) -> Pcm:
    assert shutil.which("espeak-ng"), "espeak-ng is missing: see tests/browser/install.sh"
    path = folder / "sentence.wav"
    subprocess.run(["espeak-ng", "-v", "en-us", "-s", "150", "-w", str(path), sentence], check=True, capture_output=True)
    pcm, rate = soundfile.read(path, dtype="float32")
    return (0.6 * resample_poly(pcm, DEVICE_RATE, rate)).astype(np.float32)


def align(part: Pcm, whole: Pcm) -> tuple[int, float]:
    """Find `part` in `whole`: where it begins, and the correlation coefficient there."""
    scores = correlate(whole.astype(np.float64), part.astype(np.float64), mode="valid", method="fft")
    power = np.cumsum(np.concatenate([[0.0], whole.astype(np.float64) ** 2]))
    energy = power[part.size :] - power[: whole.size - part.size + 1]
    scores /= np.sqrt(np.maximum(energy, 1e-9) * max(float(np.sum(part.astype(np.float64) ** 2)), 1e-9))
    place = int(np.argmax(scores))
    return place, float(scores[place])


def rms(pcm: Pcm) -> float:
    return float(np.sqrt(np.mean(np.square(pcm, dtype=np.float64)))) if pcm.size else 0.0


def loudest(pcm: Pcm, seconds: float) -> Pcm:
    """The loudest stretch of so many seconds."""
    size = round(seconds * RATE)
    power = np.cumsum(np.concatenate([[0.0], pcm.astype(np.float64) ** 2]))
    start = int(np.argmax(power[size:] - power[: pcm.size - size + 1]))
    return pcm[start : start + size]
