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
from tests.helpers import FRAME, tone
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


# -- Audio ---------------------------------------------------------------------------------------------------------------------------


def test_v14_the_raw_endpoint_s_conversation() -> None:
    codec = RawPcmCodec()
    assert codec.connect({}) == []
    heard = codec.receive('{"type":"open","voice":"NATM1.pt","persona":"You enjoy having a good conversation."}', 0.0)
    assert heard == [Open(voice_prompt="NATM1.pt", persona="You enjoy having a good conversation.", pacing=Pacing.SCRIPT)]
    (ready,) = codec.send(READY, 0.0)
    assert str(ready).startswith('{"type": "ready"')
    (audio,) = codec.receive(bytes(7680), 0.0)
    assert isinstance(audio, AudioIn)
    assert audio.pcm.size == FRAME
    assert codec.send(AudioOut(pcm=np.zeros(FRAME, np.float32), frame_idx=0, epoch=1), 0.0) == [bytes(7680)]
    assert codec.receive('{"type":"close"}', 0.0) == [EndOfInput()]
    done, close = codec.send(Ended(reason=EndReason.FINISHED), 0.0)
    assert str(done).startswith('{"type": "done"')
    assert close == Close(CloseCode.NORMAL, "finished")
    assert codec.state is CodecState.CLOSED


def test_pcm_before_open_opens_with_the_defaults() -> None:
    codec = RawPcmCodec()
    codec.connect({"voice": "A"})
    pcm = tone(100)
    opening, audio = codec.receive(pcm.tobytes(), 0.0)
    assert opening == Open(voice_prompt="A", pacing=Pacing.SCRIPT)
    assert isinstance(audio, AudioIn)
    np.testing.assert_array_equal(audio.pcm, pcm)
    assert codec.receive('{"type":"open"}', 0.0) == [bad("session already open")]


def test_a_script_s_audio_is_kept_from_the_first_sample_and_a_person_s_from_ready() -> None:
    script, person = in_state(CodecState.WAITING), RawPcmCodec()
    assert pcm_of(script.receive(bytes(400), 0.0)).size == 100
    person.connect({"pacing": "live"})
    assert person.receive(bytes(400), 0.0) == [Open(pacing=Pacing.LIVE)]
    assert person.dropped_samples == 100
    person.send(READY, 0.0)
    assert pcm_of(person.receive(bytes(400), 0.0)).size == 100


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7679, 7681])
def test_bytes_that_are_no_samples_are_refused_and_the_alignment_stays(size: int) -> None:
    codec = live()
    (rejected,) = codec.receive(bytes(size), 0.0)
    assert isinstance(rejected, Rejected)
    assert rejected.kind is ErrorKind.BAD_AUDIO
    np.testing.assert_array_equal(pcm_of(codec.receive(tone(50).tobytes(), 0.0)), tone(50))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_samples_that_are_not_finite_are_refused_and_never_reach_the_model(value: float) -> None:
    codec = live()
    pcm = tone(50)
    pcm[7] = value
    (rejected,) = codec.receive(pcm.tobytes(), 0.0)
    assert isinstance(rejected, Rejected)
    assert "finite" in rejected.detail
    assert pcm_of(codec.receive(tone(50).tobytes(), 0.0)).size == 50


def test_a_refused_first_message_opens_nothing() -> None:
    codec = in_state(CodecState.OPENING)
    assert isinstance(codec.receive(b"abc", 0.0)[0], Rejected)
    assert codec.state is CodecState.OPENING
    assert codec.receive('{"type":"open"}', 0.0) == [SCRIPT]


def test_an_implausible_level_is_clipped_with_one_warning() -> None:
    codec = live()
    loud = np.array([30_000, -30_000, 0.5], np.float32)
    for _ in range(3):
        assert pcm_of(codec.receive(loud.tobytes(), 0.0)).tolist() == [1, -1, 0.5]
    (warning,) = codec.keep_alive(0.0)
    assert json.loads(str(warning))["type"] == "warning"
    assert codec.keep_alive(0.0) == []


def test_a_little_too_loud_is_clipped_in_silence() -> None:
    codec = live()
    assert pcm_of(codec.receive(np.array([1.2, -4.0], np.float32).tobytes(), 0.0)).tolist() == [1, -1]
    assert codec.keep_alive(0.0) == []


def test_a_waiting_warning_goes_before_the_next_message_and_not_after_the_end() -> None:
    loud = np.full(4, 100, np.float32).tobytes()
    codec = live()
    codec.receive(loud, 0.0)
    warning, text = codec.send(TextDelta(text="x", frame_idx=0, epoch=1), 0.0)
    assert [json.loads(str(message))["type"] for message in (warning, text)] == ["warning", "text"]
    ended = live()
    ended.receive(loud, 0.0)
    ended.state = CodecState.CLOSED
    assert ended.keep_alive(0.0) == []


def test_an_empty_binary_message_is_nothing() -> None:
    codec = in_state(CodecState.OPENING)
    assert codec.receive(b"", 0.0) == []
    assert codec.state is CodecState.OPENING


def test_nothing_but_control_comes_after_close() -> None:
    codec = live()
    codec.receive('{"type":"close"}', 0.0)
    assert codec.receive(bytes(4), 0.0) == [bad("audio came after close")]
    assert codec.receive('{"type":"close"}', 0.0) == []
    assert codec.receive('{"type":"played","ms":5}', 0.0) == [Played(played_ms=5)]
    assert codec.receive(bytes(4), 0.0) == [bad("audio came after close")]


def test_a_trimmed_last_frame_and_a_strided_one_are_sent_as_they_are() -> None:
    codec = live()
    pcm = tone(200)[::2]
    (message,) = codec.send(AudioOut(pcm=pcm, frame_idx=0, epoch=1), 0.0)
    assert isinstance(message, bytes)
    np.testing.assert_array_equal(np.frombuffer(message, "<f4"), pcm)


@given(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=50))
def test_pcm_round_trips_bit_by_bit(samples: list[float]) -> None:
    pcm = np.array(samples, np.float32)
    (message,) = live().send(AudioOut(pcm=pcm, frame_idx=0, epoch=1), 0.0)
    np.testing.assert_array_equal(pcm_of(live().receive(message, 0.0)), pcm)  # type: ignore[arg-type]


@given(st.lists(st.integers(0, 30), max_size=8))
def test_any_chunking_of_pcm_gives_the_same_samples(sizes: list[int]) -> None:
    pcm, codec, heard, at = tone(sum(sizes)), live(), [], 0
    for size in sizes:
        heard += codec.receive(pcm[at : at + size].tobytes(), 0.0)
        at += size
    np.testing.assert_array_equal(pcm_of(heard), pcm)


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
