"""Made-up conversations: who says what when, and what the assistant's text row is, before any sound.

Here: turns, latencies, pauses, barge-ins, backchannels, the layout of words on frames. Not here: mixing and noise. The one rule: whatever
the assistant says follows from the persona and from what it could have heard by then. numpy only; runs in worker processes. Thread: any.
"""

from __future__ import annotations

import dataclasses
import random

import numpy as np
from numpy.typing import NDArray

from gateway.training import persona as personas
from gateway.training.bank import Index
from gateway.training.corpus import SAMPLE_RATE, Clip
from gateway.training.grammar import BACKCHANNELS, Ask, asks, greeting, pause_at, reply

FRAME = 1920  # samples
PAD, EPAD = 3, 0  # text pieces; the ids of engine.layout
LATENCY_S = (0.3, 0.58)  # from the end of a question to the answer, before it is rounded up to a frame
PAUSE_S = (0.3, 0.6)  # inside a question
GAP_S = (0.5, 2.5)  # from the end of an answer to the next question
BARGED, MURMURED = 0.15, 0.08  # chances that an answer is interrupted, or accompanied by a backchannel, for each of its seconds
MOST_BARGED, MOST_MURMURED = 0.6, 0.3  # of long answers
YIELD_S = (0.24, 0.36)  # from the beginning of a barge-in to the assistant's silence; one narrow range, so that it is learned as a rule
LATE = 0.1  # share of interruptions that the assistant notices LATE_S after they began
LATE_S = (0.34, 1.0)
OVERLAP_FRAMES = 12  # from the beginning of a barge-in or backchannel: when it is decided whether the assistant goes on
_TRIES = 50
QUIET = 0.04  # share of conversations in which nobody speaks
LONG_GAP = 0.08  # share of gaps that last LONG_GAP_S
LONG_GAP_S = (5.0, 15.0)
MIN_BARGE_S = 1.2  # answers shorter than this are not interrupted
# Of intents, beside 1 for the others, more for those with many slots; long answers are there to be interrupted.
SHARES = {"nonsense": 3.0, "your_name": 8.0, "hello": 1.5, "story": 4.0, "alphabet": 4.0, "count": 2.0}


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """A piece of a clip in a conversation, in samples."""

    is_user: bool
    at: int
    start: int  # in the bank
    length: int  # in the bank
    rate: float  # samples of the bank for one of the conversation
    gain: float


@dataclasses.dataclass(slots=True)
class Dialogue:
    """One conversation of T frames."""

    persona: personas.Persona
    voice: str
    placements: list[Placement]
    text: NDArray[np.int64]  # [T] pieces
    speaking: NDArray[np.bool_]  # [T] the assistant speaks
    intents: NDArray[np.int64]  # [T] class of the question just heard; 0 is none
    overlap: NDArray[np.bool_]  # [T] the user has just begun to speak over the assistant

    @classmethod
    def silent(cls, persona: personas.Persona, voice: str, frames: int) -> Dialogue:
        """A conversation in which nobody speaks yet."""
        speaking, overlap = np.zeros((2, frames), dtype=np.bool_)
        return cls(persona, voice, [], np.full(frames, PAD, dtype=np.int64), speaking, np.zeros(frames, dtype=np.int64), overlap)


class DialogueMaker:
    """Draws conversations from what a corpus can say."""

    def __init__(self, index: Index, frames: int, seed: int) -> None:
        self._index, self._frames = index, frames
        self._rng = random.Random(seed)
        self._by_intent: dict[str, dict[str, list[Ask]]] = {}
        for ask in asks():
            if ask.text in index.asks:
                self._by_intent.setdefault(ask.intent, {}).setdefault(ask.slot, []).append(ask)
        self.classes = intent_classes()
        weights = {intent: SHARES.get(intent, len(slots) ** 0.6) for intent, slots in self._by_intent.items()}
        self._intents, self._weights = list(weights), list(weights.values())
        self._murmurs = [text for text in BACKCHANNELS if text in index.asks]

    def draw(self) -> Dialogue:
        """Make one conversation."""
        rng = self._rng
        dialogue = Dialogue.silent(personas.draw(rng), rng.choice(self._index.voices), self._frames)
        if rng.random() < QUIET:
            return dialogue
        now = self._seconds(0.2, 1.2)
        if dialogue.persona.greets_first:
            now = self._say(dialogue, greeting(dialogue.persona), self._seconds(0.24, 0.6)) + self._seconds(*GAP_S)
        elif rng.random() < 0.15:
            now += self._seconds(2.0, 8.0)
        end = self._frames * FRAME
        while now < end:
            ask = self._ask(dialogue)
            heard = self._hear(dialogue, ask, now)
            answered = self._answer(dialogue, ask, heard)
            now = answered + (self._seconds(*LONG_GAP_S) if rng.random() < LONG_GAP else self._seconds(*GAP_S))
        return dialogue

    def single(self, ask: Ask, clip_idx: int, persona: personas.Persona, voice: str) -> Dialogue:
        """A conversation of one given question and no answer: what evaluation lets the model complete."""
        dialogue = Dialogue.silent(persona, voice, self._frames)
        self._place(dialogue, self._index.clips[clip_idx], self._seconds(0.6, 1.0), is_user=True)
        return dialogue

    def _ask(self, dialogue: Dialogue) -> Ask:
        """A question that this voice can answer; any after many that it cannot."""
        for _ in range(_TRIES):
            slots = self._by_intent[self._rng.choices(self._intents, self._weights)[0]]
            ask = self._rng.choice(slots[self._rng.choice(list(slots))])
            if (dialogue.voice, reply(ask.intent, ask.slot, dialogue.persona)) in self._index.replies:
                break
        return ask

    def _answer(self, dialogue: Dialogue, ask: Ask, heard: int) -> int:
        """Reply to a question, perhaps be interrupted by another; return the sample at which the last answer ends."""
        rng = self._rng
        while True:
            began = -(-(heard + self._seconds(*LATENCY_S)) // FRAME) * FRAME
            self._mark(dialogue, ask, heard, began)
            line = reply(ask.intent, ask.slot, dialogue.persona)
            clip = self._reply_clip(dialogue.voice, line)
            if clip is None:
                return began
            length_s = clip.length / SAMPLE_RATE
            barged, murmured = min(MOST_BARGED, BARGED * length_s), min(MOST_MURMURED, MURMURED * length_s)
            chance = rng.random()
            if length_s < MIN_BARGE_S or chance > barged + murmured:
                return self._speak(dialogue, clip, began, clip.length)
            barge = began + self._seconds(0.4, max(0.5, length_s - 0.5))
            dialogue.overlap[barge // FRAME : barge // FRAME + OVERLAP_FRAMES] = True
            if chance > barged and self._murmurs:  # the assistant goes on
                self._hear(dialogue, Ask("", "", rng.choice(self._murmurs)), barge)
                return self._speak(dialogue, clip, began, clip.length)
            noticed = barge + self._seconds(*(LATE_S if rng.random() < LATE else YIELD_S))
            self._speak(dialogue, clip, began, min(clip.length, noticed - began))
            ask = rng.choice(self._by_intent[rng.choice(("stop", "wait"))][""]) if rng.random() < 0.3 else self._ask(dialogue)
            heard = self._hear(dialogue, ask, barge)

    def _hear(self, dialogue: Dialogue, ask: Ask, at: int) -> int:
        """Let the user say something; return the sample at which it ends."""
        rng = self._rng
        clip = self._index.clips[rng.choice(self._index.asks[ask.text])]
        split = pause_at(ask) if ask.intent else None
        if split is None or not 0 < split < len(clip.words) or rng.random() > 0.35:
            return self._place(dialogue, clip, at, is_user=True)
        rate, gain, middle = self._rate(), self._gain(), clip.words[split][0]
        end = self._put(dialogue, True, at, clip.start, middle, rate, gain)
        return self._put(dialogue, True, end + self._seconds(*PAUSE_S), clip.start + middle, clip.length - middle, rate, gain)

    def _say(self, dialogue: Dialogue, line: str, at: int) -> int:
        clip = self._reply_clip(dialogue.voice, line)
        return at if clip is None else self._speak(dialogue, clip, at, clip.length)

    def _speak(self, dialogue: Dialogue, clip: Clip, at: int, length: int) -> int:
        """Place `length` samples of an answer from the next frame on, its words and its speaking mark; return its end."""
        at = -(-at // FRAME) * FRAME
        end = self._put(dialogue, False, at, clip.start, length, 1.0, 1.0)
        dialogue.speaking[max(0, at // FRAME - 1) : end // FRAME + 2] = True
        lay_out(dialogue.text, at, [(start, pieces) for start, _, pieces in clip.words if start < length])
        return end

    def _place(self, dialogue: Dialogue, clip: Clip, at: int, *, is_user: bool) -> int:
        return self._put(dialogue, is_user, at, clip.start, clip.length, self._rate(), self._gain())

    def _put(self, dialogue: Dialogue, is_user: bool, at: int, start: int, length: int, rate: float, gain: float) -> int:
        length = max(0, min(length, int((self._frames * FRAME - at) * rate)))
        if length > 0:
            dialogue.placements.append(Placement(is_user, at, start, length, rate, gain))
        return at + int(length / rate)

    def _mark(self, dialogue: Dialogue, ask: Ask, heard: int, began: int) -> None:
        """Name the question from its end until the answer is under way."""
        dialogue.intents[heard // FRAME : began // FRAME + 3] = self.classes.get((ask.intent, ask.slot), 0)

    def _reply_clip(self, voice: str, line: str) -> Clip | None:
        found = self._index.replies.get((voice, line))
        return self._index.clips[self._rng.choice(found)] if found else None

    def _seconds(self, low: float, high: float) -> int:
        return int(self._rng.uniform(low, high) * SAMPLE_RATE)

    def _rate(self) -> float:
        return self._rng.uniform(0.88, 1.14)

    def _gain(self) -> float:
        return float(10 ** (self._rng.uniform(-1.5, 1.5) / 20))


def intent_classes() -> dict[tuple[str, str], int]:
    """Class of each question, from 1."""
    return {key: 1 + i for i, key in enumerate(sorted({(ask.intent, ask.slot) for ask in asks()}))}


def lay_out(text: NDArray[np.int64], at: int, words: list[tuple[int, tuple[int, ...]]]) -> None:
    """Write words (first sample, pieces) of an answer that starts at sample `at` into the text row [T], as Moshi does: a word's pieces
    from the frame in which it begins, end-of-padding in the frame before it where that is free, padding elsewhere."""
    free = 0
    for start, pieces in words:
        frame = max(free, (at + start) // FRAME)
        if frame > 0 and frame - 1 < len(text) and text[frame - 1] == PAD:
            text[frame - 1] = EPAD
        for piece in pieces:
            if frame < len(text):
                text[frame] = piece
            frame += 1
        free = frame
