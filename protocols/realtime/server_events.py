"""What the server sends on the Realtime wire: one frozen model per event, in GA names (specs/realtime.md 2.8); objects are in `objects`.

Beta names are `dialect`'s business, and so is the `event_id`. Every model also carries an optional `x_duplex`: what we add to an event of
OpenAI's are keys under that one name, on which no client stumbles (2.10.2), and a subclass per event for one key would say nothing. Event
types of our own are in `ext`. Thread: any.
"""

from __future__ import annotations

from typing import Any, Literal

from protocols.realtime.fault import EventError
from protocols.realtime.objects import ContentPart as ContentPart  # whoever makes an event needs its objects
from protocols.realtime.objects import Conversation as Conversation
from protocols.realtime.objects import Count, ErrorBody, WireObject, optional
from protocols.realtime.objects import FailureDetails as FailureDetails
from protocols.realtime.objects import Item as Item
from protocols.realtime.objects import Response as Response
from protocols.realtime.objects import ResponseAudio as ResponseAudio
from protocols.realtime.objects import StatusDetails as StatusDetails
from protocols.realtime.objects import Usage as Usage


class WireEvent(WireObject):
    """Anything with a `type` that the server sends."""

    x_duplex: dict[str, Any] | None = optional()


ServerMessage = WireEvent  # any of the below, or of `ext`


class SessionCreated(WireEvent):
    """First message of a connection."""

    type: Literal["session.created"] = "session.created"
    session: dict[str, Any]  # settings.describe


class SessionUpdated(WireEvent):
    """After every accepted session.update, and when a pending change takes effect."""

    type: Literal["session.updated"] = "session.updated"
    session: dict[str, Any]


class ConversationCreated(WireEvent):
    """Second message of a beta connection; the GA dialect has none."""

    type: Literal["conversation.created"] = "conversation.created"
    conversation: Conversation


class ItemAdded(WireEvent):
    """An item entered the list."""

    type: Literal["conversation.item.added"] = "conversation.item.added"
    previous_item_id: str | None
    item: Item


class ItemDone(WireEvent):
    """An item is final; the beta dialect has none."""

    type: Literal["conversation.item.done"] = "conversation.item.done"
    previous_item_id: str | None
    item: Item


class ItemDeleted(WireEvent):
    """Acknowledges conversation.item.delete."""

    type: Literal["conversation.item.deleted"] = "conversation.item.deleted"
    item_id: str


class ItemRetrieved(WireEvent):
    """Answers conversation.item.retrieve."""

    type: Literal["conversation.item.retrieved"] = "conversation.item.retrieved"
    item: Item


class ItemTruncated(WireEvent):
    """Acknowledges conversation.item.truncate with the sealed value."""

    type: Literal["conversation.item.truncated"] = "conversation.item.truncated"
    item_id: str
    content_index: Count
    audio_end_ms: Count


class InputCommitted(WireEvent):
    """User audio became an item."""

    type: Literal["input_audio_buffer.committed"] = "input_audio_buffer.committed"
    previous_item_id: str | None
    item_id: str


class InputCleared(WireEvent):
    """Acknowledges input_audio_buffer.clear."""

    type: Literal["input_audio_buffer.cleared"] = "input_audio_buffer.cleared"


class SpeechStarted(WireEvent):
    """The user has taken the turn: stock clients flush their speaker."""

    type: Literal["input_audio_buffer.speech_started"] = "input_audio_buffer.speech_started"
    audio_start_ms: Count
    item_id: str


class SpeechStopped(WireEvent):
    """The user's turn is over."""

    type: Literal["input_audio_buffer.speech_stopped"] = "input_audio_buffer.speech_stopped"
    audio_end_ms: Count
    item_id: str


class OutputCleared(WireEvent):
    """Acknowledges output_audio_buffer.clear."""

    type: Literal["output_audio_buffer.cleared"] = "output_audio_buffer.cleared"
    response_id: str


class ResponseCreated(WireEvent):
    """A response opened."""

    type: Literal["response.created"] = "response.created"
    response: Response


class ResponseDone(WireEvent):
    """A response is over; no event names it afterwards."""

    type: Literal["response.done"] = "response.done"
    response: Response


class OutputItemAdded(WireEvent):
    """A response began to speak."""

    type: Literal["response.output_item.added"] = "response.output_item.added"
    response_id: str
    output_index: Count = 0
    item: Item


class OutputItemDone(WireEvent):
    """The item of a response is final."""

    type: Literal["response.output_item.done"] = "response.output_item.done"
    response_id: str
    output_index: Count = 0
    item: Item


class PartEvent(WireEvent):
    """Anything about one part of the item of a response."""

    response_id: str
    item_id: str
    output_index: Count = 0
    content_index: Count = 0


class ContentPartAdded(PartEvent):
    """The part is `audio` or `text` here, not `output_audio` or `output_text`."""

    type: Literal["response.content_part.added"] = "response.content_part.added"
    part: ContentPart


class ContentPartDone(PartEvent):
    """The part with its final transcript."""

    type: Literal["response.content_part.done"] = "response.content_part.done"
    part: ContentPart


class AudioDelta(PartEvent):
    """Audio of one or more frames."""

    type: Literal["response.output_audio.delta"] = "response.output_audio.delta"
    delta: str  # base64


class TranscriptDelta(PartEvent):
    """Words of the frame whose audio comes next."""

    type: Literal["response.output_audio_transcript.delta"] = "response.output_audio_transcript.delta"
    delta: str
    start_time: float | None = optional()  # seconds inside the item; LiveKit times words by it (2.10.2)


class OutputTextDelta(PartEvent):
    """Words of a response that is text alone."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str


class AudioDone(PartEvent):
    """After the last audio of a part."""

    type: Literal["response.output_audio.done"] = "response.output_audio.done"


class TranscriptDone(PartEvent):
    """The transcript of what was sent."""

    type: Literal["response.output_audio_transcript.done"] = "response.output_audio_transcript.done"
    transcript: str


class OutputTextDone(PartEvent):
    """The text of what was sent."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str


class RateLimitsUpdated(WireEvent):
    """There are none; old clients wait for the event."""

    type: Literal["rate_limits.updated"] = "rate_limits.updated"
    rate_limits: tuple[()] = ()


class ErrorEvent(WireEvent):
    """Something that the client must fix, or the reason of the close that follows."""

    type: Literal["error"] = "error"
    error: ErrorBody

    @classmethod
    def of(cls, fault: EventError, x_duplex: dict[str, Any] | None = None) -> ErrorEvent:
        """Word the answer to a client message that was refused."""
        body = ErrorBody.model_validate(
            {"type": fault.type, "code": fault.code, "message": fault.message, "param": fault.param, "event_id": fault.event_id}
        )
        return cls(error=body, x_duplex=x_duplex)
