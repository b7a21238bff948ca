"""Judging calls: what was answered, when, in whose voice, and what that says about the model.

A call is judged from its plan and its record alone, so that made-up records test the judge. The one rule: an answer is everything that the
model says from the beginning of one utterance to the beginning of the next; what it should not have said counts against it. Not here: the
bars (`report`). Pure. Thread: any.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np

from gateway.training import grammar, lexicon, persona
from gateway.training.evaluation.asr import Reading, word_error_rate
from gateway.training.evaluation.call import Mark, Record, Utterance
from gateway.training.evaluation.server import Plan
from gateway.training.evaluation.signals import FRAME, FRAME_S, RATE, Pcm
from gateway.training.persona import Persona

STOP_S = 0.64  # from the beginning of a barge-in to silence
GRACE_FRAMES = 2  # after a barge-in's end: nobody answers so early, so sound there is the old answer's
GOOD_WER = 0.2
DRIFT_DB = 3.0
DRIFT_FRAMES = 750  # a minute: the first and the last of a silence are compared
_MARGIN = 2  # frames kept around an answer's sound
_FLOOR = -70.0  # dBFS; silence below it does not drift


@dataclasses.dataclass(slots=True)
class Case:
    """A call that was held.

    Attributes:
        plan: what was meant to happen.
        record: what happened.
        seed: of the model and of the script.
        readings: what recognisers heard, by answer; None where none was asked.
    """

    plan: Plan
    record: Record
    seed: int
    readings: list[Reading | None] = dataclasses.field(default_factory=list)

    @property
    def persona(self) -> Persona:
        """Who answers."""
        return persona.read(self.plan.persona)

    @property
    def answers(self) -> list[Answer]:
        """The answers to all utterances that mean something."""
        marks = [mark for mark in self.record.marks if mark.utterance.ask.intent]
        starts = [mark.first_frame for mark in marks] + [len(self.record.said)]
        found = [Answer(self.persona, mark, self.record, end) for mark, end in zip(marks, starts[1:], strict=True)]
        for turn, answer in enumerate(found):
            answer.turn = turn
            answer.reading = self.readings[turn] if turn < len(self.readings) else None
        return found


@dataclasses.dataclass(slots=True)
class Answer:
    """What the model said from the beginning of an utterance to the beginning of the next.

    Attributes:
        persona: who answers.
        mark: the utterance.
        record: the call.
        end: first frame of the next utterance.
        turn: number of utterances before it.
        reading: what recognisers heard in its audio.
    """

    persona: Persona
    mark: Mark
    record: Record
    end: int
    turn: int = 0
    reading: Reading | None = None

    @property
    def utterance(self) -> Utterance:
        """What is answered."""
        return self.mark.utterance

    @property
    def text(self) -> str:
        """The monologue."""
        return self.record.text(self.mark.first_frame, self.end).strip()

    @property
    def expected(self) -> str:
        """The right answer."""
        return grammar.reply(self.utterance.ask.intent, self.utterance.ask.slot, self.persona)

    @property
    def pcm(self) -> Pcm:
        """The audio, from shortly before its first sound to shortly after its last."""
        loud = self.record.loud_frames(self.mark.first_frame, self.end)
        return self.record.pcm(max(0, loud[0] - _MARGIN), loud[-1] + 1 + _MARGIN) if loud else np.empty(0, np.float32)

    @property
    def is_given(self) -> bool:
        """Something was written or heard."""
        return bool(self.text) or self.pcm.size > 0

    @property
    def is_right(self) -> bool:
        """The text is, word for word, an answer to this question that some persona may give."""
        ask = self.utterance.ask
        return grammar.plain(self.text) in _right_texts(ask.intent, ask.slot)

    @property
    def is_right_after_all(self) -> bool:
        """What was written after the end of the utterance is right: the rest of an answer that it interrupted comes before."""
        ask = self.utterance.ask
        return grammar.plain(self.record.text(self.mark.end_frame, self.end)) in _right_texts(ask.intent, ask.slot)

    @property
    def is_exact(self) -> bool:
        """The text is, word for word, this persona's answer."""
        return grammar.plain(self.text) == grammar.plain(self.expected)

    @property
    def is_complete(self) -> bool:
        """The text is, word for word, an answer to some question, whole and once."""
        return grammar.plain(self.text) in _all_texts()

    @property
    def has_false_start(self) -> bool:
        """The model wrote or spoke before the utterance was over."""
        first, end = self.mark.first_frame, self.mark.end // FRAME  # a frame that has both is late enough
        return bool(self.record.loud_frames(first, end) or self.record.text_frames(first, end))

    @property
    def latency_s(self) -> float | None:
        """From the end of the utterance to the first sound after it."""
        loud = self.record.loud_frames(self.mark.end_frame, self.end)
        return loud[0] * FRAME_S - self.mark.end / RATE if loud else None

    @property
    def has_own_name(self) -> bool:
        """The text has the persona's name and no other."""
        spoken = set(grammar.plain(self.text).split())
        return spoken & _names() == {self.persona.name.lower()}

    @property
    def has_a_name(self) -> bool:
        """The text has a name, whosever it is."""
        return bool(set(grammar.plain(self.text).split()) & _names())

    @property
    def word_error_rate(self) -> float | None:
        """Of the audio as Whisper reads it, against the monologue; 1 for sound without text; None if nothing was said or read."""
        if self.reading is None or self.reading.whisper is None or not self.is_given:
            return None
        return word_error_rate(self.text, self.reading.whisper) if self.text else 1.0

    @property
    def is_recognised(self) -> bool | None:
        """The closed-grammar recogniser hears exactly the monologue; None if nothing was said or read."""
        if self.reading is None or self.reading.sphinx is None or not self.is_given:
            return None
        return bool(self.text) and self.reading.sphinx == grammar.plain(self.text)


def stop_s(case: Case) -> float | None:
    """Return how long the model went on after the beginning of a barge-in, in sound or text; None if it was not interrupted.

    A reply that came to its own end within STOP_S was not interrupted: silence after it proves nothing. The interruption ends at sample
    `end`; sound that begins GRACE_FRAMES later may be the new answer. A model that never stopped took infinitely long.

        [start ............ end)[grace)          counted: frames of [start, end + grace)
           old answer  |quiet ...       |new answer
    """
    marks = case.record.marks
    if len(marks) < 2:
        return None
    mark = marks[1]
    horizon = mark.end_frame + GRACE_FRAMES
    last = [*case.record.loud_frames(mark.first_frame, horizon), *case.record.text_frames(mark.first_frame, horizon)]
    went_on_s = max(0.0, (max(last) + 1) * FRAME_S - mark.start / RATE) if last else 0.0
    if went_on_s <= STOP_S and grammar.plain(case.record.text(marks[0].first_frame, horizon)) in _all_texts():
        return None
    return math.inf if last and max(last) == horizon - 1 else went_on_s


def silence_faults(case: Case, frames: int) -> list[str]:
    """Say what is wrong with an answer to `frames` frames of silence and the questions after it; nothing if all is well."""
    record = case.record
    faults = []
    if text := record.text(0, frames).strip():
        faults.append(f"wrote {text[:60]!r}")
    if loud := record.loud_frames(0, frames):
        faults.append(f"was loud in {len(loud)} frames, first after {loud[0] * FRAME_S:.0f} s")
    span = min(DRIFT_FRAMES, frames // 2)
    before, after = (max(_FLOOR, float(np.median(record.levels[first : first + span]))) for first in (0, frames - span))
    if abs(after - before) > DRIFT_DB:
        faults.append(f"level went from {before:.0f} to {after:.0f} dBFS")
    answers = case.answers
    if (right := sum(answer.is_right for answer in answers)) * 2 <= len(answers):
        faults.append(f"answered {right} of {len(answers)} questions afterwards")
    return faults


def opening(case: Case) -> str:
    """Return what was written before the caller said anything, murmurs included."""
    marks = case.record.marks
    return case.record.text(0, marks[0].first_frame if marks else None).strip()


# Private


@functools.cache
def _right_texts(intent: str, slot: str) -> frozenset[str]:
    shops = ("", *lexicon.SHOPS)
    names = lexicon.NAMES if intent == "your_name" else lexicon.NAMES[:1]
    personas = [Persona(name, style, shop) for name in names for style in ("", "cheerful", "formal", "brief") for shop in shops]
    return frozenset(grammar.plain(grammar.reply(intent, slot, who)) for who in personas)


@functools.cache
def _all_texts() -> frozenset[str]:
    return frozenset(grammar.plain(text) for text in grammar.replies())


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(name.lower() for name in lexicon.NAMES)
