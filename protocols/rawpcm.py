"""The raw PCM wire of `/v1/audio/duplex`: JSON control in text messages, float32 PCM in binary ones. For scripts and tools.

A superset of what vllm-omni 0.28.0 spoke (specs/moshi-protocol.md section 11). The rule: a message that cannot be taken is refused whole
and the call goes on; only an `open` that cannot be honoured ends it, for nobody wants a call with another voice than the one asked for.
Thread: any, one at a time.

Wire. Samples are mono, little-endian, at the server's rate (24 kHz). Query parameters of the URL are defaults for `open`.

    message                                                direction  legal
    {"type":"open", voice, persona, pacing, max_frames,    C -> S     once, first; all fields optional; sampling fields as on /api/chat:
     sample_rate, <sampling fields>}                                  text_temperature, text_topk, audio_..., seed, text_seed, ...
    binary float32, any number of samples                  C -> S     from the first message (opens with the defaults) to close
    {"type":"close"}                                       C -> S     once: the tail is padded and answered, then done
    {"type":"barge_in"}                                    C -> S     open; what is not yet played is thrown away
    {"type":"cancel","frames":n}                           C -> S     open; barge_in, and the model is kept silent for n frames
    {"type":"played","ms":n}                               C -> S     open; what the listener has heard: milliseconds of the audio that
                                                                      was sent to this client, since its first sample
    {"type":"queued","position":n}                         S -> C     before ready
    {"type":"ready", session_id, sample_rate,              S -> C     once
     frame_samples, voice, model, sampling}
    binary float32                                         S -> C     after ready: one frame for each frame consumed
    {"type":"text","text":s,"frame":i}                     S -> C     after the audio of frame i
    {"type":"warning","warning":s}                         S -> C     any time
    {"type":"error","error":s,"code":kind}                 S -> C     any time; the call goes on unless a close follows
    {"type":"done","reason":s}                             S -> C     last, then close 1000

Dialects (source: vllm-project/vllm-omni 0.28.0, its single-call and its batched server).

    point              who differs                                     accepted                  sent
    field names        omni: voice, persona; ours also voice_prompt,   both                      voice
                       text_prompt
    PCM before open    single: opens; batched: ignored                 opens                     -
    second open        single: opens again; batched: error             error, the call goes on   session already open
    pacing             batched: drops after 25 frames                  "script" (default: nothing dropped, the socket waits), "live"
    tail at close      single: answered; batched: lost                 answered                  output as long as input
    unknown type, key  ignored                                         ignored                   -
    bad JSON, length   dropped connection                              error, the call goes on   -
    NaN, infinity      fed to the model                                error, the message is refused (the spec would zero them; BR-048)
    beyond [-1, 1]     fed to the model                                clipped; one warning beyond 4: int16 read as float, or no scaling
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pydantic
import pydantic_core

from protocols import params
from protocols.audio import FRAME_SAMPLES, SAMPLE_RATE
from protocols.codec import Close, CodecState, Message, check_legal, ending_in_error
from protocols.errors import CloseCode, ErrorKind
from protocols.events import (
    AudioIn,
    AudioOut,
    BargeIn,
    Cancel,
    ClientEvent,
    Ended,
    EndOfInput,
    Failed,
    Open,
    Pacing,
    Played,
    Queued,
    Ready,
    Rejected,
    ServerEvent,
    TextDelta,
    Warned,
)

MAX_MESSAGE_BYTES = 4 * 1024 * 1024  # 43 s of audio; larger is refused with 1009
IMPLAUSIBLE_LEVEL = 4.0  # 12 dB over full scale: no microphone and no resampler gets there

_SAMPLE_BYTES = 4
_LEGAL: Mapping[CodecState, tuple[type, ...]] = {
    CodecState.OPENING: (Rejected, Failed),
    CodecState.WAITING: (Queued, Ready, Warned, Rejected, Ended, Failed),
    CodecState.LIVE: (AudioOut, TextDelta, Warned, Rejected, Ended, Failed),
    CodecState.ERROR: (Failed,),  # the wording of what `connect` or `receive` raised
    CodecState.CLOSED: (),
}

_Count = Annotated[int, pydantic.Field(ge=0, lt=2**53)]


class _Wire(pydantic.BaseModel):
    # "Unknown keys ignored" (11); strict, so that true is no number and "3" is none either
    model_config = pydantic.ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class _OpenMessage(_Wire):
    voice: str | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices("voice", "voice_prompt"))
    persona: str | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices("persona", "text_prompt"))
    pacing: Literal["script", "live"] | None = None
    sample_rate: int | None = None
    text_temperature: float | None = None
    text_topk: int | None = None
    audio_temperature: float | None = None
    audio_topk: int | None = None
    pad_mult: float | None = None
    repetition_penalty: float | None = None
    repetition_penalty_context: int | None = None
    seed: int | None = None
    text_seed: int | None = None
    audio_seed: int | None = None
    max_frames: int | None = pydantic.Field(None, validation_alias=pydantic.AliasChoices("max_frames", "max_steps"))


class _CancelMessage(_Wire):
    frames: _Count = 0


class _PlayedMessage(_Wire):
    ms: _Count


class RawPcmCodec:
    """One `/v1/audio/duplex` connection."""

    name: ClassVar[str] = "rawpcm"
    refusal_delay_s: ClassVar[float] = 0.0

    def __init__(self, *, sample_rate: int = SAMPLE_RATE, frame_samples: int = FRAME_SAMPLES) -> None:
        self.state = CodecState.OPENING
        self._sample_rate = sample_rate
        self._frame_samples = frame_samples
        self._defaults: dict[str, Any] = {}  # fields of _OpenMessage from the query
        self._has_ended_input = False
        self._has_warned_of_level = False
        self._notices: list[Message] = []  # warnings that `receive` found; the next `due` or `send` takes them along

    def connect(self, query: Mapping[str, str]) -> list[ClientEvent]:
        """Take the query of the upgrade request as defaults; never returns an event. `receive` comes next.

        Raises:
            RemoteProtocolError: BAD_PARAMETER; word it with `send(Failed(...))`.
        """
        with ending_in_error(self):
            fields: dict[str, Any] = dict(params.query_numbers(query))
            for name in ("voice", "voice_prompt", "persona", "text_prompt", "pacing"):
                if name in query:
                    fields[name] = query[name]
            self._defaults = _open_fields(fields)
            self._opening({})  # a bad value is found now, not at the first sample
        return []

    def receive(self, message: bytes | str, now: float) -> list[ClientEvent]:
        """Take one WebSocket message.

        Raises:
            RemoteProtocolError: BAD_PARAMETER, an `open` that cannot be honoured; word it with `send(Failed(...))`.
        """
        if self.state in (CodecState.CLOSED, CodecState.ERROR):
            return []
        with ending_in_error(self):
            return self._receive_control(message) if isinstance(message, str) else self._receive_audio(message)

    def send(self, event: ServerEvent, now: float) -> list[Message]:
        """Word one event. `Failed` is legal in every state but CLOSED, and is the only one that is in ERROR.

        Raises:
            LocalProtocolError: the event is illegal in this state.
        """
        check_legal(self, event, _LEGAL)
        return self._take_notices() + self._word(event)

    @property
    def due_s(self) -> float:
        """Never: this wire needs no pings of its own, and `due` is called after every `receive`."""
        return math.inf

    def due(self, now: float) -> list[Message | ClientEvent]:
        """Return the warnings that `receive` found."""
        return [] if self.state in (CodecState.CLOSED, CodecState.ERROR) else [*self._take_notices()]

    def faults(self) -> Mapping[str, int]:
        """Nothing: what this wire cannot use it refuses, and the caller is told."""
        return {}

    # -- Private methods for receiving -----------------------------------------------------------------------------------------------

    def _receive_audio(self, message: bytes) -> list[ClientEvent]:
        if not message:
            return []
        if self._has_ended_input:
            return [_rejected("audio came after close")]
        if len(message) % _SAMPLE_BYTES:
            return [Rejected(kind=ErrorKind.BAD_AUDIO, detail=f"{len(message)} bytes are no whole number of float32 samples")]
        pcm = np.frombuffer(message, "<f4").astype(np.float32, copy=False)
        peak = max(float(pcm.max()), -float(pcm.min()))  # NaN and infinity show in both; abs would copy 4 MiB first
        if not np.isfinite(peak):
            return [Rejected(kind=ErrorKind.BAD_AUDIO, detail="the audio has samples that are not finite numbers")]
        if peak > 1.0:
            pcm = np.clip(pcm, -1.0, 1.0)
        if peak > IMPLAUSIBLE_LEVEL and not self._has_warned_of_level:
            self._has_warned_of_level = True
            text = "the level is far beyond [-1, 1] and was clipped: samples must be float32, not int16"
            self._notices.append(_json(type="warning", warning=text))
        events: list[ClientEvent] = [] if self.state is not CodecState.OPENING else [self._open({})]
        return [*events, AudioIn(pcm=pcm)]

    def _receive_control(self, message: str) -> list[ClientEvent]:
        try:
            body = pydantic_core.from_json(message)
        except ValueError:
            return [_rejected("the message is not JSON")]
        if not isinstance(body, dict) or not isinstance(body.get("type"), str):
            return [_rejected('the message must be an object with a string "type"')]
        kind = body["type"]
        if kind == "open":
            return [_rejected("session already open")] if self.state is not CodecState.OPENING else [self._open(body)]
        if kind == "close":
            return self._close()
        if kind not in ("barge_in", "cancel", "played"):
            return []
        if self.state is CodecState.OPENING:
            return [_rejected(f"{kind} came before open")]
        try:
            return [_control_event(kind, body)]
        except pydantic.ValidationError as exc:
            return [_rejected(_first_error(exc))]

    def _open(self, body: Mapping[str, Any]) -> Open:
        event = self._opening(_open_fields(body))
        self.state = CodecState.WAITING
        return event

    def _opening(self, fields: Mapping[str, Any]) -> Open:
        """Make the Open of these fields over those of the query."""
        merged = {**self._defaults, **fields}
        sample_rate = merged.get("sample_rate", self._sample_rate)
        if sample_rate != self._sample_rate:
            raise params.refusal(f"sample_rate must be {self._sample_rate}, not {sample_rate}")
        # Seeds are resolved before the merge: a seed in `open` beats a text_seed in the query.
        sampling = {**params.sampling_fields(self._defaults), **params.sampling_fields(fields)}
        return Open(
            voice_prompt=params.voice_name(merged.get("voice")),
            persona=params.persona_text(merged.get("persona")),
            sampling=params.sampling_options(sampling),
            pacing=Pacing(merged.get("pacing", Pacing.SCRIPT.value)),
            max_frames=params.max_frames(merged),
        )

    def _close(self) -> list[ClientEvent]:
        if self._has_ended_input:
            return []
        self._has_ended_input = True
        events: list[ClientEvent] = [] if self.state is not CodecState.OPENING else [self._open({})]
        return [*events, EndOfInput()]

    # -- Private methods for sending -------------------------------------------------------------------------------------------------

    def _take_notices(self) -> list[Message]:
        notices, self._notices = self._notices, []
        return notices

    def _word(self, event: ServerEvent) -> list[Message]:
        match event:
            case AudioOut():
                return [event.pcm.astype("<f4", copy=False).tobytes()]
            case TextDelta():
                return [_json(type="text", text=event.text, frame=event.frame_idx)]
            case Queued():
                return [_json(type="queued", position=event.position)]
            case Ready():
                self.state = CodecState.LIVE
                return [self._ready(event)]
            case Warned():
                return [_json(type="warning", warning=event.detail)]
            case Rejected():
                return [_json(type="error", error=event.detail, code=event.kind.value)]
            case Ended():
                self.state = CodecState.CLOSED
                return [_json(type="done", reason=event.reason.value), Close(CloseCode.NORMAL, event.detail or event.reason.value)]
            case _:
                assert isinstance(event, Failed)  # nothing else is in _LEGAL
                self.state = CodecState.CLOSED
                detail = "internal error" if event.kind is ErrorKind.INTERNAL else event.detail
                return [_json(type="error", error=detail, code=event.kind.value), Close(event.kind.close_code, detail)]

    def _ready(self, event: Ready) -> str:
        return _json(
            type="ready",
            session_id=event.session_id,
            sample_rate=self._sample_rate,
            frame_samples=self._frame_samples,
            voice=event.voice_prompt,
            model=event.model,
            sampling=dataclasses.asdict(event.sampling),
        )


def _open_fields(body: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return _OpenMessage.model_validate(body).model_dump(exclude_none=True)
    except pydantic.ValidationError as exc:
        raise params.refusal(_first_error(exc)) from None


def _control_event(kind: str, body: Mapping[str, Any]) -> ClientEvent:
    if kind == "barge_in":
        return BargeIn()
    if kind == "cancel":
        return Cancel(steer_frames=_CancelMessage.model_validate(body).frames)
    return Played(played_ms=_PlayedMessage.model_validate(body).ms)


def _rejected(detail: str) -> Rejected:
    return Rejected(kind=ErrorKind.BAD_REQUEST, detail=detail)


def _first_error(exc: pydantic.ValidationError) -> str:
    error = exc.errors(include_url=False, include_input=False)[0]
    return f"{error['loc'][0]}: {error['msg']}"


def _json(**fields: object) -> str:
    return json.dumps(fields, ensure_ascii=False)
