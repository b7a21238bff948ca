"""Whatever a client does, and whenever: brackets are whole, ids final, watermarks ordered, nothing follows a done response.

Random interleavings of everything that moves the state of a call, judged by the bracket checker that also judges real clients' captures.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocols.events import Ended, EndReason
from tests.clients.brackets import complaints
from tests.protocols.realtime.rig import LevelDetector, Rig

# Errors that such a client earns: it cancels what is over, creates what exists, commits nothing.
EXPECTED = {
    "conversation_already_has_active_response",
    "response_cancel_not_active",
    "input_audio_buffer_commit_empty",
    "item_truncate_invalid_item_id",
    "item_delete_invalid_item_id",
    "item_retrieve_invalid_item_id",
    "cannot_update_voice",
    "session_expired",
}
DETECTIONS: list[Any] = [
    None,
    {"type": "semantic_vad"},
    {"type": "semantic_vad", "interrupt_response": False},
    {"type": "semantic_vad", "create_response": False},
    {"type": "server_vad", "silence_duration_ms": 300},
]

talk = st.tuples(st.just("talk"), st.sampled_from([0.1, 0.4, 1.2]), st.sampled_from([300.0, None]))
wait = st.tuples(st.just("wait"), st.sampled_from([0.01, 0.1, 0.5, 2.5]))
say = st.tuples(st.just("say"), st.integers(0, 6), st.integers(2, 20))
NAMES = (
    "cancel", "create", "cancel+create", "commit", "clear", "clear output", "delete", "retrieve", "barge in", "block", "unblock",
)  # fmt: skip
simple = st.tuples(st.sampled_from(NAMES))
truncate = st.tuples(st.just("truncate"), st.sampled_from([0, 80, 500, 99_999]))
ack = st.tuples(st.just("ack"), st.integers(0, 3000), st.none() | st.integers(0, 3000))
detect = st.tuples(st.just("detect"), st.sampled_from(DETECTIONS))
persona = st.tuples(st.just("persona"), st.sampled_from(["You are Ada.", "You are Bob."]), st.sampled_from(["defer", "restart"]))
voice = st.tuples(st.just("voice"), st.sampled_from(["NATF2", "NATM0"]))
SEGMENTATIONS: list[Any] = [{}, {"close_silence_ms": 240}, {"preroll_ms": 0}, {"layout": "single"}, {"layout": "fixed"}]
layout = st.tuples(st.just("segment"), st.sampled_from(SEGMENTATIONS))
item = st.tuples(st.just("item"), st.sampled_from(["user", "system", "assistant"]))
steps = st.one_of(talk, talk, wait, say, say, simple, simple, truncate, ack, detect, persona, voice, layout, item)




class Client:
    """Does what is drawn."""

    def __init__(self, rig: Rig, *, is_beta: bool) -> None:
        self.rig = rig
        self.items: list[str] = []
        self._is_beta = is_beta

    def update(self, **session: Any) -> None:
        """Change settings, given by their flat names, which GA clients nest."""
        if not self._is_beta:
            session["type"] = "realtime"
            for name, side in (("turn_detection", "input"), ("voice", "output")):
                if name in session:
                    session["audio"] = {side: {name: session.pop(name)}}
        self.rig.client({"type": "session.update", "session": session})

    def do(self, step: tuple[Any, ...]) -> None:
        rig, (name, *args) = self.rig, step
        self.items = [m["item"]["id"] for m in rig.sent if m["type"] in ("response.output_item.added", "conversation.item.created")]
        item_id = self.items[-1] if self.items else "item_none"
        match name:
            case "talk":
                rig.talk(args[0], args[1])
            case "wait":
                rig.run(args[0])
            case "say":
                first = rig.frame_idx + args[0]
                rig.says(first, first + args[1], **{f"f{first}": " one", f"f{first + 3}": " two", f"f{first + 9}": " three"})
            case "cancel":
                rig.client({"type": "response.cancel"})
            case "create":
                rig.client({"type": "response.create", "response": {"metadata": {"k": "v"}}})
            case "cancel+create":
                rig.client({"type": "response.cancel"}, {"type": "response.create"})
            case "commit" | "clear":
                rig.client({"type": f"input_audio_buffer.{name}"})
            case "clear output":
                rig.client({"type": "output_audio_buffer.clear"})
            case "delete" | "retrieve":
                rig.client({"type": f"conversation.item.{name}", "item_id": item_id})
            case "block":
                rig.block()
            case "unblock":
                rig.unblock()
            case "barge in":
                rig.client({"type": "barge_in"})
            case "truncate":
                rig.client({"type": "conversation.item.truncate", "item_id": item_id, "content_index": 0, "audio_end_ms": args[0]})
            case "ack":
                rig.client({"type": "playback.ack", "item_id": item_id, "played_ms": args[0], "committed_ms": args[1]})
            case "detect":
                self.update(turn_detection=args[0])
            case "persona":
                self.update(instructions=args[0], x_duplex={"persona_change": args[1]})
            case "voice":
                self.update(voice=args[0])
            case "segment":
                self.update(x_duplex={"segmentation": args[0]})
            case "item":
                part = "output_text" if args[0] == "assistant" else "input_text"
                body = {"type": "message", "role": args[0], "content": [{"type": part, "text": "by the way"}]}
                rig.client({"type": "conversation.item.create", "item": body})


def check_marks(rig: Rig) -> None:
    for entry in rig.codec._call.conversation.entries():
        if entry.marks is not None:
            marks = entry.marks
            assert marks.generated_ms >= marks.sent_ms >= marks.played_ms >= marks.committed_ms >= 0


@pytest.mark.parametrize("is_beta", [False, True])
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(drawn=st.lists(steps, min_size=1, max_size=14), late=st.integers(0, 2), closes=st.booleans())
def test_random_interleavings_keep_every_promise(is_beta: bool, drawn: list[tuple[Any, ...]], late: int, closes: bool) -> None:
    rig = Rig(headers={"OpenAI-Beta": "realtime=v1"} if is_beta else None, detector=LevelDetector(late), prime_s=0.1)
    client = Client(rig, is_beta=is_beta)
    rig.talk(0.1, None)
    rig.until_live()
    seen: dict[str, tuple[int, ...]] = {}
    for step in drawn:
        client.do(step)
        check_marks(rig)
        for entry in rig.codec._call.conversation.entries():
            if (marks := entry.marks) is not None:
                now = (marks.generated_ms, marks.sent_ms, marks.played_ms, marks.committed_ms)
                before = seen.get(entry.item.id, (0, 0, 0, 0))
                assert all(a >= b for a, b in zip(now, before, strict=True)), "a watermark fell"
                seen[entry.item.id] = now
    rig.unblock()
    if closes:
        rig.client({"type": "session.close"})
        assert rig.sent[-1]["type"] == "session.closed"
    else:
        rig.end(Ended(reason=EndReason.LIMIT))
    assert rig.closed is not None
    assert complaints(rig.capture, expected_errors=EXPECTED) == []
