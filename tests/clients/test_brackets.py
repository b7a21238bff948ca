"""The bracket checker: legal captures pass, and each rule has captures that break it and are found."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.brackets import complaints
from tests.clients.record import Record, capture, loads
from tests.clients.scenes import FRAME, Scene, error


def conversation(*, is_beta: bool = False) -> Scene:
    """Two user turns, two answers, one of them interrupted and truncated."""
    scene = Scene(is_beta=is_beta)
    scene.update()
    scene.speech("U1", 0)
    scene.stop("U1", 900)
    scene.turn("A1")
    scene.begin("A2")
    scene.speech("U2", 3000)
    scene.finish("A2", "cancelled", reason="turn_detected")
    scene.client("conversation.item.truncate", item_id="item_A2", audio_end_ms=100)
    scene.server("conversation.item.truncated", item_id="item_A2", content_index=0, audio_end_ms=100)
    scene.client("conversation.item.retrieve", item_id="item_A2")
    scene.server("conversation.item.retrieved", item=scene.item("A2", "incomplete", ""))
    scene.stop("U2", 5000)
    scene.turn("A3")
    return scene


@pytest.mark.parametrize("is_beta", [False, True])
def test_a_legal_conversation_passes(is_beta: bool) -> None:
    assert complaints(conversation(is_beta=is_beta).records(1000)) == []


def legal_cancel(scene: Scene) -> None:
    scene.begin("A1")
    scene.client("response.cancel")
    scene.finish("A1", "cancelled", reason="client_cancelled")


def legal_pending(scene: Scene) -> None:
    scene.client("response.create")
    scene.server("response.created", response=scene.response("R", "in_progress", []))
    scene.client("response.cancel")
    scene.server("response.done", response=scene.response("R", "cancelled", [], "client_cancelled"))


def legal_items(scene: Scene) -> None:
    """Items of the client: appended, first, in the middle, refused, deleted."""
    for name, asked, previous in (("X", None, None), ("Y", None, "item_X"), ("Z", "root", None), ("W", "item_X", "item_X")):
        scene.client("conversation.item.create", item={"id": f"item_{name}"}, previous_item_id=asked)
        scene.server("conversation.item.added", previous_item_id=previous, item=scene.item(name, "completed", "", role="user"))
        scene.server("conversation.item.done", previous_item_id=previous, item=scene.item(name, "completed", "", role="user"))
    scene.client("conversation.item.create", item={"id": "item_X"}, event_id="e1")
    scene.server("error", error=error("item_create_duplicate_item_id", event_id="e1", param="item.id"))
    scene.client("conversation.item.delete", item_id="item_Y")
    scene.server("conversation.item.deleted", item_id="item_Y")
    scene.last_item = "item_W"
    scene.turn("A1")


def legal_overrun(scene: Scene) -> None:
    """The user goes on speaking while the model speaks: the user's item comes after the assistant's."""
    scene.speech("U1", 0)
    scene.turn("A1")
    scene.stop("U1", 2000)


def legal_clear(scene: Scene) -> None:
    scene.speech("U1", 0)
    scene.client("input_audio_buffer.clear")
    scene.server("input_audio_buffer.speech_stopped", audio_end_ms=500, item_id="item_U1")
    scene.server("input_audio_buffer.cleared")


def legal_refused_update(scene: Scene) -> None:
    scene.client("session.update", session={"voice": 1})
    scene.server("error", error=error("invalid_type", param="session.voice"))
    scene.update()
    scene.server("session.updated", session=scene.session(), x_duplex={"cause": "applied"})


def legal_hurry(scene: Scene) -> None:
    """The client hangs up in the middle of a sentence."""
    scene.begin("A1")


def legal_barge_in_event(scene: Scene) -> None:
    scene.begin("A1")
    scene.client("barge_in")
    scene.finish("A1", "cancelled", reason="turn_detected")


LEGAL = [legal_cancel, legal_pending, legal_items, legal_overrun, legal_clear, legal_refused_update, legal_hurry, legal_barge_in_event]


@pytest.mark.parametrize("tell", LEGAL)
def test_other_legal_sequences_pass(tell: Callable[[Scene], None]) -> None:
    scene = Scene()
    tell(scene)
    assert complaints(scene.records(), expected_errors={"item_create_duplicate_item_id", "invalid_type"}) == []


def test_telephony_is_measured_in_its_own_bytes() -> None:
    scene = Scene()
    scene.begin("A1", num_frames=30)  # 30 * 3840 bytes of mu-law are 14.4 s
    scene.last("response.created")["response"]["audio"]["output"]["format"] = {"type": "audio/pcmu"}
    scene.finish("A1", sent_ms=14_400)
    assert complaints(scene.records()) == []


def _remove(scene: Scene, kind: str, *, count: int = 1) -> None:
    for _ in range(count):
        event = scene.last(kind)
        scene.events = [entry for entry in scene.events if entry[1] is not event]


def _swap(scene: Scene, kind: str, other: str) -> None:
    first, second = (next(idx for idx, entry in enumerate(scene.events) if entry[1]["type"] == name) for name in (kind, other))
    scene.events[first], scene.events[second] = scene.events[second], scene.events[first]


def _add(scene: Scene, name: str, status: str = "completed") -> None:
    scene.server("conversation.item.added", previous_item_id="item_A3", item=scene.item(name, status, ""))


def _finish(scene: Scene, name: str) -> None:
    scene.server("conversation.item.done", previous_item_id=None, item=scene.item(name, "completed", ""))


def _late_delta(scene: Scene) -> None:
    scene.server("response.output_audio.delta", **scene.place("A1"), delta=FRAME)


def _second_open(scene: Scene) -> None:
    scene.begin("A8")
    scene.begin("A9")


def _foreign_item(scene: Scene) -> None:
    scene.last("response.output_audio.delta")["item_id"] = "item_A1"


def _spoil_output(scene: Scene, **changes: Any) -> None:
    response = scene.last("response.done")["response"]
    scene.last("response.done")["response"] = {**response, **changes}


def _spoil_item(scene: Scene, kind: str, **changes: Any) -> None:
    scene.last(kind)["item"] = {**scene.last(kind)["item"], **changes}


def _intruder(scene: Scene, before: str) -> None:
    event = scene.last(before)
    at = next(idx for idx, entry in enumerate(scene.events) if entry[1] is event)
    scene.events.insert(at, ("S", {"type": "input_audio_buffer.cleared", "event_id": "event_x"}))


def _marks(scene: Scene, **marks: int) -> None:
    event = scene.last("response.done")
    event["response"] = {**event["response"], "x_duplex": {**event["response"]["x_duplex"], **marks}}


def _epoch_back(scene: Scene) -> None:
    for name, epoch in (("A7", 3), ("A8", 2)):
        scene.turn(name)
        created = next(event for _, event in scene.events if event.get("response", {}).get("id") == f"resp_{name}")
        created["response"]["x_duplex"] = {"epoch": epoch}


BROKEN: list[tuple[str, Callable[[Scene], Any]]] = [
    # responses
    ("of resp_A1, which is done", _late_delta),
    ("of resp_A9, which is unknown", lambda scene: scene.server("response.output_audio.delta", **scene.place("A9"), delta=FRAME)),
    ("response.created while resp_A8 is open", _second_open),
    ("resp_A1 was created before", lambda scene: scene.server("response.created", response=scene.response("A1", "in_progress", []))),
    ("must be in progress and empty", lambda scene: scene.server("response.created", response=scene.response("Q", "completed", []))),
    ("in phase 'created'", lambda scene: _remove(scene, "response.output_item.added")),
    ("in phase 'item added'", lambda scene: _swap(scene, "response.content_part.added", "response.output_item.added")),
    ("in phase 'listed'", lambda scene: _remove(scene, "response.content_part.added")),
    ("in phase 'speaking'", lambda scene: _remove(scene, "response.output_audio.done")),
    ("in phase 'audio done'", lambda scene: _remove(scene, "response.output_audio_transcript.done")),
    ("in phase 'text done'", lambda scene: _remove(scene, "response.content_part.done")),
    ("in phase 'part done'", lambda scene: _remove(scene, "response.output_item.done")),
    ("in phase 'item done'", lambda scene: _remove(scene, "conversation.item.done")),
    ("inside a burst of resp_A3 (listed)", lambda scene: _intruder(scene, "response.content_part.added")),
    ("inside a burst of resp_A3 (part done)", lambda scene: _intruder(scene, "response.output_item.done")),
    ("item item_A1 in a response whose item is item_A3", _foreign_item),
    ("content_index 1", lambda scene: scene.last("response.output_audio.delta").update(content_index=1)),
    ("is no beginning of the deltas", lambda scene: scene.last("response.output_audio_transcript.done").update(transcript="Bye")),
    ("is not the final text", lambda scene: scene.last("response.content_part.done").update(part={"type": "audio", "transcript": "Hi"})),
    ("completed with ' Hel' of ' Hello'", lambda scene: scene.last("response.output_audio_transcript.done").update(transcript=" Hel")),
    ("output []", lambda scene: _spoil_output(scene, output=[])),
    ("completed with status_details", lambda scene: _spoil_output(scene, status_details={"type": "completed"})),
    ("item completed in a response that is cancelled", lambda scene: _spoil_output(scene, status="cancelled")),
    ("status 'cancelled' with details None", lambda scene: _spoil_output(scene, status="cancelled")),
    ("reason 'stop'", lambda scene: _spoil_output(scene, status="cancelled", status_details={"type": "cancelled", "reason": "stop"})),
    ("its item is not that of output_item.done", lambda scene: _spoil_output(scene, output=[scene.item("A3", "incomplete", " Hello")])),
    ("is not that of output_item.done", lambda scene: _spoil_item(scene, "conversation.item.done", status="incomplete")),
    ("the client cancelled nothing", lambda scene: (scene.begin("A9"), scene.finish("A9", "cancelled", reason="client_cancelled"))),
    ("no speech_started directly before", lambda scene: (scene.begin("A9"), scene.finish("A9", "cancelled", reason="turn_detected"))),
    ("watermarks [480, 400, 420, 0] are out of order", lambda scene: _marks(scene, played_ms=420)),
    ("sent_ms 480, and 400 ms of audio came", lambda scene: _marks(scene, sent_ms=480)),
    ("epoch 2 after 3", _epoch_back),
    ("rate_limits.updated after", lambda scene: (scene.begin("A9"), scene.server("rate_limits.updated", rate_limits=[]))),
    # the list
    ("was added before", lambda scene: _add(scene, "A1", "in_progress")),
    ("nobody had made it", lambda scene: _add(scene, "Q")),
    ("its predecessor is item_U2", lambda scene: scene.last("conversation.item.added").update(previous_item_id=None)),
    ("was done before", lambda scene: _finish(scene, "A1")),
    ("was never added", lambda scene: _finish(scene, "Q")),
    ("and was added after item_U2", lambda scene: scene.last("conversation.item.done").update(previous_item_id="item_A1")),
    ("is done and in progress", lambda scene: _spoil_item(scene, "conversation.item.done", status="in_progress")),
    ("is not in the list", lambda scene: scene.server("conversation.item.deleted", item_id="item_Q")),
    ("and 400 ms of it went out", lambda scene: scene.last("conversation.item.truncated").update(audio_end_ms=401)),
    # speech
    ("started while that of item_U8 goes on", lambda scene: (scene.speech("U8", 6000), scene.speech("U9", 7000))),
    ("and None was speaking", lambda scene: scene.stop("U9", 9000)),
    ("before the speech until 5000 ms", lambda scene: scene.speech("U9", 4000)),
    ("before it started at 6000 ms", lambda scene: (scene.speech("U9", 6000), scene.stop("U9", 5999))),
    ("where input_audio_buffer.committed of item_U2 had to follow", lambda scene: _remove(scene, "input_audio_buffer.committed")),
    ("while item_U9 is speaking", lambda scene: (scene.speech("U9", 6000), scene.commit("U8"))),
    ("was committed after item_A1", lambda scene: scene.last("input_audio_buffer.committed").update(previous_item_id="item_A1")),
    # the connection
    ("event 1 is session.updated", lambda scene: scene.events.pop(0)),
    ("is session.created", lambda scene: scene.server("session.created", session=scene.session())),
    ("session.updated, and nobody asked", lambda scene: scene.server("session.updated", session=scene.session())),
    ("error invalid_value: no", lambda scene: scene.server("error", error=error("invalid_value"))),
    ("its event_id 'e7' is not the client's", lambda scene: scene.server("error", error=error("expected", event_id="e7"))),
    ("more errors than messages", lambda scene: [scene.server("error", error=error("expected")) for _ in range(9)]),
    ("after a fatal error", lambda scene: (scene.server("error", error=error("session_expired")), scene.turn("A9"))),
]


@pytest.mark.parametrize(("expected", "spoil"), BROKEN, ids=[expected for expected, _ in BROKEN])
def test_every_broken_rule_is_found(expected: str, spoil: Callable[[Scene], Any]) -> None:
    scene = conversation()
    spoil(scene)
    found = complaints(scene.records(), expected_errors={"expected", "session_expired"})
    assert any(expected in complaint for complaint in found), found


def test_a_response_that_is_open_when_the_server_closes_was_never_done() -> None:
    scene = Scene()
    scene.begin("A1")
    assert complaints(scene.records(1001)) == ["line 13: resp_A1 was never done"]


def test_a_response_that_stands_still_is_found() -> None:
    scene = Scene()
    scene.begin("A1")
    late = [*scene.records(), Record(line=99, is_client=True, seconds=60.0, event={"type": "session.heartbeat"})]
    assert complaints(late) == ["resp_A1 stood still for 48.0 s (speaking)"]


def test_an_update_without_an_answer_is_found() -> None:
    scene = Scene()
    scene.client("session.update", session={})
    late = [*scene.records(), Record(line=99, is_client=True, seconds=60.0, event={"type": "session.heartbeat"})]
    assert complaints(late) == ["the session.update at 2.0 s was never answered"]


def test_items_that_never_become_final_are_found() -> None:
    scene = conversation()
    _remove(scene, "conversation.item.done", count=3)
    assert any("items that never became final: ['item_A2', 'item_A3', 'item_U2']" in text for text in complaints(scene.records()))


def test_beta_tells_the_conversation_second_and_the_limits_after_created() -> None:
    scene = Scene(is_beta=True)
    scene.events.pop(1)
    scene.turn("A1")
    scene.server("rate_limits.updated", rate_limits=[])
    expected = ["line 2: event 2 in beta is response.created", "line 19: rate_limits.updated after response.done"]
    assert complaints(scene.records()) == expected


def test_a_capture_survives_its_file() -> None:
    records = capture(("C", {"type": "a"}), ("S", {"type": "b"}), close_code=1000)
    assert list(loads(record.dumps() for record in records)) == records
