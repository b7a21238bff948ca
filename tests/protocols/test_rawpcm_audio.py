"""Binary messages of the raw PCM wire, and the conversation of vector V14."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.codec import Close, CodecState
from protocols.errors import CloseCode, ErrorKind
from protocols.events import AudioIn, AudioOut, Ended, EndOfInput, EndReason, Open, Pacing, Played, Rejected, TextDelta
from protocols.rawpcm import RawPcmCodec
from tests.helpers import FRAME, tone
from tests.protocols.test_rawpcm import READY, SCRIPT, bad, in_state, live, pcm_of

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


@pytest.mark.parametrize("pacing", list(Pacing))
def test_audio_before_ready_is_handed_on_whatever_the_pacing(pacing: Pacing) -> None:
    codec = RawPcmCodec()
    codec.connect({"pacing": pacing.value})
    opening, audio = codec.receive(bytes(400), 0.0)
    assert opening == Open(pacing=pacing)
    assert pcm_of([audio]).size == 100
    assert codec.state is CodecState.WAITING
    assert pcm_of(codec.receive(bytes(800), 0.0)).size == 200
    assert codec.faults() == {}


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
    assert codec.due_s == math.inf  # every receive is followed by due
    (warning,) = codec.due(0.0)
    assert json.loads(str(warning))["type"] == "warning"
    assert codec.due(0.0) == []


def test_a_little_too_loud_is_clipped_in_silence() -> None:
    codec = live()
    assert pcm_of(codec.receive(np.array([1.2, -4.0], np.float32).tobytes(), 0.0)).tolist() == [1, -1]
    assert codec.due(0.0) == []


def test_a_waiting_warning_goes_before_the_next_message_and_not_after_the_end() -> None:
    loud = np.full(4, 100, np.float32).tobytes()
    codec = live()
    codec.receive(loud, 0.0)
    warning, text = codec.send(TextDelta(text="x", frame_idx=0, epoch=1), 0.0)
    assert [json.loads(str(message))["type"] for message in (warning, text)] == ["warning", "text"]
    ended = live()
    ended.receive(loud, 0.0)
    ended.state = CodecState.CLOSED
    assert ended.due(0.0) == []


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
