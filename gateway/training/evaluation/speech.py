"""What the callers say: recordings of speakers that training never heard, and of people, by what they mean.

The held-out recordings come from a packed corpus, or are made here from the same list and kept. The one rule: no speaker of the training
data ever calls. Thread: any.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.training import corpus, flite, grammar, speech
from gateway.training.alignment import Aligner
from gateway.training.evaluation.call import Utterance, paused
from gateway.training.evaluation.signals import RATE, Pcm, at_level
from gateway.training.grammar import Ask

MURMURER = "awb"  # flite's held-out voice
BABBLERS = 6  # voices of a babble: fewer can be followed, more are noise
PAUSE_S = (0.3, 0.6)

# Recordings of people in Debian's asterisk-core-sounds-en-g722 and pocketsphinx-testdata, by file name, with the intent of what they say.
# Neither is in this repository, nor was anything trained on them.
PEOPLE = {
    "hello.g722": "hello", "goodbye.g722": "goodbye", "vm-goodbye.g722": "goodbye", "im-sorry.g722": "sorry",
    "auth-thankyou.g722": "thank_you", "vm-leavemsg.g722": "nonsense", "all-circuits-busy-now.g722": "nonsense",
    "tt-monkeysintro.g722": "nonsense", "please-try-call-later.g722": "nonsense", "number-not-answering.g722": "nonsense",
    "queue-youarenext.g722": "nonsense", "goforward.raw": "nonsense", "numbers.raw": "nonsense", "something.raw": "nonsense",
}  # fmt: skip


class Questions:
    """Held-out recordings."""

    def __init__(self, utterances: Sequence[Utterance], murmurs: Sequence[Utterance]) -> None:
        self.all = list(utterances)
        self.murmurs = list(murmurs)

    def balanced(self, rng: random.Random, count: int, intents: Sequence[str] | None = None) -> list[Utterance]:
        """Draw recordings, each intent equally often as far as it goes, none twice before all were drawn."""
        queues: dict[str, list[Utterance]] = {}
        for utterance in rng.sample(self.all, len(self.all)):
            if intents is None or utterance.ask.intent in intents:
                queues.setdefault(utterance.ask.intent, []).append(utterance)
        if not queues:
            return []
        chosen: list[Utterance] = []
        names = list(queues)
        while len(chosen) < count:
            rng.shuffle(names)
            for name in names:
                queue = queues[name]
                queue.append(queue.pop(0))
                chosen.append(queue[-1])
        return chosen[:count]

    def with_pause(self, rng: random.Random, count: int) -> list[Utterance]:
        """Draw questions that have a place to pause, paused there; fewer where there are fewer."""
        found = []
        for utterance in rng.sample(self.all, len(self.all)):
            word = grammar.pause_at(utterance.ask)
            if word is not None and word < len(utterance.words) == len(utterance.ask.text.split()):
                found.append(paused(utterance, word, rng.uniform(*PAUSE_S)))
        return found[:count]

    def babble(self, rng: random.Random, seconds: float, dbfs: float) -> Pcm:
        """Many of them speaking at once."""
        out = np.zeros(round(seconds * RATE), np.float32)
        for _ in range(BABBLERS):
            at = rng.randrange(RATE)
            while at < out.size:
                pcm = rng.choice(self.all).pcm[: out.size - at]
                out[at : at + pcm.size] += pcm
                at += pcm.size
        return at_level(out, dbfs)


def read(folder: Path) -> Questions:
    """Read a packed corpus of held-out speakers."""
    pcm, clips = corpus.read_audio(folder, corpus.read_index(folder))
    spans = ((clip, _floats(pcm[clip.start : clip.start + clip.length])) for clip in clips)
    return _questions((clip.text, clip.speaker, span, _starts(clip)) for clip, span in spans)


def make(folder: Path, cache: Path, count: int | None, progress: Callable[[str], None]) -> Questions:
    """Make the first `count` held-out recordings and keep them in `folder`; without pocketsphinx no places to pause are known.

    Raises:
        sources.SourceError: a file of the speech engine cannot be had.
        OSError: flite or espeak-ng is not installed.
    """
    import soundfile

    studio, aligner = speech.Studio(cache), _aligner()
    spoken: list[tuple[str, str, Pcm, tuple[int, ...]]] = []
    takes = speech.held_out()[:count]
    for index, take in enumerate(takes, 1):
        path = take.path(folder)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, studio.record(take), RATE, format="FLAC", subtype="PCM_16")
            if index % 50 == 0:
                progress(f"{index} of {len(takes)} questions spoken")
        pcm, _ = soundfile.read(path, dtype="float32")
        times = aligner.align(pcm, take.text) if aligner else None
        spoken.append((take.text, take.speaker, pcm, times.words if times and times.phones else ()))
    return _questions(spoken)


def people(folder: Path) -> list[Utterance]:
    """Read the recordings of PEOPLE that lie anywhere below `folder`."""
    found: list[Utterance] = []
    for path in sorted(folder.rglob("*")):
        if path.name in PEOPLE and not any(path.name == other.speaker for other in found):
            pcm = speech.trim(_resampled(_decode(path), 16_000))
            found.append(Utterance(Ask(PEOPLE[path.name], "", path.stem), path.name, pcm))
    return found


# Private


def _starts(clip: corpus.Clip) -> tuple[int, ...]:
    """Where the words begin; nothing if the clip could not be aligned, for its words are then laid out by their length."""
    return tuple(start for start, *_ in clip.words) if clip.phones else ()


def _aligner() -> Aligner | None:
    try:
        return Aligner()
    except ImportError:
        return None


def _questions(spoken: Iterable[tuple[str, str, Pcm, tuple[int, ...]]]) -> Questions:
    utterances, murmurs = [], []
    quiet = {grammar.plain(text) for text in grammar.BACKCHANNELS}
    for text, speaker, pcm, words in spoken:
        try:
            intent, slot = grammar.intent_of(text)
        except KeyError:
            if grammar.plain(text) in quiet:
                murmurs.append(Utterance(Ask("", "", text), speaker, pcm))
            continue
        utterances.append(Utterance(Ask(intent, slot, text), speaker, pcm, words))
    return Questions(utterances, murmurs or _murmurs())


def _murmurs() -> list[Utterance]:
    """Murmurs by the held-out voice of flite; none where that is not installed."""
    try:
        return [
            Utterance(Ask("", "", text), f"flite:{MURMURER}", speech.trim(flite.say(MURMURER, text, 1.0, 1.0)))
            for text in grammar.BACKCHANNELS[:6]
        ]
    except OSError:
        return []


def _floats(pcm: NDArray[np.int16]) -> Pcm:
    return np.asarray(pcm / np.float32(32768), np.float32)


def _decode(path: Path) -> Pcm:
    """Audio of one file at 16 kHz: raw samples, or G.722."""
    if path.suffix == ".raw":
        return _floats(np.fromfile(path, "<i2"))
    import av

    with av.open(str(path), format="g722") as file:
        return _floats(np.concatenate([frame.to_ndarray().reshape(-1) for frame in file.decode(audio=0)]).astype(np.int16))


def _resampled(pcm: Pcm, rate: int) -> Pcm:
    from scipy.signal import resample_poly

    return np.asarray(resample_poly(pcm, RATE // 8000, rate // 8000), np.float32)
