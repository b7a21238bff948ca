"""What the Realtime wire promises beyond its test vectors: arming, holding, gating, parking, limits and ends (specs/realtime.md 3, 4)."""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar

import numpy as np
import pytest

from protocols.codec import CodecState
from protocols.errors import CloseCode, ErrorKind, RemoteProtocolError
from protocols.events import (
    AudioIn,
    AudioOut,
    Cancel,
    ClearInput,
    Clock,
    Ended,
    EndReason,
    Failed,
    HangUp,
    Open,
    Reprime,
    Reserved,
    RunClock,
    Steer,
)
from protocols.realtime.hold import FOR_EVER
from protocols.realtime.meter import Count, Timer
from protocols.realtime.priming import Stage
from tests.protocols.realtime.rig import CAPACITY, EXPIRED, FRAME, LevelDetector, Rig, audio_of, b64, hears, s16, tone
from tests.protocols.realtime.test_vectors_calls import live, speaking

SECOND = {"type": "input_audio_buffer.append", "audio": b64(bytes(48_000))}


def update(**session: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"type": "realtime", **session}}


def of(rig: Rig, kind: type) -> list[Any]:
    return [event for event in rig.pushed if isinstance(event, kind)]


class TestArming:
    """4.1: a slot is reserved at once, the model is primed when there is a reason."""

    def test_nothing_is_computed_for_a_client_that_says_nothing(self) -> None:
        rig = Rig()
        rig.run(5)
        assert of(rig, Open) == []

    @pytest.mark.parametrize(("persona", "wait_s"), [("", 0.15), ("You are Ada.", 0.05)])
    def test_priming_waits_for_the_last_update_and_less_for_a_persona(self, persona: str, wait_s: float) -> None:
        rig = Rig()
        rig.client(update(instructions=persona), SECOND)
        rig.run(wait_s - 0.02)
        assert of(rig, Open) == []
        rig.run(0.03)
        (opened,) = of(rig, Open)
        assert opened.clock is Clock.REALTIME
        assert (opened.persona, opened.voice_prompt) == (persona, "NATF2")

    def test_updates_without_end_do_not_keep_it_from_starting(self) -> None:
        rig = Rig()
        rig.client(SECOND)
        for _ in range(5):
            rig.client(update())
            rig.run(0.1)
        assert len(of(rig, Open)) == 1

    def test_audio_that_came_before_is_heard(self) -> None:
        rig = Rig()
        rig.append(tone(300, 2 * FRAME))
        rig.run(0.3)
        kinds = [type(event) for event in rig.pushed]
        assert kinds.index(AudioIn) > kinds.index(Open)
        assert sum(event.pcm.size for event in of(rig, AudioIn)) == 2 * FRAME

    def test_what_was_cleared_before_is_not(self) -> None:
        rig = Rig()
        rig.append(tone(300, 2 * FRAME))
        rig.client({"type": "input_audio_buffer.clear"})
        rig.run(0.3)
        assert of(rig, AudioIn) == []

    def test_autostart_needs_no_audio(self) -> None:
        rig = Rig("autostart=1")
        rig.run(0.5)
        assert len(of(rig, Open)) == 1

    def test_history_and_system_items_become_the_persona(self) -> None:
        rig = Rig()
        for role, kind, text in (("user", "input_text", "hi"), ("assistant", "output_text", "hello"), ("system", "input_text", "be brief")):
            item = {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}
            rig.client({"type": "conversation.item.create", "item": item})
        assert {m["x_duplex"]["effect"] for m in rig.sent if m["type"] == "conversation.item.added"} == {"persona"}
        rig.client(update(instructions="You are Ada."), SECOND)
        rig.until_live()
        assert of(rig, Open)[0].persona == "You are Ada.\nbe brief\nUser: hi\nYou said: hello"

    def test_history_that_does_not_fit_loses_its_oldest_turns(self) -> None:
        rig = Rig(options={"max_persona_tokens": 8})
        for i in range(6):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"turn number{i}"}]}
            rig.client({"type": "conversation.item.create", "item": item})
        rig.client(update(instructions="You are Ada."), SECOND)
        rig.until_live()
        assert of(rig, Open)[0].persona == "You are Ada.\nUser: turn number5"
        rig.take()
        rig.client(update())
        assert rig.sent[0]["session"]["x_duplex"]["ignored"] == ["conversation.history"]

    def test_a_persona_in_the_third_update_is_the_one_that_speaks(self) -> None:
        rig = Rig(prime_s=0.3)
        rig.client(update(), SECOND)
        rig.run(0.2)  # priming has begun without it
        rig.client(update(instructions="You are Ada."))
        rig.client(update(tools=[]))
        rig.until_live()
        rig.run(0.5)
        rig.until_live()
        assert [event.persona for event in of(rig, Open)] == [None]
        assert [event.persona for event in of(rig, Reprime)] == ["You are Ada."]


class TestHolding:
    """4.7: a model that was stopped stays silent for a while."""

    def test_barge_in_steers_until_the_user_is_done(self) -> None:
        rig, *_ = speaking()
        rig.is_silent_from(40)
        rig.talk(1.1)
        assert rig.steer > 0
        rig.talk(0.5, None)
        assert rig.steer == 0
        assert of(rig, Steer)[-1].frames == 0

    def test_client_cancel_holds_until_the_user_has_had_a_turn(self) -> None:
        rig, *_ = speaking()
        rig.client({"type": "response.cancel"})
        rig.take()
        rig.run(0.5)
        assert rig.types() == []
        rig.talk(0.3)
        rig.talk(0.7, None)
        assert "response.created" in rig.types()

    def test_a_word_gap_is_not_the_end_of_the_user_s_turn(self) -> None:
        rig, *_ = speaking()
        rig.talk(0.4)
        rig.client({"type": "response.cancel"})
        rig.take()
        rig.talk(0.3)
        rig.talk(0.16, None)
        rig.talk(0.3)
        assert "response.created" not in rig.types()

    def test_client_cancel_holds_two_seconds_at_most(self) -> None:
        rig, *_ = speaking()
        rig.client({"type": "response.cancel"})
        rig.take()
        cancelled_s = rig.now
        while "response.created" not in rig.types():
            rig.run(0.05)
        assert rig.now - cancelled_s == pytest.approx(2.1, abs=0.2)

    def test_response_create_ends_a_hold(self) -> None:
        rig, *_ = speaking()
        rig.client({"type": "response.cancel"}, {"type": "response.create"})
        rig.take()
        rig.run(0.3)
        assert "response.output_item.added" in rig.types()

    def test_a_reached_token_limit_holds_until_the_user_speaks(self) -> None:
        rig, *_ = speaking(update={"max_output_tokens": 10}, frames=20)
        rig.take()
        rig.run(5)
        assert rig.types() == []
        rig.talk(0.4)
        rig.talk(1.0, None)
        assert "response.created" in rig.types()


class TestWaiting:
    """Before the session: whatever a caller in the queue sends is kept, and session.created comes first."""

    def test_messages_that_came_early_are_answered_after_session_created(self) -> None:
        rig = Rig(is_full=True)
        rig.client(update(instructions="You are Ada."), SECOND)
        rig.run(70)
        assert rig.types() == []
        assert rig.codec.due_s == math.inf
        rig._tell(Reserved(session_id="s1"))
        rig.run(0.5)
        assert rig.types() == ["session.created", "session.updated"]
        assert rig.closed is None
        assert of(rig, Open)[0].persona == "You are Ada."

    def test_not_without_end(self) -> None:
        rig = Rig(is_full=True)
        rig.client(*([json.dumps(SECOND)] * 300))
        with pytest.raises(RemoteProtocolError):
            rig.client(*([json.dumps(SECOND)] * 200))


class TestPrompt:
    """4.1, 4.10: what the model is primed with."""

    @pytest.mark.parametrize("kind", ["item", "response"])
    def test_system_text_that_does_not_fit_is_refused_and_the_call_goes_on(self, kind: str) -> None:
        rig = Rig(options={"max_persona_tokens": 20})
        text = "word " * 30
        item = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": text}]}
        if kind == "item":
            rig.client({"type": "conversation.item.create", "item": item})
        else:
            rig.client({"type": "response.create", "response": {"instructions": text}})
        assert rig.types()[1:] == ["error"]
        assert rig.sent[1]["error"]["code"] == "string_above_max_length"
        rig.client(SECOND)
        rig.until_live()
        assert of(rig, Open)[0].persona is None

    def test_a_long_history_is_counted_once(self) -> None:
        counted: list[str] = []

        def rows(voice: str | None, persona: str) -> int:
            counted.append(persona)
            return 77 + len(persona.split())

        rig = Rig(prompt_rows=rows)
        for i in range(300):
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": f"{i} " + "word " * 50}]}
            rig.client({"type": "conversation.item.create", "item": item})
            rig.run(0.01)
        counted.clear()
        rig.client(SECOND)
        rig.until_live()
        assert len(counted) < 200

    def test_system_text_outlives_a_change_of_persona(self) -> None:
        rig = Rig()
        item = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "ACCOUNT 17"}]}
        rig.client({"type": "conversation.item.create", "item": item}, SECOND)
        rig.until_live()
        rig.says(2, 10, f2=" hi")
        rig.run(3)
        rig.client(update(instructions="You are Bob."))
        rig.run(2)
        assert of(rig, Reprime)[0].persona == "You are Bob.\nACCOUNT 17\nYou said: hi"

    def test_text_items_of_a_live_call_are_stored_without_effect(self) -> None:
        rig = live()
        item = {"type": "message", "role": "system", "content": [{"type": "input_text", "text": "be brief"}]}
        rig.client({"type": "conversation.item.create", "item": item})
        assert rig.sent[0]["x_duplex"]["effect"] == "none"
        rig.run(1)
        assert of(rig, Reprime) == []

    def test_sampling_is_fixed_once_the_model_is_primed(self) -> None:
        rig = live(update={"x_duplex": {"sampling": {"seed": 5}}})
        assert of(rig, Open)[0].sampling.text_seed == 5
        rig.client(update(x_duplex={"sampling": {"seed": 6}}))
        assert rig.sent[0]["session"]["x_duplex"]["ignored"] == ["x_duplex.sampling"]
        rig.run(1)
        assert of(rig, Reprime) == []

    def test_an_out_of_band_request_leaves_no_trace(self) -> None:
        rig = Rig()
        rig.client({"type": "response.create", "response": {"conversation": "none", "instructions": "Summarise as JSON"}}, SECOND)
        rig.until_live()
        assert of(rig, Open)[0].persona is None
        assert [m["response"]["status"] for m in rig.sent if m["type"] == "response.done"] == ["failed"]


class TestGate:
    """4.5.4: with create_response false the model speaks only when it is asked."""

    GATED: ClassVar[dict[str, Any]] = {"audio": {"input": {"turn_detection": {"type": "semantic_vad", "create_response": False}}}}

    def test_the_model_is_silent_in_its_own_history(self) -> None:
        rig = live(update=self.GATED)
        rig.says(0, 100, f3=" unasked")
        rig.frames(20)
        assert rig.types() == []
        assert of(rig, Steer)[0].frames == FOR_EVER

    def test_one_response_is_let_through(self) -> None:
        rig = live(update=self.GATED)
        rig.client({"type": "response.create"})
        first = rig.frame_idx + 2
        rig.says(first, first + 10, **{f"f{first}": " yes"})
        rig.frames(40)
        rig.says(rig.frame_idx, rig.frame_idx + 100)
        rig.frames(30)
        assert rig.types().count("response.created") == rig.types().count("response.done") == 1
        assert rig.steer > 1000

    def test_opening_the_gate_lets_the_model_speak(self) -> None:
        rig = live(update=self.GATED)
        rig.client(update(audio={"input": {"turn_detection": {"create_response": True}}}))
        rig.says(rig.frame_idx, rig.frame_idx + 20)
        rig.frames(10)
        assert "response.created" in rig.types()


class TestNudge:
    """4.9: a model that was asked to speak is urged to."""

    def test_padding_is_made_unlikely_until_a_word_comes(self) -> None:
        rig = live()
        rig.client({"type": "response.create"})
        rig.frames(3)
        assert rig.pad_bias == 0
        rig.frames(2)
        assert rig.pad_bias == -4
        rig.frames(5)
        assert rig.pad_bias == -8
        first = rig.frame_idx + 1
        rig.says(first, first + 20, **{f"f{first}": " well"})
        rig.frames(4)
        assert rig.pad_bias == 0

    def test_it_ends_with_the_wait(self) -> None:
        rig = live()
        rig.client({"type": "response.create"})
        rig.run(4.5)
        assert rig.pad_bias == 0
        assert [m["response"]["x_duplex"]["reason"] for m in rig.sent if m["type"] == "response.done"] == ["no_speech"]


class TestClock:
    """4.1: a call in which nothing happens is parked."""

    def test_parked_after_ten_silent_seconds_and_woken_by_audio(self) -> None:
        rig = live()
        rig.run(9.5)
        assert of(rig, RunClock) == []
        rig.run(1.0)
        assert of(rig, RunClock) == [RunClock(is_running=False)]
        rig.append(tone(300))
        assert of(rig, RunClock)[-1] == RunClock(is_running=True)

    def test_an_upload_is_heard_to_its_end(self) -> None:
        rig = live()
        rig.client({"type": "input_audio_buffer.append", "audio": b64(s16(tone(300, 15 * 24_000, -60)))})
        rig.run(16)
        assert of(rig, RunClock) == []
        assert len(rig.heard) >= 187

    def test_a_parked_call_that_is_primed_again_ticks_again(self) -> None:
        rig, *_ = speaking(last=10)
        rig.run(14)
        assert of(rig, RunClock)[-1] == RunClock(is_running=False)
        rig.client(update(instructions="You are Bob."))
        rig.run(1)
        at = rig.frame_idx
        rig.run(1)
        assert rig.frame_idx > at

    def test_a_response_that_began_while_the_clock_was_stopped_comes_to_its_end(self) -> None:
        rig = live()
        while not of(rig, RunClock):
            rig.run(0.005)
        rig._texts[rig.frame_idx] = " late"
        rig.step()  # the frame that was under way
        rig.run(3)
        assert rig.types().count("response.done") == 1

    def test_a_replay_wakes_a_parked_call_as_well(self) -> None:
        rig = live()
        rig.append(tone(300))
        rig.run(0.5)
        rig.client({"type": "input_audio_buffer.clear"})
        rig.codec._primer.stage = Stage.PARKED
        rig.append(tone(300))
        assert of(rig, RunClock)[-1] == RunClock(is_running=True)

    def test_never_parked_while_a_response_is_open_or_pending(self) -> None:
        rig, *_ = speaking(last=1000)
        rig.run(15)
        rig.client({"type": "response.cancel"}, {"type": "response.create"})
        rig.run(1)
        assert of(rig, RunClock) == []

    def test_clear_reaches_the_session(self) -> None:
        rig = live()
        rig.client({"type": "input_audio_buffer.clear"})
        assert ClearInput() in rig.pushed


class TestSpeech:
    """4.3: what is sent of the endless stream."""

    def test_a_pause_shorter_than_the_closing_silence_is_part_of_the_item(self) -> None:
        rig = live()
        rig.says(2, 10, f2=" one")
        rig.says(16, 20, f16=" two")
        rig.frames(45)
        assert rig.types().count("response.created") == 1
        assert len(audio_of(rig.sent)) == (2 + 19 + 10) * 3840

    def test_two_turns_are_two_responses(self) -> None:
        rig = live()
        rig.says(2, 10, f2=" one")
        rig.says(30, 40, f30=" two")
        rig.frames(65)
        done = [m["response"] for m in rig.sent if m["type"] == "response.done"]
        assert [response["status"] for response in done] == ["completed", "completed"]
        assert [response["output"][0]["content"][0]["transcript"] for response in done] == ["one", "two"]

    def test_a_long_speech_is_cut_at_a_quiet_frame_and_loses_nothing(self) -> None:
        rig = live(options={"max_response_ms": 10_000})
        rig.says(2, 300, f2=" on")
        rig._tones.pop(140)
        rig.frames(200)
        reasons = [m["response"]["x_duplex"]["reason"] for m in rig.sent if m["type"] == "response.done"]
        assert reasons == ["rotation"]
        audio = np.frombuffer(audio_of(rig.sent), "<i2")[-59 * FRAME :] / 32768
        np.testing.assert_allclose(audio, np.concatenate([tone(440, start=i * FRAME) for i in range(141, 200)]), atol=1e-4)

    def test_text_without_sound_ends_with_its_transcript(self) -> None:
        rig = live()
        rig._texts[3] = " hush"
        rig.frames(20)
        (done,) = (m["response"] for m in rig.sent if m["type"] == "response.done")
        assert done["output"][0]["content"] == [{"type": "output_audio", "transcript": "hush"}]

    @pytest.mark.parametrize(("layout", "num_done"), [("single", 0), ("fixed", 2)])
    def test_other_layouts_begin_at_once_and_go_on_over_pauses(self, layout: str, num_done: int) -> None:
        rig = live(update={"x_duplex": {"segmentation": {"layout": layout, "max_response_ms": 10_000}}})
        for first in (10, 50, 90):
            rig.says(first, first + 8, **{f"f{first}": " on"})
        rig.run(25)
        assert rig.types()[0] == "response.created"
        assert rig.types().count("response.done") == num_done

    def test_audio_of_an_epoch_that_is_over_is_not_looked_at(self) -> None:
        rig, *_ = speaking()
        old = rig.epoch
        rig.client({"type": "response.cancel"})
        rig.take()
        rig._tell(AudioOut(pcm=tone(440), frame_idx=rig.frame_idx, epoch=old))
        assert rig.types() == []
        assert rig.meters.counts[Count.STALE, "codec"] == 1

    def test_deltas_can_carry_their_time(self) -> None:
        rig = live(update={"x_duplex": {"timing": True}})
        rig.says(2, 10, f2=" one")
        rig.frames(8)
        deltas = [m for m in rig.sent if m["type"] == "response.output_audio.delta"]
        assert [m["x_duplex"]["start_ms"] for m in deltas[:3]] == [0, 80, 160]
        (word,) = (m for m in rig.sent if m["type"] == "response.output_audio_transcript.delta")
        assert word["start_time"] == 0.16

    def test_frames_can_be_sent_together(self) -> None:
        rig = live(update={"x_duplex": {"pacing": {"coalesce_frames": 3}}})
        rig.says(2, 10, f2=" one")
        rig.frames(30)
        deltas = [m for m in rig.sent if m["type"] == "response.output_audio.delta"]
        assert [len(m["delta"]) for m in deltas] == [3 * 5120] * 7
        assert rig.sent[-2]["response"]["x_duplex"]["sent_ms"] == 21 * 80

    def test_extension_events_go_to_those_who_asked(self) -> None:
        rig = live(update={"x_duplex": {"events": ["all"]}})
        rig.says(2, 10, f2=" one")
        rig.frames(25)
        assert {"response.speak", "response.listen", "x_duplex.frame"} <= set(rig.types())
        assert rig.types().count("x_duplex.frame") == 25


class TestTurns:
    """3.4: the user's item stands before the answer to it."""

    def test_an_answer_ends_the_turn_of_a_user_who_has_fallen_silent(self) -> None:
        rig = live()
        rig.talk(0.8)
        rig.talk(0.3, None)
        first = rig.frame_idx
        rig.says(first, first + 20, **{f"f{first}": " yes"})
        rig.talk(0.5, None)
        order = [kind for kind in rig.types() if kind in ("input_audio_buffer.committed", "response.created")]
        assert order == ["input_audio_buffer.committed", "response.created"]
        user, assistant = (m for m in rig.sent if m["type"] == "conversation.item.added")
        assert (user["item"]["role"], assistant["item"]["role"]) == ("user", "assistant")
        assert assistant["previous_item_id"] == user["item"]["id"]

    def test_a_model_that_speaks_into_the_user_s_speech_is_first_in_the_list(self) -> None:
        rig = live()
        rig.talk(0.8)
        first = rig.frame_idx
        rig.says(first, first + 5, **{f"f{first}": " mhm"})
        rig.talk(1.5)
        rig.talk(1.0, None)
        kinds = [kind for kind in rig.types() if kind.startswith(("input_audio_buffer", "response.created", "response.done"))]
        assert kinds == [
            "input_audio_buffer.speech_started", "response.created", "response.done", "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
        ]  # fmt: skip


class TestLateDetector:
    """A detector that is a frame late must not cut what began meanwhile."""

    def test_a_request_that_was_answered_meanwhile_is_not_dropped(self) -> None:
        rig = live(detector=LevelDetector(late=2))
        rig.client({"type": "response.create"})
        first = rig.frame_idx + 5
        rig.says(first, first + 40, **{f"f{first}": " yes"})
        rig.talk(0.4, None)
        rig.talk(0.3)
        rig.talk(1.0, None)
        assert "response.done" not in rig.types()


class TestLatePersona:
    def test_frames_that_are_heard_again_are_no_silence_of_the_user(self) -> None:
        rig = live()
        rig.talk(0.6)
        rig.client(update(instructions="You are Ada."))
        for _ in range(30):
            rig.talk(0.04)
        assert rig.types().count("input_audio_buffer.speech_started") == 1
        assert "input_audio_buffer.speech_stopped" not in rig.types()


class TestSlowReader:
    """3.13: what a client does not read in time ends the response, not the call."""

    def test_the_response_fails_and_the_call_goes_on(self) -> None:
        rig, *_ = speaking(last=300)
        rig.take()
        rig.block()
        rig.frames(60)
        rig.unblock()
        done = [m["response"] for m in rig.sent if m["type"] == "response.done"]
        assert [response["status"] for response in done] == ["failed"]
        assert done[0]["status_details"]["error"]["code"] == "output_backpressure"
        rig.take()
        rig.frames(20)
        assert "response.created" in rig.types()


class TestInput:
    """1.7, 2.7: appends in every form."""

    def test_too_much_at_once_is_refused_whole(self) -> None:
        rig = live(options={"input_max_ms": 1000})
        rig.append(np.zeros(20_000, np.float32))
        rig.client({**SECOND, "event_id": "e1"})
        (error,) = rig.take()
        assert (error["error"]["code"], error["error"]["event_id"]) == ("input_audio_buffer_overflow", "e1")
        rig.run(1.0)
        rig.client(SECOND)
        assert rig.types() == []

    def test_binary_audio_after_opting_in(self) -> None:
        rig = live()
        rig.client(b"\x01\x02" * FRAME)
        assert rig.take()[0]["error"]["code"] == "invalid_value"
        rig.client(update(x_duplex={"binary_audio": True}))
        rig.take()
        num_before = len(of(rig, AudioIn))
        rig.client(b"\x01\x02" * FRAME)
        assert len(of(rig, AudioIn)) == num_before + 1
        assert rig.types() == []

    def test_json_in_a_binary_message(self) -> None:
        rig = live()
        rig.client(json.dumps({"type": "session.heartbeat"}).encode())
        assert rig.types() == ["session.heartbeat_ack"]

    @pytest.mark.parametrize("kind", ["item", "response"])
    def test_audio_in_an_item_that_does_not_fit_leaves_no_trace(self, kind: str) -> None:
        rig = live(options={"input_max_ms": 1000})
        part = {"type": "input_audio", "audio": b64(bytes(100_000))}
        item = {"id": "x", "type": "message", "role": "user", "content": [part]}
        if kind == "item":
            rig.client({"type": "conversation.item.create", "item": item})
        else:
            rig.client({"type": "response.create", "response": {"input": [item]}})
        assert rig.types() == ["error"]
        rig.client({"type": "conversation.item.retrieve", "item_id": "x"})
        assert rig.types() == ["error", "error"]

    def test_a_question_in_a_file_is_heard_before_its_answer_is_awaited(self) -> None:
        rig = live()
        rig.client(
            {"type": "input_audio_buffer.append", "audio": b64(s16(tone(300, 6 * 24_000)))},
            {"type": "input_audio_buffer.commit"},
            {"type": "response.create"},
        )
        rig.run(5.5)
        assert "response.done" not in rig.types(), "neither given up nor cancelled by its own question"
        assert rig.pad_bias == 0
        rig.run(6)
        assert [m["response"]["x_duplex"]["reason"] for m in rig.sent if m["type"] == "response.done"] == ["no_speech"]

    def test_a_commit_drops_half_a_sample(self) -> None:
        rig = live()
        rig.talk(0.6)
        rig.client({"type": "input_audio_buffer.append", "audio": b64(bytes(961))})
        rig.client({"type": "input_audio_buffer.commit"})
        assert rig.codec._buffer._converter.num_carried == 0

    def test_an_audio_item_is_heard(self) -> None:
        rig = Rig()
        item = {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": b64(s16(tone(300, 4800)))}]}
        rig.client({"type": "conversation.item.create", "item": item})
        rig.until_live()
        assert sum(event.pcm.size for event in of(rig, AudioIn)) == 4800


class TestEnd:
    """3.9: how calls end."""

    def test_a_full_server_says_so_and_closes_1013(self) -> None:
        rig = Rig(is_full=True)
        rig.end(CAPACITY)
        assert rig.types() == ["error"]
        assert rig.closed is not None
        assert rig.closed.code is CloseCode.TRY_AGAIN_LATER

    def test_an_expired_call(self) -> None:
        rig, *_ = speaking()
        rig.take()
        rig.end(EXPIRED)
        assert rig.types()[-2:] == ["rate_limits.updated", "error"]
        assert [m["response"]["status"] for m in rig.sent if m["type"] == "response.done"] == ["incomplete"]
        assert rig.closed is not None
        assert (rig.closed.code, rig.closed.reason) == (CloseCode.GOING_AWAY, "session_expired")

    def test_a_failed_engine(self) -> None:
        rig, *_ = speaking()
        rig.take()
        rig.end(Failed(kind=ErrorKind.INTERNAL, detail="a secret"))
        assert [m["response"]["status"] for m in rig.sent if m["type"] == "response.done"] == ["failed"]
        assert "secret" not in json.dumps(rig.sent)
        assert rig.closed is not None
        assert rig.closed.code is CloseCode.INTERNAL

    def test_the_longest_session(self) -> None:
        rig = Rig(options={"max_session_s": 20})
        assert rig.sent[0]["session"]["expires_at"] == 1_790_000_020
        rig.talk(0.1, None)
        rig.run(20)
        assert HangUp(reason=EndReason.LIMIT) in rig.pushed
        assert rig.closed is not None
        assert rig.closed.reason == "session_expired"

    def test_a_client_that_says_nothing_for_long(self) -> None:
        rig = Rig(options={"idle_timeout_s": 30})
        rig.run(10)
        rig.client({"type": "session.heartbeat"})
        rig.run(29)
        assert rig.closed is None
        rig.run(2)
        assert rig.sent[-1]["error"]["code"] == "idle_timeout"
        assert rig.closed is not None
        assert rig.closed.code is CloseCode.GOING_AWAY

    def test_a_client_that_never_says_anything(self) -> None:
        rig = Rig()
        rig.run(61)
        assert rig.closed is not None

    def test_what_the_session_had_on_its_way_opens_no_response(self) -> None:
        rig = live()
        rig.block()
        rig.says(rig.frame_idx, rig.frame_idx + 5, **{f"f{rig.frame_idx}": " oh"})
        rig.frames(3)
        rig.client({"type": "session.close"})
        rig.unblock()
        assert rig.types()[-1] == "session.closed"
        assert rig.types().count("response.created") == rig.types().count("response.done")

    def test_nothing_comes_after_the_close(self) -> None:
        rig = live()
        rig.client({"type": "session.close"})
        assert rig.codec.state is CodecState.CLOSED
        assert rig.codec.receive('{"type":"session.heartbeat"}', rig.now) == []
        rig.codec.send(Ended(reason=EndReason.CALLER), rig.now)
        assert rig.codec.due(rig.now) == []

    def test_a_flood_of_errors_ends_the_call(self) -> None:
        rig = Rig()
        for _ in range(100):
            rig.client("{}")
        with pytest.raises(RemoteProtocolError) as caught:
            rig.client("{}")
        assert caught.value.kind.close_code is CloseCode.POLICY
        assert rig.types().count("error") >= 100

    def test_a_flood_of_messages_loses_the_surplus_and_says_so_once(self) -> None:
        rig = Rig(options={"max_messages_per_s": 50})
        for _ in range(200):
            rig.client({"type": "session.heartbeat"})
        assert rig.types().count("session.heartbeat_ack") == 50
        assert [m["error"]["code"] for m in rig.sent if m["type"] == "error"] == ["rate_limit_exceeded"]
        rig.run(1.1)
        rig.take()
        rig.client({"type": "session.heartbeat"})
        assert rig.types() == ["session.heartbeat_ack"]

    def test_many_updates_are_delayed_and_none_is_lost(self) -> None:
        rig = Rig()
        rig.take()
        for i in range(25):
            rig.client(update(instructions=f"persona {i}"))
        assert rig.types().count("session.updated") == 20
        rig.run(11)
        assert [m["session"]["instructions"] for m in rig.sent] == [f"persona {i}" for i in range(25)]


def test_what_is_measured() -> None:
    rig, *_ = speaking()
    rig.talk(1.2)
    assert rig.meters.counts[Count.EPOCHS, ""] == 1
    assert rig.meters.counts[Count.RESPONSES, "barge_in"] == 1
    (onset_to_cut,) = rig.meters.times[Timer.BARGE_IN]
    assert onset_to_cut == pytest.approx(0.96, abs=0.1)
    assert rig.meters.times[Timer.ARMING][0] == pytest.approx(0.35, abs=0.05)
    assert not hears(audio_of(rig.take()), 300)
    assert isinstance(of(rig, Cancel)[0], Cancel)
