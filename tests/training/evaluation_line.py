"""A made-up model at the other end of a line, with every habit that the evaluation measures, and calls with it."""

from __future__ import annotations

import asyncio
import dataclasses

import numpy as np

from gateway.training.evaluation.call import Caller, Record, ScriptOf, Utterance
from gateway.training.evaluation.scoring import Case
from gateway.training.evaluation.server import Plan
from gateway.training.evaluation.signals import FRAME, QUIET_DBFS, RATE, Pcm, level_dbfs
from gateway.training.evaluation.wires import hold
from gateway.training.grammar import Ask, intent_of

QUIET = np.zeros(FRAME, np.float32)
NOVA = "Your name is Nova."


def tone(seconds: float, amplitude: float = 0.1, hz: float = 150.0) -> Pcm:
    """A sound with five harmonics."""
    clock = np.arange(round(seconds * RATE)) / RATE
    return sum(amplitude / k * np.sin(2 * np.pi * hz * k * clock) for k in range(1, 6)).astype(np.float32)


def asked(text: str, seconds: float = 1.0, pcm: Pcm | None = None) -> Utterance:
    """A question that sounds like a tone."""
    return Utterance(Ask(*intent_of(text), text), "nobody", tone(seconds) if pcm is None else pcm)


def murmur(seconds: float = 0.4) -> Utterance:
    return Utterance(Ask("", "", "Mm-hm."), "nobody", tone(seconds))


@dataclasses.dataclass
class MadeUpModel:
    """Answers each sound that it hears with the next of its replies, `latency` frames after the sound's end.

    Attributes:
        replies: what it says, (text, frames of sound) each.
        latency: frames.
        eagerness: frames of sound after which it answers at once, without waiting for the end.
        stopping: frames after which it stops when somebody speaks over it; None if it never does.
        level: amplitude of what it says.
        opening: said in the first frame, unasked.
        hum: amplitude of its silence, by frame.
    """

    replies: list[tuple[str, int]]
    latency: int = 5
    eagerness: int | None = None
    stopping: int | None = None
    level: float = 0.1
    opening: str = ""
    hum: dict[int, float] = dataclasses.field(default_factory=dict)
    _frame: int = 0
    _heard: int = 0
    _quiet: int = 0
    _left: int = 0
    _over: int = 0

    async def exchange(self, frame: Pcm, record: Record, ahead: int) -> None:
        assert frame.shape == (FRAME,)
        assert frame.dtype == np.float32
        record.hear(self._sound())
        if self._frame == 0 and self.opening:
            record.read(0, self.opening)
        if level_dbfs(frame) >= QUIET_DBFS:
            self._heard, self._quiet = self._heard + 1, 0
            if self._left and self.stopping is not None:
                self._over += 1
                self._left = 0 if self._over > self.stopping else self._left
        elif self._heard:
            self._quiet += 1
        is_due = self._quiet > self.latency or (self.eagerness is not None and self._heard > self.eagerness)
        if self._heard and is_due and not self._left:
            self._heard = self._quiet = self._over = 0
            if self.replies:
                text, self._left = self.replies.pop(0)
                if text:
                    record.read(self._frame + 1, f" {text}")
        self._frame += 1

    def _sound(self) -> Pcm:
        if not self._left:
            return np.full(FRAME, self.hum.get(self._frame, 0.0), np.float32)
        self._left -= 1
        clock = np.arange(self._frame * FRAME, (self._frame + 1) * FRAME) / RATE
        return (self.level * np.sin(2 * np.pi * 190 * clock)).astype(np.float32)

    async def finish(self, record: Record) -> None:
        pass


def call(model: MadeUpModel, script: ScriptOf, kind: str = "question", persona: str = NOVA, voice: str = "af_heart") -> Case:
    """Hold a call with a made-up model."""
    record = asyncio.run(hold(model, Caller(np.random.default_rng(0)), script))
    return Case(Plan(kind, persona, voice, script), record, seed=0)
