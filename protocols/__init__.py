"""The wires, sans I/O: no socket, task, thread, clock, environment variable or file is touched here.

`events` is the vocabulary, `codec` the contract, and each codec module one wire. Thread: any, one at a time per codec.
"""

from protocols.audio import FRAME_SAMPLES, SAMPLE_RATE, FrameAssembler
from protocols.codec import Close, Codec, CodecState, Message
from protocols.errors import CloseCode, ErrorKind, LocalProtocolError, ProtocolError, RemoteProtocolError
from protocols.moshi import MoshiCodec
from protocols.opus import OggOpusReader, OggOpusWriter, OpusMissing, load_libopus
from protocols.rawpcm import RawPcmCodec

CODECS: dict[str, type[MoshiCodec] | type[RawPcmCodec]] = {codec.name: codec for codec in (MoshiCodec, RawPcmCodec)}

__all__ = [
    "CODECS",
    "FRAME_SAMPLES",
    "SAMPLE_RATE",
    "Close",
    "CloseCode",
    "Codec",
    "CodecState",
    "ErrorKind",
    "FrameAssembler",
    "LocalProtocolError",
    "Message",
    "MoshiCodec",
    "OggOpusReader",
    "OggOpusWriter",
    "OpusMissing",
    "ProtocolError",
    "RawPcmCodec",
    "RemoteProtocolError",
    "load_libopus",
]
