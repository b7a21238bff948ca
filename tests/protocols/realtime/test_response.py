from __future__ import annotations

import json
from typing import Any

import pytest

from protocols.errors import LocalProtocolError
from protocols.realtime import response as endings
from protocols.realtime.dialect import Dialect, encode
from protocols.realtime.formats import AudioFormat
from protocols.realtime.response import NO_LIMITS, Ending, Phase, ResponseSettings, ResponseTrack, Trigger
from protocols.realtime.server_events import ServerMessage, Usage
from protocols.realtime.watermarks import Watermarks

USAGE = Usage.of(input_text=1, input_audio=2, output_text=3, output_audio=4)
PCM = {"format": {"type": "audio/pcm", "rate": 24000}, "voice": "marin"}


def track(**changes: Any) -> ResponseTrack:
    fields: dict[str, Any] = {
        "conversation_id": "conv_1",
        "is_text": False,
        "output_format": AudioFormat("pcm"),
        "voice": "marin",
        "max_tokens": None,
    }
    return ResponseTrack(ResponseSettings(**{**fields, **changes}), 3, Watermarks())


def speaking(*, sent: int = 2, **changes: Any) -> ResponseTrack:
    """Begun, with three words in three frames, of which some were sent."""
    response = track(**changes)
    response.begin("item_0")
    for i, text in enumerate(("one", " two", " three"), 1):
        response.marks.generate(i * 80, text)
    for _ in range(sent):
        response.marks.send_text()
    response.marks.send(sent * 80, 10.0)
    return response


def worded(messages: list[ServerMessage]) -> list[dict[str, Any]]:
    return [json.loads(str(encode(message, Dialect.GA, "event_1"))) for message in messages]


def without_place(event: dict[str, Any], response: ResponseTrack) -> dict[str, Any]:
    """The fields that are an event's own, after seeing that the others name this response and its item."""
    assert event.pop("response_id", response.response_id) == response.response_id
    assert event.pop("item_id", response.item_id) == response.item_id
    assert (event.pop("output_index", 0), event.pop("content_index", 0), event.pop("event_id")) == (0, 0, "event_1")
    return event


def test_a_response_is_created_with_what_it_was_asked_to_be() -> None:
    response = track(metadata={"k": "v"}, trigger=Trigger.REQUEST, ignored=("voice", "tools"), max_tokens=50)
    (created,) = worded([response.created()])
    assert created["response"] == {
        "object": "realtime.response",
        "id": response.response_id,
        "conversation_id": "conv_1",
        "status": "in_progress",
        "status_details": None,
        "output": [],
        "output_modalities": ["audio"],
        "audio": {"output": PCM},
        "max_output_tokens": 50,
        "metadata": {"k": "v"},
        "usage": None,
        "x_duplex": {"epoch": 3, "trigger": "request", "ignored": ["voice", "tools"]},
    }


def test_a_response_of_the_model_has_no_metadata_and_no_limit() -> None:
    (created,) = worded([track().created()])
    found = created["response"]
    assert (found["metadata"], found["max_output_tokens"], found["x_duplex"]) == (None, "inf", {"epoch": 3, "trigger": "model"})


@pytest.mark.parametrize(("is_text", "part"), [(False, {"type": "audio", "transcript": ""}), (True, {"type": "text", "text": ""})])
def test_it_begins_with_its_item_and_part(is_text: bool, part: dict[str, Any]) -> None:  # 3.2 steps 2 to 4
    response = track(is_text=is_text)
    item = {"id": response.item_id, "object": "realtime.item", "type": "message", "status": "in_progress", "role": "assistant"}
    item = {**item, "content": []}
    assert [without_place(event, response) for event in worded(response.begin("item_0"))] == [
        {"type": "response.output_item.added", "item": item},
        {"type": "conversation.item.added", "previous_item_id": "item_0", "item": item},
        {"type": "response.content_part.added", "part": part},
    ]
    assert response.phase is Phase.OPEN


@pytest.mark.parametrize(
    ("is_text", "done", "part", "content"),
    [
        (
            False,
            [{"type": "response.output_audio.done"}, {"type": "response.output_audio_transcript.done", "transcript": "one two three"}],
            {"type": "audio", "transcript": "one two three"},
            {"type": "output_audio", "transcript": "one two three"},
        ),
        (
            True,
            [{"type": "response.output_text.done", "text": "one two three"}],
            {"type": "text", "text": "one two three"},
            {"type": "output_text", "text": "one two three"},
        ),
    ],
)
def test_it_ends_with_its_whole_bracket(is_text: bool, done: list[Any], part: dict[str, Any], content: dict[str, Any]) -> None:
    response = speaking(is_text=is_text)  # 3.2 steps 7 to 12
    messages, final = response.finish(endings.SILENCE, USAGE, 11.0, is_cut=False)
    item = {"id": response.item_id, "object": "realtime.item", "type": "message", "status": "completed", "role": "assistant"}
    item = {**item, "content": [content]}
    *closing, last = [without_place(event, response) for event in worded(messages)]
    assert closing == [
        *done,
        {"type": "response.content_part.done", "part": part},
        {"type": "response.output_item.done", "item": item},
        {"type": "conversation.item.done", "previous_item_id": "item_0", "item": item},
    ]
    assert last["type"] == "response.done"
    found = last["response"]
    assert (found["id"], found["status"], found["status_details"], found["output"]) == (response.response_id, "completed", None, [item])
    assert found["output_modalities"] == ["text" if is_text else "audio"]
    assert (found["usage"]["total_tokens"], found["usage"]["input_tokens"]) == (10, 3)
    assert final is not None
    assert final.model_dump(mode="json") == item


ENDINGS: list[tuple[Ending, str, dict[str, Any] | None, str, str]] = [
    # ending, status, status_details, status of the item, x_duplex.reason
    (endings.SILENCE, "completed", None, "completed", "silence"),
    (endings.ROTATION, "completed", None, "completed", "rotation"),
    (endings.NO_SPEECH, "completed", None, "completed", "no_speech"),
    (endings.BARGE_IN, "cancelled", {"reason": "turn_detected"}, "incomplete", "barge_in"),
    (endings.YIELDED, "cancelled", {"reason": "turn_detected"}, "incomplete", "yielded"),
    (endings.CANCEL, "cancelled", {"reason": "client_cancelled"}, "incomplete", "cancel"),
    (endings.DELETED, "cancelled", {"reason": "client_cancelled"}, "incomplete", "deleted"),
    (endings.CLOSED, "cancelled", {"reason": "client_cancelled"}, "incomplete", "close"),
    (endings.EXPIRED, "incomplete", {}, "incomplete", "close"),
    (endings.LIMIT, "incomplete", {"reason": "max_output_tokens"}, "incomplete", "limit"),
    (endings.BACKPRESSURE, "failed", {"error": "output_backpressure"}, "incomplete", "backpressure"),
    (endings.FAILED, "failed", {"error": "server_error"}, "incomplete", "error"),
    (endings.OUT_OF_BAND, "failed", {"error": "unsupported_out_of_band"}, "incomplete", "error"),
]


@pytest.mark.parametrize(("ending", "status", "details", "item_status", "reason"), ENDINGS, ids=lambda value: None)
def test_an_ending_is_told_in_words_that_clients_know(
    ending: Ending, status: str, details: dict[str, Any] | None, item_status: str, reason: str
) -> None:
    messages, item = speaking().finish(ending, USAGE, 11.0, is_cut=True)
    found = worded(messages)[-1]["response"]
    assert (found["status"], found["x_duplex"]["reason"]) == (status, reason)
    assert item is not None
    assert item.status == item_status
    if details is not None:
        assert found["status_details"].pop("type") == status
        if "error" in details:
            error = found["status_details"]["error"]
            assert error["message"]
            found["status_details"]["error"] = error["code"]
    assert found["status_details"] == details


def test_every_ending_is_in_the_table() -> None:
    assert [ending for ending, *_ in ENDINGS] == [value for value in vars(endings).values() if isinstance(value, Ending)]


def test_a_response_that_is_cut_says_what_was_sent_and_how_much_of_it_was_probably_heard() -> None:
    response = speaking(sent=2)
    messages, item = response.finish(endings.BARGE_IN, USAGE, 10.125, is_cut=True)
    found = worded(messages)
    assert [event["transcript"] for event in found if "transcript" in event] == ["one two"]
    assert item is not None
    assert item.content[0].transcript == "one two"
    marks = {"generated_ms": 240, "sent_ms": 160, "played_ms": 125, "committed_ms": 0}
    assert found[-1]["response"]["x_duplex"] == {"epoch": 3, "reason": "barge_in", **marks}
    response.marks.settle(20.0)
    assert response.marks.committed_ms == 125  # an interrupted client flushes what it has not played


def test_a_response_that_was_not_interrupted_counts_as_heard_to_its_end() -> None:
    response = speaking(sent=2)
    response.finish(endings.SILENCE, USAGE, 10.1, is_cut=False)
    response.marks.send(240, 10.2)
    response.marks.settle(20.0)
    assert response.marks.committed_ms == 240


def test_a_response_that_never_began_is_done_without_an_item() -> None:
    response = track(metadata={"k": "v"})
    messages, item = response.finish(endings.CANCEL, USAGE, 1.0, is_cut=True)
    (done,) = worded(messages)
    assert item is None
    assert (done["type"], done["response"]["output"], done["response"]["metadata"]) == ("response.done", [], {"k": "v"})


def test_each_step_is_taken_once() -> None:
    response = track()
    response.begin(None)
    with pytest.raises(LocalProtocolError, match="open should be pending"):
        response.begin(None)
    response.finish(endings.SILENCE, USAGE, 1.0, is_cut=False)
    assert response.phase is Phase.DONE
    with pytest.raises(LocalProtocolError, match="done should be pending"):
        response.begin(None)
    with pytest.raises(LocalProtocolError, match="twice"):
        response.finish(endings.SILENCE, USAGE, 1.0, is_cut=False)


def test_there_are_no_rate_limits() -> None:
    assert worded([NO_LIMITS])[0]["rate_limits"] == []
