"""Which calls are held: who asks what of whom, in which voice, under which circumstances.

The one rule: the list depends on the recordings, the voices, the size and the seed alone. Not here: how calls are held (`server`) and
judged (`scoring`). Thread: any.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator, Sequence

import numpy as np

from gateway.training import lexicon, persona
from gateway.training.evaluation import signals
from gateway.training.evaluation.call import ScriptOf, Utterance, converse, interrupt, linger
from gateway.training.evaluation.server import Plan, Wire
from gateway.training.evaluation.signals import FRAME, RATE, Pcm
from gateway.training.evaluation.speech import Questions
from gateway.training.persona import HELD_OUT, Persona

LONG_ANSWERS = ("story", "alphabet")
MIN_BARGE_S = 0.9  # a barge-in lasts longer than the model may take to stop, so its own answer cannot be mistaken for the old one
FAINT_DB = -12.0
BABBLE_SNR_DB = 15.0
SPEECH_DBFS = -23.0  # of the recordings
NOISE_DBFS = -35.0
NOISE_S = 20.0
BREATH_S = 5.0  # before the first question to an assistant that greets first


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """How many calls of each kind."""

    question: int
    chat: int  # the same, over /api/chat
    conversation: int
    turns: int  # of a conversation
    name: int
    pause: int
    barge_in: int
    murmur: int
    babble: int
    faint: int
    noise: int  # and as many with music
    greeting: int
    silence_s: float


FULL = Size(100, 16, 12, 5, 60, 30, 30, 10, 24, 24, 4, 8, 1800.0)
QUICK = Size(20, 4, 2, 3, 10, 6, 6, 2, 4, 4, 1, 2, 120.0)


class Scenarios:
    """Draws the calls of one evaluation."""

    def __init__(self, questions: Questions, voices: Sequence[str], size: Size, seed: int) -> None:
        """Prepare for these voices of the server."""
        self._questions, self._size = questions, size
        self._rng = random.Random(seed)
        self._voices = sorted(voices)
        self._count = 0

    def plans(self) -> list[Plan]:
        """Return all calls but those that take the time; the longest first."""
        size = self._size
        found = [
            self._plan("silence", linger(np.zeros(self.silence_frames * FRAME, np.float32), self._questions.balanced(self._rng, 3))),
            *self._chat(size.chat),
            *self._conversations(size.conversation),
            *self._sounds(size.noise),
            *self._interrupted(size.barge_in),
            *self._murmured(size.murmur),
            *self._paused(size.pause),
            *self._greeted(size.greeting),
        ]
        found += [self._plan("question", converse([question])) for question in self._questions.balanced(self._rng, size.question)]
        found += self._named(size.name) + self._in_babble(size.babble) + self._faint(size.faint)
        return found

    @property
    def silence_frames(self) -> int:
        """Length of the silence."""
        return round(self._size.silence_s * RATE) // FRAME

    def paced(self, count: int) -> list[Plan]:
        """Return conversations in real time, during which steps are timed."""
        return [dataclasses.replace(plan, wire="live") for plan in self._conversations(count)]

    def of_people(self, utterances: Sequence[Utterance]) -> list[Plan]:
        """Return one call per recording of a person."""
        return [self._plan("person", converse([utterance])) for utterance in utterances]

    # Private

    def _plan(self, kind: str, script: ScriptOf, who: Persona | None = None, wire: Wire = "duplex", background: Pcm | None = None) -> Plan:
        """A call with the next voice; every third persona is one that training never saw."""
        self._count += 1
        if who is None:
            who = HELD_OUT[self._count // 3 % len(HELD_OUT)] if self._count % 3 == 0 else self._persona()
        return Plan(kind, who.text, self._voices[self._count % len(self._voices)], script, wire, background)

    def _persona(self) -> Persona:
        return dataclasses.replace(persona.draw(self._rng), greets_first=False)

    def _chat(self, count: int) -> list[Plan]:
        return [self._plan("question", converse([question]), wire="chat") for question in self._questions.balanced(self._rng, count)]

    def _conversations(self, count: int) -> list[Plan]:
        turns = self._size.turns
        asked = self._questions.balanced(self._rng, count * turns)
        return [self._plan("conversation", converse(asked[i * turns : (i + 1) * turns])) for i in range(count)]

    def _named(self, count: int) -> list[Plan]:
        """Each name in turn, in each style, with and without a shop."""
        asked = self._questions.balanced(self._rng, count, ("your_name",))
        names = self._rng.sample(lexicon.NAMES, len(lexicon.NAMES))
        plans = []
        for index, question in enumerate(asked):
            style = self._rng.choice(("", "cheerful", "formal", "brief"))
            who = Persona(names[index % len(names)], style, self._rng.choice(("", *lexicon.SHOPS)))
            plans.append(self._plan("name", converse([question]), who))
        return plans

    def _paused(self, count: int) -> list[Plan]:
        return [self._plan("pause", converse([question])) for question in self._questions.with_pause(self._rng, count)]

    def _interrupted(self, count: int) -> list[Plan]:
        firsts = self._questions.balanced(self._rng, count, LONG_ANSWERS)
        seconds = [
            question
            for question in self._questions.balanced(self._rng, 8 * count)
            if question.pcm.size >= MIN_BARGE_S * RATE and question.ask.intent not in LONG_ANSWERS
        ]
        return [self._plan("barge_in", interrupt(*pair)) for pair in zip(firsts, seconds, strict=False)]

    def _murmured(self, count: int) -> list[Plan]:
        if not self._questions.murmurs:
            return []
        firsts = self._questions.balanced(self._rng, count, LONG_ANSWERS)
        return [self._plan("murmur", interrupt(first, self._rng.choice(self._questions.murmurs))) for first in firsts]

    def _in_babble(self, count: int) -> list[Plan]:
        return [
            self._plan("babble", converse([question]), background=self._questions.babble(self._rng, 8.0, SPEECH_DBFS - BABBLE_SNR_DB))
            for question in self._questions.balanced(self._rng, count)
        ]

    def _faint(self, count: int) -> list[Plan]:
        plans = []
        for question in self._questions.balanced(self._rng, count):
            faint = dataclasses.replace(question, pcm=signals.amplified(question.pcm, FAINT_DB))
            plans.append(self._plan("faint", converse([faint])))
        return plans

    def _sounds(self, count: int) -> Iterator[Plan]:
        """Sounds that are no speech."""
        generator = np.random.default_rng(self._rng.getrandbits(32))
        for _ in range(count):
            yield self._plan("noise", linger(signals.noise(generator, NOISE_S, NOISE_DBFS), []))
            yield self._plan("music", linger(signals.melody(generator, NOISE_S, NOISE_DBFS), []))

    def _greeted(self, count: int) -> list[Plan]:
        quiet = np.zeros(round(BREATH_S * RATE), np.float32)
        asked = self._questions.balanced(self._rng, count)
        return [
            self._plan("greeting", linger(quiet, [question]), dataclasses.replace(self._persona(), greets_first=True)) for question in asked
        ]
