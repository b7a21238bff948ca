"""Validate every server event of a capture against openai-python's published types, strictly (specs/realtime.md T30).

The published client is permissive: it takes unknown types, floats for integers and missing keys without a word, and other clients do not.
Here the union is closed, integers are integers, and a key that the types do not know is a complaint unless the specification names it.
An extension's event type is legal only after the client asked for it. What may follow what is the business of `brackets`. Thread: any.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import openai.types.beta.realtime as beta_types
import openai.types.realtime as ga_types
import pydantic

from tests.clients.record import Record

Event = Mapping[str, Any]

GA_ONLY = ("response.output_audio", "response.output_text", "conversation.item.added", "conversation.item.done")
BETA_ONLY = ("response.audio.", "response.audio_transcript.", "response.text.", "conversation.item.created", "conversation.created")

# Keys beyond the published types, by the class that holds them; "*" is every class (specs/realtime.md 2.2, 2.3, 2.8, 2.10.2).
EXTRA_KEYS = {
    "*": {"x_duplex"},
    "RealtimeSessionCreateRequest": {"object", "id", "expires_at", "temperature"},
    "Session": {"object", "expires_at"},
    "ResponseAudioTranscriptDeltaEvent": {"start_time"},
    "RealtimeResponseUsageInputTokenDetails": {"image_tokens", "cached_tokens_details"},
    "InputTokenDetails": {"image_tokens", "cached_tokens_details"},
}

# Extension event -> (keys it must have, words of x_duplex.events or client events that ask for it).
EXTENSIONS: dict[str, tuple[set[str], set[str]]] = {
    "response.listen": ({"frame", "epoch"}, {"listen"}),
    "response.speak": ({"frame", "epoch"}, {"speak"}),
    "overlap.decision": ({"decision", "overlap_ms"}, {"overlap"}),
    "playback.acknowledged": ({"response_id", "item_id", "played_ms", "committed_ms"}, {"playback"}),
    "x_duplex.frame": (set(), {"frames"}),
    "session.heartbeat_ack": ({"server_time_ms"}, {"session.heartbeat"}),
    "session.closed": ({"reason"}, {"session.close", "close", "close_session"}),
    "session.resumed": ({"session_id", "resume_token", "last_server_event_seq"}, {"session.resume"}),
}
ERROR_TYPES = {"invalid_request_error", "server_error", "rate_limit_error", "authentication_error"}
RATES = (8000, 16000, 48000)  # of audio/pcm, beside the 24000 that the types know; legal for a client that asked for one


def _models(union: Any) -> dict[str, type[pydantic.BaseModel]]:
    """Event type -> model, out of a published union."""
    models = typing.get_args(typing.get_args(union)[0])
    return {typing.get_args(model.model_fields["type"].annotation)[0]: model for model in models}


MODELS = {"ga": _models(ga_types.RealtimeServerEvent), "beta": _models(beta_types.RealtimeServerEvent)}


class Validator:
    """What one connection's client has asked for so far, and the verdict on each event that it gets."""

    def __init__(self) -> None:
        self.dialect = "ga"
        self._asked: set[str] = set()  # words of x_duplex.events and types of client events
        self._rates: set[int] = set()
        self._event_ids: set[str] = set()

    def client(self, event: Event) -> None:
        """Learn what the client asks for."""
        self._asked.add(str(event.get("type")))
        if event.get("type") == "session.update" and isinstance(event.get("session"), dict):
            asked = event["session"].get("x_duplex")
            self._asked |= set(asked.get("events", ())) if isinstance(asked, dict) else set()
            self._rates |= {value for key, value in _leaves(event) if key in ("rate", "sample_rate_hz") and isinstance(value, int)}

    def server(self, event: Event) -> list[str]:
        """Return what is wrong with one server event."""
        kind = event.get("type")
        if kind in ("session.created", "session.updated") and isinstance(event.get("session"), dict):
            self.dialect = "ga" if "type" in event["session"] else "beta"
        found = [*self._identity(event), *_rules(event)]
        if kind in EXTENSIONS:
            return found + self._extension(event)
        if any(str(kind).startswith(name) for name in (BETA_ONLY if self.dialect == "ga" else GA_ONLY)):
            return [*found, f"{kind} in dialect {self.dialect}"]
        model = MODELS[self.dialect].get(str(kind))
        if model is None:
            return [*found, f"unknown event type {kind!r}"]
        try:
            parsed = model.model_validate(self._with_known_rates(event), strict=True)
        except pydantic.ValidationError as error:
            return found + [f"{kind}: {_where(problem)} {problem['msg']}" for problem in error.errors() if not self._is_known(problem)]
        return found + [f"{kind}: unknown key {name}" for name in _unknown_keys(parsed, str(kind))]

    def _identity(self, event: Event) -> Iterator[str]:
        event_id = event.get("event_id")
        if not isinstance(event_id, str) or not event_id:
            yield f"{event.get('type')}: no event_id"
        elif event_id in self._event_ids:
            yield f"{event.get('type')}: event_id {event_id} was used before"
        else:
            self._event_ids.add(event_id)

    def _extension(self, event: Event) -> list[str]:
        needed, asked_by = EXTENSIONS[event["type"]]
        words = asked_by if "session" in event["type"] else asked_by | {"all"}
        found = [f"{event['type']} although the client did not ask for it"] if not words & self._asked else []
        return found + [f"{event['type']}: no {name}" for name in sorted(needed - set(event))]

    def _is_known(self, problem: Any) -> bool:
        """Beta's types name OpenAI's own models, which is not a fault of ours."""
        return self.dialect == "beta" and tuple(problem["loc"]) == ("session", "model")

    def _with_known_rates(self, value: Any) -> Any:
        """A copy in which a PCM rate that the client asked for is the one that the types know."""
        if isinstance(value, Mapping):
            copied = {key: self._with_known_rates(item) for key, item in value.items()}
            if value.get("type") == "audio/pcm" and value.get("rate") in RATES and value["rate"] in self._rates:
                copied["rate"] = 24000
            return copied
        return [self._with_known_rates(item) for item in value] if isinstance(value, list) else value


def complaints(capture: Iterable[Record]) -> list[str]:
    """Return what is wrong with the server events of one connection's capture."""
    validator = Validator()
    found: list[str] = []
    for record in capture:
        if record.event is None:
            continue
        if record.is_client:
            validator.client(record.event)
        else:
            found += [f"line {record.line}: {complaint}" for complaint in validator.server(record.event)]
    return found


def _rules(event: Event) -> Iterator[str]:
    """Yield what the types allow and some client does not (specs/realtime.md 2.2, 2.8, 2.11)."""
    kind = event.get("type")
    if kind == "error":
        error = event.get("error")
        if not isinstance(error, Mapping) or {"type", "code", "message", "param", "event_id"} - set(error):
            yield "error: type, code, message, param and event_id must all be there"
        elif error["type"] not in ERROR_TYPES or not error["code"] or not error["message"]:
            yield f"error: type {error['type']!r}, code {error['code']!r}"
    if isinstance(item := event.get("item"), Mapping):
        yield from _item_rules(str(kind), item)
    if isinstance(response := event.get("response"), Mapping):
        yield from _response_rules(str(kind), response)
    part = event.get("part")
    if isinstance(part, Mapping) and not isinstance(part.get("transcript" if part.get("type") == "audio" else "text"), str):
        yield f"{kind}: part without its text"
    session = event.get("session")
    if isinstance(session, Mapping):
        voice = session.get("voice", session.get("audio", {}).get("output", {}).get("voice"))
        yield from [] if isinstance(voice, str) else [f"{kind}: the voice is {voice!r}, not a string"]
        missing = {"id", "object", "model", "instructions", "tools"} - set(session)
        yield from [f"{kind}: session without {name}" for name in sorted(missing)]


def _item_rules(kind: str, item: Event) -> Iterator[str]:
    for name in {"id", "object", "type"} | ({"role", "content", "status"} if item.get("type") == "message" else set()):
        if item.get(name) is None:
            yield f"{kind}: item without {name}"


def _response_rules(kind: str, response: Event) -> Iterator[str]:
    for name in ("id", "object", "status", "conversation_id", "output"):
        if response.get(name) is None:
            yield f"{kind}: response without {name}"
    for name in ("status_details", "metadata", "usage"):
        if name not in response:
            yield f"{kind}: response without the key {name}"
    usage = response.get("usage")
    if kind == "response.done" and not isinstance(usage, Mapping):
        yield f"{kind}: no usage"
    elif isinstance(usage, Mapping):
        names = ("total_tokens", "input_tokens", "output_tokens", "input_token_details", "output_token_details")
        if any(usage.get(name) is None for name in names):
            yield f"{kind}: usage is not complete"
        elif usage["total_tokens"] != usage["input_tokens"] + usage["output_tokens"]:
            yield f"{kind}: total_tokens is not input_tokens + output_tokens"


def _where(problem: Any) -> str:
    return ".".join(str(step) for step in problem["loc"])


def _unknown_keys(value: Any, path: str) -> Iterator[str]:
    """Yield the keys, at any depth, that neither the published types nor the specification know."""
    if isinstance(value, pydantic.BaseModel):
        legal = EXTRA_KEYS["*"] | EXTRA_KEYS.get(type(value).__name__, set())
        yield from (f"{path}.{name}" for name in (value.model_extra or {}) if name not in legal)
        for name in type(value).model_fields:
            yield from _unknown_keys(getattr(value, name), f"{path}.{name}")
    elif isinstance(value, list):
        for item in value:
            yield from _unknown_keys(item, path)


def _leaves(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield every (key, value) of nested objects."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key, item
            yield from _leaves(item)
