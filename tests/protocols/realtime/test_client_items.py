from __future__ import annotations

from typing import Any

import pytest

from protocols.realtime.client_items import payload_chars, read_item
from protocols.realtime.fault import EventError


def message(role: str, *parts: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": list(parts), **more}


def kept(value: dict[str, Any]) -> dict[str, Any]:
    return read_item(value, "item").kept("item_new").model_dump()


@pytest.mark.parametrize(
    ("role", "part", "kept_part"),
    [
        ("user", {"type": "input_text", "text": "hi"}, {"type": "input_text", "text": "hi"}),
        ("user", {"type": "text", "text": "hi"}, {"type": "input_text", "text": "hi"}),
        ("user", {"type": "input_audio", "audio": "AAAA"}, {"type": "input_audio", "transcript": None}),
        ("user", {"type": "input_audio", "transcript": "said"}, {"type": "input_audio", "transcript": "said"}),
        ("user", {"type": "input_image", "image_url": "data:x", "detail": "low"}, {"type": "input_image", "detail": "low"}),
        ("user", {"type": "input_image", "detail": "huge"}, {"type": "input_image"}),
        ("system", {"type": "input_text", "text": ""}, {"type": "input_text", "text": ""}),
        ("system", {"type": "text", "text": "a"}, {"type": "input_text", "text": "a"}),
        ("assistant", {"type": "output_text", "text": "a"}, {"type": "output_text", "text": "a"}),
        ("assistant", {"type": "text", "text": "a"}, {"type": "output_text", "text": "a"}),
        ("assistant", {"type": "input_text", "text": "a"}, {"type": "output_text", "text": "a"}),
        ("assistant", {"type": "output_audio", "transcript": "a"}, {"type": "output_audio", "transcript": "a"}),
        ("assistant", {"type": "audio"}, {"type": "output_audio", "transcript": ""}),
    ],
)
def test_parts_are_kept_under_the_name_that_fits_the_role(role: str, part: dict[str, Any], kept_part: dict[str, Any]) -> None:
    assert kept(message(role, part)) == {
        "id": "item_new", "object": "realtime.item", "type": "message", "status": "completed", "role": role, "content": (kept_part,),
    }  # fmt: skip


def test_the_client_s_id_is_kept_and_its_status_is_not() -> None:
    item = kept(message("user", id="i1", status="in_progress", object="x", more=1))
    assert (item["id"], item["status"], item["object"]) == ("i1", "completed", "realtime.item")
    assert "more" not in item


@pytest.mark.parametrize(
    "value",
    [
        {"type": "function_call", "call_id": "c", "name": "n", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "ok"},
        {"type": "mcp_call", "server_label": "s", "name": "n", "arguments": "{}", "approval_request_id": None},
        {"type": "mcp_list_tools", "server_label": "s", "tools": [{"name": "t"}]},
    ],
)
def test_items_of_tools_are_kept_as_they_are(value: dict[str, Any]) -> None:
    assert kept({**value, "status": "in_progress"}) == {
        "id": "item_new", "object": "realtime.item", "status": "completed", **value,
    }  # fmt: skip


def test_text_and_audio_of_an_item() -> None:
    parts = ({"type": "input_text", "text": "a"}, {"type": "input_audio", "audio": "AAAA", "transcript": "b"}, {"type": "input_image"})
    item = read_item(message("user", *parts, {"type": "input_audio", "audio": "BBBB"}), "item")
    assert item.text == "a b"
    assert item.audio == ["AAAA", "BBBB"]
    assert read_item(message("assistant", {"type": "audio", "audio": "AAAA"}), "item").audio == []


@pytest.mark.parametrize(
    ("value", "code", "param"),
    [
        (None, "invalid_type", "item"),
        ([], "invalid_type", "item"),
        ({}, "missing_required_parameter", "item.type"),
        ({"type": 7}, "invalid_type", "item.type"),
        ({"type": "item_reference", "id": "x"}, "invalid_value", "item.type"),
        ({"type": "poem"}, "invalid_value", "item.type"),
        ({"type": "message", "content": []}, "missing_required_parameter", "item.role"),
        ({"type": "message", "role": "user"}, "missing_required_parameter", "item.content"),
        ({"type": "message", "role": "user", "content": None}, "invalid_type", "item.content"),
        (message("developer"), "invalid_value", "item.role"),
        ({"type": "message", "role": "user", "content": "hi"}, "invalid_type", "item.content"),
        (message("user", id=""), "invalid_value", "item.id"),
        (message("user", id="x" * 65), "invalid_value", "item.id"),
        (message("user", id=3), "invalid_type", "item.id"),
        ({"type": "message", "role": "user", "content": [3]}, "invalid_type", "item.content.0"),
        (message("user", {}), "missing_required_parameter", "item.content.0.type"),
        (message("user", {"type": "video"}), "invalid_value", "item.content.0.type"),
        (message("user", {"type": "input_text"}), "missing_required_parameter", "item.content.0.text"),
        (message("user", {"type": "input_image"}, {"type": "input_text", "text": 1}), "invalid_type", "item.content.1.text"),
        (message("user", {"type": "input_audio", "audio": 1}), "invalid_type", "item.content.0.audio"),
        (message("system", {"type": "input_audio"}), "invalid_value", "item.content.0.type"),
        (message("assistant", {"type": "input_image"}), "invalid_value", "item.content.0.type"),
        ({"type": "function_call", "name": "n", "arguments": "{}"}, "missing_required_parameter", "item.call_id"),
        ({"type": "function_call_output", "call_id": "c", "output": {}}, "invalid_type", "item.output"),
    ],
)
def test_a_bad_item_is_refused_at_its_path(value: object, code: str, param: str) -> None:
    with pytest.raises(EventError) as caught:
        read_item(value, "item")
    assert (caught.value.code, caught.value.param) == (code, param)


def test_a_reference_is_legal_in_the_input_of_a_response() -> None:
    item = read_item({"type": "item_reference", "id": "i1"}, "response.input.0", allows_reference=True)
    assert (item.type, item.id, item.text, item.audio) == ("item_reference", "i1", "", [])


@pytest.mark.parametrize(
    ("value", "num_chars"),
    [
        (message("user", {"type": "input_audio", "audio": "AAAA"}, {"type": "input_image", "image_url": "xyz"}, {"audio": 3}), 7),
        (message("user", {"type": "input_text", "text": "abc"}), 0),
        ({"content": [3, None]}, 0),
        ({"content": "AAAA"}, 0),
        ("AAAA", 0),
        (None, 0),
    ],
)
def test_audio_and_pictures_are_not_text(value: object, num_chars: int) -> None:
    assert payload_chars(value) == num_chars
