from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry

from gateway.metrics import Direction, DropReason, Metrics, Outcome, RealtimeMeter, outcome_of
from protocols.errors import ErrorKind
from protocols.events import Ended, EndReason, Failed
from protocols.realtime.meter import Count, Meter, Timer

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


# -- Realtime (specs/realtime.md, Appendix E) ----------------------------------------------------------------------------------------

COUNTED = [
    (Count.RESPONSES, "barge_in", 1, "gateway_realtime_responses_total", {"reason": "barge_in"}, 1),
    (Count.ERRORS, "invalid_value", 2, "gateway_realtime_errors_total", {"code": "invalid_value"}, 2),
    (Count.EPOCHS, "", 3, "gateway_realtime_epochs_total", {}, 3),
    (Count.STALE, "writer", 4, "gateway_realtime_stale_frames_total", {"place": "writer"}, 4),
    (Count.INPUT_MS, "padded", 80, "gateway_realtime_input_seconds_total", {"fate": "padded"}, 0.08),
]


@pytest.mark.parametrize(("what", "label", "by", "name", "labels", "value"), COUNTED)
def test_the_wire_s_counters_have_their_instruments(
    what: Count, label: str, by: int, name: str, labels: dict[str, str], value: float
) -> None:
    registry = CollectorRegistry()
    meter: Meter = Metrics(registry).realtime
    meter.count(what, label, by)
    assert registry.get_sample_value(name, labels) == pytest.approx(value)


def test_every_counter_and_timer_of_the_wire_is_kept() -> None:
    registry = CollectorRegistry()
    meter = RealtimeMeter(registry)
    assert {case[0] for case in COUNTED} == set(Count)
    for what in Timer:
        meter.observe(what, 0.1)
        assert registry.get_sample_value(f"gateway_realtime_{what.value}_seconds_sum") == pytest.approx(0.1)


def test_handshakes_and_ends_go_by_their_numbers_and_no_client_invents_a_label() -> None:
    registry = CollectorRegistry()
    meter = RealtimeMeter(registry)
    for status in (101, 401, 401):
        meter.count_handshake(status)
    assert registry.get_sample_value("gateway_realtime_handshakes_total", {"status": "401"}) == 2
    for code in (1000, None, 1006, 4001, 3999):
        meter.count_close(code)
    ended = {code: registry.get_sample_value("gateway_realtime_calls_total", {"code": code}) for code in ("1000", "1006", "other", "4001")}
    assert ended == {"1000": 1, "1006": 2, "other": 2, "4001": None}
