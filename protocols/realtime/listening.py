"""The user's side of a Realtime call: from what the model has heard to speech_started, speech_stopped and user items (specs/realtime.md
4.5).

The detector says whether a frame was speech, turns.py whether that changes the turn, and here it is carried out and announced. The rule:
the user's activity and the model's state are compared frame by frame, of the same step, however late the detector is. Thread: any, one at a
time.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from protocols.events import Heard
from protocols.realtime import ids
from protocols.realtime import response as endings
from protocols.realtime.call import Call
from protocols.realtime.detector import SpeechDetector
from protocols.realtime.ext import OverlapDecision
from protocols.realtime.hold import HoldReason
from protocols.realtime.input import InputBuffer
from protocols.realtime.meter import Timer
from protocols.realtime.response import Phase, ResponseTrack
from protocols.realtime.server_events import ContentPart, InputCommitted, Item, ItemAdded, ItemDone, SpeechStarted, SpeechStopped
from protocols.realtime.settings import TurnDetection
from protocols.realtime.speaking import Speaker
from protocols.realtime.turns import (
    END_OVERLAPPED_FRAMES,
    Backchannel,
    Cause,
    Effect,
    ModelView,
    Rule,
    Started,
    Stopped,
    TurnEvent,
    TurnPolicy,
    TurnTracker,
)

DEFAULT_THRESHOLD = 0.5  # of the detector's probability, where the client gives none
MANUAL_PREFIX_MS = 0
SHORT_ACK_FRAMES = 6  # up to about half a second is an acknowledgement to those who asked for overlap decisions


class _Step(NamedTuple):
    """What is remembered of a step until the detector has judged it."""

    frame_idx: int
    has_user_audio: bool
    model: ModelView
    track: ResponseTrack | None  # of that moment
    heard_s: float


class Listener:
    """User turns of one call."""

    def __init__(self, call: Call, buffer: InputBuffer, speaker: Speaker, detector: SpeechDetector) -> None:
        self._call = call
        self._buffer = buffer
        self._speaker = speaker
        self._detector = detector
        self._tracker = TurnTracker(self._policy())
        self._steps: deque[_Step] = deque()
        self._item_id: str | None = None  # of the announced speech
        speaker.on_begin = self._let_answer

    @property
    def is_user_active(self) -> bool:
        """Whether the user spoke in the last frame that was judged."""
        return self._tracker.is_active

    @property
    def inactive_frames(self) -> int:
        """Judged frames since the user spoke; 0 while speaking, 1 at least before the first."""
        return self._tracker.inactive_frames or int(not self._tracker.is_active)

    def hear(self, heard: Heard, model: ModelView, now: float) -> None:
        """Remember a step and hand its input to the detector; the model's side of the step is settled by now."""
        if heard.is_replay:
            return  # it was judged when it was heard first
        self._steps.append(_Step(heard.frame_idx, heard.real_samples > 0, model, self._speaker.track, now))
        self._detector.feed(heard.frame_idx, heard.pcm)
        self.judge(now)

    def judge(self, now: float) -> None:
        """Take what the detector has found and carry out what follows."""
        for frame_idx, probability in self._detector.take():
            while self._steps and self._steps[0].frame_idx < frame_idx:
                self._steps.popleft()
            if not self._steps or self._steps[0].frame_idx != frame_idx:
                continue
            step = self._steps.popleft()
            is_active = step.has_user_audio and probability >= self._threshold  # "Gap-filled frames are inactive by definition"
            for event in self._tracker.step(frame_idx, is_active, step.model):
                self._carry_out(event, step, now)

    def configure(self) -> None:
        """Take over changed settings; speech that was announced under a rule which announces nothing now is over."""
        self._tracker.policy = self._policy()
        if self._tracker.policy.rule is Rule.SILENT:
            self._stop(self._tracker.close())

    def commit(self) -> None:
        """Make a user item of what was written.

        Raises:
            EventError: nothing was.
        """
        self._buffer.commit()
        stopped = self._tracker.close()
        if stopped is not None:
            self._stop(stopped)
            return
        self._add_item(self._item_id or ids.new("item"))

    def clear(self, now: float) -> None:
        """Throw away what the model has not heard, and speech that was not announced yet."""
        self._stop(self._tracker.close(), is_item=False)
        self._buffer.clear(now)

    def close(self) -> None:
        """Let the detector go."""
        self._detector.close()

    # Private

    def _carry_out(self, event: TurnEvent, step: _Step, now: float) -> None:
        match event:
            case Started():
                self._start(event, step, now)
            case Stopped():
                self._stop(event)
            case Backchannel() if "overlap" in self._call.config.duplex.events and event.overlap_frames:
                is_ack = event.num_frames <= SHORT_ACK_FRAMES
                overlap_ms = int(event.overlap_frames * self._call.frame_ms)
                self._call.out.put(OverlapDecision(decision="short_ack" if is_ack else "ignore", overlap_ms=overlap_ms))

    def _start(self, event: Started, step: _Step, now: float) -> None:
        call, speaker = self._call, self._speaker
        self._item_id = ids.new("item")
        overlap_ms = int(event.overlap_frames * call.frame_ms)
        message = SpeechStarted(
            audio_start_ms=self._buffer.timeline.start_ms(event.onset_frame, self._prefix_ms),
            item_id=self._item_id,
            x_duplex={"overlap_ms": overlap_ms, "cause": event.cause.value},
        )
        match self._effect(event, step):
            case Effect.BARGE_IN:
                onset_s = step.heard_s - (step.frame_idx - event.onset_frame) * call.frame_ms / 1000
                call.meter.observe(Timer.BARGE_IN, now - onset_s)
                speaker.cut(endings.BARGE_IN, now, HoldReason.BARGE_IN, first=message)
            case Effect.YIELDED:
                speaker.cut(endings.YIELDED, now, first=message)
            case Effect.DROP_PENDING:
                speaker.cut(endings.BARGE_IN, now, first=message)
            case Effect.HAND_OVER:
                speaker.complete(endings.SILENCE, now)
                call.out.put(message)
            case Effect.NONE:
                call.out.put(message)
        if event.cause is not Cause.USER_TURN and "overlap" in call.config.duplex.events:
            call.out.put(OverlapDecision(decision="barge_in", overlap_ms=overlap_ms))

    def _effect(self, event: Started, step: _Step) -> Effect:
        """What happens to the response: nothing, where the detector's word comes so late that it is another one or has begun meanwhile."""
        track, was_pending = self._speaker.track, step.model.is_pending
        if track is not step.track or (track is not None and (track.phase is Phase.PENDING) != was_pending):
            return Effect.NONE
        onset = self._buffer.timeline.place(event.onset_frame)
        if event.effect is Effect.DROP_PENDING and onset < self._speaker.asked_at:
            return Effect.NONE  # the answer to these very words was asked for
        return event.effect

    def _let_answer(self) -> None:
        """The model begins to speak: the turn of a user who has fallen silent is over first, and so is their item before the model's."""
        if self._tracker.is_announced and self._tracker.inactive_frames >= END_OVERLAPPED_FRAMES:
            self._stop(self._tracker.close())

    def _stop(self, event: Stopped | None, *, is_item: bool = True) -> None:
        """Announce the end of announced speech, and make it an item unless the client is to say what becomes of it."""
        if event is None or self._item_id is None:
            return
        item_id, self._item_id = self._item_id, None
        timeline = self._buffer.timeline
        self._call.out.put(SpeechStopped(audio_end_ms=timeline.end_ms(event.end_frame), item_id=item_id))
        if is_item:
            timeline.commit()
            self._add_item(item_id)

    def _add_item(self, item_id: str) -> None:
        call = self._call
        item = Item(
            id=item_id, type="message", status="completed", role="user", content=(ContentPart(type="input_audio", transcript=None),)
        )
        previous = call.conversation.add(item)
        call.out.put(
            InputCommitted(item_id=item_id, previous_item_id=previous),
            ItemAdded(item=item, previous_item_id=previous),
            ItemDone(item=item, previous_item_id=previous),
        )

    @property
    def _detection(self) -> TurnDetection | None:
        return self._call.config.turn_detection

    @property
    def _threshold(self) -> float:
        detection = self._detection
        return DEFAULT_THRESHOLD if detection is None or detection.type != "server_vad" else detection.threshold

    @property
    def _prefix_ms(self) -> int:
        return MANUAL_PREFIX_MS if self._detection is None else self._detection.prefix_padding_ms

    def _policy(self) -> TurnPolicy:
        call, detection = self._call, self._detection
        if detection is None:
            return TurnPolicy(rule=Rule.SILENT)
        duplex = call.config.duplex
        is_classic = (detection.type == "server_vad" and not call.config.is_native_by_default) or duplex.overlap_policy == "classic"
        rule = Rule.CLASSIC if is_classic else Rule.LISTEN_ONLY if duplex.overlap_policy == "listen_only" else Rule.NATIVE
        return TurnPolicy(
            rule=rule,
            interrupts=detection.interrupt_response,
            overlap_frames=max(1, call.frames(call.config.min_overlap_ms)),
            silence_frames=max(1, call.frames(detection.silence_duration_ms)),
            max_frames=call.frames(call.options.max_segment_s * 1000),
        )
