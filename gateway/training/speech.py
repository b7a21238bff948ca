"""The recordings: which text is spoken by whom, in which order they are made, and making them.

One FLAC file per clip, named by what it says, so that work stops and resumes at any clip and a changed grammar costs only its new texts.
The one rule: after any part of the work each question has been asked by equally many speakers; so work is ordered by rounds, one speaker
per text and round. Not here: the engines, and what becomes of the clips (`packing`). Thread: one process per share of the work.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import hashlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.training import flite, grammar, kokoro, sources
from gateway.training.corpus import SAMPLE_RATE

ASSISTANTS = ("af_heart", "am_michael", "bf_emma", "am_adam")
TAKE_SPEEDS = (1.05, 1.15)  # of the assistant's takes: brisk

# Voices whose English Whisper tiny.en reads with at most 5 % of errors; the Mandarin ones are worse. None of the assistant's.
USER_VOICES = (
    "af_alloy", "af_aoede", "af_bella", "af_jessica", "af_kore", "af_nicole", "af_nova", "af_river", "af_sarah", "af_sky", "am_echo",
    "am_eric", "am_fenrir", "am_liam", "am_onyx", "am_puck", "am_santa", "bf_alice", "bf_isabella", "bf_lily", "bm_daniel", "bm_fable",
    "bm_george", "bm_lewis", "ef_dora", "em_alex", "em_santa", "ff_siwis", "hf_alpha", "hf_beta", "hm_omega", "hm_psi", "if_sara",
    "im_nicola", "jf_alpha", "jf_gongitsune", "jf_nezumi", "jf_tebukuro", "jm_kumo", "pf_dora", "pm_alex", "pm_santa",
)  # fmt: skip
_BLENDS = 212  # of two of them; the last 12 are held out
FLITE_USERS = ("slt", "rms", "kal16")
FLITE_ROUNDS = 6
KOKORO_ROUNDS = 24
HELD_OUT_ASKS = 300
SINGLES_SHARE = 0.15  # of the users with Kokoro: one voice, no blend

LEVEL_DBFS = -23.0  # RMS of the parts that are speech
_WINDOW = SAMPLE_RATE // 100  # 10 ms
_FLOOR_DB = -42.0  # below the loudest window: not speech
_REPORT_EVERY = 200  # clips
_LEAD_WINDOWS, _TAIL_WINDOWS = 3, 6  # kept around speech


def _blends() -> tuple[str, ...]:
    rng = random.Random(1)
    found: dict[frozenset[str], str] = {}
    while len(found) < _BLENDS:
        first, second = rng.sample(USER_VOICES, 2)
        found.setdefault(frozenset((first, second)), kokoro.blend(first, second, rng.choice((30, 50, 50, 70))))
    return tuple(found.values())


BLENDS = _blends()[:-12]
HELD_OUT_SPEAKERS = (*_blends()[-12:], "flite:awb")


@dataclasses.dataclass(frozen=True, slots=True)
class Take:
    """One recording to be made.

    Attributes:
        role: who says it, "user", "assistant" or "heldout" (a user that training never hears).
        speaker: a voice or blend of Kokoro, or "flite:" and a voice.
        text: what is said.
        speed: tempo, 1 is the speaker's own.
        pitch: of flite only.
    """

    role: str
    speaker: str
    text: str
    speed: float
    pitch: float = 1.0

    @property
    def engine(self) -> str:
        """Name of the engine that makes it."""
        return "flite" if self.speaker.startswith("flite:") else "kokoro"

    def path(self, folder: Path) -> Path:
        """Return the file of the recording."""
        name = hashlib.sha1("|".join(map(str, dataclasses.astuple(self))).encode()).hexdigest()[:20]
        return folder / "clips" / name[:2] / f"{name}.flac"


def plan() -> list[Take]:
    """Return all recordings in the order in which they are made."""
    return list(_plan())


def held_out() -> list[Take]:
    """Return the recordings for evaluation: questions balanced over the intents, by speakers that training never hears."""
    rng = random.Random(2)
    by_intent: dict[str, list[grammar.Ask]] = {}
    for ask in grammar.asks():
        by_intent.setdefault(ask.intent, []).append(ask)
    for asks in by_intent.values():
        rng.shuffle(asks)
    chosen: list[grammar.Ask] = []
    while len(chosen) < HELD_OUT_ASKS:
        chosen += [asks.pop() for asks in by_intent.values() if asks]
    takes = []
    for index, ask in enumerate(chosen[:HELD_OUT_ASKS]):
        speaker = HELD_OUT_SPEAKERS[index % len(HELD_OUT_SPEAKERS)]
        takes.append(Take("heldout", speaker, ask.text, round(rng.uniform(0.9, 1.15), 2)))
    return takes


def trim(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the speech of a recording, without the silence around it, at LEVEL_DBFS.

    Raises:
        ValueError: there is no sound in it.
    """
    windows = pcm[: len(pcm) // _WINDOW * _WINDOW].reshape(-1, _WINDOW)
    power = np.mean(np.square(windows, dtype=np.float64), axis=1)
    if not len(power) or power.max() < 1e-8:
        raise ValueError("the recording is silent")
    (loud,) = np.nonzero(power > power.max() * 10 ** (_FLOOR_DB / 10))
    first = max(0, int(loud[0]) - _LEAD_WINDOWS)
    pcm = pcm[first * _WINDOW : (int(loud[-1]) + 1 + _TAIL_WINDOWS) * _WINDOW]
    gain = 10 ** (LEVEL_DBFS / 20) / np.sqrt(power[loud].mean())
    gain = min(gain, 0.98 / np.abs(pcm).max())
    fade = np.minimum(1.0, np.arange(1, len(pcm) + 1) / _WINDOW)
    return np.asarray(pcm * gain * fade * fade[::-1], np.float32)


class Studio:
    """Makes recordings; loads an engine when it is first needed."""

    def __init__(self, cache: Path) -> None:
        """Make one that reads the engines' files from `cache`."""
        self._cache = cache
        self._kokoro: kokoro.Kokoro | None = None

    def record(self, take: Take) -> NDArray[np.float32]:
        """Return the speech of one take, float32 [N] at SAMPLE_RATE, trimmed and levelled."""
        if take.engine == "flite":
            return trim(flite.say(take.speaker.removeprefix("flite:"), take.text, take.speed, take.pitch))
        return trim(self._engine().say(take.speaker, take.text, take.speed))

    def learn(self, takes: Sequence[Take]) -> None:
        """Look up the phonemes of many takes at once."""
        spoken = [take for take in takes if take.engine == "kokoro"]
        for accent, phonemizer in self._engine().phonemizers.items() if spoken else ():
            phonemizer.learn({take.text for take in spoken if kokoro.accent(take.speaker) == accent})

    def _engine(self) -> kokoro.Kokoro:
        if self._kokoro is None:
            self._kokoro = kokoro.Kokoro(self._cache)
        return self._kokoro


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this stage's flags."""
    parser.add_argument("--cache", type=Path, default=sources.DEFAULT_CACHE, help="folder of the downloads (default: %(default)s)")
    parser.add_argument("--engine", choices=("kokoro", "flite"), help="make only this engine's recordings")
    parser.add_argument("--share", type=int, default=0, help="which share of the work this process does (default: %(default)s)")
    parser.add_argument("--shares", type=int, default=1, help="into how many the work is split (default: %(default)s)")


def run(folder: Path, options: argparse.Namespace, *, progress: Callable[[str], None] = print) -> None:
    """Make the recordings that `folder` lacks, in the order of `plan`; stop and call again at will.

    Raises:
        sources.SourceError: a file of Kokoro cannot be had.
        OSError: flite or espeak-ng is not installed.
    """
    chosen = [take for take in plan() if options.engine in (None, take.engine)]
    work = [take for take in chosen[options.share :: options.shares] if not take.path(folder).exists()]
    record_all(folder, work, Studio(options.cache), progress=progress)


def record_all(folder: Path, work: Sequence[Take], studio: Studio, *, progress: Callable[[str], None] = print) -> None:
    """Make these recordings, each of them whole or not at all."""
    studio.learn(work)
    seconds = 0.0
    for index, take in enumerate(work, 1):
        pcm = studio.record(take)
        _write(take.path(folder), pcm)
        seconds += len(pcm) / SAMPLE_RATE
        if index % _REPORT_EVERY == 0 or index == len(work):
            progress(f"{index} of {len(work)} clips, {seconds / 60:.1f} min of speech")


# Private


def _write(path: Path, pcm: NDArray[np.float32]) -> None:
    import soundfile

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    soundfile.write(partial, pcm, SAMPLE_RATE, format="FLAC", subtype="PCM_16")
    partial.replace(path)


@functools.cache
def _plan() -> tuple[Take, ...]:
    work = [*_assistant(0), *_flite_round(0), *_flite_round(1)]
    for number in range(2):
        work += _kokoro_round(number)
    work += held_out()
    for number in range(2, 4):
        work += _kokoro_round(number)
    work += _assistant(1)
    for number in range(2, FLITE_ROUNDS):
        work += _flite_round(number)
    for number in range(4, KOKORO_ROUNDS):
        work += _kokoro_round(number)
    return tuple(dict.fromkeys(work))


def _assistant(take: int) -> Iterator[Take]:
    for text in grammar.replies():
        for speaker in ASSISTANTS:
            yield Take("assistant", speaker, text, TAKE_SPEEDS[take])


def _user_texts() -> list[str]:
    return [ask.text for ask in grammar.asks()] + list(grammar.BACKCHANNELS)


def _flite_round(number: int) -> Iterator[Take]:
    for text in _user_texts():
        rng = random.Random(f"flite/{number}/{text}")
        speaker = FLITE_USERS[(number + rng.randrange(2)) % len(FLITE_USERS)]
        yield Take("user", f"flite:{speaker}", text, round(rng.uniform(0.85, 1.2), 2), round(rng.uniform(0.85, 1.18), 2))


def _kokoro_round(number: int) -> Iterator[Take]:
    for text in _user_texts():
        rng = random.Random(f"kokoro/{number}/{text}")
        speaker = rng.choice(USER_VOICES if rng.random() < SINGLES_SHARE else BLENDS)
        yield Take("user", speaker, text, round(rng.uniform(0.85, 1.2), 2))
