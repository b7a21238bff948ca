"""Every instrument of the gateway, with its help text and buckets.

One `Metrics` per registry, so that tests do not share counts. Labels come from the enums below and from codec names, never from ids.
Nothing here decides anything. Thread: any (prometheus_client locks each instrument).
"""

from __future__ import annotations

import enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protocols.errors import ErrorKind
from protocols.events import Ended, EndReason, Failed

STEP_BUCKETS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.16)  # around the 80 ms frame
WAIT_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)  # what a caller feels while waiting
BATCH_BUCKETS = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128)


class Direction(enum.Enum):
    """Which way a dropped frame was going."""

    IN = "in"
    OUT = "out"


class DropReason(enum.Enum):
    """Why a frame was dropped."""

    BACKLOG = "backlog"  # more input waits than the inbox holds: the engine is behind or the caller sends a burst
    NOT_READY = "not_ready"  # live audio before Ready
    AFTER_END = "after_end"  # audio after the caller's own end of input
    SLOW_READER = "slow_reader"  # the caller does not read its audio
    BARGE_IN = "barge_in"  # thrown away because the user spoke over it
    RELEASED = "released"  # the call was over before its last step came back


class Outcome(enum.Enum):
    """How a session ended, for `gateway_sessions_total`."""

    CALLER = "caller"  # hung up or said goodbye
    FINISHED = "finished"  # end of input, answered to the last sample
    LIMIT = "limit"  # by the server: length limit
    IDLE = "idle"  # by the server: no audio for too long
    SLOW_READER = "slow_reader"  # by the server: the peer does not read
    SHUTDOWN = "shutdown"  # by the server: it drains
    REFUSED = "refused"  # never had a slot: full, loading or overloaded
    CLIENT_ERROR = "client_error"  # the caller sent something that cannot be served
    FAILED = "failed"  # our fault


_ENDED = {EndReason.CALLER: Outcome.CALLER, EndReason.FINISHED: Outcome.FINISHED, EndReason.LIMIT: Outcome.LIMIT}
_FAILED = {
    ErrorKind.BAD_REQUEST: Outcome.CLIENT_ERROR,
    ErrorKind.BAD_AUDIO: Outcome.CLIENT_ERROR,
    ErrorKind.TOO_BIG: Outcome.CLIENT_ERROR,
    ErrorKind.BAD_PARAMETER: Outcome.CLIENT_ERROR,
    ErrorKind.CAPACITY: Outcome.REFUSED,
    ErrorKind.LOADING: Outcome.REFUSED,
    ErrorKind.OVERLOADED: Outcome.REFUSED,
    ErrorKind.IDLE: Outcome.IDLE,
    ErrorKind.SLOW_READER: Outcome.SLOW_READER,
    ErrorKind.SHUTDOWN: Outcome.SHUTDOWN,
    ErrorKind.INTERNAL: Outcome.FAILED,
}


def outcome_of(last: Ended | Failed) -> Outcome:
    """Name the end of a session by its last event. Thread: any."""
    return _ENDED[last.reason] if isinstance(last, Ended) else _FAILED[last.kind]


class Metrics:
    """The instruments, registered with `registry`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.sessions_open = Gauge("gateway_sessions_open", "Sessions that have not ended, with or without a slot.", registry=registry)
        self.sessions = Counter(
            "gateway_sessions_total", "Sessions that ended, by protocol and outcome.", ["protocol", "outcome"], registry=registry
        )
        self.slots_used = Gauge("gateway_slots_used", "Slots held by a caller or being cleared after one.", registry=registry)
        self.tick_seconds = Histogram(
            "gateway_tick_seconds", "One tick: gather, engine step, scatter.", buckets=STEP_BUCKETS, registry=registry
        )
        self.step_seconds = Histogram("gateway_step_seconds", "The engine step inside a tick.", buckets=STEP_BUCKETS, registry=registry)
        self.batch_rows = Histogram(
            "gateway_batch_rows", "Callers that advanced by one frame in a step.", buckets=BATCH_BUCKETS, registry=registry
        )
        self.ticks_late = Counter(
            "gateway_ticks_late_total", "Steps with live callers that took longer than a frame lasts.", registry=registry
        )
        self.frames_dropped = Counter(
            "gateway_frames_dropped_total", "Frames dropped, by direction and reason.", ["direction", "reason"], registry=registry
        )
        self.prefill_seconds = Histogram(
            "gateway_prefill_seconds", "From holding a slot to a model that has read the prompt.", buckets=WAIT_BUCKETS, registry=registry
        )
        self.first_audio_seconds = Histogram(
            "gateway_first_audio_seconds", "From the caller's open to its first frame of audio.", buckets=WAIT_BUCKETS, registry=registry
        )
        self.backlog_frames = Gauge("gateway_backlog_frames", "Longest inbox of any call at the last tick, in frames.", registry=registry)

    def count_dropped(self, direction: Direction, reason: DropReason, num_frames: int = 1) -> None:
        """Count dropped frames. Thread: any."""
        self.frames_dropped.labels(direction.value, reason.value).inc(num_frames)

    def count_end(self, protocol: str, last: Ended | Failed) -> None:
        """Count the end of a session. Thread: any."""
        self.sessions.labels(protocol, outcome_of(last).value).inc()


def metrics_table() -> str:
    """README's table of metrics, in Markdown. Thread: any."""
    registry = CollectorRegistry()
    Metrics(registry)
    rows = ["| metric | type | meaning |", "| --- | --- | --- |"]
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        rows.append(f"| `{name}` | {family.type} | {family.documentation} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(metrics_table())
