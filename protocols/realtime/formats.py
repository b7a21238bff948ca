"""The audio formats of the Realtime wire: every spelling that clients use in, one value out, and its echo in both dialects.

source: specs/realtime.md 2.6. Converting audio is `audio`'s business. The rule: the echo of a format shows what is in effect, because
clients read it to decide how to decode. Thread: any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from protocols.realtime.fault import EventError, bad_value, excerpt, missing, wrong_type
from protocols.realtime.values import Value

PCM_RATE = 24_000  # Hz; what a client gets that states no rate
G711_RATE = 8_000  # Hz; G.711 has no other
FORMAT_RATES = (8_000, 16_000, 24_000, 48_000)  # Hz; what a format may state, and what we send
MIN_INPUT_RATE, MAX_INPUT_RATE = 8_000, 96_000  # Hz; what `sample_rate_hz` may state

_SPELLINGS: Mapping[str, tuple[Literal["pcm", "pcmu", "pcma"], Literal["s16", "f32"]]] = {
    **dict.fromkeys(("audio/pcm", "pcm16", "pcm_s16le", "s16le", "audio/pcm16"), ("pcm", "s16")),
    **dict.fromkeys(("pcm_f32le", "f32le"), ("pcm", "f32")),
    **dict.fromkeys(("audio/pcmu", "g711_ulaw", "g711-ulaw", "audio/g711_ulaw", "audio/mulaw", "ulaw"), ("pcmu", "s16")),
    **dict.fromkeys(("audio/pcma", "g711_alaw", "g711-alaw", "audio/g711_alaw", "audio/alaw", "alaw"), ("pcma", "s16")),
}
_BETA_NAMES = {"pcm": "pcm16", "pcmu": "g711_ulaw", "pcma": "g711_alaw"}


@dataclasses.dataclass(frozen=True, slots=True)
class AudioFormat:
    """How samples are written on the wire, mono."""

    kind: Literal["pcm", "pcmu", "pcma"]  # linear, u-law, A-law
    rate: int = PCM_RATE  # Hz
    encoding: Literal["s16", "f32"] = "s16"  # of linear samples, little-endian; companded ones are one byte each

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        if self.kind != "pcm":
            return 1
        return 2 if self.encoding == "s16" else 4

    @property
    def bytes_per_s(self) -> int:
        """Bytes of one second."""
        return self.rate * self.sample_bytes


DEFAULT_FORMAT = AudioFormat("pcm")


def parse_format(value: object, path: str, *, is_input: bool) -> AudioFormat:
    """Read a format: a name, or an object with `type` and perhaps `rate`. `path` is where it stands in the client's message.

    Raises:
        EventError: no such format, or not at this rate; its param is `path` or the key below it.
    """
    if isinstance(value, str):
        kind, encoding = _spelling(value, path, is_input)
        return AudioFormat(kind, PCM_RATE if kind == "pcm" else G711_RATE, encoding)
    if not isinstance(value, Mapping):
        raise wrong_type(path, "a format name or an object", value)
    given = Value(value, path)
    name = given["type"].text()
    if name is None:
        raise missing(f"{path}.type")
    kind, encoding = _spelling(name, f"{path}.type", is_input)
    if given["channels"].integer(0) not in (None, 1):
        raise bad_value(f"{path}.channels", "must be 1: audio is mono")
    rate = given["rate"].integer(0)
    if kind != "pcm":
        if rate not in (None, G711_RATE):
            raise bad_value(f"{path}.rate", f"must be {G711_RATE} for {name}")
        return AudioFormat(kind, G711_RATE, encoding)
    if rate is not None and rate not in FORMAT_RATES:
        raise bad_value(f"{path}.rate", f"must be one of {', '.join(map(str, FORMAT_RATES))}")
    return AudioFormat(kind, rate or PCM_RATE, encoding)


def at_rate(fmt: AudioFormat, rate: Value, *, is_input: bool) -> AudioFormat:
    """Return the format at the rate that a `sample_rate_hz` states; unchanged where it states none.

    Raises:
        EventError: a rate that this format or this direction does not have.
    """
    rate_hz = rate.integer(0)
    if rate_hz is None:
        return fmt
    if fmt.kind != "pcm":
        if rate_hz != G711_RATE:
            raise bad_value(rate.path, f"must be {G711_RATE} for G.711")
        return fmt
    if is_input and not MIN_INPUT_RATE <= rate_hz <= MAX_INPUT_RATE:
        raise bad_value(rate.path, f"must be {MIN_INPUT_RATE} to {MAX_INPUT_RATE}")
    if not is_input and rate_hz not in FORMAT_RATES:
        raise bad_value(rate.path, f"must be one of {', '.join(map(str, FORMAT_RATES))}")
    return dataclasses.replace(fmt, rate=rate_hz)


def echo_ga(fmt: AudioFormat) -> dict[str, Any]:
    """Return the format object of GA sessions and responses."""
    # "no `rate` key is needed for pcmu/pcma (omit it)" (2.2)
    return {"type": "audio/pcm", "rate": fmt.rate} if fmt.kind == "pcm" else {"type": f"audio/{fmt.kind}"}


def echo_beta(fmt: AudioFormat) -> str:
    """Return the format name of beta sessions and responses."""
    return _BETA_NAMES[fmt.kind]


def _spelling(name: str, path: str, is_input: bool) -> tuple[Literal["pcm", "pcmu", "pcma"], Literal["s16", "f32"]]:
    found = _SPELLINGS.get(name.lower())
    if found is not None and (is_input or found[1] == "s16"):
        return found
    raise _unknown(name, path, is_input)


def _unknown(name: str, path: str, is_input: bool) -> EventError:
    accepted = [spelling for spelling, (_, encoding) in _SPELLINGS.items() if is_input or encoding == "s16"]
    return bad_value(path, f"must be one of {', '.join(accepted)}, not {excerpt(name)}")
