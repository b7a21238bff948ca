"""An engine that plays a script: tone bursts and known words, so that a client's audio tells whose sentence it is (specs/realtime.md 5.4).

It keeps FakeEngine's contract and replaces what the rows say. A row plays its lines in order, each on its cue; a line that is steered to
silence is abandoned for good, as a model gives up its sentence. The samples are whole multiples of 1/32768, so that 16-bit PCM carries them
unchanged. Thread: as in `base.Engine`; the logs may be read from any thread.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base import FrameBatch, FrameOutput, Prompt
from gateway.engine.fake import PAD_ID, FakeEngine
from protocols.events import SamplingOptions

RATE = 24_000
FRAME = 1920
VOICES = tuple(f"{family}{number}" for family in ("NATF", "NATM") for number in range(4))
ACTIVE_RMS = 0.01  # -40 dBFS: the user speaks
SPOKEN_FRAMES = 5  # less speech than this is a backchannel, which nobody answers
PAUSE_FRAMES = 5  # less silence than this is a stutter of a client's clock on a busy machine, padded by the gateway
REPLY_FRAMES = 9  # of the user's silence before a reply: longer than the 600 ms after which the gateway calls the user's turn over
LEVEL = 0.27

Frame = NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Line:
    """A sentence of the script."""

    hz: float
    num_frames: int
    words: tuple[str, ...] = (" Hello", " there")  # spread over the line, the first with its first frame
    # "reply": after the user has spoken and stopped; "nudge": when the row is urged to speak; a number: from that frame of the row on
    cue: str | int = "reply"

    @property
    def text(self) -> str:
        return "".join(self.words)

    @functools.cached_property
    def frames(self) -> Frame:
        """The whole sound, float32 [num_frames, S]."""
        sound = LEVEL * np.sin(2 * np.pi * self.hz * np.arange(self.num_frames * FRAME) / RATE)
        return (np.round(sound * 32768) / 32768).astype(np.float32).reshape(self.num_frames, FRAME)

    @property
    def pcm16(self) -> NDArray[np.int16]:
        """The sound as the wire carries it, int16 [num_frames * S]."""
        return (self.frames.ravel() * 32768).astype(np.int16)

    def word_at(self, frame_idx: int) -> str | None:
        """The word whose token is sampled with a frame of the line."""
        starts = {idx * self.num_frames // len(self.words): word for idx, word in enumerate(self.words)} if self.words else {}
        return starts.get(frame_idx)


@dataclasses.dataclass
class Part:
    """One row from its opening to its closing: what it was told, heard and said."""

    prompt: Prompt
    persona: str
    heard: list[Frame] = dataclasses.field(default_factory=list)
    steered: list[bool] = dataclasses.field(default_factory=list)  # one for each frame heard
    line_idx: int = 0
    at: int | None = None  # frame of the line that is being said
    active_frames: int = 0
    quiet_frames: int = 0
    is_asked: bool = False  # the user has spoken since the last line began

    @property
    def heard_pcm(self) -> Frame:
        return np.concatenate([np.empty(0, np.float32), *self.heard])


class ScriptedEngine(FakeEngine):
    """Plays the same lines to every caller.

    Args:
        lines: the script; after the last line the row is silent.
    """

    def __init__(self, num_slots: int, lines: Sequence[Line], **options: Any) -> None:
        super().__init__(num_slots, voices=VOICES, **options)
        self.lines = tuple(lines)
        self.parts: list[Part] = []  # every row that was ever opened, oldest first
        self._open: dict[int, Part] = {}
        self._words = sorted({word for line in lines for word in line.words})

    def prepare(self, voice_prompt: str | None, persona: str) -> Prompt:
        """Remember the persona with the prompt."""
        return dataclasses.replace(super().prepare(voice_prompt, persona), payload=persona)

    def piece(self, text_id: int) -> bytes:
        """Look the word up."""
        return b"" if text_id <= PAD_ID else self._words[text_id - PAD_ID - 1].encode()

    def open(self, slot_idx: int, prompt: Prompt, sampling: SamplingOptions) -> None:
        """Begin the script."""
        super().open(slot_idx, prompt, sampling)
        self._open[slot_idx] = Part(prompt, prompt.payload)
        self.parts.append(self._open[slot_idx])

    def close(self, slot_idx: int) -> None:
        """End the script."""
        super().close(slot_idx)
        del self._open[slot_idx]

    def step(self, batch: FrameBatch) -> FrameOutput:
        """Let every armed row hear its frame and say the next one of its script."""
        output = super().step(batch)
        for slot_idx in np.flatnonzero(batch.exec_mask):
            part = self._open[int(slot_idx)]
            part.heard.append(batch.pcm[slot_idx].copy())
            part.steered.append(bool(batch.steer_mask[slot_idx]))
            self._listen(part)
            output.pcm[slot_idx], output.text_ids[slot_idx] = self._speak(part, float(batch.pad_bias[slot_idx]))
        return output

    @staticmethod
    def _listen(part: Part) -> None:
        if np.sqrt(np.mean(np.square(part.heard[-1]))) > ACTIVE_RMS:
            part.active_frames, part.quiet_frames = part.active_frames + 1, 0
            part.is_asked |= part.active_frames >= SPOKEN_FRAMES
        else:
            part.quiet_frames += 1
            if part.quiet_frames >= PAUSE_FRAMES:
                part.active_frames = 0

    def _speak(self, part: Part, pad_bias: float) -> tuple[Frame, int]:
        if part.steered[-1]:
            self._leave(part)
        elif part.at is None and part.line_idx < len(self.lines) and self._is_cued(part, self.lines[part.line_idx].cue, pad_bias):
            part.at, part.is_asked = 0, False
        if part.at is None:
            return np.zeros(FRAME, np.float32), PAD_ID
        line, at = self.lines[part.line_idx], part.at
        part.at += 1
        if part.at == line.num_frames:
            self._leave(part)
        word = line.word_at(at)
        return line.frames[at], PAD_ID if word is None else PAD_ID + 1 + self._words.index(word)

    @staticmethod
    def _leave(part: Part) -> None:
        if part.at is not None:
            part.at, part.line_idx = None, part.line_idx + 1

    @staticmethod
    def _is_cued(part: Part, cue: str | int, pad_bias: float) -> bool:
        if isinstance(cue, int):
            return len(part.heard) > cue
        return pad_bias < 0 if cue == "nudge" else part.is_asked and part.quiet_frames >= REPLY_FRAMES


def share_at(pcm: NDArray[Any], hz: float) -> float:
    """Share of the sound's energy within 20 Hz of a frequency, 0 to 1; 0 for silence."""
    power = np.abs(np.fft.rfft(pcm.astype(np.float64))) ** 2
    near = np.abs(np.fft.rfftfreq(pcm.size, 1 / RATE) - hz) < 20 if pcm.size else np.empty(0, bool)
    return float(power[near].sum() / power.sum()) if power.sum() else 0.0
