"""The objects inside the server's events: items, responses, usage, errors, in GA shape (specs/realtime.md 2.8.1, 2.8.2, 2.11, 4.12).

The rule: a key whose value may be null is sent as null, one that is optional is left out while it is None (`optional`). Models are strict,
so that an int of the tables can never become 1200.0 on the wire, and a value out of an enum is found here and not by a client. Thread: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field

from protocols.realtime.formats import AudioFormat, echo_ga

Modality = Literal["audio", "text"]
ItemStatus = Literal["in_progress", "completed", "incomplete"]  # nothing else: three clients refuse "cancelled" (2.8.1)
ResponseStatus = Literal["in_progress", "completed", "cancelled", "incomplete", "failed"]
ErrorType = Literal["invalid_request_error", "server_error", "rate_limit_error", "authentication_error"]
PartType = Literal["audio", "text", "output_audio", "output_text", "input_text", "input_audio", "input_image"]
Count = Annotated[int, Field(ge=0)]


def _is_none(value: object) -> bool:
    return value is None


def optional() -> Any:
    """Return the field of a key that is left out while it is None."""
    return Field(None, exclude_if=_is_none)


class WireObject(pydantic.BaseModel):
    """Anything with a shape that the tables fix."""

    model_config = pydantic.ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


class ContentPart(WireObject):
    """Part of a message. `type` decides which keys are sent: text of text parts, transcript (null or not) of audio parts."""

    type: PartType
    text: str | None = None  # of text parts, where it must be set
    transcript: str | None = None  # of audio parts; null only in those of the user
    detail: str | None = None  # of images

    @pydantic.model_validator(mode="after")
    def _is_whole(self) -> ContentPart:
        if self.type.endswith("text") and self.text is None:
            raise ValueError(f"{self.type} needs a text")
        if self.type in ("audio", "output_audio") and self.transcript is None:
            raise ValueError(f"{self.type} needs a transcript")  # sdk-js refuses null here (5.2)
        return self

    @pydantic.model_serializer
    def _shape(self) -> dict[str, Any]:
        if self.type.endswith("text"):
            return {"type": self.type, "text": self.text}
        if self.type == "input_image":
            return {"type": self.type} if self.detail is None else {"type": self.type, "detail": self.detail}
        return {"type": self.type, "transcript": self.transcript}


class Item(WireObject):
    """Entry of the conversation. Items of tools are kept for clients alone, with the further keys that the client gave."""

    model_config = pydantic.ConfigDict(extra="allow")

    id: str
    object: Literal["realtime.item"] = "realtime.item"
    type: str = "message"
    status: ItemStatus
    role: Literal["system", "user", "assistant"] | None = None  # of messages, which alone have a role and content
    content: tuple[ContentPart, ...] = ()

    @pydantic.model_serializer(mode="wrap")
    def _shape(self, dump: pydantic.SerializerFunctionWrapHandler) -> dict[str, Any]:
        shape: dict[str, Any] = dump(self)
        if self.role is None:
            del shape["role"], shape["content"]
        return shape


class TokenDetails(WireObject):
    """Tokens by kind; there are no images."""

    text_tokens: Count = 0
    audio_tokens: Count = 0
    image_tokens: Literal[0] = 0


class InputTokenDetails(TokenDetails):
    """Tokens that went in; none of them counts as cached."""

    cached_tokens: Literal[0] = 0
    cached_tokens_details: TokenDetails = TokenDetails()


class OutputTokenDetails(WireObject):
    """Tokens that came out."""

    text_tokens: Count = 0
    audio_tokens: Count = 0


class Usage(WireObject):
    """What a response took."""

    total_tokens: Count
    input_tokens: Count
    output_tokens: Count
    input_token_details: InputTokenDetails
    output_token_details: OutputTokenDetails

    @classmethod
    def of(cls, *, input_text: int, input_audio: int, output_text: int, output_audio: int) -> Usage:
        """Add up the tokens of each kind."""
        taken, made = input_text + input_audio, output_text + output_audio
        return cls(
            total_tokens=taken + made,  # "total = input + output always" (4.12)
            input_tokens=taken,
            output_tokens=made,
            input_token_details=InputTokenDetails(text_tokens=input_text, audio_tokens=input_audio),
            output_token_details=OutputTokenDetails(text_tokens=output_text, audio_tokens=output_audio),
        )


class FailureDetails(WireObject):
    """Why a response failed."""

    type: str
    code: str
    message: str


class StatusDetails(WireObject):
    """How a response ended that was not completed. Any other reason makes sdk-py drop response.done (2.8.2)."""

    type: Literal["cancelled", "incomplete", "failed"]
    reason: Literal["turn_detected", "client_cancelled", "max_output_tokens", "content_filter"] | None = optional()
    error: FailureDetails | None = optional()


class ResponseAudioOutput(WireObject):
    """How a response sounds."""

    format: dict[str, Any]  # formats.echo_ga
    voice: str  # as the client wrote it


class ResponseAudio(WireObject):
    """Audio side of a response."""

    output: ResponseAudioOutput

    @classmethod
    def of(cls, fmt: AudioFormat, voice: str) -> ResponseAudio:
        """Wrap a format and a voice."""
        return cls(output=ResponseAudioOutput(format=echo_ga(fmt), voice=voice))


def _or_inf(value: int | None) -> int | str:
    return "inf" if value is None else value


class Response(WireObject):
    """One stretch of model speech, as created and as done."""

    object: Literal["realtime.response"] = "realtime.response"
    id: str
    conversation_id: str | None  # null out of band
    status: ResponseStatus
    status_details: StatusDetails | None = None
    output: tuple[Item, ...] = ()
    output_modalities: tuple[Modality, ...] = ("audio",)
    audio: ResponseAudio
    max_output_tokens: Annotated[int | None, pydantic.PlainSerializer(_or_inf)] = None  # None is "inf"
    metadata: Mapping[str, str] | None = None  # as response.create gave it
    usage: Usage | None = None
    temperature: float | None = None  # sent in beta only
    x_duplex: dict[str, Any] | None = optional()


class Conversation(WireObject):
    """The conversation of a session."""

    id: str
    object: Literal["realtime.conversation"] = "realtime.conversation"


class ErrorBody(WireObject):
    """Inside of an `error`: "all five inner keys always present" (2.11)."""

    type: ErrorType
    code: str
    message: str
    param: str | None = None
    event_id: str | None = None  # of the client's message
