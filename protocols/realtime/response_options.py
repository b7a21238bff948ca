"""What a response.create asks for, by whichever names (specs/realtime.md 2.7, 2.8.2, 4.9).

Here everything is read and checked; what becomes of it is `speaking`'s business. The rule: what has no effect here is named in `unused`, so
that the client can be told. Thread: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic

from protocols.realtime.client_items import ClientItem, read_item
from protocols.realtime.fault import bad_value, excerpt, missing, wrong_type
from protocols.realtime.formats import AudioFormat, parse_format
from protocols.realtime.objects import Modality
from protocols.realtime.values import Value

MAX_METADATA_KEYS, MAX_KEY_CHARS, MAX_VALUE_CHARS = 16, 64, 512  # 2.8.2
MAX_SAY_CHARS = 1000  # 4.9
UNLIMITED_TOKENS = 4096  # "> 4096 is treated as inf" (2.5)

_USED = frozenset((
    "conversation", "input", "instructions", "max_output_tokens", "max_response_output_tokens", "metadata", "output_modalities",
    "modalities", "audio", "voice", "output_audio_format", "temperature", "x_duplex",
))  # fmt: skip


class ResponseOptions(pydantic.BaseModel):
    """The options of one response; None is the session's value, unless it says otherwise."""

    model_config = pydantic.ConfigDict(frozen=True)

    metadata: Mapping[str, str] | None = None  # to be told back as it is
    has_output_limit: bool = False  # whether a limit was given at all
    max_output_tokens: int | None = None  # where it was given: None is "inf"
    output_modalities: tuple[Modality, ...] | None = None
    output_format: AudioFormat | None = None
    voice: str | None = None
    instructions: str | None = None
    input: tuple[ClientItem, ...] = ()
    is_out_of_band: bool = False  # conversation "none"
    temperature: float | None = None
    say: str | None = None  # x_duplex.say: text to be spoken word for word
    unused: tuple[str, ...] = ()  # paths inside `response` that were given and have no effect


def read_response(value: object) -> ResponseOptions:
    """Read the `response` of a response.create; null is an empty one.

    Raises:
        EventError: a field cannot be read.
    """
    given = Value(value, "response").object()
    audio = given["audio"].object()
    output = audio["output"].object()
    extension = given["x_duplex"].object()
    limit = given["max_output_tokens"].or_else(given["max_response_output_tokens"])
    fmt = output["format"].or_else(given["output_audio_format"])
    voice = output["voice"].or_else(given["voice"])
    say = extension["say"].text()
    if say is not None and len(say) > MAX_SAY_CHARS:
        raise bad_value("response.x_duplex.say", f"must have at most {MAX_SAY_CHARS} characters, not {len(say)}")
    unused = [path.removeprefix("response.") for path in given.unknown(_USED)]
    return ResponseOptions(
        metadata=_read_metadata(given["metadata"]),
        has_output_limit=limit.is_given,
        max_output_tokens=read_limit(limit),
        output_modalities=read_modalities(given["output_modalities"].or_else(given["modalities"])),
        output_format=parse_format(fmt.value, fmt.path, is_input=False) if fmt.is_given else None,
        voice=read_voice(voice),
        instructions=given["instructions"].text(),
        input=tuple(read_item(item.value, item.path, allows_reference=True) for item in given["input"].items() or ()),
        is_out_of_band=given["conversation"].value == "none",
        temperature=given["temperature"].number(0, 2),
        say=say,
        unused=tuple(path for path in unused if given[path].is_given),
    )


def read_limit(value: Value) -> int | None:
    """Read a number of output tokens; None is no limit, and so is an absent value."""
    if value.value == "inf" or not value.is_given:
        return None
    if isinstance(value.value, str):
        raise bad_value(value.path, f'must be a whole number or "inf", not {excerpt(value.value)}')
    limit = value.integer(1)
    return limit if limit is not None and limit <= UNLIMITED_TOKENS else None


def read_modalities(value: Value) -> tuple[Modality, ...] | None:
    """Read the kinds of output; audio and text together are audio, whose transcript is sent anyway."""
    items = value.items()
    if items is None:
        return None
    names = {item.choice(("audio", "text")) for item in items}
    if None in names or not names:
        raise bad_value(value.path, "must have audio, text or both")
    return ("audio",) if "audio" in names else ("text",)


def read_voice(value: Value) -> str | None:
    """Read the name of a voice: a string, or an object with an `id`."""
    if isinstance(value.value, Mapping):
        if not value["id"].is_given:
            raise missing(f"{value.path}.id")
        return value["id"].text()
    if value.is_given and not isinstance(value.value, str):
        raise wrong_type(value.path, "a string or an object with an id", value.value)
    return value.text()


def _read_metadata(value: Value) -> dict[str, str] | None:
    body: Mapping[str, Any] | None = value.object().value if value.is_given else None
    if body is None:
        return None
    if len(body) > MAX_METADATA_KEYS:
        raise bad_value(value.path, f"must have at most {MAX_METADATA_KEYS} keys, not {len(body)}")
    for key, text in body.items():
        if len(key) > MAX_KEY_CHARS:
            raise bad_value(value.path, f"must have keys of at most {MAX_KEY_CHARS} characters")
        # "Non-string values are refused with invalid_value, param response.metadata"
        if not isinstance(text, str) or len(text) > MAX_VALUE_CHARS:
            raise bad_value(value.path, f"must have strings of at most {MAX_VALUE_CHARS} characters for values, as under {excerpt(key)}")
    return dict(body)
