from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.realtime import client_events as events
from protocols.realtime.client_events import ClientMessage
from protocols.realtime.client_items import ClientItem
from protocols.realtime.fault import EventError
from protocols.realtime.parsing import _READERS, MAX_DEPTH, MAX_TEXT_CHARS, parse_message, read_object
from protocols.realtime.response_options import ResponseOptions

HI = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}
HI_ITEM = ClientItem.model_validate(HI)


def parse(kind: str, **fields: Any) -> ClientMessage:
    return parse_message(json.dumps({"type": kind, **fields}))


def refusal(text: str | bytes) -> tuple[str, str | None, str | None]:
    with pytest.raises(EventError) as caught:
        parse_message(text)
    return caught.value.code, caught.value.param, caught.value.event_id


# -- CASES: what is understood -------------------------------------------------------------------------------------------------------

UNDERSTOOD: list[tuple[str, dict[str, Any], ClientMessage]] = [
    ("session.update", {"session": {"voice": "a"}}, events.SessionUpdate(session={"voice": "a"})),
    ("session.update", {"model": "m"}, events.SessionUpdate(session={"model": "m"})),
    ("input_audio_buffer.append", {"audio": "AAA"}, events.InputAudioAppend(audio="AAA")),
    (
        "input_audio_buffer.append",
        {"audio": "", "format": "f32le", "sample_rate_hz": 16_000, "duration_ms": "x", "is_speech": 3},
        events.InputAudioAppend(audio="", format="f32le", sample_rate_hz=16_000),
    ),
    ("input_audio_buffer.append", {"audio": "", "format": None}, events.InputAudioAppend(audio="")),
    ("input_audio_buffer.commit", {"response_create": True}, events.InputAudioCommit()),
    ("input.commit", {}, events.InputAudioCommit()),
    ("input.commit", {"final": 1, "response_create": True}, events.InputAudioCommit(response_create=True)),
    ("input.commit", {"create_response": True}, events.InputAudioCommit(response_create=True)),
    ("input_audio_buffer.clear", {}, events.InputAudioClear()),
    ("input.cancel", {}, events.InputAudioClear()),
    ("output_audio_buffer.clear", {}, events.OutputAudioClear()),
    ("output_audio_buffer.clear", {"response_id": "r"}, events.OutputAudioClear(response_id="r")),
    ("conversation.item.create", {"item": HI}, events.ItemCreate(item=HI_ITEM)),
    ("conversation.item.create", {"item": HI, "previous_item_id": None}, events.ItemCreate(item=HI_ITEM)),
    ("conversation.item.create", {"item": HI, "previous_item_id": "root"}, events.ItemCreate(item=HI_ITEM, previous_item_id="root")),
    *[(name, {"text": "hi"}, events.ItemCreate(item=HI_ITEM)) for name in ("input.text.append", "input_text.append", "push_text")],
    ("conversation.item.retrieve", {"item_id": "i"}, events.ItemRetrieve(item_id="i")),
    ("conversation.item.delete", {"item_id": "i"}, events.ItemDelete(item_id="i")),
    ("conversation.item.truncate", {"item_id": "i", "audio_end_ms": 7}, events.ItemTruncate(item_id="i", audio_end_ms=7)),
    (
        "conversation.item.truncate",
        {"item_id": "i", "audio_end_ms": 7.9, "content_index": 1},
        events.ItemTruncate(item_id="i", audio_end_ms=7, content_index=1),
    ),
    ("response.create", {}, events.ResponseCreate()),
    ("response.create", {"response": None}, events.ResponseCreate()),
    ("response.create", {"response": {"voice": "a"}}, events.ResponseCreate(response=ResponseOptions(voice="a"))),
    ("response.cancel", {}, events.ResponseCancel()),
    ("response.cancel", {"response_id": "r"}, events.ResponseCancel(response_id="r")),
    *[(name, {"played_ms": 7.9}, events.PlaybackAck(played_ms=7)) for name in ("playback.ack", "audio.playback_ack")],
    (
        "playback.ack",
        {"played_ms": -3, "committed_ms": -0.5, "response_id": "r", "item_id": "i"},
        events.PlaybackAck(played_ms=0, committed_ms=0, response_id="r", item_id="i"),
    ),
    ("session.heartbeat", {}, events.Heartbeat()),
    *[(name, {"reason": "bye"}, events.SessionClose(reason="bye")) for name in ("session.close", "close", "close_session")],
    ("barge_in", {}, events.BargeInRequest()),
    ("session.event_ack", {"server_event_seq": 3}, events.EventAck()),
    ("session.resume", {"session_id": "s"}, events.SessionResume()),
    ("turn.signal", {"event": "response.cancel"}, events.ResponseCancel()),
    ("turn.signal", {"event": "barge_in", "payload": None}, events.BargeInRequest()),
    ("signal_turn", {"event": "input.cancel", "payload": {"type": "x"}}, events.InputAudioClear()),
    ("turn.signal", {"event": "conversation.item.delete", "payload": {"item_id": "i"}}, events.ItemDelete(item_id="i")),
    ("turn.signal", {"event": "session.update", "payload": {"voice": "a"}}, events.SessionUpdate(session={"voice": "a"})),
    ("turn.signal", {"event": "response.create", "payload": {}}, events.Ignored(name="response.create")),
    ("turn.signal", {"event": "user.wave"}, events.Ignored(name="user.wave")),
]


@pytest.mark.parametrize(("kind", "fields", "event"), UNDERSTOOD)
def test_every_name_means_one_event(kind: str, fields: dict[str, Any], event: ClientMessage) -> None:
    assert parse(kind, **fields) == event
    assert parse(kind, **fields, unknown=[{}], event_id=None) == event
    assert parse(kind, **fields, event_id="e1") == event.model_copy(update={"event_id": "e1"})
    binary = json.dumps({"type": kind, **fields}).encode()
    assert parse_message(binary) == event


def test_a_session_update_may_be_flat() -> None:
    event = events.SessionUpdate(event_id="e1", session={"instructions": "x", "unknown": 1})
    assert parse("session.update", event_id="e1", instructions="x", unknown=1) == event


def test_every_name_is_tried() -> None:
    assert {kind for kind, _, _ in UNDERSTOOD} == set(_READERS)


# -- CASES: what is refused (3.11, V26 to V28) ---------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, Any], str, str | None]] = [
    ("foo.bar", {}, "invalid_value", "type"),
    ("transcription_session.update", {"session": {}}, "invalid_value", "type"),
    ("", {}, "invalid_value", "type"),
    ("session.update", {}, "missing_required_parameter", "session"),
    ("session.update", {"session": None}, "invalid_type", "session"),
    ("session.update", {"session": "x"}, "invalid_type", "session"),
    ("input_audio_buffer.append", {}, "missing_required_parameter", "audio"),
    ("input_audio_buffer.append", {"audio": 7}, "invalid_type", "audio"),
    ("input_audio_buffer.append", {"audio": None}, "invalid_type", "audio"),
    ("input_audio_buffer.append", {"audio": "", "sample_rate_hz": "8000"}, "invalid_type", "sample_rate_hz"),
    ("input_audio_buffer.append", {"audio": "", "format": 3}, "invalid_type", "format"),
    ("input.commit", {"create_response": 1}, "invalid_type", "create_response"),
    ("input.commit", {"response_create": "yes"}, "invalid_type", "response_create"),
    ("conversation.item.create", {}, "missing_required_parameter", "item"),
    ("conversation.item.create", {"item": None}, "invalid_type", "item"),
    ("conversation.item.create", {"item": {"type": "message", "role": "user"}}, "missing_required_parameter", "item.content"),
    ("conversation.item.create", {"item": HI, "previous_item_id": 3}, "invalid_type", "previous_item_id"),
    ("input.text.append", {}, "missing_required_parameter", "text"),
    ("push_text", {"text": 3}, "invalid_type", "text"),
    ("conversation.item.retrieve", {}, "missing_required_parameter", "item_id"),
    ("conversation.item.delete", {"item_id": 3}, "invalid_type", "item_id"),
    ("conversation.item.truncate", {"audio_end_ms": 1}, "missing_required_parameter", "item_id"),
    ("conversation.item.truncate", {"item_id": "i"}, "missing_required_parameter", "audio_end_ms"),
    ("conversation.item.truncate", {"item_id": "i", "audio_end_ms": -1}, "invalid_value", "audio_end_ms"),
    ("conversation.item.truncate", {"item_id": "i", "audio_end_ms": -0.5}, "invalid_value", "audio_end_ms"),
    ("conversation.item.truncate", {"item_id": "i", "audio_end_ms": "1"}, "invalid_type", "audio_end_ms"),
    ("conversation.item.truncate", {"item_id": "i", "audio_end_ms": 1, "content_index": -1}, "invalid_value", "content_index"),
    ("response.create", {"response": {"metadata": {"n": 5}}}, "invalid_value", "response.metadata"),
    ("response.create", {"response": [1]}, "invalid_type", "response"),
    ("response.cancel", {"response_id": 3}, "invalid_type", "response_id"),
    ("playback.ack", {}, "missing_required_parameter", "played_ms"),
    ("playback.ack", {"played_ms": True}, "invalid_type", "played_ms"),
    ("turn.signal", {}, "missing_required_parameter", "event"),
    ("turn.signal", {"event": 3}, "invalid_type", "event"),
    ("turn.signal", {"event": "barge_in", "payload": 3}, "invalid_type", "payload"),
    ("turn.signal", {"event": "conversation.item.delete", "payload": {}}, "missing_required_parameter", "item_id"),
]


@pytest.mark.parametrize(("kind", "fields", "code", "param"), REFUSED)
def test_what_is_wrong_is_named(kind: str, fields: dict[str, Any], code: str, param: str | None) -> None:
    body = {"type": kind, **fields}
    assert refusal(json.dumps(body)) == (code, param, None)
    assert refusal(json.dumps(body | {"event_id": "e1"})) == (code, param, "e1")


@pytest.mark.parametrize(
    "text",
    [
        '{"type":', "not json", '"str"', "[]", "42", "", "null", '{"type":"barge_in"}x', '{"type":NaN}', '{"a":"\\ud800"}',
        b'{"a":"\xff"}', "\ud800",
    ],
)  # fmt: skip
def test_what_is_no_json_object(text: str | bytes) -> None:
    assert refusal(text) == ("invalid_json", None, None)


def test_the_type_must_be_there() -> None:
    assert refusal("{}") == ("missing_required_parameter", "type", None)
    assert refusal('{"event_id":"q0"}') == ("missing_required_parameter", "type", "q0")
    assert refusal('{"type":7,"event_id":"q0"}') == ("invalid_type", "type", "q0")
    assert refusal('{"type":null}') == ("invalid_type", "type", None)


@pytest.mark.parametrize("event_id", [7, {}, True, "x" * 513])
def test_an_event_id_is_a_short_string(event_id: object) -> None:
    assert refusal(json.dumps({"type": "barge_in", "event_id": event_id})) == ("invalid_value", "event_id", None)
    assert refusal(json.dumps({"type": "foo.bar", "event_id": event_id})) == ("invalid_value", "type", None)


def test_an_event_id_may_have_512_characters() -> None:
    assert parse("barge_in", event_id="x" * 512).event_id == "x" * 512


def test_the_message_repeats_little_of_what_the_client_sent() -> None:
    with pytest.raises(EventError) as caught:
        parse("foo\n" + "y" * 500)
    assert "foo?yyy" in caught.value.message
    assert len(caught.value.message) < 140


# -- Bounds --------------------------------------------------------------------------------------------------------------------------


def nested(levels: int) -> str:
    """A message of so many levels, the outermost object among them."""
    return '{"type":"barge_in","a":' + "[" * (levels - 1) + "]" * (levels - 1) + "}"


def test_json_may_be_64_levels_deep() -> None:
    assert parse_message(nested(MAX_DEPTH)) == events.BargeInRequest()
    assert refusal(nested(MAX_DEPTH + 1)) == ("invalid_json", None, None)
    assert refusal(nested(100_000)) == ("invalid_json", None, None)


@pytest.mark.parametrize("number", ["1e999", "-1e999", "1" * 400, "-" + "1" * 400, "1" * 5000])
def test_numbers_that_cannot_be_told_back_are_refused(number: str) -> None:
    assert refusal('{"type":"session.update","session":{"tools":[{"n":' + number + "}]}}") == ("invalid_json", None, None)


def test_text_has_a_limit_and_audio_another() -> None:
    long = "x" * MAX_TEXT_CHARS
    assert refusal(json.dumps({"type": "session.update", "session": {"instructions": long}})) == ("message_too_large", None, None)
    assert refusal(json.dumps({"type": "input_audio_buffer.append", "audio": "", "x": long})) == ("message_too_large", None, None)
    assert refusal(json.dumps({"type": "input_audio_buffer.append", "x": long})) == ("message_too_large", None, None)
    for part in ({"type": "input_audio", "audio": long}, {"type": "input_image", "image_url": long}):
        item = {"type": "message", "role": "user", "content": [part]}
        parse("conversation.item.create", item=item)
        parse("response.create", response={"input": [item]})
        parse("input_audio_buffer.append", audio=long)
        assert refusal(json.dumps({"type": "conversation.item.create", "item": item, "x": long})) == ("message_too_large", None, None)
    assert refusal(json.dumps({"type": "response.create", "response": {"instructions": long}})) == ("message_too_large", None, None)
    assert refusal(json.dumps({"type": "response.create", "response": {"input": {}, "x": long}})) == ("message_too_large", None, None)
    assert refusal(json.dumps({"type": "response.create", "response": long})) == ("message_too_large", None, None)


def test_an_object_alone_is_read_with_the_same_care() -> None:
    assert read_object('{"a":[1]}') == {"a": [1]}
    for text in ("[]", '{"a":1e999}', nested(MAX_DEPTH + 1), "{"):
        with pytest.raises(EventError, match="invalid_json"):
            read_object(text)


# -- Whatever comes ------------------------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = sorted({field for _, fields, _ in UNDERSTOOD for field in fields} | {"event_id"})


@given(st.text() | st.binary())
def test_any_text_is_an_event_or_an_error(text: str | bytes) -> None:
    with contextlib.suppress(EventError):
        parse_message(text)


@given(st.sampled_from(sorted(_READERS)), st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4))
def test_any_fields_are_an_event_or_an_error(kind: str, fields: dict[str, Any]) -> None:
    with contextlib.suppress(EventError):
        parse(kind, **fields)


@given(st.data())
def test_a_truncated_message_is_an_error(data: st.DataObject) -> None:
    kind, fields, _ = data.draw(st.sampled_from(UNDERSTOOD))
    text = json.dumps({"type": kind, **fields})
    cut = data.draw(st.integers(0, len(text) - 1))
    assert refusal(text[:cut])[0] == "invalid_json"
