"""Where the endless output of the model becomes speech: onset and end, frame by frame (specs/realtime.md 4.3).

Only levels and text are looked at; what a stretch of speech is called on the wire is response.py's business. The rule: every frame from the
preroll to the end belongs to exactly one stretch, pauses included, so the time of an item is frames times the duration of a frame.
Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import deque
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

SILENCE_DB = -120.0  # what an all-zero frame is taken for


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segmentation:
    """What counts as speech; frames of one duration throughout."""

    open_rms_db: float  # dBFS from which a frame is voiced
    close_rms_db: float  # dBFS below which a frame without text is quiet; between the two it is neither
    preroll_frames: int  # frames before the onset that are sent with it
    close_frames: int  # quiet frames in a row that end the speech


@dataclasses.dataclass(frozen=True, slots=True)
class OutFrame:
    """One frame of the model's output, of the current epoch."""

    frame_idx: int
    pcm: NDArray[np.float32]  # float32 [S]
    text: str  # "" for padding


class Speech(enum.Enum):
    """What a frame is."""

    SILENT = "silent"
    ONSET = "onset"  # speech begins: the frames of `Segmenter.preroll` come first
    GOES_ON = "goes on"
    ENDS = "ends"  # the last frame of this stretch


class Segmenter:
    """The output decision of one call.

    Attributes:
        preroll: after ONSET the frames to send before it, oldest first.
        is_voiced: whether the last frame was at speech level.
        quiet_frames: how many of the last frames in a row were quiet.
    """

    def __init__(self, settings: Segmentation) -> None:
        self.settings = settings
        self.preroll: Sequence[OutFrame] = ()
        self.is_voiced = False
        self.quiet_frames = 0
        self._is_open = False
        self._is_mute = False  # opened by text, and no frame was voiced yet
        self._before: deque[OutFrame] = deque()

    def push(self, frame: OutFrame) -> Speech:
        """Take the next frame and say what it is."""
        settings = self.settings
        level_db = rms_db(frame.pcm)
        was_voiced, self.is_voiced = self.is_voiced, level_db >= settings.open_rms_db
        self._is_mute = self._is_mute and not self.is_voiced
        # "If the onset came from text and no voiced frame follows within 800 ms, the response ends": until then noise is quiet, too
        is_quiet = not (frame.text or self.is_voiced) and (self._is_mute or level_db < settings.close_rms_db)
        self.quiet_frames = self.quiet_frames + 1 if is_quiet else 0
        if self._is_open:
            if self.quiet_frames < settings.close_frames:
                return Speech.GOES_ON
            self.end()
            return Speech.ENDS
        # "txt(f), or two voiced frames in a row": the first of the two is in the preroll
        if frame.text or (self.is_voiced and was_voiced):
            self._is_open, self._is_mute = True, not self.is_voiced
            self.preroll, self._before = tuple(self._before), deque()
            return Speech.ONSET
        self._before.append(frame)
        while len(self._before) > max(settings.preroll_frames, 1 if self.is_voiced else 0):
            self._before.popleft()
        return Speech.SILENT

    def open(self) -> Speech:
        """Begin a stretch with the last frame, though it is silent."""
        self._is_open = True
        self.preroll = ()
        self._before.clear()
        return Speech.ONSET

    def end(self) -> None:
        """The stretch is over, for whatever reason; the next onset begins another."""
        self._is_open = self._is_mute = False
        self._before.clear()

    def reset(self) -> None:
        """The epoch is over: nothing of before may be sent, and what the model says next is a beginning."""
        self.end()
        self.is_voiced = False
        self.quiet_frames = 0


def rms_db(pcm: NDArray[np.float32]) -> float:
    """Level of float32 [N] in dB of full scale; SILENCE_DB at least."""
    if not pcm.size:
        return SILENCE_DB
    power = float(np.dot(pcm, pcm)) / pcm.size
    return max(SILENCE_DB, 10 * math.log10(power)) if power > 0 else SILENCE_DB
