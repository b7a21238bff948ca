"""Who answers whom over a capture, the part of `brackets` about the connection: session objects, errors (specs/realtime.md 2.4, 2.11).

Thread: any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Event = Mapping[str, Any]

ANSWER_S = 5.0  # for a session.update, on a busy machine
FATAL = {"idle_timeout", "session_expired", "server_draining", "capacity_exceeded", "output_backpressure", "server_error"}  # not an answer


class Replies:
    """The first events, the answers to session.update, and the errors.

    Args:
        expected_errors: codes that may come.
    """

    def __init__(self, expected_errors: set[str]) -> None:
        self.is_beta = False
        self._expected_errors = expected_errors
        self._num_events = 0
        self._num_messages = 0
        self._num_answers = 0  # errors that answer a message
        self._updates_s: list[float] = []  # when the updates were sent that were not answered yet
        self._event_ids: set[str] = set()
        self._is_over = False

    def client(self, event: Event, seconds: float) -> None:
        """Note what has to be answered."""
        self._num_messages += 1
        if event.get("type") == "session.update":
            self._updates_s.append(seconds)
        if isinstance(event.get("event_id"), str):
            self._event_ids.add(event["event_id"])

    def server(self, kind: str, event: Event) -> Iterator[str]:
        """Take one server event under its GA name; yield what it breaks."""
        self._num_events += 1
        if self._is_over and kind not in ("session.closed",):
            yield f"{kind} after a fatal error"
        if kind in ("session.created", "session.updated"):
            self.is_beta = "type" not in event["session"]
        if kind == "error":
            yield from self._error(event["error"])
        elif (kind == "session.created") != (self._num_events == 1):
            yield f"event {self._num_events} is {kind}"
        if self._num_events == 2 and self.is_beta and kind != "conversation.created":
            yield f"event 2 in beta is {kind}"
        if kind == "session.updated" and (event.get("x_duplex") or {}).get("cause") is None:
            if not self._updates_s:
                yield "session.updated, and nobody asked"
            else:
                self._updates_s.pop(0)

    def end(self, seconds: float) -> Iterator[str]:
        """The connection is over."""
        for sent_s in self._updates_s:
            if seconds - sent_s > ANSWER_S:
                yield f"the session.update at {sent_s:.1f} s was never answered"

    def _error(self, error: Event) -> Iterator[str]:
        code = error["code"]
        if code not in self._expected_errors:
            yield f"error {code}: {error['message']}"
        if code in FATAL:
            self._is_over = code != "server_error" or self._is_over
            return
        self._num_answers += 1
        if self._num_answers > self._num_messages:
            yield f"error {code}: more errors than messages"
        if error.get("event_id") is not None and error["event_id"] not in self._event_ids:
            yield f"error {code}: its event_id {error['event_id']!r} is not the client's"
        if str(error.get("param")).startswith("session") and self._updates_s:
            self._updates_s.pop(0)
