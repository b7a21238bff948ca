"""What a client may ask of this server beyond OpenAI's protocol: `session.x_duplex` (specs/realtime.md 2.10.1).

The rule: "unknown keys are ignored and flagged; wrong types -> invalid_value"; a sub-object is replaced whole, and what it leaves out is
the operator's value. Thread: any.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import pydantic
from pydantic import Field

from protocols.events import MAX_SEED, SamplingOptions
from protocols.realtime.fault import EventError, checked
from protocols.realtime.options import (
    CloseSilenceMs,
    CoalesceFrames,
    LeadMs,
    MaxResponseMs,
    MinOverlapMs,
    OpenRmsDb,
    PersonaChange,
    PrerollMs,
    RealtimeOptions,
)
from protocols.realtime.values import Value

EVENT_NAMES = ("listen", "speak", "overlap", "playback", "frames")

Layout = Literal["turns", "single", "fixed"]
OverlapPolicy = Literal["native", "classic", "listen_only"]
OutputGate = Literal["live", "gated"]
Playback = Literal["none", "ack"]

_NO_WISHES = SamplingOptions()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pacing:
    """How audio is sent."""

    lead_ms: int  # held back at the start of a response
    coalesce_frames: int  # in one delta


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DuplexConfig:
    """The extensions in effect."""

    events: frozenset[str] = frozenset()  # of EVENT_NAMES: extension events that the client takes
    timing: bool = False  # deltas carry x_duplex
    close_silence_ms: int
    open_rms_db: float  # dBFS
    preroll_ms: int
    max_response_ms: int
    layout: Layout = "turns"
    min_overlap_ms: int | None = None  # None: by eagerness
    overlap_policy: OverlapPolicy | None = None  # None: by turn detection
    pacing: Pacing
    sampling: SamplingOptions = _NO_WISHES
    output_gate: OutputGate | None = None  # None: by turn detection (4.5.4)
    persona_change: PersonaChange
    binary_audio: bool = False  # binary messages are audio appends
    playback: Playback = "none"  # "ack": the client promises playback.ack


class _Section(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class _Segmentation(_Section):
    close_silence_ms: CloseSilenceMs | None = None
    open_rms_db: OpenRmsDb | None = None
    preroll_ms: PrerollMs | None = None
    max_response_ms: MaxResponseMs | None = None
    layout: Layout | None = None


class _Overlap(_Section):
    min_overlap_ms: MinOverlapMs | None = None
    policy: OverlapPolicy | None = None


class _Pacing(_Section):
    lead_ms: LeadMs | None = None
    coalesce_frames: CoalesceFrames | None = None


class _Sampling(_Section):
    audio_temperature: float | None = Field(default=None, ge=0, le=10)
    text_temperature: float | None = Field(default=None, ge=0, le=10)
    audio_top_k: int | None = Field(default=None, ge=0, le=2048)
    text_top_k: int | None = Field(default=None, ge=0, le=32_000)
    seed: int | None = Field(default=None, ge=0, le=MAX_SEED)


class _Duplex(_Section):
    events: list[Literal["listen", "speak", "overlap", "playback", "frames", "all"]] | None = None
    timing: bool | None = None
    segmentation: _Segmentation | None = None
    overlap: _Overlap | None = None
    pacing: _Pacing | None = None
    sampling: _Sampling | None = None
    output_gate: OutputGate | None = None
    persona_change: PersonaChange | None = None
    binary_audio: bool | None = None
    resume: bool | None = None
    playback: Playback | None = None


_SECTIONS: Mapping[str, type[_Section]] = {"segmentation": _Segmentation, "overlap": _Overlap, "pacing": _Pacing, "sampling": _Sampling}
_SIMPLE = ("timing", "output_gate", "persona_change", "binary_audio", "playback")


def default_duplex(options: RealtimeOptions) -> DuplexConfig:
    """Return the extensions of a client that asked for none."""
    return DuplexConfig(
        **_segmentation(options, _Segmentation()), pacing=_paced(options, _Pacing()), persona_change=options.persona_change
    )


def merge(current: DuplexConfig, given: Value, options: RealtimeOptions) -> tuple[DuplexConfig, list[str]]:
    """Merge an `x_duplex` that is given; return it with the paths of what has no effect.

    Raises:
        EventError: a value cannot be honoured.
    """
    try:
        wish = checked(_Duplex, given.object().value, given.path)
    except EventError as exc:
        raise EventError("invalid_value", exc.message, exc.param) from None
    changes: dict[str, Any] = {name: value for name in _SIMPLE if (value := getattr(wish, name)) is not None}
    if wish.events is not None:
        changes["events"] = frozenset(EVENT_NAMES if "all" in wish.events else wish.events)
    if wish.segmentation is not None:
        changes |= _segmentation(options, wish.segmentation)
    if wish.overlap is not None:
        changes |= {"min_overlap_ms": wish.overlap.min_overlap_ms, "overlap_policy": wish.overlap.policy}
    if wish.pacing is not None:
        changes["pacing"] = _paced(options, wish.pacing)
    if wish.sampling is not None:
        changes["sampling"] = _sampled(wish.sampling)
    ignored = given.unknown(_Duplex.model_fields)
    for name, section in _SECTIONS.items():
        ignored += given[name].unknown(section.model_fields)
    if wish.resume:
        ignored.append(given["resume"].path)  # optional in 2.10.4, and not offered here
    return dataclasses.replace(current, **changes), ignored


def _segmentation(options: RealtimeOptions, wish: _Segmentation) -> dict[str, Any]:
    defaults = {
        "close_silence_ms": options.close_silence_ms,
        "open_rms_db": options.open_rms_db,
        "preroll_ms": options.preroll_ms,
        "max_response_ms": options.max_response_ms,
        "layout": "turns",
    }
    return {**defaults, **wish.model_dump(exclude_none=True)}


def _paced(options: RealtimeOptions, wish: _Pacing) -> Pacing:
    return Pacing(**{"lead_ms": options.lead_ms, "coalesce_frames": options.coalesce_frames, **wish.model_dump(exclude_none=True)})


def _sampled(wish: _Sampling) -> SamplingOptions:
    return SamplingOptions(
        audio_temperature=wish.audio_temperature,
        text_temperature=wish.text_temperature,
        audio_topk=wish.audio_top_k,
        text_topk=wish.text_top_k,
        audio_seed=wish.seed,
        text_seed=wish.seed,
    )
