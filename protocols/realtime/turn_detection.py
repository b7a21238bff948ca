"""The `turn_detection` of a session: its fields, their merging, and their echo (specs/realtime.md 2.4 step 5, 2.5).

What turn detection means for a model that needs none is the turn policy's business (4.5). The rule: only the fields of the type are told
back; a field of the other type is checked and flagged. Thread: any.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, get_args

from protocols.realtime.options import Eagerness
from protocols.realtime.values import Value

DetectionType = Literal["server_vad", "semantic_vad"]

_SHARED = ("type", "create_response", "interrupt_response")
_OF_SERVER = ("threshold", "prefix_padding_ms", "silence_duration_ms", "idle_timeout_ms")
_KNOWN = (*_SHARED, *_OF_SERVER, "eagerness")


@dataclasses.dataclass(frozen=True, slots=True)
class TurnDetection:
    """How the turns of the user are told."""

    type: DetectionType = "semantic_vad"
    threshold: float = 0.5  # 0 to 1, of server_vad
    prefix_padding_ms: int = 300  # audio_start_ms lies so much before the onset, with both types
    silence_duration_ms: int = 500  # end of a turn with server_vad
    eagerness: Eagerness = "auto"  # of semantic_vad: how soon talking over the model is a barge-in
    create_response: bool = True  # False: the model speaks only when asked to (4.5.4)
    interrupt_response: bool = True  # False: speech of the user never cancels
    idle_timeout_ms: int | None = None  # of server_vad; told back and without effect

    def echo(self) -> dict[str, Any]:
        """Return the object for the wire."""
        shared = {"create_response": self.create_response, "interrupt_response": self.interrupt_response}
        if self.type == "semantic_vad":
            return {"type": self.type, "eagerness": self.eagerness, **shared}
        own = {name: getattr(self, name) for name in _OF_SERVER}
        if self.idle_timeout_ms is None:
            del own["idle_timeout_ms"]
        return {"type": self.type, **own, **shared}


DEFAULT_DETECTION = TurnDetection()


@dataclasses.dataclass(frozen=True, slots=True)
class Merged:
    """What became of an update."""

    detection: TurnDetection | None  # None: switched off
    has_type: bool  # the client named a type itself
    ignored: tuple[str, ...] = ()  # paths of what has no effect


def merge(current: TurnDetection | None, given: Value) -> Merged:
    """Merge a `turn_detection` that is present into the current one.

    Raises:
        EventError: a field cannot be read or honoured.
    """
    # "also accepted as string "none" or {"type":"none"} = null"
    if given.value in (None, "none") or given["type"].value == "none":
        return Merged(None, has_type=True)
    kind = given.object()["type"].choice(get_args(DetectionType))
    if current is None or (kind is not None and kind != current.type):
        # "if it is currently null and an object without type arrives, type server_vad is assumed"
        current = TurnDetection(type=kind or "server_vad")  # type: ignore[arg-type]
    threshold = given["threshold"].number()
    changes = {
        "threshold": None if threshold is None else float(min(1, max(0, threshold))),
        "prefix_padding_ms": given["prefix_padding_ms"].floored(0, 5000),
        "silence_duration_ms": given["silence_duration_ms"].floored(100, 10_000),
        "eagerness": given["eagerness"].choice(get_args(Eagerness)),
        "create_response": given["create_response"].boolean(),
        "interrupt_response": given["interrupt_response"].boolean(),
    }
    timeout = given["idle_timeout_ms"]
    timeout_ms = timeout.floored(5000, 30_000) if timeout.is_present else current.idle_timeout_ms
    merged = dataclasses.replace(current, **_without_none(changes), idle_timeout_ms=timeout_ms)
    return Merged(merged, kind is not None, tuple(_ineffective(merged, given)))


def _ineffective(merged: TurnDetection, given: Value) -> list[str]:
    idle = {"idle_timeout_ms", "eagerness"} if merged.type == "server_vad" else {"idle_timeout_ms", "threshold", "silence_duration_ms"}
    return [given[name].path for name in sorted(idle) if given[name].is_given] + given.unknown(_KNOWN)


def _without_none(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in changes.items() if value is not None}
