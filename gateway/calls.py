"""What people may know of a call that is going on: how old it is, what waits for it, what it lost. Never audio, text or persona.

The one rule: nothing is counted here that is not counted for the metrics as well; this only reads. Thread: loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from gateway.metrics import Direction, DropReason, Metrics
from gateway.session import Session
from gateway.slots import SlotTable
from gateway.state import SessionState


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallInfo:
    """One call, as it is now."""

    session_id: str
    protocol: str
    state: SessionState
    age_s: float  # since its Open
    epoch: int  # of its slot; 0 before it has one
    backlog_frames: int  # of its audio, that wait for the model
    ticks_late: int  # of the server, while the call was there: each made its callers wait
    frames_in: int
    frames_out: int
    dropped: Mapping[tuple[Direction, DropReason], int]


def describe_call(session: Session, slots: SlotTable, now: float, ticks_late: int) -> CallInfo:
    """Read one session; `now` is of its clock, `ticks_late` as in CallInfo."""
    backlog_frames = 0
    if session.slot_idx is not None:
        with slots.cond:
            backlog_frames = len(slots.slots[session.slot_idx].inbox)
    return CallInfo(
        session_id=session.session_id,
        protocol=session.protocol,
        state=session.state,
        age_s=now - session.opened_s,
        epoch=session.epoch,
        backlog_frames=backlog_frames,
        ticks_late=ticks_late,
        frames_in=session.frames_in,
        frames_out=session.frames_out,
        dropped=dict(session.dropped),
    )


def count_late(metrics: Metrics) -> int:
    """Read how many ticks were late since the start of the server."""
    return int(next(iter(metrics.ticks_late.collect())).samples[0].value)
