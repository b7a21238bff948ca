"""The audio of the Realtime wire: base64 to bytes, bytes to samples at the engine's rate, and back. G.711 included (ITU-T G.711).

No event and no session lives here. The rule: where a client cuts its stream does not matter. A sample whose bytes are not all there
waits for the rest, and the resampler carries its state over (specs/realtime.md 2.6, 3.11). One converter serves one direction of one
connection. Thread: any, one at a time per object.

Resampling is libswresample's, through PyAV: a polyphase filter in the time domain. It owes the last 2 ms at 8 kHz and 1 ms or less from
16 kHz on, the same at every moment, and gives the same bits for every chunking where the ratio of the rates is a simple one (those in use
are). libsoxr works in blocks: what it owes swings between 12 and 73 ms at 8 kHz, and a session clock would hear gaps.
"""

from __future__ import annotations

import binascii
import contextlib
from fractions import Fraction

import av
import av.filter
import numpy as np
from numpy.typing import NDArray

from protocols.audio import Pcm
from protocols.realtime.formats import AudioFormat

_SCALE = 32768.0  # of s16: what came in as s16 goes out as the same s16
_PRIMING_HZ = 50  # an output converter begins with 20 ms of silence in its filter; the filter is 2 ms long or less
_WHITESPACE = b" \t\n\r\v\f"


def decode_base64(text: str) -> bytes:
    """Decode base64 of the standard alphabet; ASCII whitespace is skipped and missing padding added (2.7).

    Raises:
        ValueError: anything else.
    """
    if len(text) % 4 == 0 and not text.endswith("==="):  # what most clients send; Python 3.11 lets more padding pass than there may be
        with contextlib.suppress(ValueError):
            return binascii.a2b_base64(text, strict_mode=True)
    try:
        data = text.encode("ascii").translate(None, _WHITESPACE)
    except UnicodeEncodeError:
        raise ValueError("not base64: a character outside its alphabet") from None
    bare = data.rstrip(b"=")
    num_padding = -len(bare) % 4
    if len(data) - len(bare) > num_padding:
        raise ValueError("not base64: too much padding")
    try:
        return binascii.a2b_base64(bare + b"=" * num_padding, strict_mode=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from None


class Resampler:
    """Change the rate of one stream of samples, float32 to float32.

    Between rates without a simple ratio (23999 to 24000 Hz) the samples may differ by 1e-5 with the chunking.
    """

    def __init__(self, rate_in: int, rate_out: int) -> None:
        self._rate_in = rate_in
        self._graph = av.filter.Graph()
        self._graph.threads = 1  # FFmpeg would start a pool of its own for every graph, a thread for each core
        self._source = self._graph.add_abuffer(sample_rate=rate_in, format="flt", layout="mono", time_base=Fraction(1, rate_in))
        self._sink = self._graph.add("abuffersink")
        converter = self._graph.add("aresample", str(rate_out))
        self._source.link_to(converter)
        converter.link_to(self._sink)
        self._graph.configure()

    def push(self, pcm: Pcm) -> Pcm:
        """Take float32 [N] and return the float32 [M] that is ready."""
        if not pcm.size:
            return pcm
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(pcm).reshape(1, -1), format="flt", layout="mono")  # a copy
        frame.sample_rate = self._rate_in
        self._source.push(frame)
        return self._pull()

    def finish(self) -> Pcm:
        """Return what the filter still owes; nothing is pushed afterwards."""
        self._source.push(None)
        return self._pull()

    def _pull(self) -> Pcm:
        chunks: list[Pcm] = []
        while True:
            try:
                frame = self._sink.pull()
            except (BlockingIOError, EOFError):  # more input is needed; nothing is left
                break
            assert isinstance(frame, av.AudioFrame)
            chunks.append(frame.to_ndarray()[0])
        return np.concatenate(chunks) if chunks else np.empty(0, np.float32)


# -- G.711 ---------------------------------------------------------------------------------------------------------------------------
# A code is sign, segment (3 bits) and step (4 bits). Magnitudes are those of 16-bit samples: the standard's 14-bit mu-law values times 4,
# its 13-bit A-law values times 8.

_MULAW_BIAS = 33 * 4  # makes every segment begin at a power of two (G.711 table 2a)
_MULAW_MAX = 8158 * 4 + 3  # largest magnitude of the last step; what is above is clipped


def _decode_mulaw() -> Pcm:
    codes = ~np.arange(256, dtype=np.uint8)  # all bits are inverted on the wire
    segment, step = codes >> 4 & 7, (codes & 15).astype(np.int32)
    magnitude = ((2 * step + 33) << segment) - 33 << 2
    return (np.where(codes & 0x80, -magnitude, magnitude) / _SCALE).astype(np.float32)


def _decode_alaw() -> Pcm:
    codes = np.arange(256, dtype=np.uint8) ^ 0x55  # even bits are inverted on the wire
    segment, step = codes >> 4 & 7, (codes & 15).astype(np.int32)
    magnitude = np.where(segment == 0, 2 * step + 1, (2 * step + 33) << np.maximum(segment, 1) - 1) << 3
    return (np.where(codes & 0x80, magnitude, -magnitude) / _SCALE).astype(np.float32)


def _encode_mulaw() -> NDArray[np.uint8]:
    pcm = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    magnitude = np.minimum(np.abs(pcm), _MULAW_MAX) + _MULAW_BIAS
    segment = np.frexp(magnitude)[1] - 8  # segment s holds the magnitudes [128 << s, 256 << s), bias included
    code = segment << 4 | (magnitude >> segment + 3 & 15)
    codes: NDArray[np.uint8] = (~np.where(pcm < 0, code | 0x80, code)).astype(np.uint8)  # all bits inverted
    return codes


def _encode_alaw() -> NDArray[np.uint8]:
    pcm = np.arange(65536, dtype=np.uint16).view(np.int16).astype(np.int32)
    magnitude = np.where(pcm < 0, ~pcm, pcm)  # A-law has no zero: its steps are [0, 16), [16, 32), ... and below 0 [-16, 0), ...
    segment = np.maximum(np.frexp(magnitude)[1] - 8, 0)  # segment s > 0 holds the magnitudes [128 << s, 256 << s)
    code = segment << 4 | (magnitude >> np.maximum(segment, 1) + 3 & 15)
    codes: NDArray[np.uint8] = (np.where(pcm < 0, code, code | 0x80) ^ 0x55).astype(np.uint8)  # even bits inverted
    return codes


_DECODE = {"pcmu": _decode_mulaw(), "pcma": _decode_alaw()}  # float32 [256], by code
_ENCODE = {"pcmu": _encode_mulaw(), "pcma": _encode_alaw()}  # uint8 [65536], by sample taken as unsigned


# -- both directions -----------------------------------------------------------------------------------------------------------------


class InputConverter:
    """Bytes of a client, cut anywhere, to samples at the engine's rate."""

    def __init__(self, fmt: AudioFormat, rate: int) -> None:
        self._fmt = fmt
        self._rate = rate
        self._carried = b""
        self._resampler: Resampler | None = None  # made when the first sample comes; None for ever where the rates are equal

    @property
    def num_carried(self) -> int:
        """Bytes of an incomplete sample that wait for the rest."""
        return len(self._carried)

    def push(self, data: bytes) -> Pcm:
        """Take the next bytes and return the float32 [N] that is ready, in [-1, 1]. At equal rates s16 is exact."""
        if self._carried:
            data = self._carried + data
        num_samples, num_carried = divmod(len(data), self._fmt.sample_bytes)
        self._carried = data[len(data) - num_carried :]
        pcm = self._samples(data, num_samples)
        if self._fmt.rate == self._rate or not num_samples:
            return pcm
        if self._resampler is None:
            self._resampler = Resampler(self._fmt.rate, self._rate)
        return np.clip(self._resampler.push(pcm), -1.0, 1.0)  # a filter overshoots at full scale

    def drop_partial(self) -> None:
        """Forget the bytes of an incomplete sample (commit, clear, end)."""
        self._carried = b""

    def flush(self) -> Pcm:
        """Return what the resampler still owes and begin anew (format change); the bytes of an incomplete sample are dropped."""
        self._carried = b""
        resampler, self._resampler = self._resampler, None
        return np.clip(resampler.finish(), -1.0, 1.0) if resampler else np.empty(0, np.float32)

    def _samples(self, data: bytes, num_samples: int) -> Pcm:
        if self._fmt.kind != "pcm":
            return _DECODE[self._fmt.kind][np.frombuffer(data, np.uint8)]
        if self._fmt.encoding == "f32":
            # "Float samples are clipped to [-1, 1]; NaN/Inf become 0" (2.6)
            return _bounded(np.frombuffer(data, "<f4", num_samples).astype(np.float32))
        pcm: Pcm = np.multiply(np.frombuffer(data, "<i2", num_samples), np.float32(1 / _SCALE), dtype=np.float32)  # exact: a power of two
        return pcm


class OutputConverter:
    """The engine's frames to bytes of a client's format, for one response.

    As many bytes come out as the frame is long, from the first frame on: 640 of G.711 for 80 ms. Where the rates differ, the filter starts
    with silence in it, so that the audio comes out later by what the filter owes: 2 ms at 8 kHz, 0.7 to 1 ms at 16 and 48 kHz. That little
    is what `flush` returns.
    """

    def __init__(self, fmt: AudioFormat, rate: int) -> None:
        self._fmt = fmt
        self._rate = rate
        self._resampler: Resampler | None = None  # made with the first frame; None for ever where the rates are equal

    def push(self, pcm: Pcm) -> bytes:
        """Take a frame, float32 [S], and return its bytes: S * (format's rate) / (engine's rate) samples, where that is a whole number."""
        if self._fmt.rate == self._rate:
            return self._bytes(pcm)
        if self._resampler is None:
            self._resampler = Resampler(self._rate, self._fmt.rate)
            self._resampler.push(np.zeros(self._rate // _PRIMING_HZ, np.float32))
        return self._bytes(self._resampler.push(pcm))

    def flush(self) -> bytes:
        """Return what the resampler still owes, 0 to 2 ms, and begin anew: the next frame is the first of a response."""
        resampler, self._resampler = self._resampler, None
        return self._bytes(resampler.finish()) if resampler else b""

    def _bytes(self, pcm: Pcm) -> bytes:
        samples: NDArray[np.int16] = np.minimum(np.rint(_bounded(pcm) * np.float32(_SCALE)), 32767).astype(np.int16)
        if self._fmt.kind == "pcm":
            return samples.astype("<i2", copy=False).tobytes()
        return _ENCODE[self._fmt.kind][samples.view(np.uint16)].tobytes()


def _bounded(pcm: Pcm) -> Pcm:
    """Return `pcm` within [-1, 1], NaN and infinity as 0; the array itself when nothing is to be done."""
    if not pcm.size or (pcm.max() <= 1.0 and pcm.min() >= -1.0):  # false for NaN
        return pcm
    return np.clip(np.nan_to_num(pcm, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)
