"""What the gateway asks of an engine: rows and masks, never sessions. numpy only.

One engine holds `num_slots` rows. The tick thread alone calls `load`, `open`, `step`, `close`, `shutdown`; `prepare` and `piece` are pure
and may be called from any thread once `load` has returned. The one rule: in a step, every row of `exec_mask` consumes exactly one frame
and yields exactly one frame; a row without a frame is unchanged, and no row depends on another. Models differ behind this type: nothing
above it knows a frame size, a rate or a code.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from protocols.events import SamplingOptions


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prepared voice and persona: opaque outside the engine that made it."""

    voice_prompt: str | None  # the voice in effect
    num_rows: int  # model positions it takes
    payload: Any


@dataclasses.dataclass(frozen=True, slots=True)
class FrameBatch:
    """Input of one step."""

    pcm: NDArray[np.float32]  # float32 [B, S]; rows outside exec_mask are ignored
    exec_mask: NDArray[np.bool_]  # bool [B]: rows that have a frame; only rows that are ready may be set
    steer_mask: NDArray[np.bool_]  # bool [B]: rows forced to text padding and silence in this step
    # float32 [B]: added to the log-probability of text padding in this step, beside the call's own pad_mult; left out: zeros
    pad_bias: NDArray[np.float32] = dataclasses.field(default_factory=lambda: np.zeros(0, dtype=np.float32))

    def __post_init__(self) -> None:
        if not self.pad_bias.size:
            object.__setattr__(self, "pad_bias", np.zeros(self.exec_mask.shape, dtype=np.float32))


@dataclasses.dataclass(frozen=True, slots=True)
class FrameOutput:
    """Output of one step; buffers belong to the caller."""

    pcm: NDArray[np.float32]  # float32 [B, S]; meaningful where the batch's exec_mask was set
    text_ids: NDArray[np.int64]  # int64 [B]: the text token of the output frame (padding and other special ids included)
    ready_mask: NDArray[np.bool_]  # bool [B]: rows whose prompt was completed in this step


@dataclasses.dataclass(frozen=True, slots=True)
class EngineInfo:
    """What a loaded engine says of itself."""

    model: str  # name of the checkpoint
    sample_rate: int  # Hz, input and output
    frame_samples: int  # samples of one frame; the cadence is frame_samples / sample_rate
    num_slots: int  # B
    voices: tuple[str, ...]  # allow-list of voice prompts, sorted; empty when the model takes none
    default_voice: str | None  # the voice of a caller who names none
    default_persona: str  # the persona of a caller who sends none; "" is none
    sampling: SamplingOptions  # the checkpoint's defaults, every field but the seeds set
    max_frames: int  # longest call the engine can hold, prompt excluded
    device: str  # for people: "cpu", "NVIDIA H200"
    slots_that_fit: int | None = None  # rows that the memory would hold; None where memory sets no limit


class Engine(Protocol):
    """A lockstep full-duplex model."""

    info: EngineInfo  # valid once `load` has returned

    def load(self, progress: Callable[[str], None]) -> None:
        """Load, allocate, warm up; afterwards nothing is compiled or captured. `progress` takes one line for people at a time.

        Raises:
            ConfigError: the checkpoint or the machine cannot serve this configuration; the message says what would.

        Thread: tick.
        """

    def prepare(self, voice_prompt: str | None, persona: str | None) -> Prompt:
        """Resolve a voice and tokenise a persona; None is the checkpoint's default of either, a blank persona is none. Thread: any.

        Raises:
            ConfigError: unknown voice, or more rows than a prompt may have.
        """

    def piece(self, text_id: int) -> bytes:
        """UTF-8 bytes that a text token adds; b"" for special ids; a byte-fallback piece is one byte. Thread: any."""

    def open(self, slot_idx: int, prompt: Prompt, sampling: SamplingOptions) -> None:
        """Claim a free row; `sampling` has every field set. Following steps prefill it until `ready_mask` shows it. Thread: tick."""

    def step(self, batch: FrameBatch) -> FrameOutput:
        """Advance every armed row by one frame and every prefilling row by one chunk. Thread: tick.

        Raises:
            EngineError: the device or the model failed; every row is lost.
        """

    def close(self, slot_idx: int) -> None:
        """Release a row in any state; its memory is free for the next `open`. Thread: tick."""

    def window_rows(self, slot_idx: int) -> NDArray[np.int32]:
        """Rows of the last window, int32 [T, K], oldest first: what a prefill needs to rebuild the call. Thread: tick."""

    def shutdown(self) -> None:
        """Free the device. Thread: tick."""
