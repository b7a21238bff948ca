from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import CODECS
from protocols.codec import Close, CodecState, Message
from protocols.errors import CloseCode, ErrorKind, LocalProtocolError, RemoteProtocolError
from protocols.events import (
    AudioIn,
    AudioOut,
    BargeIn,
    Cancel,
    ClientEvent,
    Ended,
    EndOfInput,
    EndReason,
    Failed,
    Open,
    Pacing,
    Played,
    Queued,
    Ready,
    Rejected,
    SamplingOptions,
    ServerEvent,
    TextDelta,
    Warned,
)
from protocols.rawpcm import RawPcmCodec
from tests.helpers import tone
from tests.protocols.test_params import BAD_NUMBERS, HOSTILE_VOICES

SAMPLING = SamplingOptions(text_temperature=0.7, text_seed=1)
READY = Ready(session_id="s1", voice_prompt="NATM1.pt", sampling=SAMPLING, model="tiny")
SCRIPT = Open(pacing=Pacing.SCRIPT)


def in_state(state: CodecState) -> RawPcmCodec:
    codec = RawPcmCodec()
    codec.connect({})
    if state is CodecState.ERROR:
        with pytest.raises(LocalProtocolError):
            codec.send(READY, 0.0)
    elif state is not CodecState.OPENING:
        codec.receive('{"type":"open"}', 0.0)
        if state is CodecState.LIVE:
            codec.send(READY, 0.0)
        if state is CodecState.CLOSED:
            codec.send(Ended(reason=EndReason.CALLER), 0.0)
    assert codec.state is state
    return codec


def live() -> RawPcmCodec:
    return in_state(CodecState.LIVE)


def bad(detail: str, kind: ErrorKind = ErrorKind.BAD_REQUEST) -> Rejected:
    return Rejected(kind=kind, detail=detail)


def pcm_of(events: list[ClientEvent]) -> np.ndarray:
    return np.concatenate([np.empty(0, np.float32), *(event.pcm for event in events if isinstance(event, AudioIn))])


# -- CASES: what we send, and what a client reads in it ------------------------------------------------------------------------------

SENT: list[tuple[ServerEvent, dict[str, Any], Close | None]] = [
    (TextDelta(text=" Grüß", frame_idx=7, epoch=1), {"type": "text", "text": " Grüß", "frame": 7}, None),
    (Warned(detail="slow"), {"type": "warning", "warning": "slow"}, None),
    (bad("no"), {"type": "error", "error": "no", "code": "bad_request"}, None),
    (Ended(reason=EndReason.FINISHED), {"type": "done", "reason": "finished"}, Close(CloseCode.NORMAL, "finished")),
    (Ended(reason=EndReason.LIMIT, detail="60 s"), {"type": "done", "reason": "limit"}, Close(CloseCode.NORMAL, "60 s")),
    (
        Failed(kind=ErrorKind.CAPACITY, detail="full"),
        {"type": "error", "error": "full", "code": "capacity"},
        Close(CloseCode.TRY_AGAIN_LATER, "full"),
    ),
    (
        Failed(kind=ErrorKind.INTERNAL, detail="/secret"),
        {"type": "error", "error": "internal error", "code": "internal"},
        Close(CloseCode.INTERNAL, "internal error"),
    ),
]


@pytest.mark.parametrize(("event", "body", "close"), SENT)
def test_server_events_are_worded(event: ServerEvent, body: dict[str, Any], close: Close | None) -> None:
    message, *rest = live().send(event, 0.0)
    assert isinstance(message, str)
    assert json.loads(message) == body
    assert rest == ([] if close is None else [close])


def test_queued_and_ready_are_worded() -> None:
    codec = in_state(CodecState.WAITING)
    (queued,) = codec.send(Queued(position=2), 0.0)
    assert json.loads(str(queued)) == {"type": "queued", "position": 2}
    (ready,) = codec.send(READY, 0.0)
    body = json.loads(str(ready))
    sampling = body.pop("sampling")
    assert (sampling["text_temperature"], sampling["text_seed"]) == (0.7, 1)
    assert body == {
        "type": "ready", "session_id": "s1", "sample_rate": 24_000, "frame_samples": 1920, "voice": "NATM1.pt", "model": "tiny",
    }  # fmt: skip
    assert codec.state is CodecState.LIVE


# -- CASES: what we accept -----------------------------------------------------------------------------------------------------------

RECEIVED: list[tuple[CodecState, str, list[ClientEvent]]] = [
    (CodecState.OPENING, '{"type":"open"}', [SCRIPT]),
    (CodecState.OPENING, '{"type":"open","voice":null,"colour":1}', [SCRIPT]),
    (
        CodecState.OPENING,
        '{"type":"open","voice_prompt":"A","text_prompt":"P","pacing":"live","max_frames":9,"sample_rate":24000}',
        [Open(voice_prompt="A", persona="P", pacing=Pacing.LIVE, max_frames=9)],
    ),
    (
        CodecState.OPENING,
        '{"type":"open","text_temperature":0,"text_topk":0,"seed":5,"audio_seed":-1,"pad_mult":1.5,"max_steps":3}',
        [
            Open(
                sampling=SamplingOptions(text_temperature=0, text_topk=1, text_seed=5, audio_seed=None, pad_mult=1.5),
                pacing=Pacing.SCRIPT,
                max_frames=3,
            )
        ],
    ),
    (CodecState.OPENING, '{"type":"close"}', [SCRIPT, EndOfInput()]),
    (CodecState.OPENING, '{"type":"barge_in"}', [bad("barge_in came before open")]),
    (CodecState.WAITING, '{"type":"open"}', [bad("session already open")]),
    (CodecState.LIVE, '{"type":"open","voice":"../x"}', [bad("session already open")]),
    (CodecState.LIVE, '{"type":"close"}', [EndOfInput()]),
    (CodecState.LIVE, '{"type":"barge_in"}', [BargeIn()]),
    (CodecState.LIVE, '{"type":"cancel"}', [Cancel(steer_frames=0)]),
    (CodecState.LIVE, '{"type":"cancel","frames":5}', [Cancel(steer_frames=5)]),
    (CodecState.LIVE, '{"type":"cancel","frames":-5}', [bad("frames: Input should be greater than or equal to 0")]),
    (CodecState.LIVE, '{"type":"played","ms":80}', [Played(played_ms=80)]),
    (CodecState.LIVE, '{"type":"played"}', [bad("ms: Field required")]),
    (CodecState.LIVE, '{"type":"played","ms":"80"}', [bad("ms: Input should be a valid integer")]),
    (CodecState.LIVE, '{"type":"played","ms":true}', [bad("ms: Input should be a valid integer")]),
    (CodecState.LIVE, '{"type":"played","ms":1e300}', [bad("ms: Input should be a valid integer")]),
    (CodecState.LIVE, '{"type":"dance"}', []),
    (CodecState.LIVE, "", [bad("the message is not JSON")]),
    (CodecState.LIVE, '{"type":"close"', [bad("the message is not JSON")]),
    (CodecState.LIVE, "[" * 100_000, [bad("the message is not JSON")]),
    (CodecState.LIVE, "[]", [bad('the message must be an object with a string "type"')]),
    (CodecState.LIVE, '{"type":1}', [bad('the message must be an object with a string "type"')]),
    (CodecState.CLOSED, '{"type":"close"}', []),
    (CodecState.ERROR, '{"type":"close"}', []),
]


@pytest.mark.parametrize(("state", "message", "events"), RECEIVED, ids=lambda value: value[:40] if isinstance(value, str) else None)
def test_client_messages_are_understood(state: CodecState, message: str, events: list[ClientEvent]) -> None:
    assert in_state(state).receive(message, 0.0) == events


@pytest.mark.parametrize(
    ("fields", "names"),
    [({"voice": voice}, "voice") for voice in HOSTILE_VOICES]
    + [
        ({"voice": 3}, "voice"),
        ({"persona": []}, "persona"),
        ({"persona": "x" * 4001}, "persona"),
        ({"pacing": "fast"}, "pacing"),
        ({"sample_rate": 16_000}, "sample_rate"),
        ({"text_temperature": "0.7"}, "text_temperature"),
        ({"text_temperature": True}, "text_temperature"),
        ({"text_temperature": float("nan")}, "text_temperature"),
        ({"audio_temperature": -1}, "audio_temperature"),
        ({"text_topk": 1.5}, "text_topk"),
        ({"seed": -2}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**400}, "seed"),  # no float can hold it
        ({"repetition_penalty_context": 10**400}, "repetition_penalty_context"),
        ({"max_frames": 0}, "max_frames"),
    ],
)
def test_an_open_that_cannot_be_honoured_ends_in_an_error_and_1008(fields: dict[str, Any], names: str) -> None:
    codec = in_state(CodecState.OPENING)
    with pytest.raises(RemoteProtocolError, match=names) as caught:
        codec.receive(json.dumps({"type": "open", **fields}), 0.0)
    assert codec.state is CodecState.ERROR
    error, close = codec.send(Failed(kind=caught.value.kind, detail=caught.value.detail), 0.0)
    assert json.loads(str(error)) == {"type": "error", "error": caught.value.detail, "code": "bad_parameter"}
    assert isinstance(close, Close)
    assert close.code == CloseCode.POLICY


@pytest.mark.parametrize(
    "query",
    [{"voice": voice} for voice in HOSTILE_VOICES]
    + [{"pad_mult": number} for number in BAD_NUMBERS]
    + [{"pacing": "fast"}, {"max_steps": "0"}, {"audio_seed": "-7"}],
)
def test_a_bad_query_is_refused_at_once(query: dict[str, str]) -> None:
    codec = RawPcmCodec()
    with pytest.raises(RemoteProtocolError) as caught:
        codec.connect(query)
    assert caught.value.kind is ErrorKind.BAD_PARAMETER
    assert codec.state is CodecState.ERROR


def test_the_query_gives_defaults_that_open_overrides_field_by_field() -> None:
    codec = RawPcmCodec()
    query = {"voice_prompt": "A", "persona": "P", "text_seed": "1", "audio_seed": "2", "audio_topk": "9", "pacing": "live"}
    assert codec.connect({**query, "max_frames": "7"}) == []
    (event,) = codec.receive('{"type":"open","voice":"B","seed":5}', 0.0)
    assert event == Open(
        voice_prompt="B",
        persona="P",
        sampling=SamplingOptions(text_seed=5, audio_seed=5, audio_topk=9),
        pacing=Pacing.LIVE,
        max_frames=7,
    )


def test_the_codec_is_registered() -> None:
    assert CODECS["rawpcm"] is RawPcmCodec


# -- States --------------------------------------------------------------------------------------------------------------------------

ANY_EVENT: list[ServerEvent] = [
    Queued(position=1), READY, AudioOut(pcm=tone(4), frame_idx=0, epoch=1), TextDelta(text="x", frame_idx=0, epoch=1),
    Warned(detail="w"), bad("r"), Ended(reason=EndReason.FINISHED), Failed(kind=ErrorKind.IDLE, detail="f"),
]  # fmt: skip
LEGAL = {
    CodecState.OPENING: {Rejected, Failed},
    CodecState.WAITING: {Queued, Ready, Warned, Rejected, Ended, Failed},
    CodecState.LIVE: {AudioOut, TextDelta, Warned, Rejected, Ended, Failed},
    CodecState.CLOSED: set(),
    CodecState.ERROR: {Failed},
}


@pytest.mark.parametrize("state", list(CodecState))
@pytest.mark.parametrize("event", ANY_EVENT, ids=lambda event: type(event).__name__)
def test_every_state_and_event_is_legal_or_ends_in_error(state: CodecState, event: ServerEvent) -> None:
    codec = in_state(state)
    if type(event) in LEGAL[state]:
        messages: list[Message] = codec.send(event, 0.0)
        ends = type(event) in (Ended, Failed)
        assert (codec.state is CodecState.CLOSED) == ends
        assert isinstance(messages[-1], Close) == ends
    else:
        with pytest.raises(LocalProtocolError, match=type(event).__name__):
            codec.send(event, 0.0)
        assert codec.state is CodecState.ERROR


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from(["voice", "persona", "seed", "text_topk", "pad_mult", "pacing", "max_frames", "frames", "ms", "sample_rate"])
_CONTROL = st.builds(
    lambda kind, fields: json.dumps({**fields, "type": kind}),
    st.sampled_from(["open", "close", "cancel", "played", "barge_in", "x"]),
    st.dictionaries(_FIELDS, _JSON, max_size=3),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=40), st.text(max_size=20), _JSON.map(json.dumps), _CONTROL), max_size=6))
def test_arbitrary_messages_raise_remote_protocol_error_or_nothing(messages: list[bytes | str]) -> None:
    codec = in_state(CodecState.OPENING)
    for message in messages:
        try:
            codec.receive(message, 0.0)
        except RemoteProtocolError:
            assert codec.state is CodecState.ERROR
