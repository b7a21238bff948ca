"""What is measured on sound: level, pitch, colour of a voice; and the sounds that are no speech.

The one rule: a figure depends on the samples alone, never on who is thought to speak. Not here: the references that figures are compared
with (`voices`). Pure numpy. Thread: any.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

RATE = 24_000  # Hz
FRAME = 1920  # samples, 80 ms
FRAME_S = FRAME / RATE
QUIET_DBFS = -45.0  # a frame below it is not speech: the model's silence is near -80, the weakest frames inside words near -50
FLOOR_DBFS = -90.0  # of digital silence

F0_HZ = (65.0, 400.0)
_WINDOW, _HOP = 1200, 240  # 50 ms, three periods of the lowest voice; every 10 ms
_LOW_PASS_HZ, _TAPS = 900.0, 241  # what is above only blurs the pitch: codecs garble it first
_VOICED = 0.4  # highest normalised difference (YIN) of a window with a pitch
_DIP = 0.2  # the first dip below it is the period: deeper ones later are its multiples
_MEL_BANDS, _CEPSTRA = 24, 12
_MEL_HZ = (80.0, 7600.0)  # what every voice and every wire has

Pcm = NDArray[np.float32]


def level_dbfs(pcm: Pcm) -> float:
    """RMS level of some samples, at least FLOOR_DBFS."""
    power = float(np.mean(np.square(pcm, dtype=np.float64))) if pcm.size else 0.0
    return max(FLOOR_DBFS, 10 * float(np.log10(power + 1e-12)))


def at_level(pcm: Pcm, dbfs: float) -> Pcm:
    """Scale to an RMS level, at most to full scale."""
    gain = 10 ** ((dbfs - level_dbfs(pcm)) / 20)
    return np.asarray(pcm * min(gain, 0.98 / max(1e-9, float(np.abs(pcm).max()))), np.float32)


def amplified(pcm: Pcm, decibels: float) -> Pcm:
    """Scale by a gain."""
    return np.asarray(pcm * 10 ** (decibels / 20), np.float32)


def pitch_hz(pcm: Pcm) -> tuple[float, float]:
    """Median pitch of the voiced parts, and how many seconds of them there are; (0, 0) without any.

    YIN (de Cheveigné and Kawahara 2002) without its last refinement: a median needs none.
    """
    if pcm.size < _WINDOW + _LAGS[-1]:
        return 0.0, 0.0
    windows = _windows(np.convolve(pcm, _low_pass(), mode="same").astype(np.float32), _WINDOW + _LAGS[-1])
    loud = windows[10 * np.log10(np.mean(np.square(windows, dtype=np.float64), axis=1) + 1e-12) > QUIET_DBFS]
    if not len(loud):
        return 0.0, 0.0
    normalised = _difference(loud)
    found = np.full(len(loud), np.nan)
    for index, row in enumerate(normalised):
        (dips,) = np.nonzero(row < _DIP)
        if dips.size:  # the bottom of the first dip
            end = dips[0]
            while end + 1 < row.size and row[end + 1] < row[end]:
                end += 1
            found[index] = RATE / _LAGS[end]
        elif row.min() < _VOICED:
            found[index] = RATE / _LAGS[int(row.argmin())]
    voiced = found[~np.isnan(found)]
    return (float(np.median(voiced)), voiced.size * _HOP / RATE) if voiced.size else (0.0, 0.0)


def colour(pcm: Pcm) -> NDArray[np.float64]:
    """Mean mel cepstrum of the loud windows, [_CEPSTRA], without its first term, the level; zeros where nothing is loud."""
    windows = _windows(pcm, _WINDOW)
    loud = windows[10 * np.log10(np.mean(np.square(windows, dtype=np.float64), axis=1) + 1e-12) > QUIET_DBFS]
    if not len(loud):
        return np.zeros(_CEPSTRA)
    power = np.square(np.abs(np.fft.rfft(loud * np.hanning(_WINDOW), axis=1)))
    bands = np.log(power @ _mel_filters().T + 1e-8)
    order, band = np.arange(1, _CEPSTRA + 1)[:, None], np.arange(_MEL_BANDS)[None] + 0.5
    cosines = np.cos(np.pi * order * band / _MEL_BANDS)
    return np.asarray((bands @ cosines.T).mean(axis=0) / _MEL_BANDS)


def noise(rng: np.random.Generator, seconds: float, dbfs: float) -> Pcm:
    """Pink noise, as a fan or a street makes it."""
    spectrum = np.fft.rfft(rng.standard_normal(round(seconds * RATE)))
    spectrum[1:] /= np.sqrt(np.arange(1, spectrum.size))
    spectrum[: max(1, round(40 * seconds))] = 0  # below 40 Hz no microphone hears anything
    return at_level(np.fft.irfft(spectrum, round(seconds * RATE)).astype(np.float32), dbfs)


def melody(rng: np.random.Generator, seconds: float, dbfs: float) -> Pcm:
    """Plucked notes of a scale with a few harmonics, two to four a second."""
    out = np.zeros(round(seconds * RATE))
    at = 0
    while at < out.size:
        length = int(rng.uniform(0.25, 0.5) * RATE)
        clock = np.arange(min(2 * length, out.size - at)) / RATE
        base_hz = 220 * 2 ** (float(rng.choice([0, 2, 4, 5, 7, 9, 11, 12])) / 12)
        note = sum(np.sin(2 * np.pi * base_hz * k * clock) / k**2 for k in range(1, 6))
        out[at : at + clock.size] += note * np.exp(-4 * clock)
        at += length
    return at_level(out.astype(np.float32), dbfs)


# Private

_LAGS = np.arange(int(RATE / F0_HZ[1]), int(RATE / F0_HZ[0]) + 1)


def _windows(pcm: Pcm, length: int) -> Pcm:
    """Windows of `length` samples every _HOP, [W, length]; none where the sound is shorter."""
    if pcm.size < length:
        return np.zeros((0, length), np.float32)
    return np.lib.stride_tricks.sliding_window_view(pcm, length)[::_HOP]


def _difference(windows: Pcm) -> NDArray[np.float64]:
    """YIN's cumulative mean normalised difference at _LAGS, [W, lags]: 0 where the sound repeats itself exactly."""
    lags = np.arange(_LAGS[-1] + 1)
    width = windows.shape[1] - _LAGS[-1]
    size = 1 << (windows.shape[1] - 1).bit_length() + 1
    first = np.fft.rfft(windows[:, :width].astype(np.float64), size, axis=1)
    whole = np.fft.rfft(windows.astype(np.float64), size, axis=1)
    products = np.fft.irfft(whole * first.conj(), size, axis=1)[:, : lags.size]
    energy = np.cumsum(np.pad(np.square(windows, dtype=np.float64), ((0, 0), (1, 0))), axis=1)
    moved = energy[:, width : width + lags.size] - energy[:, : lags.size]  # of [lag, lag + width)
    difference = np.maximum(0.0, energy[:, width : width + 1] + moved - 2 * products)
    mean = np.cumsum(difference[:, 1:], axis=1) / lags[1:]
    return np.asarray((difference[:, 1:] / np.maximum(mean, 1e-12))[:, _LAGS - 1])


@functools.cache
def _low_pass() -> NDArray[np.float64]:
    """Impulse response of a windowed sinc, [_TAPS]."""
    clock = np.arange(_TAPS) - _TAPS // 2
    taps = np.sinc(2 * _LOW_PASS_HZ / RATE * clock) * np.hamming(_TAPS)
    return np.asarray(taps / taps.sum())


@functools.cache
def _mel_filters() -> NDArray[np.float64]:
    """Triangles on the mel scale, [_MEL_BANDS, bins]."""
    low, high = (2595 * np.log10(1 + hz / 700) for hz in _MEL_HZ)
    edges = 700 * (10 ** (np.linspace(low, high, _MEL_BANDS + 2) / 2595) - 1)
    bins = np.fft.rfftfreq(_WINDOW, 1 / RATE)
    rising = (bins[None] - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins[None]) / (edges[2:] - edges[1:-1])[:, None]
    return np.maximum(0.0, np.minimum(rising, falling))
