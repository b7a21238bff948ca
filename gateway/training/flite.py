"""Speech of flite (Debian package `flite`), in other tempos and at other pitches.

The one rule: pitch is changed by resampling, so that it changes the apparent size of the speaker too; tempo makes up for it. Thread: any.
"""

from __future__ import annotations

import subprocess
import tempfile
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 24_000
VOICES = ("slt", "rms", "kal16", "awb")


def say(voice: str, text: str, speed: float, pitch: float) -> NDArray[np.float32]:
    """Return speech, float32 [N] at SAMPLE_RATE.

    Args:
        voice: one of VOICES.
        text: what is said.
        speed: tempo; 1 is the voice's own, more is faster.
        pitch: 1 is the voice's own; within 0.8 to 1.25 it still sounds human.

    Raises:
        OSError: flite is not installed.
        subprocess.CalledProcessError: flite failed.
    """
    import soundfile
    from scipy.signal import resample_poly

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "speech.wav"
        stretch = f"duration_stretch={pitch / speed:.4f}"
        subprocess.run(["flite", "-voice", voice, "--setf", stretch, "-t", text, "-o", str(path)], check=True, capture_output=True)
        pcm, rate = soundfile.read(path, dtype="float32")
    ratio = Fraction(SAMPLE_RATE / (rate * pitch)).limit_denominator(100)
    return np.asarray(resample_poly(pcm, ratio.numerator, ratio.denominator), np.float32)
