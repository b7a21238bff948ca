from __future__ import annotations

from typing import get_args

import pydantic
import pytest

from protocols.realtime import ext, server_events
from protocols.realtime.fault import EventError
from protocols.realtime.server_events import AudioDelta, ErrorEvent, PartEvent, RateLimitsUpdated, SpeechStarted, TranscriptDelta, WireEvent

# specs/realtime.md 2.8: every event that this server ever sends, under its GA name.
SENT = {
    "session.created", "session.updated", "conversation.created", "conversation.item.added", "conversation.item.done",
    "conversation.item.deleted", "conversation.item.retrieved", "conversation.item.truncated", "input_audio_buffer.committed",
    "input_audio_buffer.cleared", "input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "output_audio_buffer.cleared",
    "response.created", "response.output_item.added", "response.content_part.added", "response.output_audio.delta",
    "response.output_audio_transcript.delta", "response.output_text.delta", "response.output_audio.done",
    "response.output_audio_transcript.done", "response.output_text.done", "response.content_part.done", "response.output_item.done",
    "response.done", "rate_limits.updated", "error",
}  # fmt: skip
# 2.10.3, of which session.resumed is not offered
EXTENSIONS = {
    "response.listen", "response.speak", "overlap.decision", "playback.acknowledged", "x_duplex.frame", "session.heartbeat_ack",
    "session.closed",
}  # fmt: skip


def names(module: object) -> list[str]:
    models = [model for model in vars(module).values() if isinstance(model, type) and issubclass(model, WireEvent)]
    return [get_args(model.model_fields["type"].annotation)[0] for model in models if "type" in model.model_fields]


def test_there_is_one_model_for_every_event() -> None:
    assert sorted(names(server_events)) == sorted(SENT)


def test_extensions_are_apart() -> None:
    assert sorted(names(ext)) == sorted(EXTENSIONS)


def test_x_duplex_may_go_with_every_event_and_is_left_out_without_need() -> None:
    event = SpeechStarted(audio_start_ms=5, item_id="i")
    assert event.model_dump() == {"type": "input_audio_buffer.speech_started", "audio_start_ms": 5, "item_id": "i"}
    assert event.model_copy(update={"x_duplex": {"cause": "overlap"}}).model_dump()["x_duplex"] == {"cause": "overlap"}


def test_events_are_frozen_strict_and_closed() -> None:
    event = AudioDelta(response_id="r", item_id="i", delta="AAAA")
    assert isinstance(event, PartEvent)
    with pytest.raises(pydantic.ValidationError):
        event.delta = "BBBB"
    for fields in ({"audio_start_ms": 1.0, "item_id": "i"}, {"audio_start_ms": -1, "item_id": "i"}, {"audio_start_ms": 1}, {"x": 1}):
        with pytest.raises(pydantic.ValidationError):
            SpeechStarted(**fields)  # type: ignore[arg-type]


def test_start_time_is_left_out_unless_timing_is_wanted() -> None:
    assert "start_time" not in TranscriptDelta(response_id="r", item_id="i", delta="a").model_dump()
    assert TranscriptDelta(response_id="r", item_id="i", delta="a", start_time=0.08).model_dump()["start_time"] == 0.08


def test_there_are_no_rate_limits() -> None:
    assert RateLimitsUpdated().model_dump() == {"type": "rate_limits.updated", "rate_limits": ()}
    with pytest.raises(pydantic.ValidationError):
        RateLimitsUpdated(rate_limits=({"name": "requests"},))  # type: ignore[arg-type]


def test_a_refused_message_becomes_an_error_event() -> None:
    fault = EventError("invalid_value", "no", "audio", event_id="e1")
    assert ErrorEvent.of(fault).model_dump() == {
        "type": "error",
        "error": {"type": "invalid_request_error", "code": "invalid_value", "message": "no", "param": "audio", "event_id": "e1"},
    }
    fatal = ErrorEvent.of(EventError("server_error", "no", type="server_error"), {"fatal": True})
    assert (fatal.error.type, fatal.x_duplex) == ("server_error", {"fatal": True})
