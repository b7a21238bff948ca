from __future__ import annotations

import math
from urllib.parse import parse_qsl

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
    Ended,
    EndReason,
    Failed,
    Open,
    Pacing,
    Queued,
    Ready,
    Rejected,
    SamplingOptions,
    ServerEvent,
    TextDelta,
    Warned,
)
from protocols.moshi import MoshiCodec
from tests.helpers import FRAME, RATE, CodecPair, MoshiClient, capture, make_page, parse_ogg, rms, tone
from tests.protocols.test_params import BAD_NUMBERS, HOSTILE_VOICES

SAMPLING = SamplingOptions(
    text_temperature=0.7, text_topk=25, audio_temperature=0.8, audio_topk=250, text_seed=1, audio_seed=2, pad_mult=0.0,
    repetition_penalty=1.0, repetition_penalty_context=64,
)  # fmt: skip
READY = Ready(session_id="s1", voice_prompt="NATF0.pt", sampling=SAMPLING, model="tiny")
WEB_QUERY = (
    "text_temperature=0.7&text_topk=25&audio_temperature=0.8&audio_topk=250&pad_mult=0&text_seed=482113&audio_seed=90211"
    "&repetition_penalty_context=64&repetition_penalty=1&text_prompt=You+enjoy+having+a+good+conversation.&voice_prompt=NATF0.pt"
)


def audio_out(pcm: np.ndarray, frame_idx: int = 0) -> AudioOut:
    return AudioOut(pcm=pcm, frame_idx=frame_idx, epoch=1)


def text(text: str) -> TextDelta:
    return TextDelta(text=text, frame_idx=0, epoch=1)


def live() -> MoshiCodec:
    codec = MoshiCodec()
    codec.connect({})
    codec.send(READY, 0.0)
    return codec


def in_state(state: CodecState) -> MoshiCodec:
    codec = MoshiCodec()
    if state is CodecState.OPENING:
        return codec
    codec.connect({})
    if state is CodecState.LIVE:
        codec.send(READY, 0.0)
    if state is CodecState.CLOSED:
        codec.send(Ended(reason=EndReason.CALLER), 0.0)
    if state is CodecState.ERROR:
        with pytest.raises(LocalProtocolError):
            codec.send(audio_out(tone(FRAME)), 0.0)
    assert codec.state is state
    return codec


# -- CASES: one table, run both ways -------------------------------------------------------------------------------------------------

CASES: list[tuple[ServerEvent, list[Message]]] = [
    (text(" Hello"), [bytes.fromhex("022048656c6c6f")]),  # V10
    (text(" world"), [bytes.fromhex("0220776f726c64")]),
    (text("é"), [bytes.fromhex("02c3a9")]),
    (text("…"), [bytes.fromhex("02e280a6")]),
    (text(""), []),
    (Warned(detail="server busy"), [bytes.fromhex("057365727665722062757379")]),  # V11
    (Rejected(kind=ErrorKind.BAD_REQUEST, detail="no"), [b"\x05no"]),
    (Ended(reason=EndReason.LIMIT), [Close(CloseCode.NORMAL, "the length limit of the call was reached")]),
    (Ended(reason=EndReason.CALLER, detail="bye"), [Close(CloseCode.NORMAL, "bye")]),
    (Failed(kind=ErrorKind.CAPACITY, detail="full"), [b"\x05full", b"\x02 [full]", Close(CloseCode.TRY_AGAIN_LATER, "full")]),
    (Failed(kind=ErrorKind.SHUTDOWN, detail="bye"), [b"\x05bye", b"\x02 [bye]", Close(CloseCode.GOING_AWAY, "bye")]),
    (
        Failed(kind=ErrorKind.INTERNAL, detail="/secret: CUDA"),
        [b"\x05internal error", b"\x02 [internal error]", Close(CloseCode.INTERNAL, "internal error")],
    ),
]


@pytest.mark.parametrize(("event", "messages"), CASES)
def test_server_events_are_worded_and_understood_by_a_client(event: ServerEvent, messages: list[Message]) -> None:
    assert live().send(event, 0.0) == messages
    client = MoshiClient()
    client.take(messages)
    match event:
        case TextDelta():
            assert client.text == event.text
        case Warned() | Rejected():
            assert client.errors == [event.detail]
        case Ended():
            assert client.close is not None
            assert client.close.code == 1000
        case Failed():
            assert client.close is not None
            assert client.close.code == event.kind.close_code
            assert client.errors == [client.close.reason]


@pytest.mark.parametrize(
    "message",
    [
        b"", b"\x00", bytes(9), b"\x01", b"\x02hi", b"\x030", bytes.fromhex("0300"), bytes.fromhex("0301"), bytes.fromhex("0302"),
        bytes.fromhex("0303"), b"\x04{}", b"\x05x", b"\x06", b"\x07\x01x", b"\x08", b"\x09", bytes.fromhex("ff00"), "hi", "",
    ],
)  # fmt: skip
@pytest.mark.parametrize("state", list(CodecState))
def test_v12_everything_but_audio_is_ignored_in_every_state(message: bytes | str, state: CodecState) -> None:
    codec = in_state(state)
    assert codec.receive(message, 0.0) == []
    assert codec.state is state


# -- Opening -------------------------------------------------------------------------------------------------------------------------


def test_the_codec_is_registered() -> None:
    assert CODECS["moshi"] is MoshiCodec


def test_no_query_opens_with_the_defaults() -> None:
    codec = MoshiCodec()
    assert codec.connect({}) == [Open(pacing=Pacing.LIVE)]
    assert codec.state is CodecState.WAITING


def test_the_web_client_s_query_is_honoured_to_the_last_parameter() -> None:
    (event,) = MoshiCodec().connect(dict(parse_qsl(WEB_QUERY)))
    assert event == Open(
        voice_prompt="NATF0.pt",
        persona="You enjoy having a good conversation.",
        sampling=SamplingOptions(
            text_temperature=0.7, text_topk=25, audio_temperature=0.8, audio_topk=250, pad_mult=0.0, text_seed=482113,
            audio_seed=90211, repetition_penalty_context=64, repetition_penalty=1.0,
        ),
        pacing=Pacing.LIVE,
    )  # fmt: skip


def test_max_steps_bounds_the_call_and_unknown_parameters_are_ignored() -> None:
    ignored = {"email": "a@b", "worker_auth_id": "7", "image_url": "x", "image_resolution": "y", "foo": "nan", "auth_id": ""}
    assert MoshiCodec().connect({"max_steps": "100", **ignored}) == [Open(max_frames=100)]


@pytest.mark.parametrize(
    "query",
    [{"voice_prompt": voice} for voice in HOSTILE_VOICES]
    + [{"text_topk": number} for number in BAD_NUMBERS]
    + [{"text_prompt": "x" * 4001}, {"max_steps": "0"}, {"seed": "-2"}, {"pad_mult": "1e9"}],
)
def test_a_bad_parameter_ends_in_05_and_1008_never_1006(query: dict[str, str]) -> None:
    codec = MoshiCodec()
    with pytest.raises(RemoteProtocolError) as caught:
        codec.connect(query)
    assert codec.state is CodecState.ERROR
    client = MoshiClient()
    client.take(codec.send(Failed(kind=caught.value.kind, detail=caught.value.detail), 0.0))
    assert client.close == Close(CloseCode.POLICY, caught.value.detail)
    assert client.errors == [caught.value.detail]
    assert codec.state is CodecState.CLOSED


def test_v1_ready_is_metadata_then_one_single_byte_handshake() -> None:
    codec = MoshiCodec()
    codec.connect({})
    messages = codec.send(READY, 0.0)
    assert messages[1:] == [b"\x00"]
    assert codec.state is CodecState.LIVE
    client = MoshiClient()
    client.take(messages)
    (metadata,) = client.metadata
    numbers = {
        "text_temperature": 0.7, "text_topk": 25, "audio_temperature": 0.8, "audio_topk": 250, "pad_mult": 0.0,
        "repetition_penalty_context": 64, "repetition_penalty": 1.0,
    }  # fmt: skip
    assert {name: metadata[name] for name in numbers} == numbers
    assert all(isinstance(metadata[name], str) for name in ("lm_model_file", "mimi_model_file", "instance_name"))
    assert sorted(metadata["build_info"]) == [
        "build_date", "build_timestamp", "cargo_target_triple", "git_branch", "git_date", "git_describe", "git_hash", "git_timestamp",
        "rustc_host_triple", "rustc_version",
    ]  # fmt: skip
    assert all(isinstance(value, str) for value in metadata["build_info"].values())
    assert (metadata["text_seed"], metadata["audio_seed"], metadata["voice_prompt"]) == (1, 2, "NATF0.pt")
    with pytest.raises(LocalProtocolError):
        codec.send(READY, 0.0)  # "exactly one 00 per connection"


def test_nothing_is_sent_while_queued() -> None:
    codec = in_state(CodecState.WAITING)
    assert codec.send(Queued(position=3), 0.0) == []
    assert codec.due(1000.0) == []


# -- A conversation ------------------------------------------------------------------------------------------------------------------


def test_a_client_and_the_codec_hold_a_conversation() -> None:
    pair = CodecPair(MoshiCodec(), MoshiClient())
    user, assistant = tone(FRAME * 6, hz=300), tone(FRAME * 6, hz=500)
    pair.say(user[:FRAME])  # before the handshake, as the Python client does: headers and stale audio in one message
    pair.send(READY)
    for index in range(1, 6):
        at = slice(index * FRAME, (index + 1) * FRAME)
        pair.say(user[at])
        pair.send(audio_out(assistant[at], index), text(f" {index}"))
    pair.send(Ended(reason=EndReason.LIMIT))
    assert pair.heard_pcm.size == FRAME * 6
    assert rms(pair.heard_pcm[FRAME * 2 :]) == pytest.approx(rms(user), rel=0.05)
    assert pair.client.pcm.size == FRAME * 5
    assert rms(pair.client.pcm[FRAME:]) == pytest.approx(rms(assistant), rel=0.05)
    assert (pair.client.text, pair.client.handshakes, len(pair.client.metadata)) == (" 1 2 3 4 5", 1, 1)
    assert [page.sequence for page in parse_ogg(pair.client.ogg)] == list(range(12))


def test_audio_before_ready_is_the_session_s_to_drop_and_to_count() -> None:
    codec = in_state(CodecState.WAITING)
    assert codec.receive(capture("web_opus_head"), 0.0) == codec.receive(capture("web_opus_tags"), 0.0) == []
    for _ in range(2):
        (event,) = codec.receive(capture("web_audio_40ms"), 0.0)
        assert isinstance(event, AudioIn)
        assert event.pcm.size == 960
        if codec.state is CodecState.WAITING:
            codec.send(READY, 0.0)


def test_nothing_of_libopus_is_made_before_it_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("protocols.opus.load_libopus", None)
    codec = MoshiCodec()
    codec.connect({})
    codec.send(READY, 0.0)
    assert codec.faults() == {}
    with pytest.raises(TypeError):
        codec.receive(capture("web_audio_40ms"), 0.0)
    with pytest.raises(TypeError):
        codec.send(audio_out(tone(FRAME)), 0.0)


def test_what_could_not_be_used_is_told_by_name() -> None:
    codec = live()
    codec.receive(capture("web_audio_40ms"), 0.0)
    assert codec.faults() == {}
    codec.receive(b"\x01" + make_page([b"\xff" * 200]), 1.0)
    codec.receive(b"\x01" + b"?" * 30, 1.0)
    codec.receive(b"\x01" + capture("web_audio_40ms")[1:] * 60, 1.0)  # 2.4 s in packets of 20 ms
    assert codec.faults() == {"errors": 1, "dropped packets": 20, "discarded bytes": 30}


def test_one_message_per_frame_and_none_for_less_than_a_packet() -> None:
    codec = live()
    assert codec.send(audio_out(tone(100)), 0.0) == []
    (message,) = codec.send(audio_out(tone(FRAME)), 0.0)
    assert isinstance(message, bytes)
    assert message[:5] == b"\x01OggS"


@pytest.mark.parametrize("name", ["hostile_zero_length_packet", "web_eos_zero_segments", "sphn0112_opus_head"])
def test_a_message_that_decodes_to_nothing_is_no_event(name: str) -> None:
    assert live().receive(capture(name), 0.0) == []


def test_captures_split_at_every_byte_and_glued() -> None:
    whole = b"".join(capture(name)[1:] for name in ("web_opus_head", "web_opus_tags", "web_audio_40ms"))
    for cut in range(len(whole) + 1):
        codec = live()
        events = codec.receive(b"\x01" + whole[:cut], 0.0) + codec.receive(b"\x01" + whole[cut:], 0.0)
        assert [event.pcm.size for event in events if isinstance(event, AudioIn)] == [960]


def test_garbage_beyond_the_budget_ends_in_05_and_1007() -> None:
    codec = live()
    for _ in range(50):
        assert codec.receive(b"\x01" + make_page([b"\xff" * 200]), 1.0) == []
    with pytest.raises(RemoteProtocolError) as caught:
        codec.receive(b"\x01" + make_page([b"\xff" * 200]), 1.0)
    assert codec.state is CodecState.ERROR
    assert codec.receive(capture("web_audio_40ms"), 1.0) == []
    client = MoshiClient()
    client.take(codec.send(Failed(kind=caught.value.kind, detail=caught.value.detail), 1.0))
    assert client.close is not None
    assert client.close.code == CloseCode.INVALID_DATA


def test_opus_settings_reach_the_writer() -> None:
    noise = np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    sizes = []
    for bitrate in (12_000, 64_000):
        codec = MoshiCodec(opus_complexity=0, opus_bitrate=bitrate)
        codec.connect({})
        codec.send(READY, 0.0)
        sizes.append(sum(len(message) for message in codec.send(audio_out(noise), 0.0)))
    assert sizes[0] * 2 < sizes[1]


# -- States and timers ---------------------------------------------------------------------------------------------------------------

ANY_EVENT: list[ServerEvent] = [
    Queued(position=1), READY, audio_out(tone(FRAME)), text("x"), Warned(detail="w"), Rejected(kind=ErrorKind.BAD_REQUEST, detail="r"),
    Ended(reason=EndReason.FINISHED), Failed(kind=ErrorKind.IDLE, detail="f"),
]  # fmt: skip
LEGAL = {
    CodecState.OPENING: {Failed},
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
        messages = codec.send(event, 0.0)
        ends = type(event) in (Ended, Failed)
        assert (codec.state is CodecState.CLOSED) == ends
        assert any(isinstance(message, Close) for message in messages) == ends
    else:
        with pytest.raises(LocalProtocolError, match=type(event).__name__):
            codec.send(event, 0.0)
        assert codec.state is CodecState.ERROR


def test_a_ping_is_due_4_s_after_the_last_message() -> None:
    codec = in_state(CodecState.WAITING)
    assert codec.due_s == math.inf
    codec.send(READY, 100.0)
    assert codec.due_s == 104.0
    assert codec.due(103.9) == []
    assert codec.due(104.0) == [b"\x06"]
    assert codec.due(107.9) == []
    codec.send(text("x"), 107.9)
    codec.send(text(""), 111.0)  # nothing was sent here
    assert codec.due(111.8) == []
    assert codec.due(111.9) == [b"\x06"]
    codec.send(Ended(reason=EndReason.CALLER), 112.0)
    assert (codec.due_s, codec.due(1000.0)) == (math.inf, [])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=60), st.text(max_size=5), st.binary(max_size=60).map(lambda b: b"\x01" + make_page([b])))))
def test_arbitrary_messages_raise_remote_protocol_error_or_nothing(messages: list[bytes | str]) -> None:
    codec = live()
    for message in messages:
        try:
            assert all(isinstance(event, AudioIn) for event in codec.receive(message, 0.0))
        except RemoteProtocolError:
            assert codec.state is CodecState.ERROR


@given(st.text(min_size=1, max_size=50))
def test_text_round_trips(words: str) -> None:
    client = MoshiClient()
    client.take(live().send(text(words), 0.0))
    assert client.text == words
