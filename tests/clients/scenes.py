"""Captures written by hand: the sequences of specs/realtime.md section 3 as a client would get them, to try `validate` and `brackets` on.

A `Scene` grows by whole sequences; `records()` is the capture. What the gateway itself sends never comes from here. Thread: any.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Sequence
from typing import Any

from tests.clients.record import Record, capture

Event = dict[str, Any]
PCM = {"type": "audio/pcm", "rate": 24000}
FRAME = base64.b64encode(bytes(3840)).decode()
VAD = {"type": "semantic_vad", "eagerness": "auto", "create_response": True, "interrupt_response": True}
BETA = {
    "response.output_audio.delta": "response.audio.delta",
    "response.output_audio.done": "response.audio.done",
    "response.output_audio_transcript.delta": "response.audio_transcript.delta",
    "response.output_audio_transcript.done": "response.audio_transcript.done",
    "conversation.item.added": "conversation.item.created",
}


class Scene:
    """One connection, told from its beginning."""

    def __init__(self, *, is_beta: bool = False) -> None:
        self.events: list[tuple[str, Event]] = []
        self.last_item: str | None = None
        self.is_beta = is_beta
        self._ids = itertools.count(1)
        self.server("session.created", session=self.session())
        if is_beta:
            self.server("conversation.created", conversation={"id": "conv_1", "object": "realtime.conversation"})

    def records(self, close_code: int | None = None) -> list[Record]:
        """The capture so far; with `close_code` the server has closed."""
        return capture(*self.events, close_code=close_code)

    def server(self, kind: str, **fields: Any) -> None:
        name = BETA.get(kind, kind) if self.is_beta else kind
        self.events.append(("S", {"type": name, "event_id": f"event_{next(self._ids)}", **fields}))

    def client(self, kind: str, **fields: Any) -> None:
        self.events.append(("C", {"type": kind, **fields}))

    def session(self, **changed: Any) -> Event:
        """The session object of 2.2, or of 2.3."""
        common = {"object": "realtime.session", "id": "sess_1", "model": "tiny", "expires_at": 1790000000, "instructions": "", "tools": []}
        if self.is_beta:
            names = {"voice": "NATF2", "input_audio_format": "pcm16", "output_audio_format": "pcm16", "tool_choice": "auto"}
            return {**common, **names, "modalities": ["audio", "text"], "turn_detection": None, "temperature": 0.8, **changed}
        audio = {"input": {"format": PCM, "turn_detection": VAD}, "output": {"format": PCM, "voice": "NATF2", "speed": 1.0}}
        return {**common, "type": "realtime", "output_modalities": ["audio"], "audio": audio, "x_duplex": {"epoch": 0}, **changed}

    def update(self, **fields: Any) -> None:
        """session.update and its answer."""
        self.client("session.update", session={"type": "realtime", **fields})
        self.server("session.updated", session=self.session())

    def begin(self, name: str, words: Sequence[str] = (" Hel", "lo"), *, num_frames: int = 5) -> None:
        """Steps 1 to 6 of 3.2: response `resp_name` with item `item_name`."""
        self.server("response.created", response=self.response(name, "in_progress", []))
        if self.is_beta:
            self.server("rate_limits.updated", rate_limits=[])
        place = {"response_id": f"resp_{name}", "output_index": 0}
        self.server("response.output_item.added", **place, item=self.item(name, "in_progress"))
        self.server("conversation.item.added", previous_item_id=self.last_item, item=self.item(name, "in_progress"))
        self.server("response.content_part.added", **self.place(name), part={"type": "audio", "transcript": ""})
        for idx in range(num_frames):
            if idx < len(words):
                self.server("response.output_audio_transcript.delta", **self.place(name), delta=words[idx])
            self.server("response.output_audio.delta", **self.place(name), delta=FRAME)

    def finish(self, name: str, status: str = "completed", *, reason: str | None = None, text: str = " Hello", sent_ms: int = 400) -> None:
        """Steps 7 to 13 of 3.2."""
        item = self.item(name, "completed" if status == "completed" else "incomplete", text)
        part = {"type": "audio", "transcript": text}
        self.server("response.output_audio.done", **self.place(name))
        self.server("response.output_audio_transcript.done", **self.place(name), transcript=text)
        self.server("response.content_part.done", **self.place(name), part=part)
        self.server("response.output_item.done", response_id=f"resp_{name}", output_index=0, item=item)
        if not self.is_beta:
            self.server("conversation.item.done", previous_item_id=self.last_item, item=item)
        self.last_item = item["id"]
        marks = {"generated_ms": sent_ms + 80, "sent_ms": sent_ms, "played_ms": 80, "committed_ms": 0}
        self.server("response.done", response={**self.response(name, status, [item], reason), "x_duplex": marks})
        if not self.is_beta:
            self.server("rate_limits.updated", rate_limits=[])

    def turn(self, name: str) -> None:
        """A whole response."""
        self.begin(name)
        self.finish(name)

    def speech(self, name: str, start_ms: int) -> None:
        self.server("input_audio_buffer.speech_started", audio_start_ms=start_ms, item_id=f"item_{name}")

    def stop(self, name: str, end_ms: int) -> None:
        """Steps 2 to 5 of 3.4."""
        self.server("input_audio_buffer.speech_stopped", audio_end_ms=end_ms, item_id=f"item_{name}")
        self.commit(name)

    def commit(self, name: str) -> None:
        item = self.item(name, "completed", None, role="user")
        self.server("input_audio_buffer.committed", previous_item_id=self.last_item, item_id=item["id"])
        self.server("conversation.item.added", previous_item_id=self.last_item, item=item)
        if not self.is_beta:
            self.server("conversation.item.done", previous_item_id=self.last_item, item=item)
        self.last_item = item["id"]

    def last(self, kind: str) -> Event:
        """The last server event of a type, to be spoiled."""
        return next(event for who, event in reversed(self.events) if who == "S" and event["type"] == kind)

    def place(self, name: str) -> Event:
        return {"response_id": f"resp_{name}", "item_id": f"item_{name}", "output_index": 0, "content_index": 0}

    def item(self, name: str, status: str, text: str | None = None, *, role: str = "assistant") -> Event:
        kind = "input_audio" if role == "user" else "audio" if self.is_beta else "output_audio"
        content = [] if status == "in_progress" else [{"type": kind, "transcript": text}]
        base = {"id": f"item_{name}", "object": "realtime.item", "type": "message"}
        return {**base, "status": status, "role": role, "content": content}

    def response(self, name: str, status: str, output: list[Event], reason: str | None = None) -> Event:
        counts = {"text_tokens": 2, "audio_tokens": 5}
        usage = {"total_tokens": 17, "input_tokens": 10, "output_tokens": 7, "input_token_details": counts, "output_token_details": counts}
        details = None if status in ("in_progress", "completed") else {"type": status, "reason": reason}
        form = (
            {"modalities": ["audio", "text"], "voice": "NATF2", "output_audio_format": "pcm16"}
            if self.is_beta
            else {"output_modalities": ["audio"], "audio": {"output": {"format": PCM, "voice": "NATF2"}}}
        )
        base = {"object": "realtime.response", "id": f"resp_{name}", "conversation_id": "conv_1", "status": status, "metadata": None}
        return {**base, **form, "status_details": details, "output": output, "usage": None if status == "in_progress" else usage}


def error(code: str, *, event_id: str | None = None, param: str | None = None) -> Event:
    """The inside of an `error` event."""
    return {"type": "invalid_request_error", "code": code, "message": "no", "param": param, "event_id": event_id}
