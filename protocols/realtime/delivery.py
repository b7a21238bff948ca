"""How the frames of an open item reach the client: text before audio, one delta a frame or several together (specs/realtime.md 3.2, 4.11).

The rule: what is sent counts as sent only when the queue hands it out, so that what is taken back before never did. Thread: any, one at a
time.
"""

from __future__ import annotations

import base64
import functools
from typing import Any

import numpy as np

from protocols.audio import Pcm
from protocols.realtime.audio import OutputConverter
from protocols.realtime.call import Call
from protocols.realtime.meter import Timer
from protocols.realtime.response import ResponseTrack
from protocols.realtime.segment import OutFrame
from protocols.realtime.server_events import AudioDelta, OutputTextDelta, TranscriptDelta
from protocols.realtime.watermarks import Watermarks


class Delivery:
    """The output of one call, item after item.

    Attributes:
        num_frames, num_text: frames and text tokens of the open item.
    """

    def __init__(self, call: Call) -> None:
        self.num_frames = 0
        self.num_text = 0
        self._call = call
        self._track: ResponseTrack | None = None
        self._converter: OutputConverter | None = None
        self._held: list[OutFrame] = []  # frames that wait to be sent together
        self._has_sent = False  # any of this item
        self._last_delta_s: float | None = None

    @property
    def num_tokens(self) -> int:
        """Output tokens of the open item: a frame is one, and a text token is one (4.12)."""
        return self.num_frames + self.num_text

    def begin(self, track: ResponseTrack) -> None:
        """Deliver a new item."""
        self.end()
        self._track = track
        self._converter = OutputConverter(track.settings.output_format, self._call.rate)

    def end(self) -> None:
        """The item is over."""
        self._track = self._converter = self._last_delta_s = None
        self.num_frames = self.num_text = 0
        self._held.clear()
        self._has_sent = False

    def take_back(self) -> None:
        """Forget frames that were not sent."""
        self._held.clear()

    def emit(self, frame: OutFrame, now: float) -> None:
        """Send one frame: its text, then its audio."""
        track, call = self._track, self._call
        assert track is not None
        marks = track.marks
        start_ms, text = marks.generated_ms, frame.text
        if text and not self.num_text and call.options.trim_leading_space:
            text = text.removeprefix(" ")
        self.num_text += bool(frame.text)
        self.num_frames += 1
        marks.generate(int(self.num_frames * call.frame_ms), text)
        x_duplex = self._timing(frame.frame_idx, start_ms)
        if track.settings.is_text:
            marks.send(marks.generated_ms, now)
            if text:
                call.out.put_output(OutputTextDelta(**track.place(), delta=text, x_duplex=x_duplex), lambda _: marks.send_text())
            return
        if text:
            start_s = None if x_duplex is None else start_ms / 1000
            message = TranscriptDelta(**track.place(), delta=text, start_time=start_s, x_duplex=x_duplex)
            call.out.put_output(message, lambda _: marks.send_text())
        self._held.append(frame)
        pacing = call.config.duplex.pacing
        num_together = pacing.coalesce_frames if self._has_sent else max(pacing.coalesce_frames, call.frames(pacing.lead_ms))
        if len(self._held) >= num_together:
            self.flush()

    def flush(self) -> None:
        """Send the frames that wait as one delta."""
        if not self._held:
            return
        track, converter = self._track, self._converter
        assert track is not None
        assert converter is not None
        pcm: Pcm = np.concatenate([frame.pcm for frame in self._held]) if len(self._held) > 1 else self._held[0].pcm
        x_duplex = self._timing(self._held[0].frame_idx, int((self.num_frames - len(self._held)) * self._call.frame_ms))
        self._held.clear()
        self._has_sent = True
        delta = base64.b64encode(converter.push(pcm)).decode()
        on_sent = functools.partial(self._sent, track.marks, track.marks.generated_ms)
        self._call.out.put_output(AudioDelta(**track.place(), delta=delta, x_duplex=x_duplex), on_sent)

    def _sent(self, marks: Watermarks, end_ms: int, now: float) -> None:
        marks.send(end_ms, now)
        if self._last_delta_s is not None:
            self._call.meter.observe(Timer.DELTA_GAP, now - self._last_delta_s)
        self._last_delta_s = now

    def _timing(self, frame_idx: int, start_ms: int) -> dict[str, Any] | None:
        if not self._call.config.duplex.timing:
            return None
        return {"epoch": self._call.out.epoch, "frame": frame_idx, "start_ms": start_ms, "input_ms": self._call.input_ms}
