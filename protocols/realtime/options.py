"""How the Realtime wire behaves on this server: the operator's keys of specs/realtime.md Appendix A, as one frozen model.

What stands around the upgrade (keys, origins, admission) belongs to the gateway's own configuration. The rule: a key that is here is
honoured; every field says its unit. Callers change some of these for their own call by `session.x_duplex` (2.10.1), within the ranges
below. Thread: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import pydantic
from pydantic import Field

FRAME_MS = 80  # one step of the model (Appendix C)

# Ranges that a caller's x_duplex shares with the operator's key (2.10.1).
CloseSilenceMs = Annotated[int, Field(ge=240, le=5000)]
OpenRmsDb = Annotated[float, Field(ge=-70, le=-20)]
PrerollMs = Annotated[int, Field(ge=0, le=480)]
MaxResponseMs = Annotated[int, Field(ge=10_000, le=600_000)]
LeadMs = Annotated[int, Field(ge=0, le=1000)]
CoalesceFrames = Annotated[int, Field(ge=1, le=5)]
MinOverlapMs = Annotated[int, Field(ge=FRAME_MS, le=10_000)]
PersonaChange = Literal["restart", "defer", "reject"]
Eagerness = Literal["low", "medium", "high", "auto"]

# Appendix A, voice alias table; "" is the server's default voice ("marin maps to the default voice on purpose").
VOICE_ALIASES = {
    "alloy": "NATF2", "ash": "NATM0", "ballad": "NATM1", "coral": "NATF0", "echo": "NATM2", "sage": "NATF1", "shimmer": "NATF3",
    "verse": "NATM3", "marin": "", "cedar": "NATM1",
}  # fmt: skip


class RealtimeOptions(pydantic.BaseModel):
    """Every behaviour key with its default."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # -- names
    strict_model: bool = Field(
        default=False, description="refuse a ?model= that is neither the served model nor one of model_aliases (404)"
    )
    model_aliases: tuple[str, ...] = Field(default=(), description="further names of the served model")
    voice_aliases: Mapping[str, str] = Field(
        default=VOICE_ALIASES, description="voice names of other services -> installed voices; an empty target is the default voice"
    )

    # -- session
    max_session_s: float = Field(
        default=3600.0, ge=1, le=7 * 86_400, description="longest call in seconds; the gateway's own limit holds as well"
    )
    idle_timeout_s: float = Field(
        default=300.0, ge=1, le=86_400, description="a call ends after so many seconds without a message of its client"
    )
    max_messages_per_s: int = Field(default=500, ge=1, le=100_000, description="messages of one client per second; more are refused")
    max_protocol_errors: int = Field(default=100, ge=1, le=100_000, description="error events in 10 s, after which the call is closed")
    max_persona_tokens: int = Field(
        default=1500, ge=1, le=100_000, description="longest instructions in tokens; the model's own limit holds too"
    )
    persona_change: PersonaChange = Field(
        default="defer", description="new instructions in mid-call: at the next silence (defer), at once (restart) or never (reject)"
    )
    carry_history: bool = Field(default=True, description="new instructions in mid-call take the committed transcripts along")
    disclose_default_persona: bool = Field(default=False, description="show the server's default persona to callers who sent none")
    temperature: Literal["ignore", "apply"] = Field(
        default="ignore", description="a client's temperature: only shown, or applied to audio (0.1 to 1.2) and text (x 0.875)"
    )
    flat_means_beta: bool = Field(
        default=False, description="answer a flat session.update on a connection without a beta header in beta names"
    )

    # -- conversation
    max_items: int = Field(default=1000, ge=1, le=100_000, description="items kept of one conversation; then the oldest are forgotten")
    max_item_bytes: int = Field(default=262_144, ge=1024, le=2**24, description="text of one item in bytes")
    truncate_overrun: Literal["clamp", "error"] = Field(
        default="clamp", description="conversation.item.truncate beyond what was sent: the end of what was sent, or an error"
    )

    # -- input
    input_jitter_ms: int = Field(default=40, ge=0, le=1000, description="audio beyond one frame that waits before the clock starts, in ms")
    input_grace_ms: int = Field(
        default=40, ge=0, le=80, description="how late a frame of the caller may be before silence takes its place, in ms"
    )
    input_max_ms: int = Field(default=120_000, ge=1000, le=3_600_000, description="audio of one caller that may wait for the model, in ms")
    park_after_ms: int = Field(
        default=10_000, ge=1000, le=86_400_000, description="the clock stops after so many ms without audio, while nobody speaks"
    )
    max_segment_s: float = Field(default=60.0, ge=5, le=3600, description="longest stretch of user speech in one item, in seconds")

    # -- responses
    open_rms_db: OpenRmsDb = Field(default=-45.0, description="level from which the model's audio counts as voiced, in dBFS")
    close_rms_db: float = Field(default=-50.0, ge=-90, le=-20, description="level below which the model's audio counts as quiet, in dBFS")
    preroll_ms: PrerollMs = Field(default=160, description="audio before the onset that is sent with a response, in ms")
    close_silence_ms: CloseSilenceMs = Field(default=800, description="quiet of the model that ends a response, in ms")
    max_response_ms: MaxResponseMs = Field(default=120_000, description="a response is cut at the next pause after so many ms")
    response_start_timeout_ms: int = Field(
        default=4000, ge=500, le=60_000, description="response.create ends empty after so many ms without speech"
    )
    nudge: bool = Field(default=True, description="response.create urges a silent model to speak")
    cancel_hold_ms: int = Field(default=2000, ge=480, le=10_000, description="longest silence of the model after a cancel, in ms")
    trim_leading_space: bool = Field(default=True, description="cut the space before the first word of an item")
    send_rate_limits: bool = Field(default=True, description="send rate_limits.updated (empty) with every response")

    # -- turns
    overlap_low_ms: MinOverlapMs = Field(
        default=1600, description="user speech over the model's that is a barge-in at eagerness low, in ms"
    )
    overlap_auto_ms: MinOverlapMs = Field(default=900, description="the same at eagerness medium and auto, in ms")
    overlap_high_ms: MinOverlapMs = Field(default=400, description="the same at eagerness high, in ms")

    # -- pacing
    lead_ms: LeadMs = Field(default=0, description="audio held back at the start of a response as a reserve for the client, in ms")
    coalesce_frames: CoalesceFrames = Field(default=1, description="frames of 80 ms in one audio message")

    @pydantic.model_validator(mode="after")
    def _quiet_lies_below_voiced(self) -> RealtimeOptions:
        if self.close_rms_db > self.open_rms_db:
            raise ValueError(f"close_rms_db ({self.close_rms_db:g}) must not be above open_rms_db ({self.open_rms_db:g})")
        return self

    def min_overlap_ms(self, eagerness: Eagerness) -> int:
        """Return the overlap that is a barge-in (4.5)."""
        return {"low": self.overlap_low_ms, "high": self.overlap_high_ms}.get(eagerness, self.overlap_auto_ms)
