from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.realtime.dialect import Dialect, decide_dialect, encode
from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat
from protocols.realtime.objects import ContentPart, Conversation, Item, Response, ResponseAudio, StatusDetails, Usage
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.server_events import (
    AudioDelta,
    AudioDone,
    ContentPartAdded,
    ContentPartDone,
    ConversationCreated,
    ErrorEvent,
    InputCleared,
    ItemAdded,
    ItemDone,
    ItemRetrieved,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDelta,
    OutputTextDone,
    ResponseCreated,
    ResponseDone,
    ServerMessage,
    SessionUpdated,
    TranscriptDelta,
    TranscriptDone,
)

PLACE: dict[str, Any] = {"response_id": "r1", "item_id": "a1"}
PLACED = {"response_id": "r1", "item_id": "a1", "output_index": 0, "content_index": 0}
SPOKEN = Item(id="a1", status="completed", role="assistant", content=(ContentPart(type="output_audio", transcript="Hello"),))
WRITTEN = Item(id="a1", status="incomplete", role="assistant", content=(ContentPart(type="output_text", text="Hello"),))
USER = Item(id="u1", status="completed", role="user", content=(ContentPart(type="input_audio"), ContentPart(type="input_text", text="x")))
ITEM = {"id": "a1", "object": "realtime.item", "type": "message", "role": "assistant"}
USAGE = Usage.of(input_text=1, input_audio=2, output_text=3, output_audio=4)


def response(fmt: AudioFormat, **fields: Any) -> Response:
    return Response(**{"id": "r1", "conversation_id": "c1", "status": "in_progress", "audio": ResponseAudio.of(fmt, "marin"), **fields})


def worded(message: ServerMessage, dialect: Dialect) -> dict[str, Any] | None:
    text = encode(message, dialect, "event_9")
    if text is None:
        return None
    body: dict[str, Any] = json.loads(text)
    assert list(body)[:2] == ["type", "event_id"]
    assert body.pop("event_id") == "event_9"
    return body


def item(status: str, *parts: dict[str, Any]) -> dict[str, Any]:
    return {**ITEM, "status": status, "content": list(parts)}


# -- CASES: an event, its GA body, its beta body (None: not sent) --------------------------------------------------------------------

CASES: list[tuple[ServerMessage, dict[str, Any] | None, dict[str, Any] | None]] = [
    (
        AudioDelta(**PLACE, delta="AAAA"),
        {"type": "response.output_audio.delta", **PLACED, "delta": "AAAA"},
        {"type": "response.audio.delta", **PLACED, "delta": "AAAA"},
    ),
    (
        AudioDelta(**PLACE, delta="AAAA", content_index=1, x_duplex={"epoch": 2}),
        {"type": "response.output_audio.delta", **PLACED, "content_index": 1, "delta": "AAAA", "x_duplex": {"epoch": 2}},
        {"type": "response.audio.delta", **PLACED, "content_index": 1, "delta": "AAAA", "x_duplex": {"epoch": 2}},
    ),
    (
        TranscriptDelta(**PLACE, delta=' "Grüß"\n\u2028\\'),
        {"type": "response.output_audio_transcript.delta", **PLACED, "delta": ' "Grüß"\n\u2028\\'},
        {"type": "response.audio_transcript.delta", **PLACED, "delta": ' "Grüß"\n\u2028\\'},
    ),
    (
        TranscriptDelta(**PLACE, delta="a", start_time=0.08, x_duplex={"frame": 1}),
        {"type": "response.output_audio_transcript.delta", **PLACED, "delta": "a", "start_time": 0.08, "x_duplex": {"frame": 1}},
        {"type": "response.audio_transcript.delta", **PLACED, "delta": "a", "start_time": 0.08, "x_duplex": {"frame": 1}},
    ),
    (
        OutputTextDelta(**PLACE, delta="a"),
        {"type": "response.output_text.delta", **PLACED, "delta": "a"},
        {"type": "response.text.delta", **PLACED, "delta": "a"},
    ),
    (AudioDone(**PLACE), {"type": "response.output_audio.done", **PLACED}, {"type": "response.audio.done", **PLACED}),
    (
        TranscriptDone(**PLACE, transcript="b"),
        {"type": "response.output_audio_transcript.done", **PLACED, "transcript": "b"},
        {"type": "response.audio_transcript.done", **PLACED, "transcript": "b"},
    ),
    (
        OutputTextDone(**PLACE, text="b"),
        {"type": "response.output_text.done", **PLACED, "text": "b"},
        {"type": "response.text.done", **PLACED, "text": "b"},
    ),
    (
        ContentPartAdded(**PLACE, part=ContentPart(type="audio", transcript="")),
        {"type": "response.content_part.added", **PLACED, "part": {"type": "audio", "transcript": ""}},
        {"type": "response.content_part.added", **PLACED, "part": {"type": "audio", "transcript": ""}},
    ),
    (
        ContentPartDone(**PLACE, part=ContentPart(type="text", text="b")),
        {"type": "response.content_part.done", **PLACED, "part": {"type": "text", "text": "b"}},
        {"type": "response.content_part.done", **PLACED, "part": {"type": "text", "text": "b"}},
    ),
    (
        ItemAdded(previous_item_id=None, item=SPOKEN),
        {
            "type": "conversation.item.added",
            "previous_item_id": None,
            "item": item("completed", {"type": "output_audio", "transcript": "Hello"}),
        },
        {
            "type": "conversation.item.created",
            "previous_item_id": None,
            "item": item("completed", {"type": "audio", "transcript": "Hello"}),
        },
    ),
    (
        ItemDone(previous_item_id="u1", item=WRITTEN),
        {
            "type": "conversation.item.done",
            "previous_item_id": "u1",
            "item": item("incomplete", {"type": "output_text", "text": "Hello"}),
        },
        None,
    ),
    (
        OutputItemDone(response_id="r1", item=WRITTEN),
        {
            "type": "response.output_item.done",
            "response_id": "r1",
            "output_index": 0,
            "item": item("incomplete", {"type": "output_text", "text": "Hello"}),
        },
        {
            "type": "response.output_item.done",
            "response_id": "r1",
            "output_index": 0,
            "item": item("incomplete", {"type": "text", "text": "Hello"}),
        },
    ),
    (
        OutputItemAdded(response_id="r1", item=Item(id="f", type="function_call", status="completed", name="n")),
        *[
            {
                "type": "response.output_item.added",
                "response_id": "r1",
                "output_index": 0,
                "item": {"id": "f", "object": "realtime.item", "type": "function_call", "status": "completed", "name": "n"},
            }
        ]
        * 2,
    ),
    (
        ItemRetrieved(item=USER),
        *[
            {
                "type": "conversation.item.retrieved",
                "item": {
                    **ITEM,
                    "id": "u1",
                    "role": "user",
                    "status": "completed",
                    "content": [{"type": "input_audio", "transcript": None}, {"type": "input_text", "text": "x"}],
                },
            }
        ]
        * 2,
    ),
    (
        ConversationCreated(conversation=Conversation(id="c1")),
        None,
        {"type": "conversation.created", "conversation": {"id": "c1", "object": "realtime.conversation"}},
    ),
    (InputCleared(x_duplex={"a": 1}), *[{"type": "input_audio_buffer.cleared", "x_duplex": {"a": 1}}] * 2),
    (
        SessionUpdated(session={"model": "é", "audio": None}),
        *[{"type": "session.updated", "session": {"model": "é", "audio": None}}] * 2,
    ),
    (
        ErrorEvent.of(EventError("invalid_value", "no", "audio")),
        *[
            {
                "type": "error",
                "error": {"type": "invalid_request_error", "code": "invalid_value", "message": "no", "param": "audio", "event_id": None},
            }
        ]
        * 2,
    ),
    (
        ResponseCreated(response=response(AudioFormat("pcm"), metadata={"a": "b"})),
        {
            "type": "response.created",
            "response": {
                "object": "realtime.response",
                "id": "r1",
                "conversation_id": "c1",
                "status": "in_progress",
                "status_details": None,
                "output": [],
                "output_modalities": ["audio"],
                "audio": {"output": {"format": {"type": "audio/pcm", "rate": 24_000}, "voice": "marin"}},
                "max_output_tokens": "inf",
                "metadata": {"a": "b"},
                "usage": None,
            },
        },
        {
            "type": "response.created",
            "response": {
                "object": "realtime.response",
                "id": "r1",
                "conversation_id": "c1",
                "status": "in_progress",
                "status_details": None,
                "output": [],
                "modalities": ["audio", "text"],
                "voice": "marin",
                "output_audio_format": "pcm16",
                "temperature": 0.8,
                "max_output_tokens": "inf",
                "metadata": {"a": "b"},
                "usage": None,
            },
        },
    ),
]


@pytest.mark.parametrize(("message", "ga", "beta"), CASES)
def test_every_event_has_one_name_in_each_dialect_or_none(
    message: ServerMessage, ga: dict[str, Any] | None, beta: dict[str, Any] | None
) -> None:
    assert worded(message, Dialect.GA) == ga
    assert worded(message, Dialect.BETA) == beta
    assert worded(message, Dialect.GA) == ga  # wording an event leaves it as it was


def test_a_finished_response_in_both_dialects() -> None:
    done = ResponseDone(
        response=response(
            AudioFormat("pcma", 8000),
            status="cancelled",
            status_details=StatusDetails(type="cancelled", reason="turn_detected"),
            output=(WRITTEN,),
            output_modalities=("text",),
            usage=USAGE,
            max_output_tokens=20,
            temperature=0.6,
            x_duplex={"reason": "barge_in"},
        )
    )
    ga, beta = (body["response"] for body in (worded(done, Dialect.GA), worded(done, Dialect.BETA)) if body is not None)
    assert ga["output"] == [item("incomplete", {"type": "output_text", "text": "Hello"})]
    assert beta["output"] == [item("incomplete", {"type": "text", "text": "Hello"})]
    assert "temperature" not in ga
    assert (beta["modalities"], beta["output_audio_format"], beta["temperature"]) == (["text"], "g711_alaw", 0.6)
    assert "audio" not in beta
    assert "output_modalities" not in beta
    for body in (ga, beta):
        assert body["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
        assert body["usage"]["total_tokens"] == 10
        assert body["max_output_tokens"] == 20
        assert body["x_duplex"] == {"reason": "barge_in"}


def test_numbers_that_json_cannot_say_are_our_bug() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode(SessionUpdated(session={"x": float("nan")}), Dialect.GA, "event_1")


@given(st.text(), st.text(min_size=1), st.sampled_from(list(Dialect)))
def test_hand_written_json_is_json(text: str, item_id: str, dialect: Dialect) -> None:
    for message in (
        TranscriptDelta(response_id="r", item_id=item_id, delta=text),
        OutputTextDelta(response_id="r", item_id=item_id, delta=text),
    ):
        body = worded(message, dialect)
        assert body is not None
        assert (body["delta"], body["item_id"]) == (text, item_id)


# -- Which dialect -------------------------------------------------------------------------------------------------------------------

GA, BETA = Dialect.GA, Dialect.BETA


@pytest.mark.parametrize(
    ("provisional", "session", "flat_means_beta", "decided"),
    [
        (GA, {"type": "realtime"}, False, GA),
        (GA, {"modalities": ["text"]}, False, GA),
        (GA, {"modalities": ["text"]}, True, BETA),
        (GA, {"type": "realtime", "modalities": ["text"]}, True, GA),
        (GA, {"voice": "alloy", "audio": {"input": {"format": {"type": "audio/pcm"}}}}, True, GA),
        (GA, {"voice": "alloy", "audio": {"input": {"sample_rate_hz": 16_000}}}, True, BETA),
        (GA, {"voice": "alloy", "audio": 7}, True, BETA),
        (GA, {"instructions": "x"}, True, GA),
        (GA, {}, True, GA),
        (BETA, {"voice": "alloy"}, False, BETA),
        (BETA, {"type": "realtime"}, False, BETA),
        (BETA, {"type": "realtime", "audio": {}}, False, GA),
        (BETA, {"type": "realtime", "audio": None}, False, BETA),
        (BETA, {"audio": {}}, False, BETA),
    ],
)
def test_the_first_session_object_settles_the_dialect(
    provisional: Dialect, session: dict[str, Any], flat_means_beta: bool, decided: Dialect
) -> None:
    assert decide_dialect(provisional, session, RealtimeOptions(flat_means_beta=flat_means_beta)) is decided
