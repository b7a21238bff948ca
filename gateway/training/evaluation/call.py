"""One caller: what they say, when, in answer to what they hear, and the record of both sides.

A script is a generator of input frames. It looks at the record between two of them, so it can wait for the end of an answer or speak into
one. The one rule: over a wire that answers each frame before the next is sent a call depends on nothing but script and model; so a script
looks at the text of all frames but the last, whose text may still be on its way. Not here: wires. Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from gateway.training.evaluation.signals import FRAME, FRAME_S, QUIET_DBFS, RATE, Pcm, level_dbfs
from gateway.training.grammar import Ask

PATIENCE_S = 3.0  # for the first sound of an answer; trained answers start within 0.7 s
SETTLED_S = 1.0  # of quiet: the answer is over; pauses between its sentences are shorter
LONGEST_S = 20.0  # of one answer

Script = Iterator[Pcm]


@dataclasses.dataclass(frozen=True, slots=True)
class Utterance:
    """Something a caller says.

    Attributes:
        ask: what it means; its intent is empty for a murmur, which means nothing.
        speaker: who says it.
        pcm: float32 [N] at RATE.
        words: first sample of each word; empty where that is not known.
    """

    ask: Ask
    speaker: str
    pcm: Pcm
    words: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """Where an utterance lies in the call, in samples of input: [start, end)."""

    utterance: Utterance
    start: int
    end: int

    @property
    def first_frame(self) -> int:
        """Frame in which it begins."""
        return self.start // FRAME

    @property
    def end_frame(self) -> int:
        """First frame that has nothing of it."""
        return -(-self.end // FRAME)


class Record:
    """Both sides of a call, frame by frame; answer i is the answer to input i.

    Attributes:
        said: the answers' audio, float32 [FRAME] each.
        levels: the answers' levels in dBFS.
        marks: what the caller said, in order.
    """

    def __init__(self) -> None:
        self.said: list[Pcm] = []
        self.levels: list[float] = []
        self.marks: list[Mark] = []
        self._text: dict[int, str] = {}

    def hear(self, frame: Pcm) -> None:
        """Take the audio of the next answer frame."""
        self.said.append(frame)
        self.levels.append(level_dbfs(frame))

    def read(self, frame: int, text: str) -> None:
        """Take the text of an answer frame."""
        self._text[frame] = self._text.get(frame, "") + text

    def text(self, first: int = 0, end: int | None = None) -> str:
        """Return the monologue of frames [first, end)."""
        return "".join(text for frame, text in sorted(self._text.items()) if first <= frame and (end is None or frame < end))

    def text_frames(self, first: int, end: int) -> list[int]:
        """Return the frames of [first, end) that have text."""
        return sorted(frame for frame, text in self._text.items() if first <= frame < end and text.strip())

    def loud_frames(self, first: int, end: int) -> list[int]:
        """Return the frames of [first, end) that have sound."""
        return [frame for frame in range(first, min(end, len(self.levels))) if self.levels[frame] >= QUIET_DBFS]

    def is_speaking(self, first: int, end: int | None = None) -> bool:
        """Tell whether anything was said or written in [first, end), the last frame's text not counted."""
        end = len(self.said) if end is None else end
        return bool(self.loud_frames(first, end) or self.text_frames(first, min(end, len(self.said) - 1)))

    def pcm(self, first: int = 0, end: int | None = None) -> Pcm:
        """Return the answers' audio of frames [first, end)."""
        return np.concatenate([np.empty(0, np.float32), *self.said[first:end]])


class Caller:
    """Building blocks of scripts.

    Attributes:
        record: what was said so far.
        ahead: frames that may be sent before they are answered; more than 0 only where the script does not react.
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self.record = Record()
        self.ahead = 0
        self.rng = rng
        self._sent = 0  # frames

    def wait(self, seconds: float) -> Script:
        """Say nothing for a while."""
        yield from self.play(np.zeros(round(seconds / FRAME_S) * FRAME, np.float32))

    def play(self, pcm: Pcm) -> Script:
        """Let sound be heard that means nothing; a part of a frame at its end is filled up with silence."""
        for start in range(0, pcm.size, FRAME):
            frame = pcm[start : start + FRAME]
            self._sent += 1
            yield np.pad(frame, (0, FRAME - frame.size))

    def say(self, utterance: Utterance) -> Script:
        """Say something, beginning anywhere in a frame, and mark it."""
        lead = int(self.rng.integers(FRAME))
        start = self._sent * FRAME + lead
        self.record.marks.append(Mark(utterance, start, start + utterance.pcm.size))
        yield from self.play(np.pad(utterance.pcm, (lead, 0)))

    def listen(self) -> Script:
        """Wait until the answer to the last utterance is over, or did not come."""
        first, heard = self.record.marks[-1].first_frame, 0
        settled = round(SETTLED_S / FRAME_S)
        while heard < LONGEST_S / FRAME_S:
            has_begun = self.record.is_speaking(first)
            if has_begun and heard >= settled and not self.record.is_speaking(len(self.record.said) - settled):
                return
            if not has_begun and heard >= PATIENCE_S / FRAME_S:
                return
            yield from self.wait(FRAME_S)
            heard += 1

    def until_answered(self) -> Script:
        """Wait for the first sound of an answer to the last utterance, or until it does not come."""
        end = self.record.marks[-1].end_frame
        for _ in range(round(PATIENCE_S / FRAME_S)):
            if self.record.loud_frames(end, len(self.record.levels)):
                return
            yield from self.wait(FRAME_S)


ScriptOf = Callable[[Caller], Script]


def converse(utterances: list[Utterance]) -> ScriptOf:
    """Script: say one thing after the other and hear each answer out."""

    def script(caller: Caller) -> Script:
        yield from caller.wait(caller.rng.uniform(0.5, 1.0))
        for index, utterance in enumerate(utterances):
            if index:
                yield from caller.wait(caller.rng.uniform(0.2, 1.2))
            yield from caller.say(utterance)
            yield from caller.listen()

    return script


def interrupt(first: Utterance, second: Utterance) -> ScriptOf:
    """Script: ask for something long, speak 1 to 2 s into the answer, and hear what comes. Without an answer the second is never said."""

    def script(caller: Caller) -> Script:
        yield from caller.wait(caller.rng.uniform(0.5, 1.0))
        yield from caller.say(first)
        yield from caller.until_answered()
        yield from caller.wait(caller.rng.uniform(1.0, 2.0))
        if caller.record.loud_frames(len(caller.record.levels) - round(0.4 / FRAME_S), len(caller.record.levels)):
            yield from caller.say(second)
        yield from caller.listen()

    return script


def linger(pcm: Pcm, then: list[Utterance]) -> ScriptOf:
    """Script: let a sound, or silence, be heard without a word; then ask."""

    def script(caller: Caller) -> Script:
        caller.ahead = 8
        yield from caller.play(pcm)
        caller.ahead = 0
        for utterance in then:
            yield from caller.wait(caller.rng.uniform(0.5, 1.0))
            yield from caller.say(utterance)
            yield from caller.listen()

    return script


def paused(utterance: Utterance, word: int, seconds: float) -> Utterance:
    """Return the utterance with a pause before its `word`, whose first sample must be known."""
    at = utterance.words[word]
    gap = np.zeros(round(seconds * RATE), np.float32)
    words = (*utterance.words[:word], *(start + gap.size for start in utterance.words[word:]))
    return dataclasses.replace(utterance, pcm=np.concatenate([utterance.pcm[:at], gap, utterance.pcm[at:]]), words=words)
