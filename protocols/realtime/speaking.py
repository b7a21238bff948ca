"""The model's side of a Realtime call: its endless output becomes responses, one at a time (specs/realtime.md 4.3 to 4.7, 4.9).

Here is decided when a response opens, what is sent of it, and when it ends; the bracket itself is response.py's, turn taking
listening.py's. The rule: whatever ends an epoch does so in one go, from the taking back of what waits to the closing messages. Thread: any,
one at a time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence

from protocols.events import Cancel, Steer
from protocols.realtime import response as endings
from protocols.realtime.call import Call
from protocols.realtime.delivery import Delivery
from protocols.realtime.dialect import Dialect
from protocols.realtime.ext import Listen, Speak
from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat
from protocols.realtime.hold import FOR_EVER, Hold, HoldReason
from protocols.realtime.meter import Count, Timer
from protocols.realtime.objects import Usage
from protocols.realtime.response import NO_LIMITS, Ending, Phase, ResponseSettings, ResponseTrack, Trigger
from protocols.realtime.segment import OutFrame, Segmentation, Segmenter, Speech
from protocols.realtime.server_events import ServerMessage
from protocols.realtime.turns import ModelView
from protocols.realtime.watermarks import Watermarks

NUDGE_AFTER_MS = 320  # "after 320 ms without onset, lower the pad logits ... bias -4, doubling every 400 ms" (4.9)
NUDGE_EVERY_MS = 400
NUDGE_BIAS = -4.0
MAX_NUDGE_BIAS = -64.0  # e**-64: padding has lost by then, whatever the logits are
MAX_REMEMBERED = 64  # responses whose items are known by their response's id
ROTATION_GRACE_MS = 30_000  # "at most 30 s more" for a quiet frame


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a response.create asks for, already judged."""

    metadata: Mapping[str, str] | None = None
    max_tokens: int | None = None  # where has_limit: None is no limit
    has_limit: bool = False
    is_text: bool | None = None  # None: as the session
    output_format: AudioFormat | None = None
    is_out_of_band: bool = False
    ignored: Sequence[str] = ()


class Speaker:
    """Responses of one call.

    Attributes:
        track: the response that is pending or open; None between responses.
        asked_at: place on the input timeline where the last response was asked for, in samples.
        hold: why the model is kept silent; None while it may speak.
        last_response_id: of the response that was created last; None before the first.
        has_begun: whether the assistant has ever spoken to this client.
        view: the model's side of the last frame, for turn taking.
        on_begin: called before the model's speech is announced, for what must be said first.
    """

    def __init__(self, call: Call) -> None:
        self.on_begin: Callable[[], None] = _nothing
        self.track: ResponseTrack | None = None
        self.hold: Hold | None = None
        self.last_response_id: str | None = None
        self.has_begun = False
        self.view = ModelView()
        self._call = call
        self._items: dict[str, str] = {}  # item by response, of the last responses
        self._segmenter = Segmenter(self._segmentation())
        self._delivery = Delivery(call)
        self._has_started = False
        self._frame_idx = 0
        self._inactive_frames = 0
        self._opened_frame = -1
        self.asked_at = 0  # place on the input timeline where the last response was asked for
        self._asked_s = math.inf  # when the model had heard up to there; the pending response is awaited from then on
        self._asked_frames = 0
        self._bias = 0.0
        self._has_heard_user = False  # since the last response began

    # Public: settings and time

    def configure(self) -> None:
        """Take over changed settings; those of a response that exists stay."""
        self._segmenter.settings = self._segmentation()
        if self.track is None and self.hold is None and self._is_gated:
            self._rest()
        elif self.hold is not None and self.hold.reason is HoldReason.GATE and not self._is_gated:
            self._let_go()

    def start(self) -> None:
        """The model is about to run, or to run again after a priming."""
        self._has_started = True
        self._segmenter.reset()
        if self.track is None and self.hold is None:
            self._rest()

    @property
    def due_s(self) -> float:
        """When a response that was asked for has waited long enough; inf without one."""
        if self.track is None or self.track.phase is not Phase.PENDING:
            return math.inf
        return self._asked_s + self._call.options.response_start_timeout_ms / 1000

    def expire(self, now: float) -> None:
        """End a response that was asked for in vain."""
        if now >= self.due_s:
            self._finish(endings.NO_SPEECH, now)

    # Public: the model's output

    def push(self, frame_idx: int, frame: OutFrame | None, inactive_frames: int, now: float) -> None:
        """Take the output of one step, None where its epoch is over; the user has not spoken for `inactive_frames`."""
        self._frame_idx = frame_idx
        self._inactive_frames = inactive_frames
        self._has_heard_user |= inactive_frames == 0
        if self.hold is not None:
            if self.hold.step(inactive_frames):
                self._rest()
            self.view = self._view(quiet_frames=0)
            return
        if frame is None:
            self.view = self._view(quiet_frames=0)
            return
        speech = self._segmenter.push(frame)
        if self._is_endless and speech is Speech.SILENT and self.track is None:
            speech = self._segmenter.open()
        if speech is Speech.ONSET and not self._is_open:  # an endless response goes on over its pauses
            self._begin(frame_idx, now)
            for earlier in self._segmenter.preroll:
                if not self._is_full:
                    self._emit(earlier, now)
        self._wait_for_speech(now)
        if self._is_open:
            if not self._is_full:
                self._emit(frame, now)
            self._see_whether_it_ends(speech, now)
        self.view = self._view(quiet_frames=self._segmenter.quiet_frames)

    # Public: what clients and users do to it

    def create(self, request: Request, now: float) -> None:
        """Open a response that was asked for; the model is urged to begin.

        Raises:
            EventError: there is one.
        """
        self.check_free()
        self._open(request, Trigger.REQUEST)
        if request.is_out_of_band:
            self._finish(endings.OUT_OF_BAND, now)
            return
        timeline = self._call.timeline
        self._asked_frames, self.asked_at = 0, timeline.written
        self._asked_s = now if self._has_started and timeline.has_heard(self.asked_at) else math.inf
        if self.hold is not None:
            self._let_go()

    def check_free(self) -> None:
        """See that no response is pending or open.

        Raises:
            EventError: one is.
        """
        if self.track is not None:
            message = f"Conversation already has an active response in progress: {self.track.response_id}"
            raise EventError("conversation_already_has_active_response", message)

    def item_of(self, response_id: str) -> str | None:
        """The item of one of the last responses."""
        return self._items.get(response_id)

    def response_of(self, item_id: str) -> str | None:
        """The response of an item of one of the last responses."""
        return next((response_id for response_id, known in self._items.items() if known == item_id), None)

    def cut(self, ending: Ending, now: float, hold: HoldReason | None = None, *, first: ServerMessage | None = None) -> None:
        """Cancel the response that there is, take back what waits of it, and keep the model silent for `hold`.

        Args:
            first: a message that goes before the closing ones, and out even when there is no response.
        """
        track = self.track
        if hold is not None and track is not None:
            self.hold = Hold(hold, self._call.frames(self._call.options.cancel_hold_ms))
        num_frames = self.hold.steer_frames if self.hold is not None else 0
        if track is not None and track.phase is Phase.OPEN:
            self._call.new_epoch(Cancel(steer_frames=num_frames))
            self._segmenter.reset()
            self._delivery.take_back()
        elif track is not None and self.hold is not None:
            self._call.events.append(Steer(frames=num_frames))
        if first is not None:
            self._call.out.put(first)
        if track is not None:
            self._finish(ending, now, is_cut=True)

    def complete(self, ending: Ending, now: float) -> None:
        """End the response that there is, with everything that was said."""
        if self.track is not None:
            self._finish(ending, now)

    # Private: opening and ending

    def _begin(self, frame_idx: int, now: float) -> None:
        """Speech: open the item, and the response unless it was asked for."""
        self.on_begin()
        if self.track is None:
            self._open(Request(), Trigger.MODEL)
        track = self.track
        assert track is not None
        self._opened_frame = frame_idx
        self._delivery.begin(track)
        self.has_begun = True
        if self._has_heard_user:
            self._call.meter.observe(Timer.ANSWER, self._inactive_frames * self._call.frame_ms / 1000)
            self._has_heard_user = False
        self._call.out.put(*track.begin(self._call.conversation.add(track.item(), marks=track.marks)))
        if "speak" in self._call.config.duplex.events:
            self._call.out.put(Speak(frame=frame_idx, epoch=self._call.out.epoch, response_id=track.response_id))

    def _open(self, request: Request, trigger: Trigger) -> None:
        config, out = self._call.config, self._call.out
        is_text = config.output_modalities == ("text",) if request.is_text is None else request.is_text
        settings = ResponseSettings(
            conversation_id=None if request.is_out_of_band else self._call.conversation.conversation_id,
            is_text=is_text,
            output_format=request.output_format or config.output_format,
            voice=config.voice,
            max_tokens=request.max_tokens if request.has_limit else config.max_output_tokens,
            metadata=request.metadata,
            trigger=trigger,
            ignored=request.ignored,
        )
        self.track = ResponseTrack(settings, out.epoch, Watermarks(has_acks=config.duplex.playback == "ack"))
        self.last_response_id = self.track.response_id
        self._items[self.track.response_id] = self.track.item_id
        while len(self._items) > MAX_REMEMBERED:
            self._items.pop(next(iter(self._items)))
        out.is_settled = True  # "the earlier of: first session.update processed, first response.created sent" (2.9)
        out.put(self.track.created())
        if out.dialect is Dialect.BETA and self._call.options.send_rate_limits:
            out.put(NO_LIMITS)  # "beta: sent between 1 and 2" (3.2)

    def _finish(self, ending: Ending, now: float, *, is_cut: bool = False) -> None:
        track, call = self.track, self._call
        assert track is not None
        if not is_cut:
            self._delivery.flush()
            call.out.keep()
        messages, item = track.finish(ending, self._usage(), now, is_cut=is_cut)
        call.out.put(*messages)
        if item is not None and item.id in call.conversation:
            call.conversation.find(item.id, "").item = item
        if call.out.dialect is Dialect.GA and call.options.send_rate_limits:
            call.out.put(NO_LIMITS)
        if item is not None and "listen" in call.config.duplex.events:
            call.out.put(Listen(frame=self._frame_idx, epoch=call.out.epoch))
        call.meter.count(Count.RESPONSES, ending.reason)
        call.heard_frames = call.prompt_tokens = 0
        self.track = None
        self._delivery.end()
        self._segmenter.end()
        self._urge(0.0)
        if self.hold is None:
            self._rest()

    def _see_whether_it_ends(self, speech: Speech, now: float) -> None:
        assert self.track is not None
        if self._is_full:
            self.hold = Hold(HoldReason.LIMIT)
            self._finish(endings.LIMIT, now)
            self._call.new_epoch(Cancel(steer_frames=FOR_EVER))
            self._segmenter.reset()
        elif speech is Speech.ENDS and not self._is_endless:
            self._finish(endings.SILENCE, now)
        elif self._must_rotate:
            self._finish(endings.ROTATION, now)

    @property
    def _must_rotate(self) -> bool:
        if self._call.config.duplex.layout == "single":
            return False
        lasted_ms = self._delivery.num_frames * self._call.frame_ms - self._call.config.duplex.max_response_ms
        return lasted_ms >= (0 if self._segmenter.quiet_frames else ROTATION_GRACE_MS)

    def _emit(self, frame: OutFrame, now: float) -> None:
        if frame.text:
            self._urge(0.0)  # "off as soon as a non-pad token appears"
        self._delivery.emit(frame, now)

    def _usage(self) -> Usage:
        call, delivery = self._call, self._delivery
        return Usage.of(
            input_text=call.prompt_tokens,
            input_audio=call.heard_frames,
            output_text=delivery.num_text,
            output_audio=delivery.num_frames,
        )

    # Private: steering

    def _rest(self) -> None:
        """Between responses: the model may speak, or waits behind the gate."""
        was_held = self.hold is not None
        self.hold = Hold(HoldReason.GATE) if self._is_gated else None
        if self.hold is not None:
            self._call.events.append(Steer(frames=FOR_EVER))
        elif was_held:
            self._let_go()

    def _let_go(self) -> None:
        self.hold = None
        self._segmenter.reset()
        self._call.events.append(Steer(frames=0, pad_bias=self._bias))

    def _wait_for_speech(self, now: float) -> None:
        """Make the model the more eager the longer an answer does not come, once it has heard what was written before the request."""
        if self.track is None or self.track.phase is not Phase.PENDING:
            return
        if self._asked_s == math.inf:
            if not self._call.timeline.has_heard(self.asked_at):
                return
            self._asked_s = now
        self._asked_frames += 1
        late_ms = self._asked_frames * self._call.frame_ms - NUDGE_AFTER_MS
        if self._call.options.nudge and late_ms >= 0:
            self._urge(max(MAX_NUDGE_BIAS, NUDGE_BIAS * 2 ** int(late_ms // NUDGE_EVERY_MS)))

    def _urge(self, bias: float) -> None:
        if bias != self._bias:
            self._bias = bias
            self._call.events.append(Steer(frames=0 if self.hold is None else self.hold.steer_frames, pad_bias=bias))

    # Private: state

    @property
    def _is_open(self) -> bool:
        return self.track is not None and self.track.phase is Phase.OPEN

    @property
    def _is_full(self) -> bool:
        """Whether the open response has as many tokens as it may have."""
        limit = None if self.track is None else self.track.settings.max_tokens
        return limit is not None and self._delivery.num_tokens >= limit

    @property
    def _is_gated(self) -> bool:
        return self._call.config.is_gated

    @property
    def _is_endless(self) -> bool:
        return self._call.config.duplex.layout != "turns"

    def _view(self, *, quiet_frames: int) -> ModelView:
        track = self.track
        return ModelView(
            is_open=self._is_open,
            is_pending=track is not None and track.phase is Phase.PENDING,
            opened_frame=self._opened_frame,
            is_voiced=self._is_open and self._segmenter.is_voiced,
            quiet_frames=quiet_frames,
        )

    def _segmentation(self) -> Segmentation:
        duplex, call = self._call.config.duplex, self._call
        return Segmentation(
            open_rms_db=duplex.open_rms_db,
            close_rms_db=min(call.options.close_rms_db, duplex.open_rms_db),
            preroll_frames=int(duplex.preroll_ms // call.frame_ms),
            close_frames=call.frames(duplex.close_silence_ms),
        )


def _nothing() -> None:
    return None
