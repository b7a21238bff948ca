"""Check the order of events over a capture: the state machine of specs/realtime.md 3.2 (T31). How an event looks is up to `validate`.

`complaints` is the whole of it: it reads one connection's capture and returns a line for every rule that was broken. The responses are
followed here, the conversation's items and the user's speech in `listing`. Beta names are translated first, so that there is one table.
Thread: any.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from tests.clients.listing import Listing
from tests.clients.record import Record
from tests.clients.replies import Replies

Event = Mapping[str, Any]

BETA_NAMES = {
    "response.audio.delta": "response.output_audio.delta",
    "response.audio.done": "response.output_audio.done",
    "response.audio_transcript.delta": "response.output_audio_transcript.delta",
    "response.audio_transcript.done": "response.output_audio_transcript.done",
    "response.text.delta": "response.output_text.delta",
    "response.text.done": "response.output_text.done",
    "conversation.item.created": "conversation.item.added",
}

# Phase of a response -> event -> next phase; a missing key is the violation. The brackets of 3.2, step by step.
STEPS: dict[str, dict[str, str]] = {
    "created": {"response.output_item.added": "item added", "response.done": "done"},
    "item added": {"conversation.item.added": "listed"},
    "listed": {"response.content_part.added": "speaking"},
    "speaking": {
        "response.output_audio.delta": "speaking",
        "response.output_audio_transcript.delta": "speaking",
        "response.output_text.delta": "speaking",
        "response.output_audio.done": "audio done",
        "response.output_text.done": "text done",
    },
    "audio done": {"response.output_audio_transcript.done": "text done"},
    "text done": {"response.content_part.done": "part done"},
    "part done": {"response.output_item.done": "item done"},
    "item done": {"conversation.item.done": "item final"},
    "item final": {"response.done": "done"},
}
BETA_STEPS = STEPS | {"item done": {"response.done": "done"}}
IN_A_BURST = {"item added", "listed", "audio done", "text done", "part done", "item done", "item final"}  # nothing else comes in between
REASONS = {
    "cancelled": {"turn_detected", "client_cancelled"},
    "incomplete": {"max_output_tokens", "content_filter", None},
    "failed": {None},
}
CANCELLING = {"response.cancel", "output_audio_buffer.clear", "session.close", "close", "close_session", "turn.signal"}
CANCELLING_ITS_ITEM = {"conversation.item.delete", "conversation.item.truncate"}
STALL_S = 5.0  # without a delta in an open item; a frame lasts 0.08 s
PENDING_S = 10.0  # a response that was asked for; 4 s and a busy machine


@dataclasses.dataclass(slots=True)
class Response:
    """One bracket as seen so far."""

    response_id: str
    touched_s: float  # seconds of its last event
    bytes_per_ms: float
    phase: str = "created"
    item_id: str | None = None
    is_text: bool = False
    text: str = ""  # concatenation of the deltas
    final_text: str = ""
    is_interrupted: bool = False  # speech_started came directly before the closing events
    num_bytes: int = 0
    item: Any = None  # of output_item.done

    @property
    def sent_ms(self) -> int:
        return int(self.num_bytes / self.bytes_per_ms)


class Responses:
    """Every response of a connection: one open at a time, each with its whole bracket, nothing after it."""

    def __init__(self) -> None:
        self.is_beta = False
        self.open: Response | None = None
        self.sent_ms: dict[str, int] = {}  # item -> audio that went out, in ms
        self._done: set[str] = set()
        self._previous = ""  # type of the last server event
        self._epoch = 0
        self._num_cancelling = 0
        self._is_told_to_barge_in = False

    def client(self, event: Event) -> None:
        """Note what may end a response."""
        kind = event.get("type")
        is_of_open = self.open is not None and event.get("item_id") == self.open.item_id
        asked = event.get("session")
        is_restart = isinstance(asked, Mapping) and asked.get("x_duplex", {}).get("persona_change") == "restart"
        self._num_cancelling += kind in CANCELLING or (kind in CANCELLING_ITS_ITEM and is_of_open) or is_restart
        self._is_told_to_barge_in |= kind in ("barge_in", "turn.signal")

    def server(self, kind: str, event: Event, seconds: float) -> Iterator[str]:
        """Take one server event under its GA name; yield what it breaks."""
        response_id = _response_id(event)
        item_id = event["item"].get("id") if isinstance(event.get("item"), Mapping) else event.get("item_id")
        response = self.open
        if response is not None:
            yield from self._stalled(response, seconds)
        if kind == "response.created":
            yield from self._create(event, seconds)
        elif response is not None and (response_id == response.response_id or (kind in _OF_ITEMS and item_id == response.item_id)):
            yield from self._step(response, kind, event, seconds)
        elif response_id is not None and kind not in ("output_audio_buffer.cleared", "playback.acknowledged"):
            state = "done" if response_id in self._done else "unknown"
            yield f"{kind} of {response_id}, which is {state}"
        elif response is not None and response.phase in IN_A_BURST:
            yield f"{kind} inside a burst of {response.response_id} ({response.phase})"
        if kind == "rate_limits.updated" and self._previous != ("response.created" if self.is_beta else "response.done"):
            yield f"rate_limits.updated after {self._previous}"
        self._previous = kind

    def end(self, seconds: float, *, is_by_server: bool) -> Iterator[str]:
        """The connection is over."""
        if self.open is not None:
            yield from self._stalled(self.open, seconds)
            if is_by_server:
                yield f"{self.open.response_id} was never done"

    def _stalled(self, response: Response, seconds: float) -> Iterator[str]:
        limit_s = PENDING_S if response.phase == "created" else STALL_S
        if seconds - response.touched_s > limit_s:
            yield f"{response.response_id} stood still for {seconds - response.touched_s:.1f} s ({response.phase})"
            response.touched_s = seconds

    def _create(self, event: Event, seconds: float) -> Iterator[str]:
        body = event["response"]
        if self.open is not None:
            yield f"response.created while {self.open.response_id} is open"
        if body["id"] in self._done or (self.open is not None and self.open.response_id == body["id"]):
            yield f"{body['id']} was created before"
        if body.get("status") != "in_progress" or body.get("output") != [] or body.get("usage") is not None:
            yield "response.created must be in progress and empty"
        epoch = body.get("x_duplex", {}).get("epoch", self._epoch)
        if epoch < self._epoch:
            yield f"epoch {epoch} after {self._epoch}"
        self._epoch = max(self._epoch, epoch)
        self.open = Response(body["id"], seconds, _bytes_per_ms(body))

    def _step(self, response: Response, kind: str, event: Event, seconds: float) -> Iterator[str]:
        response.touched_s = seconds
        following = (BETA_STEPS if self.is_beta else STEPS)[response.phase].get(kind)
        if following is None:
            if kind not in ("conversation.item.truncated", "conversation.item.retrieved", "playback.acknowledged", "response.speak"):
                yield f"{kind} of {response.response_id} in phase {response.phase!r}"
            return
        yield from self._places(response, kind, event)
        response.phase = following
        if kind.endswith(".delta"):
            if kind == "response.output_audio.delta":
                response.num_bytes += len(base64.b64decode(event["delta"], validate=True))
            else:
                response.text += event["delta"]
        elif kind in ("response.output_audio_transcript.done", "response.output_text.done"):
            yield from self._final_text(response, kind, event)
        elif kind == "response.output_audio.done":
            response.is_interrupted = self._previous == "input_audio_buffer.speech_started"
        elif kind in ("response.content_part.done", "response.output_item.done", "conversation.item.done"):
            yield from self._same_text(response, kind, event)
        elif kind == "response.done":
            yield from self._finish(response, event)

    def _places(self, response: Response, kind: str, event: Event) -> Iterator[str]:
        """Every event names the same item, and the first place in it."""
        if kind == "response.output_item.added":
            response.item_id = event["item"]["id"]
            if event["item"]["status"] != "in_progress" or event["item"]["content"] != []:
                yield "response.output_item.added must be in progress and empty"
        if kind == "response.content_part.added":
            response.is_text = event["part"]["type"] == "text"
        if (response.is_text and "output_audio" in kind) or (not response.is_text and "output_text" in kind):
            yield f"{kind} in a {'text' if response.is_text else 'audio'} part"
        for name in ("output_index", "content_index"):
            if event.get(name, 0) != 0:
                yield f"{kind}: {name} {event[name]}"
        item_id = event["item"]["id"] if isinstance(event.get("item"), Mapping) else event.get("item_id", response.item_id)
        if item_id != response.item_id:
            yield f"{kind}: item {item_id} in a response whose item is {response.item_id}"

    def _final_text(self, response: Response, kind: str, event: Event) -> Iterator[str]:
        if kind == "response.output_text.done":
            response.is_interrupted = self._previous == "input_audio_buffer.speech_started"
        response.final_text = event.get("transcript", event.get("text", ""))
        if not response.text.startswith(response.final_text):
            yield f"{kind}: {response.final_text!r} is no beginning of the deltas {response.text!r}"

    def _same_text(self, response: Response, kind: str, event: Event) -> Iterator[str]:
        parts = [event["part"]] if "part" in event else event["item"]["content"]
        texts = [part.get("transcript", part.get("text")) for part in parts]
        if texts != [response.final_text]:
            yield f"{kind}: {texts} is not the final text {response.final_text!r}"
        if kind == "response.output_item.done":
            response.item = event["item"]
        elif kind == "conversation.item.done" and event["item"]["status"] != response.item["status"]:
            yield f"{kind}: status {event['item']['status']} is not that of output_item.done"

    def _finish(self, response: Response, event: Event) -> Iterator[str]:
        self.open = None
        self._done.add(response.response_id)
        body = event["response"]
        status, details = body["status"], body.get("status_details")
        ids = [item["id"] for item in body["output"]]
        if ids != ([] if response.item is None else [response.item_id]):
            yield f"response.done: output {ids}"
        for item in body["output"]:
            if response.item is not None and (item["content"], item["status"]) != (response.item["content"], response.item["status"]):
                yield "response.done: its item is not that of output_item.done"
            if (item["status"] == "completed") != (status == "completed"):
                yield f"response.done: item {item['status']} in a response that is {status}"
        if status == "completed":
            if details is not None:
                yield "response.done: completed with status_details"
            if response.text != response.final_text:
                yield f"response.done: completed with {response.final_text!r} of {response.text!r}"
        elif status not in REASONS or not isinstance(details, Mapping) or details.get("type") != status:
            yield f"response.done: status {status!r} with details {details}"
        elif details.get("reason") not in REASONS[status]:
            yield f"response.done: reason {details.get('reason')!r} of status {status}"
        elif status == "cancelled":
            yield from self._cause(response, details["reason"])
        yield from self._watermarks(response, body.get("x_duplex", {}))

    def _cause(self, response: Response, reason: str) -> Iterator[str]:
        """A cancelled response has somebody who cancelled it, and speech is announced before the item is closed (3.6)."""
        if reason == "client_cancelled":
            self._num_cancelling -= 1
            if self._num_cancelling < 0:
                yield "response.done: client_cancelled, and the client cancelled nothing"
        elif response.item is not None and not response.is_interrupted and not self._is_told_to_barge_in:
            yield "response.done: turn_detected, and no speech_started directly before the closing events"

    def _watermarks(self, response: Response, marks: Event) -> Iterator[str]:
        if response.item_id is not None:
            self.sent_ms[response.item_id] = response.sent_ms
        names = ("generated_ms", "sent_ms", "played_ms", "committed_ms")
        values = [marks[name] for name in names if name in marks]
        if values != sorted(values, reverse=True) or any(value < 0 for value in values):
            yield f"response.done: watermarks {values} are out of order"
        if not response.is_text and marks.get("sent_ms", response.sent_ms) != response.sent_ms:
            yield f"response.done: sent_ms {marks['sent_ms']}, and {response.sent_ms} ms of audio came"


_OF_ITEMS = ("conversation.item.added", "conversation.item.done")


def complaints(capture: Iterable[Record], *, expected_errors: Iterable[str] = ()) -> list[str]:
    """Return what is out of order in one connection's capture; `expected_errors` are the codes that the client provoked."""
    responses, listing, replies = Responses(), Listing(), Replies(set(expected_errors))
    found: list[str] = []
    seconds = 0.0
    has_ended = False
    for record in capture:
        seconds = record.seconds
        if record.close_code is not None and not has_ended:
            has_ended = True
            found += [f"line {record.line}: {text}" for text in responses.end(seconds, is_by_server=not record.is_client)]
        if record.event is None:
            continue
        event = record.event
        if record.is_client:
            responses.client(event)
            listing.client(event)
            replies.client(event, seconds)
            continue
        kind = BETA_NAMES.get(str(event.get("type")), str(event.get("type")))
        broken = [*replies.server(kind, event)]
        responses.is_beta = listing.is_beta = replies.is_beta
        broken += [*responses.server(kind, event, seconds), *listing.server(kind, event, responses)]
        found += [f"line {record.line}: {text}" for text in broken]
    if not has_ended:
        found += responses.end(seconds, is_by_server=False)
    return [*found, *replies.end(seconds), *listing.end()]


def _response_id(event: Event) -> str | None:
    body = event.get("response")
    found = body.get("id") if isinstance(body, Mapping) else event.get("response_id")
    return None if found is None else str(found)


def _bytes_per_ms(body: Event) -> float:
    """Bytes of one millisecond in a response's output format; GA's object or beta's name."""
    audio_format = body.get("audio", {}).get("output", {}).get("format") or {"type": body.get("output_audio_format", "pcm16")}
    return 8.0 if audio_format["type"] in ("audio/pcmu", "audio/pcma", "g711_ulaw", "g711_alaw") else audio_format.get("rate", 24000) / 500
