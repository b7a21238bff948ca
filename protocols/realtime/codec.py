"""The OpenAI Realtime wire of `/v1/realtime`: JSON events in text messages, both dialects. The contract is specs/realtime.md.

This is the connection: what comes in is read and answered in order, what the session tells is given to the parts, and everything that goes
out passes one queue. Client events are carried out by commands.py; the model's speech is speaking.py's, the user's listening.py's, when the
model is primed priming.py's. The rules: a bad event is answered by one `error` and changes nothing; no message of an old epoch is handed
out; nothing is sent after the close. Thread: any, one at a time.

    message                                             direction  legal
    every client event of specs/realtime.md 2.7         C -> S     from session.created to the close
    every server event of 2.8, in the dialect of 2.9    S -> C     session.created first; 3 says in which order
    binary: `{`... is JSON; audio after opting in       C -> S     x_duplex.binary_audio; anything else is an error

Dialects: GA names, or beta ones for clients that ask for them (2.9), never both; the names that Omni's clients use are taken as aliases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from protocols.codec import Close, CodecState, Message
from protocols.errors import CloseCode, ErrorKind, RemoteProtocolError
from protocols.events import (
    AudioOut,
    ClientEvent,
    Ended,
    EndReason,
    Failed,
    HangUp,
    Heard,
    Ready,
    Reserve,
    Reserved,
    ServerEvent,
    TextDelta,
)
from protocols.realtime import ids
from protocols.realtime import response as endings
from protocols.realtime.budget import Budget
from protocols.realtime.call import Call
from protocols.realtime.commands import Commands
from protocols.realtime.conversation import Conversation
from protocols.realtime.detector import SpeechDetector
from protocols.realtime.dialect import Dialect
from protocols.realtime.ext import FrameReport, SessionClosed
from protocols.realtime.fault import EventError
from protocols.realtime.handshake import Handshake
from protocols.realtime.input import InputBuffer
from protocols.realtime.listening import Listener
from protocols.realtime.meter import Count, Meter, Timer
from protocols.realtime.objects import Conversation as ConversationObject
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.outgoing import Outgoing
from protocols.realtime.priming import Primer
from protocols.realtime.segment import SILENCE_DB, OutFrame, rms_db
from protocols.realtime.server_events import ConversationCreated, ErrorEvent, SessionCreated
from protocols.realtime.settings import Catalogue, default_config
from protocols.realtime.speaking import Speaker
from protocols.realtime.timeline import Timeline
from protocols.realtime.wire import parse_message

MAX_MESSAGE_BYTES = 24 * 1024 * 1024  # the transport closes with 1009 beyond ("Hard size limit", 1.7)
ERROR_WINDOW_S = 10.0  # max_protocol_errors in so many seconds
MAX_EARLY_MESSAGES = 10_000  # 200 s of a microphone that sends every 20 ms
SILENT_S = 60.0  # max_connections_idle_s: an upgrade without any message (Appendix A)
RETRY_AFTER_S = 2  # of a full server, "at least 2" (1.6)

# Why a call failed, on this wire: code, type, close code and reason (1.8, 2.11).
_FAILURES: Mapping[ErrorKind, tuple[str, str, CloseCode, str]] = {
    ErrorKind.CAPACITY: ("capacity_exceeded", "server_error", CloseCode.TRY_AGAIN_LATER, "capacity_exceeded"),
    ErrorKind.OVERLOADED: ("capacity_exceeded", "server_error", CloseCode.TRY_AGAIN_LATER, "capacity_exceeded"),
    ErrorKind.LOADING: ("model_loading", "server_error", CloseCode.TRY_AGAIN_LATER, "model_loading"),
    ErrorKind.SHUTDOWN: ("server_draining", "server_error", CloseCode.GOING_AWAY, "server_draining"),
    ErrorKind.IDLE: ("idle_timeout", "invalid_request_error", CloseCode.GOING_AWAY, "idle_timeout"),
    ErrorKind.SLOW_READER: ("output_backpressure", "server_error", CloseCode.INTERNAL, "output_backpressure"),
    ErrorKind.BAD_PARAMETER: ("invalid_value", "invalid_request_error", CloseCode.POLICY, "policy"),
    ErrorKind.INTERNAL: ("server_error", "server_error", CloseCode.INTERNAL, "engine_error"),
}


class RealtimeCodec:
    """One `/v1/realtime` connection."""

    name: ClassVar[str] = "realtime"
    refusal_delay_s: ClassVar[float] = 0.0

    def __init__(
        self,
        handshake: Handshake,
        catalogue: Catalogue,
        options: RealtimeOptions,
        *,
        sample_rate: int,
        frame_samples: int,
        detector: SpeechDetector,
        meter: Meter,
        connected_s: float,
        connected_unix_s: float,
        max_call_s: float,
        initial: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare for one connection.

        Args:
            detector: of this caller alone; closed with the call.
            connected_s, connected_unix_s: now, by the monotonic and by the wall clock.
            max_call_s: longest call in seconds.
            initial: session object that the caller's ephemeral key is bound to.
        """
        self.state = CodecState.OPENING
        self._call = _make_call(handshake, catalogue, options, meter, sample_rate, frame_samples * 1000 / sample_rate)
        self._speaker = Speaker(self._call)
        self._buffer = InputBuffer(self._call)
        self._listener = Listener(self._call, self._buffer, self._speaker, detector)
        self._primer = Primer(self._call, self._speaker)
        self._commands = Commands(
            self._call,
            self._speaker,
            self._listener,
            self._buffer,
            self._primer,
            handshake=handshake,
            expires_unix_s=int(connected_unix_s + min(max_call_s, options.max_session_s)),
            unix_offset_s=connected_unix_s - connected_s,
        )
        self._call.out.is_settled = handshake.dialect is not None
        self._handshake = handshake
        self._initial = initial
        self._early: list[bytes | str] = []  # messages that came before there was a session
        self._early_size = 0
        self._connected_s = self._heard_s = connected_s
        self._has_heard = False
        self._is_ending = False  # the session was asked to end
        self._expires_s = connected_s + min(max_call_s, options.max_session_s)
        self._messages = Budget(options.max_messages_per_s, 1.0)
        self._errors = Budget(options.max_protocol_errors, ERROR_WINDOW_S)
        self._flood_s = -math.inf  # when a flood was last complained about
        self._pcm: NDArray[np.float32] | None = None  # of the step whose Heard has not come yet
        self._text = ""
        self._faults: Counter[str] = Counter()

    @property
    def due_s(self) -> float:
        """When priming begins, a response that was asked for is given up, or the caller has been silent too long."""
        if self._call.events or self._call.out.is_waiting:
            return -math.inf
        if self.state is not CodecState.LIVE:
            return math.inf
        due_s = min(self._primer.due_s, self._speaker.due_s, self._commands.due_s)
        return due_s if self._is_ending else min(due_s, self._idle_s, self._expires_s)

    def connect(self, query: Mapping[str, str]) -> list[ClientEvent]:
        """Ask for a slot; the query was read before the upgrade. `send(Reserved)` comes next."""
        self.state = CodecState.WAITING
        return [Reserve()]

    def receive(self, message: bytes | str, now: float) -> list[ClientEvent]:
        """Take one message: carry it out, or answer it with an `error` event.

        Raises:
            RemoteProtocolError: too many errors.
        """
        if self.state is CodecState.WAITING:
            self._keep(message)
            return []
        if self.state is not CodecState.LIVE or self._commands.is_closing:
            return []
        self._heard_s, self._has_heard = now, True
        try:
            if not self._messages.spend(now):
                self._complain_of_flood(now)
            else:
                self._carry_out(message, now)
        except EventError as error:
            self._refuse(error, now)
        return self._call.take_events()

    def send(self, event: ServerEvent, now: float) -> list[Message]:
        """Give one event of the session to the parts; what comes of it is handed out by `due`."""
        match event:
            case Reserved():
                self._greet(event, now)
            case Ready():
                if self._primer.ready(event, now):
                    self._commands.tell_session(ignored=(), cause="applied")
            case AudioOut() if event.epoch == self._call.session_epoch:
                self._pcm = event.pcm
            case TextDelta() if event.epoch == self._call.session_epoch:
                self._text = event.text
            case AudioOut():
                self._call.meter.count(Count.STALE, "codec")
            case Heard():
                self._step(event, now)
            case Ended():
                self._end(event, now)
            case Failed():
                self._fail(event, now)
        return []

    def due(self, now: float) -> list[Message | ClientEvent]:
        """As Codec.due: events for the session, or the one next message."""
        if self.state is CodecState.LIVE:
            self._listener.judge(now)
            self._primer.expire(now)
            self._speaker.expire(now)
            self._expire_commands(now)
            self._see_whether_anybody_is_there(now)
        if events := self._call.take_events():
            return list(events)
        message = self._call.out.take(now)
        return [] if message is None else [message]

    def faults(self) -> Mapping[str, int]:
        """Messages that were refused, by code."""
        return self._faults

    # Private: coming in

    def _carry_out(self, message: bytes | str, now: float) -> None:
        if isinstance(message, bytes) and message[:1] != b"{":
            if not self._call.config.duplex.binary_audio:
                raise EventError("invalid_value", "binary messages need x_duplex.binary_audio; send JSON events as text")
            self._commands.hear(self._buffer.take(message, self._call.config.input_format, now), now)
            return
        parsed = parse_message(message)
        try:
            self._commands.carry_out(parsed, now)
        except EventError as error:
            error.event_id = parsed.event_id
            raise

    def _keep(self, message: bytes | str) -> None:
        """Keep a message for the session that is not there yet: its session.created comes first."""
        self._early.append(message)
        self._early_size += len(message)
        if self._early_size > MAX_MESSAGE_BYTES or len(self._early) > MAX_EARLY_MESSAGES:
            raise RemoteProtocolError(ErrorKind.TOO_BIG, "too much was sent before the session was created")

    def _expire_commands(self, now: float) -> None:
        try:
            self._commands.expire(now)
        except EventError as error:
            try:
                self._refuse(error, now)
            except RemoteProtocolError as last:
                self._call.events.append(HangUp(kind=last.kind, detail=last.detail))

    def _refuse(self, error: EventError, now: float) -> None:
        """Answer a bad event; end the connection of a client that sends nothing else."""
        self._faults[error.code] += 1
        self._call.meter.count(Count.ERRORS, error.code)
        self._call.out.put(ErrorEvent.of(error))
        if not self._errors.spend(now):
            raise RemoteProtocolError(ErrorKind.BAD_PARAMETER, f"more than {self._call.options.max_protocol_errors} errors in 10 s")

    def _complain_of_flood(self, now: float) -> None:
        """Drop a message over the rate; say so once a second."""
        self._faults["dropped messages"] += 1
        if now - self._flood_s >= 1.0:
            self._flood_s = now
            limit = self._call.options.max_messages_per_s
            message = f"more than {limit} messages in a second; the rest are dropped"
            raise EventError("rate_limit_exceeded", message, type="rate_limit_error")

    # Private: the session

    def _greet(self, event: Reserved, now: float) -> None:
        """Say session.created, the first message; then what the handshake asked for."""
        if self.state is not CodecState.WAITING:
            return
        self.state = CodecState.LIVE
        call, commands = self._call, self._commands
        commands.session_id = f"sess_{event.session_id}"
        fault: EventError | None = None
        for session in (self._initial, {"voice": self._handshake.voice} if self._handshake.voice else None):
            try:
                if session is not None:
                    commands.configure(session, now)
            except EventError as error:
                fault = error
        call.out.put(SessionCreated(session=commands.describe()))
        call.meter.observe(Timer.CREATED, now - self._connected_s)
        if call.out.dialect is Dialect.BETA:
            call.out.put(ConversationCreated(conversation=ConversationObject(id=call.conversation.conversation_id)))
        if fault is not None:
            self._refuse(fault, now)
        self._heard_s = now
        if self._handshake.autostart:
            self._primer.trigger(now)
        early, self._early = self._early, []
        for message in early:
            self._call.events.extend(self.receive(message, now))

    def _step(self, heard: Heard, now: float) -> None:
        """One frame is complete: the model's side first, then the user's of the same step."""
        pcm, text = self._pcm, self._text
        self._pcm, self._text = None, ""
        if self.state is not CodecState.LIVE or self._commands.is_closing:
            return
        self._buffer.hear(heard)
        is_current = heard.epoch == self._call.session_epoch
        if is_current and pcm is None and self._speaker.track is not None:
            # "Socket cannot take the audio": the session dropped a frame that this client did not read in time (3.13)
            self._speaker.cut(endings.BACKPRESSURE, now)
        frame = OutFrame(heard.frame_idx, pcm, text) if pcm is not None and heard.epoch == self._call.session_epoch else None
        self._speaker.push(heard.frame_idx, frame, self._listener.inactive_frames, now)
        self._listener.hear(heard, self._speaker.view, now)
        self._primer.step(self._listener.inactive_frames, now)
        if "frames" in self._call.config.duplex.events:
            self._report(heard, pcm, text)

    def _report(self, heard: Heard, pcm: NDArray[np.float32] | None, text: str) -> None:
        track = self._speaker.track
        level_db = SILENCE_DB if pcm is None else rms_db(pcm)
        report = FrameReport(
            frame=heard.frame_idx,
            epoch=self._call.out.epoch,
            input_ms=self._call.input_ms,
            rms_db=None if level_db <= SILENCE_DB else round(level_db, 1),
            text=text,
            is_user_active=self._listener.is_user_active,
            response_id=None if track is None else track.response_id,
        )
        self._call.out.put(report)

    def _end(self, event: Ended, now: float) -> None:
        if self.state is CodecState.CLOSED:
            return
        if event.reason is EndReason.LIMIT:
            self._speaker.complete(endings.EXPIRED, now)
            fault = EventError("session_expired", "the call has reached its maximum duration")
            self._call.out.put(ErrorEvent.of(fault, {"fatal": True}))
            self._close(CloseCode.GOING_AWAY, "session_expired")
            return
        self._speaker.complete(endings.CLOSED, now)
        if self._commands.is_closing:
            self._call.out.put(SessionClosed(reason="client_close"))
        self._close(CloseCode.NORMAL, "closed")

    def _fail(self, event: Failed, now: float) -> None:
        if self.state is CodecState.CLOSED:
            return
        unlisted = ("invalid_value", "invalid_request_error", event.kind.close_code, event.detail)
        code, kind, close_code, reason = _FAILURES.get(event.kind, unlisted)
        if event.kind is ErrorKind.INTERNAL:
            self._speaker.complete(endings.FAILED, now)
        else:
            self._speaker.complete(endings.CLOSED, now)
        x_duplex: dict[str, Any] = {"fatal": True}
        if close_code is CloseCode.TRY_AGAIN_LATER:
            x_duplex["retry_after_s"] = RETRY_AFTER_S
        detail = "the server failed" if event.kind is ErrorKind.INTERNAL else event.detail
        self._call.out.put(ErrorEvent.of(EventError(code, detail, type=kind), x_duplex))
        self._call.meter.count(Count.ERRORS, code)
        self._close(close_code, reason)

    def _close(self, code: CloseCode, reason: str) -> None:
        self.state = CodecState.CLOSED
        self._listener.close()
        self._call.take_events()
        self._call.out.put(Close(code, reason))

    # Private: time

    @property
    def _idle_s(self) -> float:
        """When a client that says nothing is hung up on."""
        limit_s = min(self._call.config.idle_timeout_s or math.inf, self._call.options.idle_timeout_s)
        return self._heard_s + (limit_s if self._has_heard else min(limit_s, SILENT_S))

    def _see_whether_anybody_is_there(self, now: float) -> None:
        if self.state is not CodecState.LIVE or self._is_ending:
            return
        if now >= self._idle_s:
            self._is_ending = True
            self._call.events.append(HangUp(kind=ErrorKind.IDLE, detail=f"no message for {now - self._heard_s:.0f} s"))
        elif now >= self._expires_s:
            self._is_ending = True
            self._call.events.append(HangUp(reason=EndReason.LIMIT))


def _make_call(handshake: Handshake, catalogue: Catalogue, options: RealtimeOptions, meter: Meter, rate: int, frame_ms: float) -> Call:
    dialect = handshake.dialect or (Dialect.BETA if handshake.is_beta_hinted else Dialect.GA)
    return Call(
        config=default_config(catalogue, options, handshake.model),
        options=options,
        catalogue=catalogue,
        out=Outgoing(dialect, meter),
        timeline=Timeline(rate),
        conversation=Conversation(ids.new("conv"), options.max_items),
        meter=meter,
        frame_ms=frame_ms,
        rate=rate,
    )
