from __future__ import annotations

from typing import Any

import pytest

from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat
from protocols.realtime.response_options import ResponseOptions, read_response

LONGEST = {"k" * 64: "v" * 512}


@pytest.mark.parametrize(
    ("given", "fields"),
    [
        (None, {}),
        ({}, {}),
        ({"metadata": None, "voice": None, "output_modalities": None, "audio": None, "input": None, "x_duplex": None}, {}),
        ({"metadata": {}}, {"metadata": {}}),
        ({"metadata": LONGEST}, {"metadata": LONGEST}),
        ({"max_output_tokens": 20}, {"has_output_limit": True, "max_output_tokens": 20}),
        ({"max_response_output_tokens": 4096}, {"has_output_limit": True, "max_output_tokens": 4096}),
        ({"max_output_tokens": 4097}, {"has_output_limit": True}),
        ({"max_output_tokens": "inf", "max_response_output_tokens": 7}, {"has_output_limit": True}),
        ({"max_output_tokens": None}, {}),
        ({"output_modalities": ["text"]}, {"output_modalities": ("text",)}),
        ({"modalities": ["text", "audio"]}, {"output_modalities": ("audio",)}),
        ({"audio": {"output": {"format": {"type": "audio/pcmu"}, "voice": "a"}}, "voice": "b"},
         {"output_format": AudioFormat("pcmu", 8000), "voice": "a"}),
        ({"output_audio_format": "g711_alaw", "voice": {"id": "b"}}, {"output_format": AudioFormat("pcma", 8000), "voice": "b"}),
        ({"instructions": "x", "temperature": 0.6}, {"instructions": "x", "temperature": 0.6}),
        ({"conversation": "none"}, {"is_out_of_band": True}),
        ({"conversation": "auto"}, {}),
        ({"conversation": 7}, {}),
        ({"x_duplex": {"say": "y" * 1000}}, {"say": "y" * 1000}),
        ({"tools": [], "tool_choice": "auto", "prompt": None, "reasoning": {}, "foo": 1},
         {"unused": ("foo", "reasoning", "tool_choice", "tools")}),
    ],
)  # fmt: skip
def test_options_go_by_several_names(given: object, fields: dict[str, Any]) -> None:
    assert read_response(given) == ResponseOptions(**fields)


def test_input_items_are_read() -> None:
    items = [{"type": "item_reference", "id": "i1"}, {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}]
    assert [item.text for item in read_response({"input": items}).input] == ["", "a"]


@pytest.mark.parametrize(
    ("given", "code", "param"),
    [
        ([], "invalid_type", "response"),
        ({"metadata": []}, "invalid_type", "response.metadata"),
        ({"metadata": {"n": 5}}, "invalid_value", "response.metadata"),
        ({"metadata": {"n": None}}, "invalid_value", "response.metadata"),
        ({"metadata": {"n": "v" * 513}}, "invalid_value", "response.metadata"),
        ({"metadata": {"k" * 65: "v"}}, "invalid_value", "response.metadata"),
        ({"metadata": {str(n): "v" for n in range(17)}}, "invalid_value", "response.metadata"),
        ({"max_output_tokens": "many"}, "invalid_value", "response.max_output_tokens"),
        ({"max_output_tokens": 0}, "invalid_value", "response.max_output_tokens"),
        ({"max_response_output_tokens": 1.5}, "invalid_type", "response.max_response_output_tokens"),
        ({"output_modalities": []}, "invalid_value", "response.output_modalities"),
        ({"output_modalities": [None]}, "invalid_value", "response.output_modalities"),
        ({"modalities": ["video"]}, "invalid_value", "response.modalities.0"),
        ({"modalities": "audio"}, "invalid_type", "response.modalities"),
        ({"audio": 1}, "invalid_type", "response.audio"),
        ({"audio": {"output": 1}}, "invalid_type", "response.audio.output"),
        ({"audio": {"output": {"format": "opus"}}}, "invalid_value", "response.audio.output.format"),
        ({"output_audio_format": "opus"}, "invalid_value", "response.output_audio_format"),
        ({"voice": 3}, "invalid_type", "response.voice"),
        ({"voice": {}}, "missing_required_parameter", "response.voice.id"),
        ({"voice": {"id": 3}}, "invalid_type", "response.voice.id"),
        ({"instructions": 3}, "invalid_type", "response.instructions"),
        ({"input": {}}, "invalid_type", "response.input"),
        ({"input": [3]}, "invalid_type", "response.input.0"),
        ({"temperature": -0.1}, "invalid_value", "response.temperature"),
        ({"x_duplex": 3}, "invalid_type", "response.x_duplex"),
        ({"x_duplex": {"say": "y" * 1001}}, "invalid_value", "response.x_duplex.say"),
    ],
)
def test_a_bad_option_is_refused_at_its_path(given: object, code: str, param: str) -> None:
    with pytest.raises(EventError) as caught:
        read_response(given)
    assert (caught.value.code, caught.value.param) == (code, param)
