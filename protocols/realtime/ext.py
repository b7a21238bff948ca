"""Event types of our own (specs/realtime.md 2.10.3), in the shape of `server_events`.

The rule: strict clients break on types they do not know, so each of these goes only to a client that opted in by `session.x_duplex.events`,
or that sent the vLLM-Omni event which it answers. Thread: any.
"""

from __future__ import annotations

from typing import Literal

from protocols.realtime.objects import Count, optional
from protocols.realtime.server_events import WireEvent


class PlaybackAcknowledged(WireEvent):
    """Where an item's cursors stand after a playback.ack; opt-in `playback`."""

    type: Literal["playback.acknowledged"] = "playback.acknowledged"
    response_id: str
    item_id: str
    played_ms: Count
    committed_ms: Count


class HeartbeatAck(WireEvent):
    """Answers session.heartbeat."""

    type: Literal["session.heartbeat_ack"] = "session.heartbeat_ack"
    server_time_ms: Count


class SessionClosed(WireEvent):
    """Answers session.close, once the slot is free."""

    type: Literal["session.closed"] = "session.closed"
    reason: Literal["client_close", "expired", "error", "drained"]


class Listen(WireEvent):
    """The model fell silent; opt-in `listen`."""

    type: Literal["response.listen"] = "response.listen"
    frame: Count
    epoch: Count
    response_id: str | None = optional()


class Speak(WireEvent):
    """The model began to speak; opt-in `speak`."""

    type: Literal["response.speak"] = "response.speak"
    frame: Count
    epoch: Count
    response_id: str | None = optional()


class OverlapDecision(WireEvent):
    """What was made of user speech over the model's; opt-in `overlap`."""

    type: Literal["overlap.decision"] = "overlap.decision"
    decision: Literal["ignore", "short_ack", "barge_in"]
    overlap_ms: Count


class FrameReport(WireEvent):
    """One step of the model, spoken or silent; opt-in `frames`."""

    type: Literal["x_duplex.frame"] = "x_duplex.frame"
    frame: Count
    epoch: Count
    input_ms: Count  # of the input timeline, heard by the model
    rms_db: float | None  # of the model's audio in dBFS; null is digital silence
    text: str  # "" is none
    is_user_active: bool
    response_id: str | None = optional()
