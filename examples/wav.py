"""WAV files as mono float32 at 24 kHz, with the standard library and numpy. Other rates are resampled linearly: good enough for speech."""

from __future__ import annotations

import wave

import numpy as np
from numpy.typing import NDArray

RATE = 24_000  # Hz


def read_wav(path: str) -> NDArray[np.float32]:
    """Read 16-bit PCM of any rate and number of channels."""
    try:
        with wave.open(path, "rb") as file:
            if file.getsampwidth() != 2:
                raise SystemExit(f"{path}: must be 16-bit PCM, not {8 * file.getsampwidth()}-bit")
            rate, num_channels = file.getframerate(), file.getnchannels()
            samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").reshape(-1, num_channels)
    except (OSError, EOFError, wave.Error) as error:
        raise SystemExit(f"{path}: {error}") from None
    mono = samples.mean(axis=1) / 32768
    if rate != RATE:
        num_samples = len(mono) * RATE // rate
        mono = np.interp(np.arange(num_samples) * rate / RATE, np.arange(len(mono)), mono)
    return mono.astype(np.float32)


def write_wav(path: str, pcm: NDArray[np.float32]) -> None:
    """Write 16-bit PCM."""
    with wave.open(path, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes())
