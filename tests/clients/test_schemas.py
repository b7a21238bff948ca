"""Every kind of event that the gateway sends without being asked for more, read by every strict parser there is (T30, T31)."""

import asyncio
import base64
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.brackets import complaints as out_of_order
from tests.clients.clients import node, python
from tests.clients.hall import hall
from tests.clients.raw import RawClient, raw
from tests.clients.record import load
from tests.clients.scripted import Line
from tests.clients.validate import complaints as malformed
from tests.helpers import tone

USER = tone(24_000, hz=300)
PROVOKED = {
    "invalid_json",
    "invalid_value",
    "missing_required_parameter",
    "invalid_type",
    "input_audio_buffer_commit_empty",
    "response_cancel_not_active",
    "item_create_duplicate_item_id",
    "item_create_invalid_previous_item_id",
    "item_delete_invalid_item_id",
    "item_retrieve_invalid_item_id",
    "item_truncate_invalid_item_id",
    "conversation_already_has_active_response",
    "cannot_update_voice",
}
SENT = {
    "session.created",
    "session.updated",
    "conversation.item.added",
    "conversation.item.done",
    "conversation.item.deleted",
    "conversation.item.retrieved",
    "conversation.item.truncated",
    "input_audio_buffer.committed",
    "input_audio_buffer.cleared",
    "input_audio_buffer.speech_started",
    "input_audio_buffer.speech_stopped",
    "output_audio_buffer.cleared",
    "response.created",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_audio.delta",
    "response.output_audio_transcript.delta",
    "response.output_text.delta",
    "response.output_audio.done",
    "response.output_audio_transcript.done",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.done",
    "rate_limits.updated",
    "error",
}


async def ask_for_everything(client: RawClient) -> None:
    """Provoke every event and every error that a client can provoke."""
    text = {"type": "input_text", "text": "I said so."}
    items = [
        {"id": "item_1", "type": "message", "role": "system", "content": [{"type": "input_text", "text": "Be kind."}]},
        {"id": "item_2", "type": "message", "role": "user", "content": [text, {"type": "input_image", "image_url": "data:,x"}]},
        {"id": "item_3", "type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hi."}]},
        {"id": "item_4", "type": "function_call", "call_id": "call_1", "name": "f", "arguments": "{}"},
        {"id": "item_5", "type": "function_call_output", "call_id": "call_1", "output": "1"},
    ]
    for item in (*items, items[0]):
        await client.send("conversation.item.create", item=item)
    await client.send("conversation.item.create", item={**items[0], "id": "item_6"}, previous_item_id="item_none")
    await client.send("conversation.item.create", item={**items[0], "id": "item_7"}, previous_item_id="root")
    for verb in ("retrieve", "delete", "truncate"):
        await client.send(f"conversation.item.{verb}", item_id="item_none", content_index=0, audio_end_ms=0)
    for kind in ("input_audio_buffer.commit", "response.cancel", "output_audio_buffer.clear", "input_audio_buffer.clear", "no.such.event"):
        await client.send(kind)
    await client.send("input_audio_buffer.append")
    await client.send("input_audio_buffer.append", audio=7)
    await client.send("input_audio_buffer.append", audio="***")
    await client.ws.send_str("[]")
    await client.send("session.update", session={"type": "realtime", "instructions": "You are Ada."})
    await client.seen("session.updated")
    client.listen()
    client.say(USER)  # the first answer, cancelled by its audio being cleared
    await client.seen("response.output_audio.delta", 4)
    await client.send("response.create")
    await client.send("output_audio_buffer.clear")
    client.say(USER)  # the second, interrupted and truncated
    await client.seen("response.output_audio.delta", len(client.all("response.output_audio.delta")) + 4)
    client.say(tone(48_000, hz=300))
    await client.seen("response.done", 2)
    item_id = client.all("response.done")[1]["response"]["output"][0]["id"]
    await client.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=160)
    for verb in ("retrieve", "delete"):
        await client.send(f"conversation.item.{verb}", item_id=item_id)
    await client.seen("response.done", 3)  # the third
    await client.send("session.update", session={"type": "realtime", "audio": {"output": {"voice": "NATM3"}}})
    await client.send("session.update", session={"type": "realtime", "output_modalities": ["text"]})
    client.say(USER)  # the fourth, in text
    await client.seen("response.done", 4)
    await client.send("session.update", session={"type": "realtime", "audio": {"input": {"turn_detection": None}}})
    await client.seen("session.updated", 3)
    await client.send("input_audio_buffer.append", audio=base64.b64encode(bytes(4800)).decode())
    await client.send("input_audio_buffer.commit")
    await client.send("response.create", response={"metadata": {"k": "v"}})  # the fifth, empty
    await client.seen("response.done", 5)
    await asyncio.sleep(0.1)


async def converse(path: Path) -> None:
    """Write a capture in which every event occurs."""
    lines = (Line(440, 60), Line(550, 120), Line(660, 6), Line(440, 6, (" Words", " only.")))
    async with hall(*lines) as place:
        async with raw(place.ws()) as client:
            await ask_for_everything(client)
        await place.ended()
        place.capture.save(path)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One capture for all judges."""
    path = tmp_path_factory.mktemp("schemas") / "capture.jsonl"
    asyncio.run(converse(path))
    return path


def test_every_event_is_well_formed_and_in_its_place(capture: Path) -> None:
    records = load(capture)
    assert malformed(records) == []
    assert out_of_order(records, expected_errors=PROVOKED) == []
    events = [record.event for record in records if not record.is_client and record.event is not None]
    assert {event["type"] for event in events} == SENT
    assert {event["error"]["code"] for event in events if event["type"] == "error"} == PROVOKED


JUDGES: dict[str, Callable[[], list[str]]] = {
    "openai-agents-python": lambda: [*python("agents"), "-m", "tests.clients.judge", "agents"],
    "openai-agents-js": lambda: node("judge.mjs"),
    "pipecat": lambda: [*python("pipecat"), "-m", "tests.clients.judge", "pipecat"],
}


@pytest.mark.clients
@pytest.mark.parametrize("judge", JUDGES)
def test_the_parsers_of_strict_clients_take_every_event(judge: str, capture: Path) -> None:
    root = Path(__file__).parents[2]
    verdict = subprocess.run([*JUDGES[judge](), str(capture)], capture_output=True, text=True, cwd=root, timeout=120, check=True)
    events = [record.event for record in load(capture) if not record.is_client and record.event is not None]
    unknown = [event for event in events if judge == "openai-agents-js" and "input_image" in str(event)]  # its schema has no images
    *rejected, num_read = verdict.stdout.splitlines()
    assert [line.partition(":")[0] for line in rejected] == [event["type"] for event in unknown]
    assert int(num_read) == len(events) - len(unknown)
