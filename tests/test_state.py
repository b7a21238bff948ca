from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.state import TRANSITIONS, SessionEvent, SessionState, next_state
from protocols.errors import LocalProtocolError

S = SessionState
E = SessionEvent
ORDER = [S.NEW, S.RESERVING, S.RESERVED, S.QUEUED, S.PREFILL, S.LIVE, S.DRAINING, S.CLOSED]


@pytest.mark.parametrize(
    "path",
    [
        [(E.OPEN, S.QUEUED), (E.CLAIM, S.PREFILL), (E.READY, S.LIVE), (E.END_OF_INPUT, S.DRAINING), (E.END, S.CLOSED)],
        [(E.OPEN, S.QUEUED), (E.CLAIM, S.PREFILL), (E.AUDIO, S.PREFILL), (E.END_OF_INPUT, S.DRAINING), (E.READY, S.DRAINING)],
        [(E.OPEN, S.QUEUED), (E.AUDIO, S.QUEUED), (E.END_OF_INPUT, S.DRAINING), (E.AUDIO, S.DRAINING), (E.END, S.CLOSED)],
        [(E.REJECTED, S.NEW), (E.END, S.CLOSED)],
        [(E.RESERVE, S.RESERVING), (E.CLAIM, S.RESERVED), (E.OPEN, S.PREFILL), (E.READY, S.LIVE), (E.REPRIME, S.PREFILL)],
        [(E.RESERVE, S.RESERVING), (E.RESERVE, S.RESERVING), (E.CLAIM, S.RESERVED), (E.RESERVE, S.RESERVED), (E.END, S.CLOSED)],
    ],
)
def test_a_call_follows_its_path(path: list[tuple[SessionEvent, SessionState]]) -> None:
    state = S.NEW
    for event, expected in path:
        state = next_state(state, event)
        assert state is expected


@pytest.mark.parametrize("event", [event for event in E if event not in (E.RESERVE, E.OPEN, E.REJECTED, E.END)])
def test_nothing_comes_before_open(event: SessionEvent) -> None:
    with pytest.raises(LocalProtocolError, match="illegal in state new"):
        next_state(S.NEW, event)


@pytest.mark.parametrize("state", [state for state in S if state not in (S.NEW, S.RESERVED)])
def test_a_session_is_opened_once(state: SessionState) -> None:
    with pytest.raises(LocalProtocolError):
        next_state(state, E.OPEN)


@pytest.mark.parametrize("state", [state for state in S if state is not S.LIVE])
def test_another_prompt_needs_a_model_that_listens(state: SessionState) -> None:
    with pytest.raises(LocalProtocolError):
        next_state(state, E.REPRIME)


@pytest.mark.parametrize("event", [E.AUDIO, E.END_OF_INPUT, E.PLAYED, E.READY, E.REPRIME])
@pytest.mark.parametrize("state", [S.RESERVING, S.RESERVED])
def test_a_reserved_session_says_nothing_before_its_open(state: SessionState, event: SessionEvent) -> None:
    with pytest.raises(LocalProtocolError):
        next_state(state, event)


@pytest.mark.parametrize("state", [state for state in S if state not in (S.NEW, S.CLOSED)])
def test_control_is_legal_and_changes_no_state(state: SessionState) -> None:
    assert next_state(state, E.CONTROL) is state


@pytest.mark.parametrize("event", list(E))
def test_closed_is_the_end(event: SessionEvent) -> None:
    with pytest.raises(LocalProtocolError):
        next_state(S.CLOSED, event)


@pytest.mark.parametrize("state", ORDER[:-1])
def test_every_state_can_end(state: SessionState) -> None:
    assert next_state(state, E.END) is S.CLOSED


@given(st.lists(st.sampled_from(E)))
def test_any_sequence_only_moves_forward_or_raises_but_for_another_prompt(events: list[SessionEvent]) -> None:
    state = S.NEW
    for event in events:
        try:
            following = next_state(state, event)
        except LocalProtocolError:
            assert event not in TRANSITIONS[state]
            continue
        assert ORDER.index(following) >= ORDER.index(state) or event is E.REPRIME
        state = following


def test_the_table_names_every_state() -> None:
    assert set(TRANSITIONS) == set(S)
    assert {following for row in TRANSITIONS.values() for following in row.values()} == set(S)
