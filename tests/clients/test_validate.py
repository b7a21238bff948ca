"""The strict validator: what the gateway may send passes, every violation is found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.scenes import Scene, error
from tests.clients.validate import complaints


@pytest.mark.parametrize("is_beta", [False, True])
def test_the_sequences_of_the_specification_are_valid(is_beta: bool) -> None:
    scene = Scene(is_beta=is_beta)
    scene.update()
    scene.speech("U1", 0)
    scene.stop("U1", 900)
    scene.turn("A1")
    scene.begin("A2")
    scene.speech("U2", 3000)
    scene.finish("A2", "cancelled", reason="turn_detected")
    scene.server("error", error=error("response_cancel_not_active"))
    assert complaints(scene.records()) == []


def _set(kind: str, *path: str, value: Any) -> Callable[[Scene], None]:
    """Set one value, deep in the last event of a kind."""

    def spoil(scene: Scene) -> None:
        place = scene.last(kind)
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return spoil


def _drop(kind: str, *path: str) -> Callable[[Scene], None]:
    """Remove one key, deep in the last event of a kind."""

    def spoil(scene: Scene) -> None:
        place = scene.last(kind)
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return spoil


SPOILED = [
    (_set("session.created", "type", value="session.begun"), "unknown event type 'session.begun'"),
    (_set("session.created", "session", "audio", "output", "voice", value={"id": "x"}), "not a string"),
    (_set("session.created", "session", "audio", "input", "format", value={"type": "pcm16"}), "session.created: session"),
    (_set("session.created", "session", "audio", "input", "turn_detection", value={"type": "none"}), "session.created: session"),
    (_set("session.created", "session", "colour", value="red"), "unknown key session.created.session.colour"),
    (_set("session.created", "session", "audio", "input", "format", value={"type": "audio/pcm", "rate": 16000}), "rate"),
    (_drop("session.created", "session", "id"), "session without id"),
    (_drop("response.created", "event_id"), "no event_id"),
    (_set("response.created", "event_id", value="event_1"), "was used before"),
    (_drop("response.created", "response", "conversation_id"), "response without conversation_id"),
    (_drop("response.created", "response", "usage"), "response without the key usage"),
    (_set("response.created", "response", "status", value="started"), "response.status"),
    (_set("response.created", "response", "metadata", value={"a": 1}), "response.metadata"),
    (_set("response.done", "response", "status_details", value={"type": "completed", "reason": "stop"}), "status_details.reason"),
    (_set("response.done", "response", "usage", value=None), "no usage"),
    (_set("response.done", "response", "usage", "total_tokens", value=3), "total_tokens is not"),
    (_set("response.done", "response", "usage", "input_tokens", value=10.0), "usage.input_tokens"),
    (_drop("response.done", "response", "usage", "output_token_details"), "usage is not complete"),
    (_set("response.output_item.added", "output_index", value=0.0), "output_index"),
    (_set("response.output_item.added", "item", "status", value="cancelled"), "status"),
    (_drop("response.output_item.added", "item", "object"), "item without object"),
    (_set("response.content_part.added", "part", "type", value="output_audio"), "part.type"),
    (_set("response.content_part.added", "part", "transcript", value=None), "part without its text"),
    (_set("response.output_audio.delta", "type", value="response.audio.delta"), "response.audio.delta in dialect ga"),
    (_drop("response.output_audio.delta", "item_id"), "item_id"),
    (_set("response.output_audio.delta", "frame", value=3), "unknown key response.output_audio.delta.frame"),
    (_set("input_audio_buffer.speech_started", "audio_start_ms", value=1.0), "audio_start_ms"),
    (_set("input_audio_buffer.speech_started", "item_id", value=None), "item_id"),
    (_set("error", "error", value="no"), "error"),
    (_drop("error", "error", "event_id"), "must all be there"),
    (_set("error", "error", "type", value="bad_request"), "type 'bad_request'"),
]


@pytest.mark.parametrize(("spoil", "expected"), SPOILED)
def test_every_violation_is_found(spoil: Callable[[Scene], None], expected: str) -> None:
    scene = Scene()
    scene.speech("U1", 0)
    scene.turn("A1")
    scene.server("error", error=error("invalid_json"))
    spoil(scene)
    assert any(expected in complaint for complaint in complaints(scene.records())), complaints(scene.records())


def test_beta_has_no_names_of_ga() -> None:
    scene = Scene(is_beta=True)
    scene.turn("A1")
    scene.last("response.audio.done")["type"] = "response.output_audio.done"
    assert complaints(scene.records()) == ["line 15: response.output_audio.done in dialect beta"]


def test_beta_may_name_a_model_that_openai_does_not_have_and_nothing_else_it_does_not_know() -> None:
    scene = Scene(is_beta=True)
    scene.last("session.created")["session"] |= {"model": "personaplex-7b"}
    assert complaints(scene.records()) == []
    scene.last("session.created")["session"] |= {"input_audio_format": "wav"}
    assert len(complaints(scene.records())) == 1


def test_a_rate_that_the_client_asked_for_is_legal() -> None:
    scene = Scene()
    scene.client("session.update", session={"audio": {"output": {"format": {"type": "audio/pcm", "rate": 8000}}}})
    scene.server("session.updated", session=scene.session())
    output = {"format": {"type": "audio/pcm", "rate": 8000}, "voice": "NATF2"}
    scene.last("session.updated")["session"] |= {"audio": {"input": {}, "output": output}}
    assert complaints(scene.records()) == []
    output["format"] = {"type": "audio/pcm", "rate": 16000}
    assert any("AudioPCM.rate" in complaint for complaint in complaints(scene.records()))


@pytest.mark.parametrize(
    ("asking", "kind", "fields"),
    [
        ({"type": "session.update", "session": {"x_duplex": {"events": ["listen"]}}}, "response.listen", {"frame": 1, "epoch": 0}),
        ({"type": "session.update", "session": {"x_duplex": {"events": ["all"]}}}, "response.speak", {"frame": 1, "epoch": 0}),
        ({"type": "session.heartbeat"}, "session.heartbeat_ack", {"server_time_ms": 1}),
        ({"type": "close"}, "session.closed", {"reason": "client_close"}),
    ],
)
def test_an_extension_needs_to_be_asked_for_and_to_be_complete(asking: dict[str, Any], kind: str, fields: dict[str, Any]) -> None:
    scene = Scene()
    scene.server(kind, **fields)
    assert complaints(scene.records()) == [f"line 2: {kind} although the client did not ask for it"]
    scene.events.insert(1, ("C", asking))
    assert complaints(scene.records()) == []
    name = next(iter(fields))
    del scene.last(kind)[name]
    assert complaints(scene.records()) == [f"line 3: {kind}: no {name}"]
