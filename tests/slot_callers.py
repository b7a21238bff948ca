"""Callers of a slot table without sessions, and an engine without a model."""

from __future__ import annotations

import numpy as np

from gateway.engine.base import FrameOutput, Prompt
from gateway.slots import Answer, Gathered, InFrame, Scattered, SlotState, SlotTable
from protocols.events import Ended, Failed, Pacing, SamplingOptions

S = 4
PROMPT = Prompt(voice_prompt=None, num_rows=1, payload=None)
SAMPLING = SamplingOptions()
IDLE, PREFILL, LIVE, DRAINING = SlotState.IDLE, SlotState.PREFILL, SlotState.LIVE, SlotState.DRAINING


class Caller:
    """An occupant that is never called: the table only carries it."""

    def on_ready(self) -> None:
        raise AssertionError("the table calls nobody")

    def on_answer(self, answer: Answer) -> None:
        raise AssertionError("the table calls nobody")

    def end(self, last: Ended | Failed) -> None:
        raise AssertionError("the table calls nobody")


def in_frame(value: float, real_samples: int = S) -> InFrame:
    return InFrame(np.full(S, value, dtype=np.float32), real_samples)


def states(table: SlotTable) -> list[SlotState]:
    return [slot.state for slot in table.slots]


def answer_batch(table: SlotTable, gathered: Gathered, *, ready: tuple[int, ...] = ()) -> Scattered:
    """Scatter what an engine would say that returns its input, negated, and the slot index as text."""
    ready_mask = np.zeros(table.num_slots, dtype=np.bool_)
    ready_mask[list(ready)] = True
    return table.scatter(gathered, FrameOutput(pcm=-gathered.batch.pcm, text_ids=np.arange(table.num_slots), ready_mask=ready_mask))


def make_live(table: SlotTable, *, pacing: Pacing = Pacing.LIVE, max_frames: int = 1000) -> tuple[Caller, int]:
    caller = Caller()
    slot_idx, _ = table.claim(caller)
    table.arm(slot_idx, caller, PROMPT, SAMPLING, pacing=pacing, max_frames=max_frames)
    scattered = answer_batch(table, table.gather(S), ready=(slot_idx,))
    assert list(scattered.ready) == [caller]
    return caller, slot_idx
