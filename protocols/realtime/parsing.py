"""From the text on the wire to client events (specs/realtime.md 2.1, 2.7, 3.11).

    names                                                        class
    session.update                                               SessionUpdate
    input_audio_buffer.append                                    InputAudioAppend
    input_audio_buffer.commit, input.commit                      InputAudioCommit
    input_audio_buffer.clear, input.cancel                       InputAudioClear
    output_audio_buffer.clear                                    OutputAudioClear
    conversation.item.create, .retrieve, .delete, .truncate      ItemCreate, ItemRetrieve, ItemDelete, ItemTruncate
    input.text.append, input_text.append, push_text              ItemCreate
    response.create, response.cancel                             ResponseCreate, ResponseCancel
    playback.ack, audio.playback_ack                             PlaybackAck
    session.heartbeat, session.event_ack, session.resume         Heartbeat, EventAck, SessionResume
    session.close, close, close_session                          SessionClose
    barge_in                                                     BargeInRequest
    turn.signal, signal_turn                                     what its `event` names, or Ignored

The rule: whatever a client sends, the outcome is one event or one EventError; nothing else escapes, and a long message costs no more than
its reading. Thread: any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pydantic_core

from protocols.realtime import client_events as events
from protocols.realtime.client_events import ClientMessage
from protocols.realtime.client_items import ClientItem, ClientPart, payload_chars, read_item
from protocols.realtime.fault import EventError, bad_value, checked, excerpt, missing, wrong_type
from protocols.realtime.response_options import read_response
from protocols.realtime.values import Value

MAX_TEXT_CHARS = 1024 * 1024  # "any non-audio message > 1 MiB of text" (1.7)
MAX_DEPTH = 64  # levels of JSON (3.11)
MAX_EVENT_ID_CHARS = 512  # 2.1
MAX_NUMBER = 2.0**1023  # JSON has no infinity, but 1e999 is read as one

Body = Mapping[str, Any]


def parse_message(text: str | bytes) -> ClientMessage:
    """Read one message.

    Raises:
        EventError: there is no such event, or it cannot be honoured.
    """
    body = _read_json(text)
    event_id = body.get("event_id")
    is_legal_id = isinstance(event_id, str) and len(event_id) <= MAX_EVENT_ID_CHARS
    try:
        kind = _kind(body)
        if event_id is not None and not is_legal_id:
            raise bad_value("event_id", f"must be a string of at most {MAX_EVENT_ID_CHARS} characters")
        _check_size(text, kind, body)
        _check_shape(body)
        return _READERS[kind](body)
    except EventError as exc:
        exc.event_id = event_id if is_legal_id else None
        raise


def read_object(text: str | bytes) -> dict[str, Any]:
    """Read a JSON object that can be told back: not nested too deep, without numbers that JSON cannot say.

    Raises:
        EventError: invalid_json.
    """
    body = _read_json(text)
    _check_shape(body)
    return body


# -- The message as a whole ----------------------------------------------------------------------------------------------------------


def _read_json(text: str | bytes) -> dict[str, Any]:
    try:
        # Keys alone are cached: a cache of values would copy and hash 20 MiB of audio.
        body = pydantic_core.from_json(text, allow_inf_nan=False, cache_strings="keys")
    except (ValueError, TypeError):  # TypeError: a str that has lone surrogates
        raise _bad_json("The message is not valid JSON.") from None
    if not isinstance(body, dict):
        raise _bad_json("The message is not a JSON object.")
    return body


def _kind(body: Body) -> str:
    kind = body.get("type")
    if "type" not in body:
        raise missing("type")
    if not isinstance(kind, str):
        raise wrong_type("type", "a string", kind)
    if kind not in _READERS:
        raise EventError("invalid_value", f"Invalid value for 'type': there is no event {excerpt(kind)}.", "type")
    return kind


def _check_size(text: str | bytes, kind: str, body: Body) -> None:
    """Audio and pictures have limits of their own."""
    payload = 0
    if kind == _APPEND:
        payload = len(body["audio"]) if isinstance(body.get("audio"), str) else 0
    elif kind in (_ITEM_CREATE, "response.create"):
        items = body["response"].get("input") if isinstance(body.get("response"), dict) else [body.get("item")]
        payload = sum(map(payload_chars, items)) if isinstance(items, list) else 0
    if len(text) - payload > MAX_TEXT_CHARS:
        raise EventError("message_too_large", f"The message has more than {MAX_TEXT_CHARS >> 20} MiB of text.", None)


def _check_shape(body: Body) -> None:
    """Refuse what is nested too deep and numbers that JSON cannot say; settings are told back, and that must be JSON again."""
    level: list[Any] = [body]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            children = value.values() if isinstance(value, dict) else value
            for child in children:
                if isinstance(child, dict | list):
                    below.append(child)
                elif isinstance(child, float | int) and not -MAX_NUMBER < child < MAX_NUMBER:
                    raise _bad_json("The message has a number that is too large.")
        if not below:
            return
        level = below
    raise _bad_json(f"The message is nested more than {MAX_DEPTH} levels deep.")


def _bad_json(message: str) -> EventError:
    return EventError("invalid_json", message, None)


# -- Events that need more than their model ------------------------------------------------------------------------------------------


def _session_update(body: Body) -> ClientMessage:
    session = events.session_of(body)
    if session is None and "session" not in body:
        raise missing("session")
    return checked(events.SessionUpdate, {**body, "session": session})


def _omni_commit(body: Body) -> ClientMessage:
    message = Value(body, "")
    wish = message["response_create"].or_else(message["create_response"])
    return events.InputAudioCommit(event_id=body.get("event_id"), response_create=wish.boolean() or False)


def _commit(body: Body) -> ClientMessage:
    return events.InputAudioCommit(event_id=body.get("event_id"))


def _item_create(body: Body) -> ClientMessage:
    if "item" not in body:
        raise missing("item")
    return checked(events.ItemCreate, {**body, "item": read_item(body["item"], "item")})


def _text_append(body: Body) -> ClientMessage:
    text = Value(body, "")["text"].text()
    if text is None:
        raise missing("text")
    item = ClientItem(type="message", role="user", content=(ClientPart(type="input_text", text=text),))
    return events.ItemCreate(event_id=body.get("event_id"), item=item)


def _response_create(body: Body) -> ClientMessage:
    return events.ResponseCreate(event_id=body.get("event_id"), response=read_response(body.get("response")))


def _turn_signal(body: Body) -> ClientMessage:
    message = Value(body, "")
    kind, payload = message["event"].text(), message["payload"].object()
    if kind is None:
        raise missing("event")
    if kind not in _SIGNALS:
        return events.Ignored(event_id=body.get("event_id"), name=kind)
    # "dispatched with `payload` as the body"
    return _READERS[kind]({**(payload.value if payload.is_given else {}), "type": kind, "event_id": body.get("event_id")})


def _plain(model: type[events.ClientEvent]) -> Callable[[Body], ClientMessage]:
    def read(body: Body) -> ClientMessage:
        return checked(model, body)  # type: ignore[return-value]

    return read


_APPEND: Final = "input_audio_buffer.append"
_ITEM_CREATE: Final = "conversation.item.create"
_READERS: Mapping[str, Callable[[Body], ClientMessage]] = {
    "session.update": _session_update,
    _APPEND: _plain(events.InputAudioAppend),
    "input_audio_buffer.commit": _commit,
    "input.commit": _omni_commit,
    **dict.fromkeys(("input_audio_buffer.clear", "input.cancel"), _plain(events.InputAudioClear)),
    "output_audio_buffer.clear": _plain(events.OutputAudioClear),
    _ITEM_CREATE: _item_create,
    "conversation.item.retrieve": _plain(events.ItemRetrieve),
    "conversation.item.delete": _plain(events.ItemDelete),
    "conversation.item.truncate": _plain(events.ItemTruncate),
    **dict.fromkeys(("input.text.append", "input_text.append", "push_text"), _text_append),
    "response.create": _response_create,
    "response.cancel": _plain(events.ResponseCancel),
    **dict.fromkeys(("playback.ack", "audio.playback_ack"), _plain(events.PlaybackAck)),
    "session.heartbeat": _plain(events.Heartbeat),
    "session.event_ack": _plain(events.EventAck),
    "session.resume": _plain(events.SessionResume),
    **dict.fromkeys(("session.close", "close", "close_session"), _plain(events.SessionClose)),
    "barge_in": _plain(events.BargeInRequest),
    **dict.fromkeys(("turn.signal", "signal_turn"), _turn_signal),
}
_SIGNALS = frozenset((
    "input.cancel", "barge_in", "response.cancel", "session.update", _ITEM_CREATE, "conversation.item.delete",
    "conversation.item.truncate", "conversation.item.retrieve",
))  # fmt: skip
