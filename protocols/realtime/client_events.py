"""What clients send on the Realtime wire: one frozen model per meaning (specs/realtime.md 2.7).

Events that go by several names, of OpenAI's or vLLM-Omni's, end up as the same class; `parsing` has the table of names. Models are strict,
and keys that nobody knows are ignored. The rule: a model holds only what a client may decide; what an event does is the codec's business.
Thread: any.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Annotated, Any

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field

from protocols.realtime.client_items import ClientItem
from protocols.realtime.formats import AudioFormat, at_rate, parse_format
from protocols.realtime.response_options import ResponseOptions
from protocols.realtime.values import Value


def _floored(value: object) -> object:
    return math.floor(value) if isinstance(value, float) else value


def _or_zero(value: int) -> int:
    return max(0, value)


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


# A number of milliseconds: "number >= 0 (floored)"; the other counts from zero, for no report of a player is an error (4.8).
FlooredMs = Annotated[int, BeforeValidator(_floored), Field(ge=0)]
ReportedMs = Annotated[int, BeforeValidator(_floored), AfterValidator(_or_zero)]


class ClientEvent(pydantic.BaseModel):
    """Anything that a client sends."""

    model_config = pydantic.ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)

    event_id: str | None = None  # the client's own; told back in `error` only


class SessionUpdate(ClientEvent):
    """session.update."""

    session: dict[str, Any]  # see settings.apply_update


class InputAudioAppend(ClientEvent):
    """input_audio_buffer.append."""

    audio: str  # base64, not looked at
    format: str | None = None
    sample_rate_hz: int | None = None

    def format_of(self, session_format: AudioFormat) -> AudioFormat:
        """Return the format of this audio on a session with the given input format.

        Raises:
            EventError: no such format, or not at this rate.
        """
        if self.format is None and self.sample_rate_hz is None:
            return session_format
        fmt = session_format if self.format is None else parse_format(self.format, "format", is_input=True)
        if self.format is not None and fmt.kind == session_format.kind == "pcm":
            fmt = dataclasses.replace(fmt, rate=session_format.rate)  # a name says nothing of the rate
        return at_rate(fmt, Value(self.sample_rate_hz, "sample_rate_hz"), is_input=True)


class InputAudioCommit(ClientEvent):
    """input_audio_buffer.commit, or input.commit."""

    response_create: bool = False  # a response is wanted, if none is open


class InputAudioClear(ClientEvent):
    """input_audio_buffer.clear, or input.cancel."""


class OutputAudioClear(ClientEvent):
    """output_audio_buffer.clear."""

    response_id: str | None = None


class ItemCreate(ClientEvent):
    """conversation.item.create, or input.text.append."""

    item: ClientItem
    previous_item_id: str | None = None  # None appends, "root" is the place before all others


class ItemRetrieve(ClientEvent):
    """conversation.item.retrieve."""

    item_id: str


class ItemDelete(ClientEvent):
    """conversation.item.delete."""

    item_id: str


class ItemTruncate(ClientEvent):
    """conversation.item.truncate."""

    item_id: str
    content_index: int = Field(default=0, ge=0)
    audio_end_ms: FlooredMs


class ResponseCreate(ClientEvent):
    """response.create."""

    response: ResponseOptions = ResponseOptions()


class ResponseCancel(ClientEvent):
    """response.cancel."""

    response_id: str | None = None


class PlaybackAck(ClientEvent):
    """playback.ack."""

    played_ms: ReportedMs
    committed_ms: ReportedMs | None = None
    response_id: str | None = None
    item_id: str | None = None


class Heartbeat(ClientEvent):
    """session.heartbeat."""


class SessionClose(ClientEvent):
    """session.close: nothing in it can be so wrong that a client may not leave."""

    reason: Annotated[str | None, BeforeValidator(_text_or_none)] = None


class BargeInRequest(ClientEvent):
    """barge_in."""


class EventAck(ClientEvent):
    """session.event_ack: trims the journal of a resumable session."""


class SessionResume(ClientEvent):
    """session.resume."""


class Ignored(ClientEvent):
    """A message that is legal and means nothing here."""

    name: str


ClientMessage = (
    SessionUpdate
    | InputAudioAppend
    | InputAudioCommit
    | InputAudioClear
    | OutputAudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | PlaybackAck
    | Heartbeat
    | SessionClose
    | BargeInRequest
    | EventAck
    | SessionResume
    | Ignored
)

# Flat names of session settings, in beta or Omni style, by which a session.update without `session` shows what it is (2.4 step 1).
FLAT_SESSION_KEYS = frozenset((
    "modalities", "output_modalities", "instructions", "voice", "input_audio_format", "output_audio_format", "input_audio_transcription",
    "input_audio_noise_reduction", "turn_detection", "temperature", "max_response_output_tokens", "max_output_tokens", "speed", "audio",
    "tools", "tool_choice", "parallel_tool_calls", "tracing", "truncation", "prompt", "include", "reasoning", "sample_rate_hz", "x_duplex",
    "ref_audio", "overlap_policy", "playback_commit_policy", "idle_timeout_s", "extra_body",
))  # fmt: skip


def session_of(body: Mapping[str, Any]) -> object:
    """Return the session object of a session.update as it came, which may have left out `session`; None where it has none at all."""
    if "session" in body:
        return body["session"]
    if not FLAT_SESSION_KEYS.isdisjoint(body):
        return {key: value for key, value in body.items() if key not in ("type", "event_id")}  # "treat the event itself as the session"
    # "a top-level string model (vLLM's transcription clients)": the event's other keys are no settings
    return {"model": body["model"]} if isinstance(body.get("model"), str) else None
