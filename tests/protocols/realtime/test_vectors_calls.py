"""Test vectors about speech, turns and what was heard (specs/realtime.md section 6): V10-V15, V18, V20, V21, V31-V36, V42-V46."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from protocols.events import Cancel, Open, Reprime
from protocols.realtime.audio import InputConverter
from protocols.realtime.formats import AudioFormat
from protocols.realtime.meter import Count
from tests.protocols.realtime.rig import FRAME, Rig, audio_of, b64, hears, s16, tone
from tests.protocols.realtime.vectors import Player

VAD_OFF = {"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}}


def live(query: str = "", *, update: Mapping[str, Any] | None = None, **fields: Any) -> Rig:
    """A call whose clock runs, the client silent; nothing that was sent so far is kept."""
    rig = Rig(query, **fields)
    if update is not None:
        rig.client({"type": "session.update", "session": {"type": "realtime", **update}})
    rig.client({"type": "input_audio_buffer.append", "audio": b64(bytes(2 * FRAME))})
    rig.until_live()
    rig.take()
    return rig


def speaking(query: str = "", *, frames: int = 6, last: int = 400, **fields: Any) -> tuple[Rig, str, str]:
    """A call in which the model speaks (440 Hz); its response and item."""
    rig = live(query, **fields)
    rig.says(2, last, f2=" Well,", f10=" this", f15=" takes", f20=" long.")
    rig.frames(2 + frames)
    created = next(m for m in rig.sent if m["type"] == "response.output_item.added")
    return rig, created["response_id"], created["item"]["id"]


def send_ms(rig: Rig, item_id: str, ms: int) -> None:
    """Let the response end when so much of the item was sent."""
    num_sent = sum(m["type"].endswith("audio.delta") for m in rig.sent)
    rig.frames(ms // 80 - num_sent)
    rig.client({"type": "response.cancel"})
    rig.take()


def test_v10_model_turn() -> None:
    rig = live(options={"trim_leading_space": False})
    rig.says(5, 20, f5=" Hel", f6="lo")
    rig.is_silent_from(5)
    rig.says(6, 20, f5=" Hel", f6="lo")
    rig.frames(35)
    player = Player(rig, "V10")
    player.play()
    assert rig.sent == []
    deltas = [m for m in player.matched if m["type"] == "response.output_audio.delta"]
    assert len(deltas) == 28
    assert {len(base64.b64decode(m["delta"])) for m in deltas} == {3840}


def test_v11_beta_names_only() -> None:
    rig = Rig(headers={"OpenAI-Beta": "realtime=v1"})
    rig.client({"type": "input_audio_buffer.append", "audio": b64(bytes(2 * FRAME))})
    rig.until_live()
    rig.take()
    rig.says(6, 20, f5=" Hel", f6="lo")
    rig.frames(35)
    seen: set[str] = set()
    repeated = [m for m in rig.sent if m["type"] == "response.audio.delta"]
    assert len(repeated) == 28
    # "Repeated audio deltas left out": one goes before each transcript delta of the vector
    kept = []
    for message in rig.sent:
        if message["type"] == "response.audio.delta" and "response.audio.delta" in seen:
            continue
        if message["type"] == "response.audio_transcript.delta" and "response.audio_transcript.delta" in seen:
            continue
        seen.add(message["type"])
        kept.append(message)
    kept = [m | ({"delta": "Hel"} if m["type"] == "response.audio_transcript.delta" else {}) for m in kept]
    transcript = "".join(m["delta"] for m in rig.sent if m["type"] == "response.audio_transcript.delta")
    assert transcript == "Hello"
    rig.sent = kept
    Player(rig, "V11").play()
    assert rig.sent == []


def test_v12_user_turn() -> None:
    rig = live()
    rig.run(0.5)
    written = 80
    rig.talk(0.2, None)
    rig.talk(1.6)
    rig.talk(1.2, None)
    player = Player(rig, "V12")
    started, stopped = rig.sent[0], rig.sent[1]
    assert started["audio_start_ms"] == pytest.approx(max(0, written + 200 - 300), abs=80)
    rig.sent[0] = started | {"audio_start_ms": 0}
    player.play()
    assert rig.sent == []
    assert stopped["audio_end_ms"] == pytest.approx(written + 1800, abs=80)


def test_v13_backchannel() -> None:
    rig, *_ = speaking()
    rig.take()
    rig.talk(0.3)
    rig.talk(1.5, None)
    assert set(rig.types()) <= {"response.output_audio.delta", "response.output_audio_transcript.delta"}


def test_v14_barge_in() -> None:
    rig, response_id, item_id = speaking()
    rig.take()
    first = rig.frame_idx
    rig.talk(1.3)
    cut = rig.types().index("input_audio_buffer.speech_started")
    before, rig.sent = rig.sent[:cut], rig.sent[cut:]
    assert {m["type"] for m in before} <= {"response.output_audio.delta", "response.output_audio_transcript.delta"}
    assert first + 12 <= len(before) + first + 2
    rig.sent = [m for m in rig.sent if m["type"] != "rate_limits.updated"]
    rig.is_silent_from(rig.frame_idx)
    rig.talk(1.0, None)
    later = rig.sent[7:]
    rig.sent = rig.sent[:7]
    Player(rig, "V14").bind(r1=response_id, a1=item_id).play()
    assert not [m for m in later if m.get("response_id") == response_id]
    assert not hears(audio_of(later), 440)
    assert [event.steer_frames for event in rig.pushed if isinstance(event, Cancel)] == [25]


def test_v15_interrupt_response_false() -> None:
    detection = {"type": "semantic_vad", "interrupt_response": False}
    rig, response_id, item_id = speaking(update={"audio": {"input": {"turn_detection": detection}}}, frames=24)
    rig.take()
    rig.talk(1.3)
    rig.sent = rig.sent[rig.types().index("input_audio_buffer.speech_started") :]
    Player(rig, "V15").bind(r1=response_id, a1=item_id).play()


def test_v18_model_stays_silent() -> None:
    rig = live()
    rig.client({"type": "response.create"})
    created = rig.take()[0]
    asked_s = rig.now
    Player(rig, "V18").bind(r1=created["response"]["id"]).play(wait_s=6)
    assert rig.now - asked_s == pytest.approx(4.0, abs=0.05)


def test_v20_truncate_overrun_is_clamped() -> None:
    rig, _, item_id = speaking()
    send_ms(rig, item_id, 2000)
    Player(rig, "V20").bind(a1=item_id).play()


def test_v21_truncate_twice_and_retrieve() -> None:
    rig = live()
    rig.says(2, 100, f2="one", f7=" two", f12=" three")  # frame 2 is at 160 ms of the item: two preroll frames come first
    rig.frames(30)
    item_id = next(m for m in rig.sent if m["type"] == "response.output_item.added")["item"]["id"]
    rig.client({"type": "response.cancel"})
    rig.take()
    Player(rig, "V21").bind(a1=item_id).play()


def test_v31_voice_change_after_audio() -> None:
    rig, *_ = speaking()
    rig.take()
    Player(rig, "V31").play()


def test_v32_instructions_change_after_audio() -> None:
    rig, response_id, _ = speaking(last=30)
    rig.take()

    def response_ends() -> None:
        rig.run(4.0)
        done = rig.types().index("response.done")
        assert rig.sent[done]["response"] | {"id": response_id, "status": "completed"} == rig.sent[done]["response"]
        rig.sent = rig.sent[done + 2 :]

    Player(rig, "V32").play(at_comment=response_ends)
    assert [event.persona for event in rig.pushed if isinstance(event, Reprime)] == ["You are Bob.\nYou said: Well, this takes long."]
    assert rig.sent == []


def test_v33_max_output_tokens() -> None:
    rig, response_id, item_id = speaking(update={"max_output_tokens": 20}, frames=40)
    done = rig.types().index("response.done")
    assert len([m for m in rig.sent[:done] if m["type"] == "response.output_audio.delta"]) in (17, 18)
    usage = rig.sent[done]["response"]["usage"]
    assert usage["output_tokens"] == 20
    rig.sent = rig.sent[done:]
    Player(rig, "V33").bind(r1=response_id, a1=item_id).play()
    assert rig.types() == ["rate_limits.updated"], "the model is held silent"


def test_v34_g711() -> None:
    rig = Rig()
    rig.take()
    Player(rig, "V34").play()
    for _ in range(10):
        rig.client({"type": "input_audio_buffer.append", "audio": b64(b"\xff" * 160)})
        rig.run(0.02)
    rig.until_live()
    rig.says(2, 40, f2="Hello")
    rig.frames(30)
    deltas = [base64.b64decode(m["delta"]) for m in rig.sent if m["type"] == "response.output_audio.delta"]
    assert deltas
    assert {len(delta) for delta in deltas} == {640}
    pcm = InputConverter(AudioFormat("pcmu", 8000), 8000).push(b"".join(deltas[4:]))
    spectrum = np.abs(np.fft.rfft(pcm * np.hanning(pcm.size), 8 * pcm.size))
    assert np.argmax(spectrum) * 8000 / (8 * pcm.size) == pytest.approx(440, abs=2)


def test_v35_text_only() -> None:
    rig = Rig()
    rig.take()
    rig.client({"type": "input_audio_buffer.append", "audio": b64(bytes(2 * FRAME))})
    rig.says(6, 20, f5=" Hel", f6="lo")

    def speak() -> None:
        rig.until_live()
        rig.frames(40)

    player = Player(rig, "V35")
    rig.client({"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"]}})
    player._lines = player._lines[1:]
    speak()
    player.play()
    assert rig.types() == ["rate_limits.updated"]


def test_v36_playback_acknowledgement() -> None:
    rig, response_id, item_id = speaking(update={"x_duplex": {"events": ["playback"], "playback": "ack"}})
    send_ms(rig, item_id, 2000)
    Player(rig, "V36").bind(r1=response_id, a1=item_id).play()
    assert rig.sent == []


def test_v42_replay_is_not_heard_twice() -> None:
    rng = np.random.default_rng(0)
    frames = [(0.1 * rng.standard_normal(FRAME)).astype(np.float32) for _ in range(51)]
    rig = Rig()
    rig.client(VAD_OFF)
    for frame in frames[:50]:
        rig.append(frame)
        rig.run(0.08)
    while len(rig.heard) < 50:
        rig.run(0.08)
    rig.client({"type": "input_audio_buffer.clear"})
    rig.append(np.concatenate(frames[44:50]))
    rig.append(frames[50])
    rig.frames(3)
    assert len(rig.heard) == 51
    np.testing.assert_allclose(rig.heard[50], frames[50], atol=1e-4)
    assert rig.meters.counts[Count.INPUT_MS, "suppressed"] == 480
    rig.take()
    rig.client({"type": "input_audio_buffer.commit"})
    assert rig.types()[0] == "input_audio_buffer.committed"


def test_v43_late_persona() -> None:
    rig = live()
    rig.talk(0.6, None)
    rig.client({"type": "session.update", "session": {"type": "realtime", "instructions": "You are Ada."}})
    rig.run(1.0)
    assert [event.persona for event in rig.pushed if isinstance(event, Open)] == [None]
    assert [(event.persona, event.replay_frames) for event in rig.pushed if isinstance(event, Reprime)] == [("You are Ada.", 25)]
    assert rig.types() == ["session.updated"]


def test_v44_cancel_and_create_in_one_packet() -> None:
    rig, response_id, item_id = speaking()
    rig.take()
    Player(rig, "V44").bind(r1=response_id, a1=item_id).play()
    assert "error" not in rig.types()


def test_v45_truncate_before_the_first_audio() -> None:
    rig = live(update={"x_duplex": {"pacing": {"lead_ms": 400}}})
    rig.says(2, 100, f2="one")
    rig.frames(4)
    assert "response.output_audio.delta" not in rig.types()
    item_id = next(m for m in rig.sent if m["type"] == "response.output_item.added")["item"]["id"]
    rig.take()
    Player(rig, "V45").bind(a1=item_id).play()
    assert "error" not in rig.types()


def test_v46_one_append_with_a_whole_utterance() -> None:
    rig = live(update={"audio": {"input": {"turn_detection": {"type": "server_vad"}}}})
    rig.run(0.5)
    pcm = np.concatenate([np.zeros(4608, np.float32), tone(300, 7680), np.zeros(11712, np.float32)])
    rig.client({"type": "input_audio_buffer.append", "audio": b64(s16(pcm))})
    rig.run(2.5)
    Player(rig, "V46").play()
