from __future__ import annotations

import json

import pydantic
import pytest

from protocols.realtime.dialect import Dialect, encode
from protocols.realtime.ext import FrameReport, HeartbeatAck, Listen, OverlapDecision, PlaybackAcknowledged, SessionClosed, Speak
from protocols.realtime.server_events import WireEvent

CASES = [
    (Listen(frame=3, epoch=0), {"type": "response.listen", "frame": 3, "epoch": 0}),
    (Speak(frame=3, epoch=1, response_id="r"), {"type": "response.speak", "frame": 3, "epoch": 1, "response_id": "r"}),
    (OverlapDecision(decision="ignore", overlap_ms=240), {"type": "overlap.decision", "decision": "ignore", "overlap_ms": 240}),
    (
        PlaybackAcknowledged(response_id="r", item_id="i", played_ms=2, committed_ms=1),
        {"type": "playback.acknowledged", "response_id": "r", "item_id": "i", "played_ms": 2, "committed_ms": 1},
    ),
    (HeartbeatAck(server_time_ms=7), {"type": "session.heartbeat_ack", "server_time_ms": 7}),
    (SessionClosed(reason="client_close"), {"type": "session.closed", "reason": "client_close"}),
    (
        FrameReport(frame=1, epoch=0, input_ms=80, rms_db=None, text="", is_user_active=False),
        {"type": "x_duplex.frame", "frame": 1, "epoch": 0, "input_ms": 80, "rms_db": None, "text": "", "is_user_active": False},
    ),
]


@pytest.mark.parametrize("dialect", list(Dialect))
@pytest.mark.parametrize(("event", "shape"), CASES)
def test_extensions_have_one_name_in_both_dialects(event: WireEvent, shape: dict[str, object], dialect: Dialect) -> None:
    assert json.loads(encode(event, dialect, "event_1") or "") == {**shape, "event_id": "event_1"}


def test_reasons_and_decisions_are_enums() -> None:
    with pytest.raises(pydantic.ValidationError):
        SessionClosed(reason="bye")  # type: ignore[arg-type]
    with pytest.raises(pydantic.ValidationError):
        OverlapDecision(decision="maybe", overlap_ms=0)  # type: ignore[arg-type]
