"""The input buffer: appends in, audio for the session out, and what a commit or a clear mean for a model that listens all the time.

The model hears audio at its own pace; a commit only labels it and a clear reaches only what has not been heard (specs/realtime.md 2.7,
4.2). The rule: an append is taken whole or refused whole. Thread: any, one at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from protocols.events import Heard
from protocols.realtime.audio import InputConverter, decode_base64
from protocols.realtime.call import Call
from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat
from protocols.realtime.meter import Count
from protocols.realtime.timeline import ReplayGuard
from protocols.realtime.wire import InputAudioAppend

MAX_APPEND_BYTES = 15 * 1024 * 1024  # decoded, "> 15 MiB in one append" (1.7)

Pcm = NDArray[np.float32]
_NOTHING = np.empty(0, np.float32)


class InputBuffer:
    """What one client says.

    Attributes:
        timeline: places of what was written and heard.
    """

    def __init__(self, call: Call) -> None:
        self.timeline = call.timeline
        self._call = call
        self._guard = ReplayGuard()
        self._format = call.config.input_format
        self._converter = InputConverter(self._format, call.rate)

    def append(self, message: InputAudioAppend, now: float) -> Pcm | None:
        """Take an append; return float32 [N] for the model, None when nothing came of it.

        Raises:
            EventError: unreadable, too large, or too much waits already.
        """
        fmt = message.format_of(self._call.config.input_format)
        return self.take(_decode(message.audio, "audio"), fmt, now)

    def decode(self, texts: Sequence[str], path: str) -> list[bytes]:
        """Read the audio parts of items, which stand at `path`, and see that there is room for them; nothing is written yet.

        Raises:
            EventError: unreadable, too large, or too much waits already.
        """
        parts = [_decode(text, path) for text in texts]
        self.check_room(parts, self._call.config.input_format, path)
        return parts

    def take(self, data: bytes, fmt: AudioFormat, now: float) -> Pcm | None:
        """As `append`, of bytes in the given format."""
        if not data:
            return None
        self.check_room([data], fmt, "audio")
        tail = _NOTHING
        if fmt != self._format:  # "the resampler is flushed and a carried odd byte dropped" (2.5)
            tail = self._converter.flush()
            self._format, self._converter = fmt, InputConverter(fmt, self._call.rate)
        num_known = self._guard.known_prefix(data, now, fmt.sample_bytes)
        self._guard.note(data, _bytes_per_s(fmt))
        if num_known:
            num_samples = num_known * self._call.rate // _bytes_per_s(fmt)
            self.timeline.suppress(num_samples)
            self._call.meter.count(Count.INPUT_MS, "suppressed", num_samples * 1000 // self._call.rate)
        pcm = self._converter.push(data[num_known:] if num_known else data)
        if tail.size:
            pcm = np.concatenate([tail, pcm])
        self.timeline.write(pcm.size)
        return pcm if pcm.size else None

    def check_room(self, parts: Sequence[bytes], fmt: AudioFormat, path: str) -> None:
        """See that audio which stands at `path` may be written.

        Raises:
            EventError: too much would wait.
        """
        ms = sum(map(len, parts)) * 1000 / _bytes_per_s(fmt)
        if parts and self.timeline.queued_ms + ms > self._call.options.input_max_ms:
            seconds = self._call.options.input_max_ms / 1000
            raise EventError("input_audio_buffer_overflow", f"more than {seconds:g} s of audio would wait to be heard", path)

    def hear(self, heard: Heard) -> None:
        """The model heard a frame."""
        self.timeline.hear(heard.frame_idx, heard.real_samples, heard.skipped_samples)
        call, num_padded = self._call, heard.pcm.size - heard.real_samples
        call.heard_frames += bool(heard.real_samples)
        if num_padded:
            call.meter.count(Count.INPUT_MS, "padded", num_padded * 1000 // call.rate)
        if heard.skipped_samples:
            call.meter.count(Count.INPUT_MS, "dropped", heard.skipped_samples * 1000 // call.rate)

    def commit(self) -> None:
        """Label what was written.

        Raises:
            EventError: nothing was.
        """
        if not self.timeline.can_commit:
            raise EventError("input_audio_buffer_commit_empty", "nothing was appended since the last commit", None)
        self.timeline.commit()
        self._converter.drop_partial()

    def clear(self, now: float) -> None:
        """Throw away what was not heard."""
        num_unheard = self.timeline.clear()
        self._guard.clear(num_unheard * _bytes_per_s(self._format) // self._call.rate, now)
        self._converter.drop_partial()


def _decode(text: str, path: str) -> bytes:
    if len(text) > MAX_APPEND_BYTES * 3 // 2:
        raise _too_large(path)
    try:
        data = decode_base64(text)
    except ValueError:
        raise EventError("invalid_value", "the audio is not valid base64", path) from None
    if len(data) > MAX_APPEND_BYTES:
        raise _too_large(path)
    return data


def _too_large(path: str) -> EventError:
    return EventError("message_too_large", f"one message holds at most {MAX_APPEND_BYTES >> 20} MiB of audio", path)


def _bytes_per_s(fmt: AudioFormat) -> int:
    return fmt.rate * fmt.sample_bytes
