"""The parameters of a call as callers write them: query strings and JSON values in, numbers, names and SamplingOptions out.

Shared by the codecs, which differ in where the values stand but not in what is legal (specs/moshi-protocol.md section 5). Whether a voice
exists is the engine's business, and so are defaults. The rule: a bad value is refused by name and never replaced; the only exceptions are
the two top-k clamps of section 5, whose results `Ready` reports. Thread: any.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping

from protocols.errors import ErrorKind, RemoteProtocolError
from protocols.events import SamplingOptions

MAX_PERSONA_CHARS = 4000  # the web clients stop at 1000; each token of it costs one model position
MAX_VOICE_CHARS = 128

INT_PARAMETERS = (
    "text_topk", "audio_topk", "repetition_penalty_context", "seed", "text_seed", "audio_seed", "max_steps", "max_frames",
)  # fmt: skip
FLOAT_PARAMETERS = ("text_temperature", "audio_temperature", "pad_mult", "repetition_penalty")

_TOPK_LIMITS = {"text_topk": 32_000, "audio_topk": 2048}  # "clamp to [1, 32000]", "clamp to [1, 2048]" (section 5)
_RANDOM_SEED = -1
_INT = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT = re.compile(r"[+-]?([0-9]{1,32}\.?[0-9]{0,32}|\.[0-9]{1,32})([eE][+-]?[0-9]{1,3})?")

Number = int | float


def refusal(detail: str) -> RemoteProtocolError:
    """Return the exception that ends a connection because of a parameter."""
    return RemoteProtocolError(ErrorKind.BAD_PARAMETER, detail)


def query_numbers(query: Mapping[str, str]) -> dict[str, Number]:
    """Read the numeric parameters that a query has; other parameters are not looked at.

    Raises:
        RemoteProtocolError: BAD_PARAMETER, not a number, or not a finite one.
    """
    numbers: dict[str, Number] = {}
    for name in INT_PARAMETERS:
        if name in query:
            if not _INT.fullmatch(query[name]):
                raise refusal(f"{name} must be a whole number")
            numbers[name] = int(query[name])
    for name in FLOAT_PARAMETERS:
        if name in query:
            if not _FLOAT.fullmatch(query[name]):  # which "nan" and "inf" do not; 1e999 is found by its range
                raise refusal(f"{name} must be a number")
            numbers[name] = float(query[name])
    return numbers


def sampling_fields(numbers: Mapping[str, Number]) -> dict[str, Number | None]:
    """Return the fields of SamplingOptions that `numbers` sets: seeds resolved (None is random), top-k clamped.

    Raises:
        RemoteProtocolError: BAD_PARAMETER, a seed out of range.
    """
    fields: dict[str, Number | None] = {}
    if "seed" in numbers:
        fields["text_seed"] = fields["audio_seed"] = _seed("seed", numbers["seed"])
    for field in dataclasses.fields(SamplingOptions):
        name = field.name
        if name not in numbers:
            continue
        value = numbers[name]
        if name in _TOPK_LIMITS:
            fields[name] = max(1, min(value, _TOPK_LIMITS[name]))
        else:
            fields[name] = _seed(name, value) if name.endswith("_seed") else value
    return fields


def sampling_options(fields: Mapping[str, Number | None]) -> SamplingOptions:
    """Make SamplingOptions.

    Raises:
        RemoteProtocolError: BAD_PARAMETER, a value out of range.
    """
    try:
        return SamplingOptions(**fields)  # type: ignore[arg-type]
    except ValueError as exc:  # its text names the field
        raise refusal(str(exc)) from None


def max_frames(numbers: Mapping[str, Number]) -> int | None:
    """Return the caller's bound of the call in frames: `max_frames`, or `max_steps` as the Rust backend has it.

    Raises:
        RemoteProtocolError: BAD_PARAMETER, less than 1.
    """
    for name in ("max_frames", "max_steps"):
        if name in numbers:
            if numbers[name] < 1:
                raise refusal(f"{name} must be 1 or more")
            return int(numbers[name])
    return None


def voice_name(text: str | None) -> str | None:
    """Return a bare voice name; None when the server's default is wanted. Existence is not looked at.

    Raises:
        RemoteProtocolError: BAD_PARAMETER, anything that could be a path. The text is not echoed.
    """
    if not text:
        return None
    is_path = "/" in text or "\\" in text or ":" in text or ".." in text or text.startswith(".")
    if is_path or not text.isprintable() or len(text) > MAX_VOICE_CHARS:
        raise refusal("the voice must be the bare name of one of this server's voices")
    return text


def persona_text(text: str | None) -> str | None:
    """Return the persona; None when the server's default is wanted.

    Raises:
        RemoteProtocolError: BAD_PARAMETER, too long.
    """
    if text is None or not text.strip():
        return None
    if len(text) > MAX_PERSONA_CHARS:
        raise refusal(f"the persona must have at most {MAX_PERSONA_CHARS} characters, not {len(text)}")
    return text


def _seed(name: str, value: Number) -> Number | None:
    if value < _RANDOM_SEED:
        raise refusal(f"{name} must be 0 or more, or {_RANDOM_SEED} for a random one")
    return None if value == _RANDOM_SEED else value
