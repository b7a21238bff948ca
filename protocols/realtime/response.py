"""One response from `response.created` to `response.done`: which message may follow which (specs/realtime.md 3.2).

    PENDING ──begin──> OPEN ──finish──> DONE          (PENDING ──finish──> DONE: asked for, never begun)

The rule: every response that was created is finished, exactly once, with its whole bracket, and no message carries its id afterwards; a
call that is illegal in the present state is a bug of ours and raises. Messages are made here and queued by speaking.py. Thread: any, one at
a time.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from protocols.errors import LocalProtocolError
from protocols.realtime import ids
from protocols.realtime.formats import AudioFormat
from protocols.realtime.server_events import (
    AudioDone,
    ContentPart,
    ContentPartAdded,
    ContentPartDone,
    FailureDetails,
    Item,
    ItemAdded,
    ItemDone,
    OutputItemAdded,
    OutputItemDone,
    OutputTextDone,
    RateLimitsUpdated,
    Response,
    ResponseAudio,
    ResponseCreated,
    ResponseDone,
    ServerMessage,
    StatusDetails,
    TranscriptDone,
    Usage,
)
from protocols.realtime.watermarks import Watermarks


class Phase(enum.Enum):
    """Where a response is in its life."""

    PENDING = "pending"
    OPEN = "open"
    DONE = "done"


class Trigger(enum.Enum):
    """Who wanted a response; the values are on the wire (x_duplex.trigger)."""

    MODEL = "model"
    REQUEST = "request"


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """How a response ends: `status` and `detail` are OpenAI's words and never any others, `reason` is ours (x_duplex.reason)."""

    status: Literal["completed", "cancelled", "incomplete", "failed"]
    reason: str
    detail: Literal["turn_detected", "client_cancelled", "max_output_tokens"] | None = None  # status_details.reason
    error: tuple[str, str] | None = None  # status_details.error of a failed one: code, message


SILENCE = Ending("completed", "silence")
ROTATION = Ending("completed", "rotation")
NO_SPEECH = Ending("completed", "no_speech")
BARGE_IN = Ending("cancelled", "barge_in", "turn_detected")
YIELDED = Ending("cancelled", "yielded", "turn_detected")
CANCEL = Ending("cancelled", "cancel", "client_cancelled")
DELETED = Ending("cancelled", "deleted", "client_cancelled")
CLOSED = Ending("cancelled", "close", "client_cancelled")
EXPIRED = Ending("incomplete", "close")
LIMIT = Ending("incomplete", "limit", "max_output_tokens")
BACKPRESSURE = Ending("failed", "backpressure", error=("output_backpressure", "the client does not read fast enough"))
FAILED = Ending("failed", "error", error=("server_error", "the server failed"))
OUT_OF_BAND = Ending("failed", "error", error=("unsupported_out_of_band", "this model has one conversation and nothing beside it"))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResponseSettings:
    """What a response was asked to be; it does not change while it lasts."""

    conversation_id: str | None
    is_text: bool  # text goes out instead of audio
    output_format: AudioFormat
    voice: str  # as the client wrote it
    max_tokens: int | None
    metadata: Mapping[str, str] | None = None
    trigger: Trigger = Trigger.MODEL
    ignored: Sequence[str] = ()  # fields of response.create without an effect


class ResponseTrack:
    """The bracket of one response.

    Attributes:
        response_id, item_id: item_id names its only item.
        phase: see above.
        marks: how much of the item exists, was sent, was heard.
    """

    def __init__(self, settings: ResponseSettings, epoch: int, marks: Watermarks) -> None:
        self.response_id = ids.new("resp")
        self.item_id = ids.new("item")
        self.settings = settings
        self.phase = Phase.PENDING
        self.marks = marks
        self._epoch = epoch
        self._previous_item_id: str | None = None

    def created(self) -> ResponseCreated:
        """Announce the response; first of all."""
        x_duplex: dict[str, Any] = {"epoch": self._epoch, "trigger": self.settings.trigger.value}
        if self.settings.ignored:
            x_duplex["ignored"] = list(self.settings.ignored)
        return ResponseCreated(response=self._response("in_progress", x_duplex=x_duplex))

    def item(self) -> Item:
        """The item as it is when it enters the conversation."""
        return Item(id=self.item_id, type="message", status="in_progress", role="assistant", content=())

    def begin(self, previous_item_id: str | None) -> list[ServerMessage]:
        """Open the item: what goes out before its first delta.

        Raises:
            LocalProtocolError: it has begun before, or is done.
        """
        self._expect(Phase.PENDING)
        self.phase = Phase.OPEN
        self._previous_item_id = previous_item_id
        part = ContentPart(type="text", text="") if self.settings.is_text else ContentPart(type="audio", transcript="")
        return [
            OutputItemAdded(response_id=self.response_id, item=self.item()),
            ItemAdded(previous_item_id=previous_item_id, item=self.item()),
            ContentPartAdded(**self.place(), part=part),
        ]

    def place(self) -> dict[str, Any]:
        """The fields by which a delta names its content part."""
        return {"response_id": self.response_id, "item_id": self.item_id}

    def finish(self, ending: Ending, usage: Usage, now: float, *, is_cut: bool) -> tuple[list[ServerMessage], Item | None]:
        """Close the bracket: the messages, and the final item if there is one.

        Args:
            is_cut: what waited to be sent was taken back, so the transcript ends with what was sent; otherwise all of it will be.

        Raises:
            LocalProtocolError: it is done already.
        """
        if self.phase is Phase.DONE:
            raise LocalProtocolError("a response was finished twice")
        messages: list[ServerMessage] = []
        item = None
        if self.phase is Phase.OPEN:
            text = self.marks.transcript() if is_cut else self.marks.text()
            item = self._final_item(ending, text)
            messages = self._closing_messages(item, text)
        self.phase = Phase.DONE
        marks = self.marks
        marks.end(now, was_interrupted=ending.detail == "turn_detected")
        x_duplex = {
            "epoch": self._epoch,
            "reason": ending.reason,
            "generated_ms": marks.generated_ms,
            "sent_ms": marks.sent_ms if is_cut else marks.generated_ms,
            "played_ms": marks.played_by(now),
            "committed_ms": marks.committed_ms,
        }
        response = self._response(ending.status, ending=ending, output=() if item is None else (item,), usage=usage, x_duplex=x_duplex)
        return [*messages, ResponseDone(response=response)], item

    # Private

    def _expect(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise LocalProtocolError(f"a response that is {self.phase.value} should be {phase.value}")

    def _final_item(self, ending: Ending, text: str) -> Item:
        part = ContentPart(type="output_text", text=text) if self.settings.is_text else ContentPart(type="output_audio", transcript=text)
        status = "completed" if ending.status == "completed" else "incomplete"
        return self.item().model_copy(update={"status": status, "content": (part,)})

    def _closing_messages(self, item: Item, text: str) -> list[ServerMessage]:
        place = self.place()
        if self.settings.is_text:
            done: list[ServerMessage] = [OutputTextDone(**place, text=text)]
            part = ContentPart(type="text", text=text)
        else:
            done = [AudioDone(**place), TranscriptDone(**place, transcript=text)]
            part = ContentPart(type="audio", transcript=text)
        return [
            *done,
            ContentPartDone(**place, part=part),
            OutputItemDone(response_id=self.response_id, item=item),
            ItemDone(previous_item_id=self._previous_item_id, item=item),
        ]

    def _response(
        self,
        status: Literal["in_progress", "completed", "cancelled", "incomplete", "failed"],
        *,
        ending: Ending | None = None,
        output: Sequence[Item] = (),
        usage: Usage | None = None,
        x_duplex: dict[str, Any],
    ) -> Response:
        settings = self.settings
        return Response(
            id=self.response_id,
            conversation_id=settings.conversation_id,
            status=status,
            status_details=None if ending is None else _details(ending),
            output=tuple(output),
            output_modalities=("text",) if settings.is_text else ("audio",),
            audio=ResponseAudio.of(settings.output_format, settings.voice),
            max_output_tokens=settings.max_tokens,
            metadata=settings.metadata,
            usage=usage,
            x_duplex=x_duplex,
        )


def _details(ending: Ending) -> StatusDetails | None:
    if ending.status == "completed":
        return None
    error = None
    if ending.error is not None:
        error = FailureDetails(type="server_error", code=ending.error[0], message=ending.error[1])
    return StatusDetails(type=ending.status, reason=ending.detail, error=error)


NO_LIMITS = RateLimitsUpdated()
