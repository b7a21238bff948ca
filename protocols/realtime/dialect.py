"""From server events to the text on the wire, in GA or in beta names (specs/realtime.md 2.9).

    GA                                          beta
    response.output_audio.delta, .done          response.audio.delta, .done
    response.output_audio_transcript.*          response.audio_transcript.*
    response.output_text.*                      response.text.*
    conversation.item.added, .done              conversation.item.created, nothing
    nothing                                     conversation.created
    parts output_audio, output_text in items    audio, text
    response: output_modalities, audio.output   modalities, voice, output_audio_format, temperature

The session object is no business of this module: `settings.describe` makes it in either shape. The rule: "never send both names of one
event"; an event without a name in a dialect is not sent at all. Deltas go out 12.5 times a second and caller, so their JSON is put together
by hand. Thread: any.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any

from protocols.realtime.options import RealtimeOptions
from protocols.realtime.server_events import AudioDelta, OutputTextDelta, PartEvent, ServerMessage, TranscriptDelta

BETA_TEMPERATURE = 0.8  # what beta clients are told while they have set none (2.3)


class Dialect(enum.Enum):
    """Which names a client understands; the values are on the wire (x_duplex.dialect)."""

    GA = "ga"
    BETA = "beta"


_BETA_EVENTS: Mapping[str, str | None] = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
    "conversation.item.added": "conversation.item.created",
    "conversation.item.done": None,
}
_GA_EVENTS: Mapping[str, str | None] = {"conversation.created": None}  # "GA clients do not need it" (2.8)
_NAMES = {Dialect.GA: _GA_EVENTS, Dialect.BETA: _BETA_EVENTS}
_BETA_PARTS = {"output_audio": "audio", "output_text": "text"}
_BETA_FORMATS = {"audio/pcm": "pcm16", "audio/pcmu": "g711_ulaw", "audio/pcma": "g711_alaw"}
_BETA_MODALITIES = {"audio": ["audio", "text"], "text": ["text"]}

# Keys of a flat session object that only beta clients and their imitators use (2.5).
_FLAT_KEYS = frozenset((
    "modalities", "voice", "input_audio_format", "output_audio_format", "input_audio_transcription", "input_audio_noise_reduction",
    "turn_detection", "max_response_output_tokens", "temperature", "speed",
))  # fmt: skip


def decide_dialect(provisional: Dialect, session: Mapping[str, Any], options: RealtimeOptions) -> Dialect:
    """Settle the dialect by the first session object of a client that did not force one; `provisional` is that of its headers."""
    audio = session.get("audio")
    if provisional is Dialect.BETA:
        # "it turns into GA if the first session.update contains session.type == "realtime" and a nested audio object"
        return Dialect.GA if session.get("type") == "realtime" and isinstance(audio, Mapping) else Dialect.BETA
    sides = audio.values() if isinstance(audio, Mapping) else ()
    is_flat = "type" not in session and not any(isinstance(side, Mapping) and "format" in side for side in sides)
    return Dialect.BETA if options.flat_means_beta and is_flat and not _FLAT_KEYS.isdisjoint(session) else Dialect.GA


def encode(message: ServerMessage, dialect: Dialect, event_id: str) -> str | None:
    """Word a server event as JSON text; None where this dialect has no such event. `event_id` is one of ours, that is plain ASCII."""
    if isinstance(message, AudioDelta):
        return f'{_place(message, dialect, event_id)},"delta":"{message.delta}"{_extras(message)}}}'  # base64 needs no escapes
    if isinstance(message, TranscriptDelta | OutputTextDelta):
        start = f',"start_time":{message.start_time!r}' if isinstance(message, TranscriptDelta) and message.start_time is not None else ""
        return f'{_place(message, dialect, event_id)},"delta":{encode_basestring(message.delta)}{start}{_extras(message)}}}'
    body = message.model_dump()
    extras = body.pop("x_duplex", None)
    kind = body.pop("type")
    name = _NAMES[dialect].get(kind, kind)
    if name is None:
        return None
    if dialect is Dialect.BETA:
        _to_beta(body)
    if "response" in body and dialect is Dialect.GA:
        del body["response"]["temperature"]
    return _json({"type": name, "event_id": event_id, **body, **({} if extras is None else {"x_duplex": extras})})


def _place(message: PartEvent, dialect: Dialect, event_id: str) -> str:
    """The head of a delta, up to its content index."""
    kind: str = message.type  # type: ignore[attr-defined]
    name = _BETA_EVENTS[kind] if dialect is Dialect.BETA else kind
    return (
        f'{{"type":"{name}","event_id":"{event_id}","response_id":{encode_basestring(message.response_id)},'
        f'"item_id":{encode_basestring(message.item_id)},"output_index":{message.output_index},"content_index":{message.content_index}'
    )


def _extras(message: ServerMessage) -> str:
    return "" if message.x_duplex is None else f',"x_duplex":{_json(message.x_duplex)}'


def _to_beta(body: dict[str, Any]) -> None:
    """Rename what is inside an event; `part` of content_part events has the same names in both dialects."""
    if "item" in body:
        _item_to_beta(body["item"])
    if "response" in body:
        response = body["response"]
        for item in response["output"]:
            _item_to_beta(item)
        output = response.pop("audio")["output"]
        (modality,) = response.pop("output_modalities")
        response["modalities"] = _BETA_MODALITIES[modality]
        response["voice"] = output["voice"]
        response["output_audio_format"] = _BETA_FORMATS[output["format"]["type"]]
        if response["temperature"] is None:
            response["temperature"] = BETA_TEMPERATURE


def _item_to_beta(item: dict[str, Any]) -> None:
    for part in item.get("content", ()):
        part["type"] = _BETA_PARTS.get(part["type"], part["type"])


def _json(body: Mapping[str, Any]) -> str:
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
