"""What each client event does (specs/realtime.md 2.7), and the session object that answers `session.update`.

One method for each event. The rule: an event is judged whole before anything of it takes effect; what is wrong with it is raised as
EventError, and the call is as it was. Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocols.events import HangUp
from protocols.realtime import ids
from protocols.realtime import response as endings
from protocols.realtime.budget import Budget
from protocols.realtime.call import Call
from protocols.realtime.dialect import decide_dialect
from protocols.realtime.ext import HeartbeatAck, PlaybackAcknowledged
from protocols.realtime.fault import EventError
from protocols.realtime.handshake import Handshake
from protocols.realtime.hold import HoldReason
from protocols.realtime.input import InputBuffer
from protocols.realtime.listening import Listener
from protocols.realtime.priming import Primer, Stage
from protocols.realtime.response import Phase
from protocols.realtime.server_events import (
    InputCleared,
    ItemAdded,
    ItemDeleted,
    ItemDone,
    ItemRetrieved,
    ItemTruncated,
    OutputCleared,
    SessionUpdated,
)
from protocols.realtime.settings import SessionConfig, apply_update, describe, resolve_voice
from protocols.realtime.speaking import Request, Speaker
from protocols.realtime.wire import (
    BargeInRequest,
    ClientMessage,
    EventAck,
    Heartbeat,
    Ignored,
    InputAudioAppend,
    InputAudioClear,
    InputAudioCommit,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputAudioClear,
    PlaybackAck,
    ResponseCancel,
    ResponseCreate,
    SessionClose,
    SessionResume,
    SessionUpdate,
)

PROTOCOL_VERSION = 1  # of x_duplex
MAX_DELAYED = 50  # of those that wait
UPDATES, UPDATES_WINDOW_S = 20, 10.0  # "At most 20 updates per 10 s are processed; more are delayed, not refused" (2.4)


class Commands:
    """Carries out the client events of one call.

    Attributes:
        session_id: name of the session on the wire; set when there is one.
        is_closing: the client has asked for the end.
    """

    def __init__(
        self,
        call: Call,
        speaker: Speaker,
        listener: Listener,
        buffer: InputBuffer,
        primer: Primer,
        *,
        handshake: Handshake,
        expires_unix_s: int,
        unix_offset_s: float,
    ) -> None:
        self.session_id = ""
        self.is_closing = False
        self._call = call
        self._speaker = speaker
        self._listener = listener
        self._buffer = buffer
        self._primer = primer
        self._handshake = handshake
        self._expires_unix_s = expires_unix_s
        self._unix_offset_s = unix_offset_s
        self._updates = Budget(UPDATES, UPDATES_WINDOW_S)
        self._delayed: deque[SessionUpdate] = deque()

    # Public

    def carry_out(self, message: ClientMessage, now: float) -> None:
        """Do what one event asks for.

        Raises:
            EventError: it cannot be done; nothing was.
        """
        match message:
            case InputAudioAppend():
                self.hear(self._buffer.append(message, now), now)
            case SessionUpdate():
                self._update(message, now)
            case InputAudioCommit():
                self._commit(message, now)
            case InputAudioClear():
                self._listener.clear(now)
                self._primer.clear_audio()
                self._call.out.put(InputCleared())
            case OutputAudioClear():
                self._clear_output(message, now)
            case ItemCreate():
                self._create_item(message, now)
            case ItemRetrieve():
                self._call.out.put(ItemRetrieved(item=self._call.conversation.retrieve(message.item_id, now)))
            case ItemDelete():
                self._delete_item(message, now)
            case ItemTruncate():
                self._truncate(message, now)
            case ResponseCreate():
                self._create_response(message, now)
            case ResponseCancel():
                self._cancel(message, now)
            case BargeInRequest():
                self._speaker.cut(endings.BARGE_IN, now, HoldReason.CLIENT)  # "As response.cancel with reason turn_detected" (2.7)
            case PlaybackAck():
                self._acknowledge(message, now)
            case Heartbeat():
                self._call.out.put(HeartbeatAck(server_time_ms=int((now + self._unix_offset_s) * 1000)))
            case SessionClose():
                self._close(now)
            case SessionResume():
                raise EventError("unsupported_session_resume", "calls cannot be resumed here; start a new one")
            case EventAck() | Ignored():
                pass

    def hear(self, pcm: NDArray[np.float32] | None, now: float) -> None:
        """Pass audio of the client on; None where all of it has been heard before."""
        if pcm is None:
            self._primer.touch(now)
        else:
            self._primer.audio(pcm, now)

    def expire(self, now: float) -> None:
        """Carry out an update that had to wait."""
        if self._delayed and self._updates.spend(now):
            self._apply(self._delayed.popleft(), now)

    @property
    def due_s(self) -> float:
        """When a delayed update is due; inf without one."""
        return self._updates.free_s(-math.inf) if self._delayed else math.inf

    # Public: the session object

    def configure(self, session: Mapping[str, Any], now: float) -> tuple[str, ...]:
        """Apply a session object; return the paths of what has no effect here.

        Raises:
            EventError: something in it cannot be had; nothing of it was applied.
        """
        call, speaker = self._call, self._speaker
        update = apply_update(call.config, session, call.catalogue, call.options, call.out.dialect)
        old, new = call.config, update.config
        if speaker.has_begun and new.resolved_voice != old.resolved_voice:
            message = "the voice is fixed once the assistant has produced audio; reconnect to change it"
            raise EventError("cannot_update_voice", message, "session.audio.output.voice")
        is_new_persona = speaker.has_begun and new.instructions != old.instructions
        if is_new_persona and new.duplex.persona_change == "reject":
            message = "the instructions are fixed once the assistant has produced audio"
            raise EventError("persona_update_rejected", message, "session.instructions")
        ignored = update.ignored
        if self._primer.stage is not Stage.IDLE and new.duplex.sampling != old.duplex.sampling:  # "Before arming only" (2.10.1)
            new = dataclasses.replace(new, duplex=dataclasses.replace(new.duplex, sampling=old.duplex.sampling))
            ignored = (*ignored, "x_duplex.sampling")
        call.config = new
        speaker.configure()
        self._listener.configure()
        if is_new_persona and new.duplex.persona_change == "restart":
            speaker.cut(endings.CANCEL, now)
            self._primer.prompt_changed(is_restart=True)
        self._primer.updated(now)
        return ignored

    def describe(self, ignored: Sequence[str] = ()) -> dict[str, Any]:
        """The effective session object."""
        call, primer = self._call, self._primer
        config: SessionConfig = call.config
        x_duplex: dict[str, Any] = {
            "protocol": PROTOCOL_VERSION,
            "dialect": call.out.dialect.value,
            "model": call.catalogue.model,
            "voice": config.resolved_voice,
            "state": primer.stage.value,
            "epoch": call.out.epoch,
            "frame_ms": int(call.frame_ms),
            "client_duplex": self._handshake.client_duplex,
            "max_session_s": int(call.options.max_session_s),
            "ignored": [*ignored, *(["conversation.history"] if primer.has_trimmed_history else [])],
            "pending": ["instructions"] if primer.is_deferred else [],
        }
        return describe(config, call.out.dialect, session_id=self.session_id, expires_at=self._expires_unix_s, x_duplex=x_duplex)

    def tell_session(self, *, ignored: Sequence[str] = (), cause: str | None = None) -> None:
        """Say session.updated."""
        x_duplex = None if cause is None else {"cause": cause}
        self._call.out.put(SessionUpdated(session=self.describe(ignored), x_duplex=x_duplex))

    # Private: session

    def _update(self, message: SessionUpdate, now: float) -> None:
        if self._delayed or not self._updates.spend(now):
            if len(self._delayed) >= MAX_DELAYED:
                raise EventError("rate_limit_exceeded", f"more than {MAX_DELAYED} session.updates wait", type="rate_limit_error")
            self._delayed.append(message)
            return
        self._apply(message, now)

    def _apply(self, message: SessionUpdate, now: float) -> None:
        out, before = self._call.out, self._call.out.dialect
        if not out.is_settled:
            out.dialect = decide_dialect(before, message.session, self._call.options)
        try:
            ignored = self.configure(message.session, now)
        except EventError as error:
            out.dialect = before
            error.event_id = message.event_id  # of this one, however long it waited
            raise
        out.is_settled = True
        self.tell_session(ignored=ignored)

    def _close(self, now: float) -> None:
        self.is_closing = True
        self._speaker.cut(endings.CLOSED, now)
        self._call.events.append(HangUp())

    # Private: input and items

    def _commit(self, message: InputAudioCommit, now: float) -> None:
        self._listener.commit()
        self._primer.trigger(now)
        if message.response_create and self._speaker.track is None:
            self._open_response(Request(), now)

    def _create_item(self, message: ItemCreate, now: float) -> None:
        call, primer = self._call, self._primer
        item = message.item.kept(ids.new("item"))
        if len(item.model_dump_json()) > call.options.max_item_bytes:
            raise EventError("message_too_large", f"an item holds at most {call.options.max_item_bytes} bytes of text", "item")
        audio = self._buffer.decode(message.item.audio, "item.content")
        primer.check_item(item)
        previous = call.conversation.add(item, message.previous_item_id)
        effect = "none"
        if audio:
            self._listen_to(audio, now)
            primer.trigger(now)
            effect = "input"
        elif item.type == "message" and primer.item_changed(item):
            effect = "persona"
        call.out.put(
            ItemAdded(item=item, previous_item_id=previous, x_duplex={"effect": effect}), ItemDone(item=item, previous_item_id=previous)
        )

    def _listen_to(self, parts: Sequence[bytes], now: float) -> None:
        """Audio inside an item is input like any other, written at once."""
        for data in parts:
            self.hear(self._buffer.take(data, self._call.config.input_format, now), now)

    def _delete_item(self, message: ItemDelete, now: float) -> None:
        item = self._call.conversation.find(message.item_id, "item_delete_invalid_item_id").item
        if self._is_being_said(message.item_id):
            self._speaker.cut(endings.DELETED, now, HoldReason.CLIENT)
        self._call.conversation.remove(message.item_id)
        self._primer.item_changed(item)
        self._call.out.put(ItemDeleted(item_id=message.item_id))

    def _truncate(self, message: ItemTruncate, now: float) -> None:
        entry = self._call.conversation.find(message.item_id, "item_truncate_invalid_item_id")
        if entry.item.role != "assistant":
            raise EventError("item_truncate_invalid_item_id", "only messages of the assistant can be truncated", "item_id")
        marks, asked_ms = entry.marks, message.audio_end_ms
        if marks is None:  # it was never voiced
            self._call.out.put(ItemTruncated(item_id=message.item_id, content_index=message.content_index, audio_end_ms=0))
            return
        if asked_ms > marks.sent_ms and self._call.options.truncate_overrun == "error":
            raise EventError("invalid_value", f"the item has only {marks.sent_ms} ms of audio", "audio_end_ms")
        if self._is_being_said(message.item_id):
            self._speaker.cut(endings.CANCEL, now, HoldReason.CLIENT)
        sealed_ms = marks.truncate(asked_ms, now)
        if sealed_ms < marks.sent_ms:
            entry.item = entry.item.model_copy(update={"status": "incomplete"})
        x_duplex = {
            "requested_ms": asked_ms,
            "generated_ms": marks.generated_ms,
            "sent_ms": marks.sent_ms,
            "transcript": marks.transcript(),
            "effect": "transcript_only",
        }
        self._call.out.put(
            ItemTruncated(item_id=message.item_id, content_index=message.content_index, audio_end_ms=sealed_ms, x_duplex=x_duplex)
        )

    def _acknowledge(self, message: PlaybackAck, now: float) -> None:
        """Late, unknown and lower ones change nothing; that is no error."""
        conversation = self._call.conversation
        item_id = message.item_id or (self._speaker.item_of(message.response_id) if message.response_id else None)
        if item_id is None or item_id not in conversation:
            return
        marks = conversation.find(item_id, "").marks
        if marks is None:
            return
        marks.acknowledge(message.played_ms, message.committed_ms, now)
        if "playback" in self._call.config.duplex.events:
            response_id = message.response_id or self._speaker.response_of(item_id) or ""
            self._call.out.put(
                PlaybackAcknowledged(
                    response_id=response_id, item_id=item_id, played_ms=marks.played_ms, committed_ms=marks.committed_ms
                )
            )

    def _is_being_said(self, item_id: str) -> bool:
        track = self._speaker.track
        return track is not None and track.phase is Phase.OPEN and track.item_id == item_id

    # Private: responses

    def _create_response(self, message: ResponseCreate, now: float) -> None:
        options = message.response
        self._speaker.check_free()
        if options.say is not None:
            raise EventError("unsupported_parameter", "this server does not speak given text", "response.x_duplex.say")
        audio = self._buffer.decode([text for item in options.input for text in item.audio], "response.input")
        unused = list(options.unused)
        if options.voice is not None and not self._is_same_voice(options.voice):
            unused.append("voice")
        texts = {"instructions": [options.instructions or ""], "input": [item.text for item in options.input]}
        for name, lines in texts.items():
            if not any(lines):
                continue
            if self._primer.stage is Stage.IDLE and not options.is_out_of_band:
                self._primer.add_text([line for line in lines if line], f"response.{name}")
            else:
                unused.append(name)
        request = Request(
            metadata=options.metadata,
            max_tokens=options.max_output_tokens,
            has_limit=options.has_output_limit,
            is_text=None if options.output_modalities is None else options.output_modalities == ("text",),
            output_format=options.output_format,
            is_out_of_band=options.is_out_of_band,
            ignored=tuple(unused),
        )
        self._open_response(request, now)
        self._listen_to(audio, now)

    def _is_same_voice(self, name: str) -> bool:
        call = self._call
        try:
            resolved, _ = resolve_voice(name, call.catalogue, call.options)
        except EventError:
            return False
        return resolved == call.config.resolved_voice

    def _open_response(self, request: Request, now: float) -> None:
        self._speaker.create(request, now)
        if not request.is_out_of_band:
            self._primer.trigger(now)

    def _cancel(self, message: ResponseCancel, now: float) -> None:
        track, asked = self._speaker.track, message.response_id
        if track is None and asked is None:
            raise EventError("response_cancel_not_active", "Cancellation failed: no response is active.")
        if track is None or asked not in (None, track.response_id):
            raise EventError("response_cancel_not_active", "Cancellation failed: this response is not active.", "response_id")
        self._speaker.cut(endings.CANCEL, now, HoldReason.CLIENT)

    def _clear_output(self, message: OutputAudioClear, now: float) -> None:
        """Acknowledge with the id of the response that was cut, or of the last one; without any there is nothing to say."""
        track = self._speaker.track
        if track is not None and message.response_id in (None, track.response_id):
            self._speaker.cut(endings.CANCEL, now, HoldReason.CLIENT)
        if self._speaker.last_response_id is not None:
            self._call.out.put(OutputCleared(response_id=self._speaker.last_response_id))
