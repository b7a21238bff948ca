"""Peers and parsers that share no code with what they test: an Ogg parser with a bitwise checksum, a page maker, a Moshi client on sphn."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sphn
from numpy.typing import NDArray

from protocols.codec import Close, Codec, Message
from protocols.events import AudioIn, ClientEvent, ServerEvent

DATA = Path(__file__).parent / "data"
RATE = 24_000
FRAME = 1920


def capture(name: str) -> bytes:
    """One recorded `/api/chat` message, tag included."""
    return (DATA / "moshi" / f"{name}.bin").read_bytes()


def tone(num_samples: int, *, hz: float = 440.0, level: float = 0.27) -> NDArray[np.float32]:
    """A sine, float32 [num_samples]."""
    return (level * np.sin(2 * np.pi * hz * np.arange(num_samples) / RATE)).astype(np.float32)


def rms(pcm: NDArray[np.float32]) -> float:
    return float(np.sqrt(np.mean(np.square(pcm))))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    """`data` in pieces of `size` bytes."""
    for at in range(0, len(data), size):
        yield data[at : at + size]


def two_way_splits(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """`data` cut once, at every place."""
    for at in range(len(data) + 1):
        yield data[:at], data[at:]


# -- Ogg -----------------------------------------------------------------------------------------------------------------------------


def bitwise_checksum(data: bytes) -> int:
    """RFC 3533's CRC as written there: shift one bit at a time."""
    crc = 0
    for byte in data:
        crc ^= byte << 24
        for _ in range(8):
            crc = (crc << 1 ^ 0x04C11DB7 if crc & 0x80000000 else crc << 1) & 0xFFFFFFFF
    return crc


@dataclasses.dataclass(frozen=True)
class OggPage:
    """What a strict reader finds in a page."""

    flags: int
    granule: int
    serial: int
    sequence: int
    lacing: bytes
    body: bytes


def parse_ogg(data: bytes) -> list[OggPage]:
    """Parse whole pages and nothing else; fails on any other byte."""
    found = []
    while data:
        capture_pattern, version, flags, granule, serial, sequence, crc, num_segments = struct.unpack_from("<4sBBqIIIB", data)
        assert capture_pattern == b"OggS"
        assert version == 0
        lacing = data[27 : 27 + num_segments]
        end = 27 + num_segments + sum(lacing)
        assert len(data) >= end, "cut page"
        assert crc == bitwise_checksum(data[:22] + bytes(4) + data[26:end]), "checksum"
        found.append(OggPage(flags, granule, serial, sequence, lacing, data[27 + num_segments : end]))
        data = data[end:]
    return found


def make_page(
    packets: Iterable[bytes], *, flags: int = 0, granule: int = 0, serial: int = 7, sequence: int = 2, is_open: bool = False
) -> bytes:
    """A page of these packets; with `is_open` the last one, a multiple of 255 bytes, goes on in the next page."""
    packets = list(packets)
    lacing = b"".join(b"\xff" * (len(packet) // 255) + bytes([len(packet) % 255]) for packet in packets)
    if is_open:
        assert lacing[-1] == 0
        lacing = lacing[:-1]
    head = struct.pack("<4sBBqII", b"OggS", 0, flags, granule, serial, sequence)
    tail = bytes([len(lacing)]) + lacing + b"".join(packets)
    return head + struct.pack("<I", bitwise_checksum(head + bytes(4) + tail)) + tail


def opus_head(*, channels: int = 1, rate: int = 48_000) -> bytes:
    return struct.pack("<8sBBHIhB", b"OpusHead", 1, channels, 3840, rate, 0, 0)


# -- The Moshi wire, client side -----------------------------------------------------------------------------------------------------


class MoshiClient:
    """What `python -m moshi.client` does with a connection, on sphn alone, and strict about the server's manners."""

    def __init__(self) -> None:
        self.handshakes = 0
        self.metadata: list[dict[str, Any]] = []
        self.text = ""
        self.errors: list[str] = []
        self.pings = 0
        self.close: Close | None = None
        self.ogg = b""
        self._audio: list[NDArray[np.float32]] = []
        self._writer = sphn.OpusStreamWriter(RATE)
        self._reader = sphn.OpusStreamReader(RATE)

    @property
    def pcm(self) -> NDArray[np.float32]:
        return np.concatenate([np.empty(0, np.float32), *self._audio])

    def say(self, pcm: NDArray[np.float32]) -> bytes:
        """The message for some audio of the user."""
        return b"\x01" + bytes(self._writer.append_pcm(pcm))

    def take(self, messages: Iterable[Message]) -> None:
        for message in messages:
            assert self.close is None, "a message after the close"
            if isinstance(message, Close):
                self.close = message
                continue
            assert isinstance(message, bytes), "the wire is binary"
            self._take(message[0], message[1:])

    def _take(self, tag: int, payload: bytes) -> None:
        match tag:
            case 0:
                assert payload == b""
                self.handshakes += 1
            case 1:
                assert self.handshakes == 1, "audio before the handshake"
                self.ogg += payload
                parse_ogg(payload)  # whole pages only
                self._audio.append(self._reader.append_bytes(payload))
            case 2:
                self.text += payload.decode("utf-8", "strict")
            case 4:
                assert self.handshakes == 0
                self.metadata.append(json.loads(payload))
            case 5:
                self.errors.append(payload.decode("utf-8", "strict"))
            case 6:
                self.pings += 1
            case _:
                raise AssertionError(f"web clients throw on tag {tag}")


class CodecPair:
    """A server codec and a client, face to face in memory. `heard` is what the session would get."""

    def __init__(self, codec: Codec, client: MoshiClient, query: dict[str, str] | None = None) -> None:
        self.codec = codec
        self.client = client
        self.now = 0.0
        self.heard: list[ClientEvent] = list(codec.connect(query or {}))

    def say(self, pcm: NDArray[np.float32]) -> None:
        self.deliver(self.client.say(pcm))

    def deliver(self, message: bytes | str) -> None:
        self.heard += self.codec.receive(message, self.now)

    def send(self, *events: ServerEvent) -> None:
        for event in events:
            self.client.take(self.codec.send(event, self.now))

    @property
    def heard_pcm(self) -> NDArray[np.float32]:
        return np.concatenate([np.empty(0, np.float32), *(event.pcm for event in self.heard if isinstance(event, AudioIn))])
