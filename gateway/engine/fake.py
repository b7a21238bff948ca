"""A deterministic engine in numpy, for tests and for demos without a model.

It keeps the whole contract of `base.Engine` (chunked prefill, masks, rows that do not depend on each other, failures) and none of the
mathematics. The one rule: row k's output is a closed formula of row k's frames, seeds and history, so a test can tell whose output it
holds. Thread: as in `base.Engine`.
"""

from __future__ import annotations

import dataclasses
import time
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base import EngineInfo, FrameBatch, FrameOutput, Prompt
from gateway.errors import ConfigError, EngineError
from protocols.events import SamplingOptions

PAD_ID = 3  # ids below 4 are special and silent
PIECES = (b"", b"", b"", b"", b" hello", b" there", b",", b" that", b" is", b" 5", b"\xe2", b"\x82", b"\xac", b".")  # byte fallback: €
MAX_PROMPT_ROWS = 512
WINDOW_ROWS = 64
ECHO_GAIN = 0.5
HISTORY_GAIN = 0.25
DEFAULTS = SamplingOptions(
    text_temperature=0.7,
    text_topk=25,
    audio_temperature=0.8,
    audio_topk=250,
    pad_mult=0.0,
    repetition_penalty=1.0,
    repetition_penalty_context=64,
)


@dataclasses.dataclass(slots=True)
class _Row:
    """State of one open row."""

    audio_seed: int
    text_seed: int
    rows_to_read: int  # prompt rows that are not in the "model" yet
    previous: NDArray[np.float32]  # float32 [S], the last input frame
    is_ready: bool = False
    num_frames: int = 0
    window: deque[tuple[int, int]] = dataclasses.field(default_factory=lambda: deque(maxlen=WINDOW_ROWS))


class FakeEngine:
    """Echoes each row to its caller, marked by seed and history.

    Args:
        num_slots: rows of the batch.
        frame_samples: samples of a frame.
        prefill_rows: prompt rows read per step.
        max_frames: longest call.
        step_seconds: how long a step takes.
        sleep: how it takes that long.
        fail_at_step: 0-based step that raises EngineError, None for never.
        load_error: what `load` raises, None for nothing.
    """

    info: EngineInfo

    def __init__(
        self,
        num_slots: int,
        *,
        frame_samples: int = 1920,
        sample_rate: int = 24000,
        voices: Sequence[str] = ("alto", "tenor"),
        prefill_rows: int = 8,
        max_frames: int = 100_000,
        step_seconds: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
        fail_at_step: int | None = None,
        load_error: Exception | None = None,
    ) -> None:
        self._info = EngineInfo(
            model="fake",
            sample_rate=sample_rate,
            frame_samples=frame_samples,
            num_slots=num_slots,
            voices=tuple(sorted(voices)),
            default_voice=min(voices, default=None),
            default_persona="",
            sampling=DEFAULTS,
            max_frames=max_frames,
            device="cpu",
        )
        self._prefill_rows = prefill_rows
        self.step_seconds = step_seconds
        self._sleep = sleep
        self.fail_at_step = fail_at_step
        self._load_error = load_error
        self._rows: list[_Row | None] = [None] * num_slots
        self.num_steps = 0
        self.is_shut_down = False

    def load(self, progress: Callable[[str], None]) -> None:
        """Load nothing, or fail as told."""
        progress("loading the fake engine")
        if self._load_error is not None:
            raise self._load_error
        self.info = self._info

    def prepare(self, voice_prompt: str | None, persona: str | None) -> Prompt:
        """Make a prompt of one row per word and four for a voice."""
        voice = self.info.default_voice if voice_prompt is None else voice_prompt
        voice = voice.removesuffix(".pt") if voice else None
        if voice is not None and voice not in self.info.voices:
            raise ConfigError(f"unknown voice {voice!r}; known voices: {', '.join(self.info.voices)}")
        num_rows = len((persona or "").split()) + (0 if voice is None else 4)
        if num_rows > MAX_PROMPT_ROWS:
            raise ConfigError(f"the prompt takes {num_rows} rows, at most {MAX_PROMPT_ROWS} fit")
        return Prompt(voice_prompt=voice, num_rows=num_rows, payload=None)

    def piece(self, text_id: int) -> bytes:
        """Look the token up."""
        return PIECES[text_id]

    def open(self, slot_idx: int, prompt: Prompt, sampling: SamplingOptions) -> None:
        """Claim a row."""
        if self._rows[slot_idx] is not None:
            raise EngineError(f"row {slot_idx} is open already")
        if any(getattr(sampling, field.name) is None for field in dataclasses.fields(sampling)):
            raise EngineError("sampling has an unset field")
        silence = np.zeros(self._info.frame_samples, dtype=np.float32)
        self._rows[slot_idx] = _Row(sampling.audio_seed or 0, sampling.text_seed or 0, prompt.num_rows, silence)

    def step(self, batch: FrameBatch) -> FrameOutput:
        """Advance the armed rows by one frame and the prefilling ones by one chunk."""
        if self.step_seconds:
            self._sleep(self.step_seconds)
        if self.num_steps == self.fail_at_step:
            raise EngineError("failure injected")
        self.num_steps += 1
        pcm = np.zeros_like(batch.pcm)
        text_ids = np.full(len(self._rows), PAD_ID, dtype=np.int64)
        ready_mask = np.zeros(len(self._rows), dtype=np.bool_)
        for slot_idx, row in enumerate(self._rows):
            is_armed = bool(batch.exec_mask[slot_idx])
            if is_armed and (row is None or not row.is_ready):
                raise EngineError(f"row {slot_idx} is armed and not ready")
            if row is None:
                continue
            if not row.is_ready:
                row.rows_to_read -= self._prefill_rows
                row.is_ready = row.rows_to_read <= 0
                ready_mask[slot_idx] = row.is_ready
            elif is_armed:
                is_steered, pad_bias = bool(batch.steer_mask[slot_idx]), float(batch.pad_bias[slot_idx])
                pcm[slot_idx], text_ids[slot_idx] = self._advance(row, batch.pcm[slot_idx], is_steered, pad_bias)
        return FrameOutput(pcm=pcm, text_ids=text_ids, ready_mask=ready_mask)

    def close(self, slot_idx: int) -> None:
        """Release a row."""
        if self._rows[slot_idx] is None:
            raise EngineError(f"row {slot_idx} is not open")
        self._rows[slot_idx] = None

    def window_rows(self, slot_idx: int) -> NDArray[np.int32]:
        """Text id and peak of the last frames, int32 [T, 2]."""
        row = self._rows[slot_idx]
        if row is None:
            raise EngineError(f"row {slot_idx} is not open")
        return np.array(row.window, dtype=np.int32).reshape(-1, 2)

    def shutdown(self) -> None:
        """Forget every row."""
        self._rows = [None] * len(self._rows)
        self.is_shut_down = True

    @property
    def open_rows(self) -> list[int]:
        """Rows that are open, for assertions."""
        return [slot_idx for slot_idx, row in enumerate(self._rows) if row is not None]

    @staticmethod
    def _advance(row: _Row, frame: NDArray[np.float32], is_steered: bool, pad_bias: float) -> tuple[NDArray[np.float32], int]:
        voice = expected_audio(frame, row.previous, row.audio_seed)
        pads = row.num_frames % 2 == 1 if pad_bias == 0 else pad_bias > 0  # a bias says it all: eager rows never pad, reluctant ones always
        text_id = PAD_ID if pads else 4 + (row.text_seed + row.num_frames // 2) % (len(PIECES) - 4)
        if is_steered:
            voice, text_id = np.zeros_like(frame), PAD_ID
        row.window.append((text_id, int(np.abs(frame).max() * 32767)))
        row.previous = frame.copy()
        row.num_frames += 1
        return voice, text_id


def expected_audio(frame: NDArray[np.float32], previous: NDArray[np.float32], audio_seed: int) -> NDArray[np.float32]:
    """Return what the engine answers to `frame` after `previous` (zeros at the start of a call), float32 [S]."""
    mark = (audio_seed % 1000) * 1e-4  # a constant offset: inaudible, and it names the caller
    return (ECHO_GAIN * frame + HISTORY_GAIN * previous + mark).astype(np.float32)
