"""The life of a session as one table: (state, event) -> state, in the manner of h11.

Two rules. Every transition is a row of `TRANSITIONS`: code elsewhere asks `next_state` and never assigns a state of its own invention.
A missing row *is* the error: an event that nobody thought of in a state raises LocalProtocolError instead of being shrugged off.
No asyncio, no threading, no clock lives here; slots have their own four states in `slots.py`. Thread: any.

Theory of operation:

    NEW ──open──> QUEUED ──claim──> PREFILL ──ready──> LIVE ──end of input──> DRAINING ──end──> CLOSED
     └─reserve─> RESERVING ─claim─> RESERVED ─open─> PREFILL <──reprime── LIVE
                                                     (every state but CLOSED ──end──> CLOSED)

* NEW: the wire is connected, the caller has not asked for anything.
* QUEUED: asked for a call and has no slot yet; lasts no time at all while slots are free.
* RESERVING, RESERVED: asked for a slot and has none yet; holds one, and nothing is computed for it. Asking again is harmless.
* PREFILL: holds a slot; the prompt is being prepared or is on its way into the model.
* LIVE: frames go in, frames come out. A new prompt leads back to PREFILL, and from nowhere else: who wants another one earlier waits for
  ready first, so that there is never more than one prompt under way.
* DRAINING: the caller has said everything; what it said is still being answered. A file client can come here straight from PREFILL, so
  `ready` is legal here too. A peer that goes on sending after its own end of input is impolite, not dangerous: its audio is dropped.
* CLOSED: the slot is given back, the last event is on its way. No row leaves this state.
"""

from __future__ import annotations

import enum

from protocols.errors import LocalProtocolError


class SessionState(enum.Enum):
    """Where a session is in its life."""

    NEW = "new"
    RESERVING = "reserving"
    RESERVED = "reserved"
    QUEUED = "queued"
    PREFILL = "prefill"
    LIVE = "live"
    DRAINING = "draining"
    CLOSED = "closed"


class SessionEvent(enum.Enum):
    """What can happen to a session: the first eight come from the caller, the rest from the gateway."""

    RESERVE = "reserve"
    OPEN = "open"
    REPRIME = "reprime"
    AUDIO = "audio"
    END_OF_INPUT = "end_of_input"
    CONTROL = "control"  # BargeIn, Cancel, Steer, ClearInput, RunClock
    PLAYED = "played"
    REJECTED = "rejected"
    CLAIM = "claim"  # a slot was found
    READY = "ready"  # the prompt is in the model
    END = "end"  # for whatever reason


_S = SessionState
_E = SessionEvent

TRANSITIONS: dict[SessionState, dict[SessionEvent, SessionState]] = {
    _S.NEW: {
        _E.RESERVE: _S.RESERVING,
        _E.OPEN: _S.QUEUED,
        _E.REJECTED: _S.NEW,
        _E.END: _S.CLOSED,
    },
    _S.RESERVING: {
        _E.RESERVE: _S.RESERVING,
        _E.CLAIM: _S.RESERVED,
        _E.CONTROL: _S.RESERVING,
        _E.REJECTED: _S.RESERVING,
        _E.END: _S.CLOSED,
    },
    _S.RESERVED: {
        _E.RESERVE: _S.RESERVED,
        _E.OPEN: _S.PREFILL,
        _E.CONTROL: _S.RESERVED,
        _E.REJECTED: _S.RESERVED,
        _E.END: _S.CLOSED,
    },
    _S.QUEUED: {
        _E.CLAIM: _S.PREFILL,
        _E.AUDIO: _S.QUEUED,
        _E.END_OF_INPUT: _S.DRAINING,
        _E.CONTROL: _S.QUEUED,
        _E.PLAYED: _S.QUEUED,
        _E.REJECTED: _S.QUEUED,
        _E.END: _S.CLOSED,
    },
    _S.PREFILL: {
        _E.READY: _S.LIVE,
        _E.AUDIO: _S.PREFILL,
        _E.END_OF_INPUT: _S.DRAINING,
        _E.CONTROL: _S.PREFILL,
        _E.PLAYED: _S.PREFILL,
        _E.REJECTED: _S.PREFILL,
        _E.END: _S.CLOSED,
    },
    _S.LIVE: {
        _E.REPRIME: _S.PREFILL,
        _E.AUDIO: _S.LIVE,
        _E.END_OF_INPUT: _S.DRAINING,
        _E.CONTROL: _S.LIVE,
        _E.PLAYED: _S.LIVE,
        _E.REJECTED: _S.LIVE,
        _E.END: _S.CLOSED,
    },
    _S.DRAINING: {
        _E.READY: _S.DRAINING,
        _E.AUDIO: _S.DRAINING,
        _E.END_OF_INPUT: _S.DRAINING,
        _E.CONTROL: _S.DRAINING,
        _E.PLAYED: _S.DRAINING,
        _E.REJECTED: _S.DRAINING,
        _E.END: _S.CLOSED,
    },
    _S.CLOSED: {},
}


def next_state(state: SessionState, event: SessionEvent) -> SessionState:
    """Look one transition up.

    Raises:
        LocalProtocolError: the table has no such row.

    Thread: any.
    """
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise LocalProtocolError(f"{event.value} is illegal in state {state.value}")
    return following
