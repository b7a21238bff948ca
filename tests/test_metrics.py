from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.metrics import Direction, DropReason, Metrics, Outcome, outcome_of
from protocols.errors import ErrorKind
from protocols.events import Ended, EndReason, Failed

REQUIRED = {  # STYLE 3.5
    "gateway_sessions_open",
    "gateway_sessions",
    "gateway_slots_used",
    "gateway_tick_seconds",
    "gateway_ticks_late",
    "gateway_frames_dropped",
    "gateway_prefill_seconds",
    "gateway_first_audio_seconds",
    "gateway_backlog_frames",
}


def test_the_required_instruments_are_there_with_a_help_text() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    families = {family.name: family.documentation for family in registry.collect()}
    assert set(families) >= REQUIRED
    assert all(families.values())


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_every_failure_has_an_outcome_and_none_is_a_good_end(kind: ErrorKind) -> None:
    assert outcome_of(Failed(kind=kind, detail="")) not in (Outcome.CALLER, Outcome.FINISHED, Outcome.LIMIT)


@pytest.mark.parametrize("reason", list(EndReason))
def test_every_good_end_keeps_its_name(reason: EndReason) -> None:
    assert outcome_of(Ended(reason=reason)).value == reason.value


def test_the_server_s_faults_are_not_booked_on_the_caller() -> None:
    assert outcome_of(Failed(kind=ErrorKind.INTERNAL, detail="")) is Outcome.FAILED
    assert outcome_of(Failed(kind=ErrorKind.CAPACITY, detail="")) is Outcome.REFUSED
    assert outcome_of(Failed(kind=ErrorKind.BAD_PARAMETER, detail="")) is Outcome.CLIENT_ERROR


def test_counts_go_to_their_labels_and_registries_share_nothing() -> None:
    registry, other = CollectorRegistry(), CollectorRegistry()
    metrics = Metrics(registry)
    Metrics(other)
    metrics.count_dropped(Direction.IN, DropReason.BACKLOG, 3)
    metrics.count_end("moshi", Ended(reason=EndReason.LIMIT))
    dropped = {"direction": "in", "reason": "backlog"}
    assert registry.get_sample_value("gateway_frames_dropped_total", dropped) == 3
    assert registry.get_sample_value("gateway_sessions_total", {"protocol": "moshi", "outcome": "limit"}) == 1
    assert other.get_sample_value("gateway_frames_dropped_total", dropped) is None
