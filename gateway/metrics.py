"""Every instrument of the gateway, with its help text and buckets.

One `Metrics` per registry, so that tests do not share counts. Labels come from the enums below and from codec names, never from ids.
Nothing here decides anything. Thread: any (prometheus_client locks each instrument).
"""

from __future__ import annotations

import enum

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from protocols.errors import ErrorKind
from protocols.events import Ended, EndReason, Failed
from protocols.realtime.meter import Count, Timer

STEP_BUCKETS = (0.01, 0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.16)  # around the 80 ms frame
WAIT_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0)  # what a caller feels while waiting
TURN_BUCKETS = (0.02, 0.04, 0.08, 0.16, 0.24, 0.32, 0.48, 0.64, 0.8, 1.2, 2.0, 4.0)  # frames of 80 ms: how quick a turn feels
CLOSE_CODES = frozenset({1000, 1001, 1002, 1005, 1006, 1007, 1008, 1009, 1011, 1012, 1013})  # a client may invent others
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
    ErrorKind.BAD_TEXT: Outcome.CLIENT_ERROR,
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
        self.realtime = RealtimeMeter(registry)

    def count_dropped(self, direction: Direction, reason: DropReason, num_frames: int = 1) -> None:
        """Count dropped frames. Thread: any."""
        self.frames_dropped.labels(direction.value, reason.value).inc(num_frames)

    def count_end(self, protocol: str, last: Ended | Failed) -> None:
        """Count the end of a session. Thread: any."""
        self.sessions.labels(protocol, outcome_of(last).value).inc()


class RealtimeMeter:
    """The instruments of /v1/realtime, registered with `registry`: the wire's own (`protocols.realtime.meter.Meter`) and two around it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gateway_realtime_{name}_total", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
            return Histogram(f"gateway_realtime_{name}_seconds", text, buckets=buckets, registry=registry)

        self.handshakes = counter("handshakes", "Upgrade requests, by HTTP status of the answer.", "status")
        self.calls = counter("calls", "Calls that ended, by close code of the WebSocket.", "code")
        self._counters = {
            Count.RESPONSES: counter("responses", "Responses, by what ended them.", "reason"),
            Count.ERRORS: counter("errors", "Error events, by code.", "code"),
            Count.EPOCHS: counter("epochs", "Times that output on its way became invalid."),
            Count.STALE: counter("stale_frames", "Audio of an epoch that was over, by the place where it was thrown away.", "place"),
            Count.INPUT_MS: counter("input_seconds", "User audio that was padded with silence, dropped or suppressed as a replay.", "fate"),
        }
        self._histograms = {
            Timer.CREATED: histogram("created", "From the upgrade to session.created.", WAIT_BUCKETS),
            Timer.ARMING: histogram("arming", "From the first reason to start to a model that has read the prompt.", WAIT_BUCKETS),
            Timer.ANSWER: histogram("answer", "From the end of the user's speech to the first voiced audio of the answer.", TURN_BUCKETS),
            Timer.BARGE_IN: histogram("barge_in", "From the user's first sound over a response to speech_started.", TURN_BUCKETS),
            Timer.DELTA_GAP: histogram("delta_gap", "Between two audio messages of one response.", TURN_BUCKETS),
        }

    def count(self, what: Count, label: str = "", by: int = 1) -> None:
        """Add to a counter of the wire. Thread: any."""
        counter = self._counters[what]
        amount = by / 1000 if what is Count.INPUT_MS else by  # base units
        (counter.labels(label) if what is not Count.EPOCHS else counter).inc(amount)

    def observe(self, what: Timer, seconds: float) -> None:
        """Record one duration. Thread: any."""
        self._histograms[what].observe(seconds)

    def count_handshake(self, status: int) -> None:
        """Count the answer to an upgrade request. Thread: any."""
        self.handshakes.labels(str(status)).inc()

    def count_close(self, code: int | None) -> None:
        """Count the end of a connection; None where the peer just vanished. Thread: any."""
        known = 1006 if code is None else code
        self.calls.labels(str(known) if known in CLOSE_CODES else "other").inc()


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
