from __future__ import annotations

from typing import Any

import pydantic
import pytest

from protocols.realtime.formats import AudioFormat
from protocols.realtime.objects import ContentPart, ErrorBody, FailureDetails, Item, Response, ResponseAudio, StatusDetails, Usage

AUDIO = ResponseAudio.of(AudioFormat("pcmu", 8000), "marin")


@pytest.mark.parametrize(
    ("part", "shape"),
    [
        (ContentPart(type="audio", transcript=""), {"type": "audio", "transcript": ""}),
        (ContentPart(type="output_audio", transcript="a", text="b"), {"type": "output_audio", "transcript": "a"}),
        (ContentPart(type="input_audio"), {"type": "input_audio", "transcript": None}),
        (ContentPart(type="text", text=""), {"type": "text", "text": ""}),
        (ContentPart(type="input_text", text="x", transcript="y"), {"type": "input_text", "text": "x"}),
        (ContentPart(type="input_image"), {"type": "input_image"}),
        (ContentPart(type="input_image", detail="low"), {"type": "input_image", "detail": "low"}),
    ],
)
def test_a_part_has_the_keys_of_its_type(part: ContentPart, shape: dict[str, Any]) -> None:
    assert part.model_dump() == shape


@pytest.mark.parametrize("kind", ["audio", "output_audio", "text", "output_text", "input_text"])
def test_a_part_without_its_content_cannot_be_made(kind: Any) -> None:
    with pytest.raises(pydantic.ValidationError, match="needs a"):
        ContentPart(type=kind)


def test_messages_have_role_and_content_and_tool_items_their_own_keys() -> None:
    message = Item(id="i", status="in_progress", role="assistant").model_dump()
    assert message == {
        "id": "i", "object": "realtime.item", "type": "message", "status": "in_progress", "role": "assistant", "content": (),
    }  # fmt: skip
    call = Item(id="i", type="function_call", status="completed", name="n").model_dump()
    assert call == {"id": "i", "object": "realtime.item", "type": "function_call", "status": "completed", "name": "n"}


@pytest.mark.parametrize("status", ["cancelled", "failed", ""])
def test_an_item_knows_three_states(status: Any) -> None:
    with pytest.raises(pydantic.ValidationError):
        Item(id="i", status=status)


def test_usage_adds_up_and_is_whole() -> None:
    assert Usage.of(input_text=48, input_audio=327, output_text=12, output_audio=50).model_dump() == {
        "total_tokens": 437,
        "input_tokens": 375,
        "output_tokens": 62,
        "input_token_details": {
            "text_tokens": 48,
            "audio_tokens": 327,
            "image_tokens": 0,
            "cached_tokens": 0,
            "cached_tokens_details": {"text_tokens": 0, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": 12, "audio_tokens": 50},
    }


def test_counts_are_whole_and_not_negative() -> None:
    for wrong in (-1, 1.0):
        with pytest.raises(pydantic.ValidationError):
            Usage.of(input_text=wrong, input_audio=0, output_text=0, output_audio=0)  # type: ignore[arg-type]


def test_what_may_be_null_is_null_and_what_is_optional_is_left_out() -> None:
    response = Response(id="r", conversation_id="c", status="in_progress", audio=AUDIO)
    assert response.model_dump() == {
        "object": "realtime.response",
        "id": "r",
        "conversation_id": "c",
        "status": "in_progress",
        "status_details": None,
        "output": (),
        "output_modalities": ("audio",),
        "audio": {"output": {"format": {"type": "audio/pcmu"}, "voice": "marin"}},
        "max_output_tokens": "inf",
        "metadata": None,
        "usage": None,
        "temperature": None,
    }
    limited = Response(id="r", conversation_id=None, status="completed", audio=AUDIO, max_output_tokens=20, x_duplex={"reason": "limit"})
    assert limited.model_dump()["max_output_tokens"] == 20
    assert limited.model_dump()["x_duplex"] == {"reason": "limit"}


def test_no_other_reason_than_the_client_s_enum() -> None:
    assert StatusDetails(type="incomplete").model_dump() == {"type": "incomplete"}
    failure = StatusDetails(type="failed", error=FailureDetails(type="server_error", code="c", message="m"))
    assert failure.model_dump() == {"type": "failed", "error": {"type": "server_error", "code": "c", "message": "m"}}
    for reason in ("stop", "barge_in"):  # which silenced a client for good
        with pytest.raises(pydantic.ValidationError):
            StatusDetails(type="cancelled", reason=reason)


def test_an_error_has_all_five_keys() -> None:
    body = ErrorBody(type="server_error", code="c", message="m").model_dump()
    assert body == {"type": "server_error", "code": "c", "message": "m", "param": None, "event_id": None}
