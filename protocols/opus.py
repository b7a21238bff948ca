"""Ogg-Opus streams: OggOpusReader (bytes to PCM) and OggOpusWriter (PCM to bytes). The only importer of opuslib.

libopus runs through ctypes, which frees the GIL for each call. No WebSocket and no message tag lives here. The rule: the reader takes bytes
from strangers, so every loop over them is bounded (pages, packets, PCM and errors per message), and libopus alone judges a packet.
Reading obeys specs/moshi-protocol.md section 4.6, writing section 4.4. Thread: any, one at a time per object.
"""

from __future__ import annotations

import collections
import ctypes
import ctypes.util
import dataclasses
import functools
import importlib.util
import pathlib
import secrets
import struct
import warnings
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols import ogg
from protocols.errors import ErrorKind, RemoteProtocolError

RATES = (8_000, 12_000, 16_000, 24_000, 48_000)  # Hz; what libopus codes
PACKETS_PER_S = 25  # 40 ms, one packet to a page: what Kyutai's server sends and all five clients were seen to play
PRE_SKIP = 3840  # 48 kHz samples, 80 ms; nobody trims it on this wire (section 4.6 rule 7)
DEFAULT_COMPLEXITY = 5

MAX_ERRORS, ERROR_WINDOW_S = 50, 10.0  # section 4.6 rule 10
MAX_MESSAGE_S = 2  # section 4.6 rule 11: PCM that one message may yield
MAX_MESSAGE_PAGES = 1000  # 2 s of the shortest packets, 2.5 ms, one to a page, are 800
MAX_MESSAGE_PACKETS = 1000  # the same 2 s, however many packets a page has

_MAX_PACKET_BYTES = 4000  # the browser's decoder overflows beyond (section 4.4)
_GRANULE_RATE = 48_000
_APPLICATION_AUDIO = 2049  # OPUS_APPLICATION_AUDIO of opus_defines.h
_RESET_STATE = 4028  # OPUS_RESET_STATE of opus_defines.h
_MISSING = "libopus is not installed: apt-get install libopus0, or pip install av (its wheel brings one)"

Pcm = NDArray[np.float32]


class OpusMissing(ImportError):
    """This machine has no libopus; the message says how to get it."""


# -- libopus -------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class _LibOpus:
    """opuslib, and its hot functions with prototypes that take plain addresses: opuslib's own copy sample by sample."""

    api: Any  # opuslib.api: states and their settings
    encode: Any  # (state, pcm address, samples, buffer, buffer bytes) -> bytes written or a negative error
    decode: Any  # (state, packet, packet bytes, pcm address, room in samples, fec) -> samples or a negative error
    control: Any  # (state, request) -> 0 or a negative error; for decoder requests without an argument


@functools.cache
def load_libopus() -> _LibOpus:
    """Load libopus: the system's, else the one inside the PyAV wheel. Call it at boot to fail early.

    Raises:
        OpusMissing: neither is there.
    """
    find_library = ctypes.util.find_library
    location = find_library("opus") or _bundled_libopus()
    if location is None:
        raise OpusMissing(_MISSING)
    ctypes.util.find_library = lambda name: location  # opuslib looks for the system's library only
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # opuslib 3.0.1 compares a literal with `is`
            import opuslib.api.ctl
            import opuslib.api.decoder
            import opuslib.api.encoder
    finally:
        ctypes.util.find_library = find_library
    # A library indexed by name hands out a fresh function, so that these prototypes do not change opuslib's.
    encode, decode = opuslib.api.libopus["opus_encode_float"], opuslib.api.libopus["opus_decode_float"]
    encode.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int32)
    decode.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    control = opuslib.api.libopus["opus_decoder_ctl"]
    control.argtypes = (ctypes.c_void_p, ctypes.c_int)
    return _LibOpus(opuslib.api, encode, decode, control)


def _bundled_libopus() -> str | None:
    """Path of the libopus in the PyAV wheel: `av.libs/` beside the package on Linux and Windows, `av/.dylibs/` on macOS."""
    spec = importlib.util.find_spec("av")
    if spec is None or spec.origin is None:
        return None
    package = pathlib.Path(spec.origin).parent
    found = [*package.parent.glob("av.libs/libopus[-.]*"), *package.glob(".dylibs/libopus[-.]*")]
    return str(found[0]) if found else None


def _free_with(owner: object, destroy: Any, state: Any) -> None:
    """Destroy a libopus state when its owner goes. opuslib's own classes do it in `__del__`, which fails noisily at interpreter exit."""
    weakref.finalize(owner, destroy, state).atexit = False


def _bounded(pcm: Pcm) -> Pcm:
    """Return `pcm` within [-1, 1], NaN and infinity as 0; the array itself when nothing is to be done."""
    if not pcm.size or (pcm.max() <= 1.0 and pcm.min() >= -1.0):  # false for NaN
        return pcm
    return np.clip(np.nan_to_num(pcm, nan=0.0, posinf=0.0, neginf=0.0), -1.0, 1.0)


# -- reading -------------------------------------------------------------------------------------------------------------------------


class OggOpusReader:
    """Decode one direction of a connection to mono PCM.

    Attributes:
        errors: broken pages and packets so far.
        dropped_packets: packets dropped because their message held too much audio, those beyond its limits of pages and packets not
            counted.
    """

    def __init__(self, sample_rate: int) -> None:
        lib = load_libopus()
        self.errors = 0
        self.dropped_packets = 0
        self._decode_float = lib.decode
        self._state = lib.api.decoder.create_state(sample_rate, 1)  # one channel: libopus mixes stereo packets down
        _free_with(self, lib.api.decoder.destroy, self._state)
        self._control = lib.control
        self._is_fresh = True  # nothing was decoded since the last reset
        self._max_message_samples = MAX_MESSAGE_S * sample_rate
        self._scratch = np.zeros(sample_rate * 120 // 1000, np.float32)  # 120 ms, the longest packet
        self._scratch_address = self._scratch.ctypes.data
        self._ogg = ogg.OggReader()
        self._has_page = False
        self._error_times: collections.deque[float] = collections.deque(maxlen=MAX_ERRORS + 1)

    @property
    def discarded_bytes(self) -> int:
        """Bytes that belonged to no good page."""
        return self._ogg.discarded_bytes

    def feed(self, data: bytes, now: float) -> Pcm:
        """Take the next bytes of the stream, return the float32 [N] in [-1, 1] that they complete. N may be 0.

        Raises:
            RemoteProtocolError: BAD_AUDIO, more than MAX_ERRORS errors within ERROR_WINDOW_S.
        """
        pieces: list[Pcm] = []
        num_samples = num_packets = 0
        discarded_before = self._ogg.discarded_bytes
        for num_pages, page in enumerate(self._ogg.pages(data)):
            num_packets += 0 if page is None else len(page.packets)
            if num_pages >= MAX_MESSAGE_PAGES or num_packets > MAX_MESSAGE_PACKETS:
                self._count_error(now)
                break
            if page is None:
                self._count_error(now)
                continue
            self._has_page = True
            if page.is_torn:
                self._count_error(now)
            if page.flags & ogg.BOS:  # "a new BOS page starts a new logical stream: reset the decoder" (4.6 rule 8)
                self._reset()
            for packet_idx, packet in enumerate(page.packets):
                if packet.startswith(b"OpusHead"):
                    self._start_stream(packet, now, is_first=packet_idx == 0)
                elif packet.startswith(b"OpusTags"):
                    continue
                elif num_samples >= self._max_message_samples:
                    self.dropped_packets += 1
                else:
                    piece = self._decode(packet, now)
                    num_samples += piece.size
                    pieces.append(piece)
        if not self._has_page and self._ogg.discarded_bytes - discarded_before >= ogg.HEADER_BYTES:
            self._count_error(now)  # a peer that has never sent a page does not speak Ogg: let it hear of that instead of silence
        pcm = np.concatenate(pieces) if len(pieces) > 1 else pieces[0] if pieces else self._scratch[:0]
        return _bounded(pcm[: self._max_message_samples])

    def _start_stream(self, head: bytes, now: float, *, is_first: bool) -> None:
        """Obey an OpusHead: version, channels at 9, pre-skip, input rate, gain, mapping family. The rate is the peer's business."""
        if not is_first:  # RFC 7845 section 3: a page of its own; every client obeys
            self._count_error(now)
            return
        self._reset()
        if len(head) < 19:
            self._count_error(now)
        elif head[9] > 2:
            raise RemoteProtocolError(ErrorKind.BAD_AUDIO, f"an Opus stream must be mono or stereo, not {head[9]} channels")

    def _reset(self) -> None:
        if not self._is_fresh:
            self._control(self._state, _RESET_STATE)
            self._is_fresh = True

    def _decode(self, packet: bytes, now: float) -> Pcm:
        # A length of zero makes libopus conceal as much as fits (one 28-byte page, seconds of sound): dropped (4.6 rule 6). libopus
        # itself refuses a packet whose TOC says more than 120 ms. Nothing is concealed: this clock counts what was said.
        address, room = self._scratch_address, self._scratch.size
        self._is_fresh = False
        num_samples = self._decode_float(self._state, packet, len(packet), address, room, 0) if packet else -1
        if num_samples < 0:
            self._count_error(now)
            return self._scratch[:0]
        return self._scratch[:num_samples].copy()

    def _count_error(self, now: float) -> None:
        self.errors += 1
        self._error_times.append(now)
        if len(self._error_times) > MAX_ERRORS and now - self._error_times[0] <= ERROR_WINDOW_S:
            raise RemoteProtocolError(ErrorKind.BAD_AUDIO, "too much of the audio cannot be decoded: Ogg pages with Opus are expected")


# -- writing -------------------------------------------------------------------------------------------------------------------------


class OggOpusWriter:
    """Encode one direction of a connection: mono PCM to whole pages of one 40 ms packet each.

    Application AUDIO, as sphn and the browsers' recorder: with VOIP libopus chooses its speech coder, three times the work at complexity 5.
    """

    def __init__(
        self, sample_rate: int, *, complexity: int = DEFAULT_COMPLEXITY, bitrate: int | None = None, serial: int | None = None
    ) -> None:
        """`complexity` is 0 to 10; `bitrate` in bits per second, None lets libopus choose (about 27 kbit/s at 24 kHz)."""
        lib = load_libopus()
        self._encode_float = lib.encode
        self._state = lib.api.encoder.create_state(sample_rate, 1, _APPLICATION_AUDIO)
        _free_with(self, lib.api.encoder.destroy, self._state)
        lib.api.encoder.encoder_ctl(self._state, lib.api.ctl.set_complexity, complexity)
        if bitrate is not None:
            lib.api.encoder.encoder_ctl(self._state, lib.api.ctl.set_bitrate, bitrate)
        self._packet_samples = sample_rate // PACKETS_PER_S
        self._output = ctypes.create_string_buffer(_MAX_PACKET_BYTES)
        self._serial = secrets.randbits(32) if serial is None else serial
        self._sequence = 0
        self._rest = np.empty(0, np.float32)  # less than a packet

    def encode(self, pcm: Pcm) -> bytes:
        """Take float32 [N], return the whole pages it completes, the two header pages before the first of them.

        Values beyond [-1, 1] are clipped. Samples of an incomplete packet wait for the next call.
        """
        if self._rest.size:
            pcm = np.concatenate((self._rest, pcm))
        pcm = np.ascontiguousarray(_bounded(pcm))  # libopus does not define what it makes of NaN
        num_packets = pcm.size // self._packet_samples
        self._rest = pcm[num_packets * self._packet_samples :].copy()
        pages = self._headers() if num_packets and self._sequence == 0 else []
        address, stride = pcm.ctypes.data, self._packet_samples * pcm.itemsize
        for packet_idx in range(num_packets):
            packet = self._packet(address + packet_idx * stride)
            # Audio pages have sequence 2, 3, ...: the page after the two headers ends at the first packet's last 48 kHz sample.
            granule = (self._sequence - 1) * (_GRANULE_RATE // PACKETS_PER_S)
            pages.append(self._page(packet, 0, granule))
        return b"".join(pages)

    def _packet(self, address: int) -> bytes:
        size = self._encode_float(self._state, address, self._packet_samples, self._output, _MAX_PACKET_BYTES)
        assert size > 0, f"libopus refused {self._packet_samples} samples: error {size}"
        return ctypes.string_at(self._output, size)

    def _headers(self) -> list[bytes]:
        # Version, channels, pre-skip, "input rate" (48000 in every known server, whatever the rate), gain, mapping family.
        head = struct.pack("<8sBBHIhB", b"OpusHead", 1, 1, PRE_SKIP, _GRANULE_RATE, 0, 0)
        vendor = b"duplex-gateway"
        tags = struct.pack(f"<8sI{len(vendor)}sI", b"OpusTags", len(vendor), vendor, 0)
        return [self._page(head, ogg.BOS, 0), self._page(tags, 0, 0)]

    def _page(self, packet: bytes, flags: int, granule: int) -> bytes:
        page = ogg.write_page(packet, flags=flags, granule=granule, serial=self._serial, sequence=self._sequence)
        self._sequence += 1
        return page
