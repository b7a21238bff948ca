"""All speech of a corpus in memory, with what is said at every moment of it: the raw material of mixing.

Here: the samples as one tensor, phone and word tracks beside them, look-up by role. Not here: how clips are put together. The one rule: a
track has one value each TRACK_SAMPLES of the sample tensor, so that a position in one is a position in the other. Thread: any.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from gateway.training.corpus import Clip, read_audio, read_index
from gateway.training.grammar import plain

TRACK_SAMPLES = 240  # 10 ms, the aligner's grid
UNKNOWN_PHONE = 255  # of clips that could not be aligned: no loss


@dataclasses.dataclass(frozen=True, slots=True)
class Index:
    """Clips by what they are for; plain data that worker processes may have."""

    clips: tuple[Clip, ...]
    asks: dict[str, tuple[int, ...]]  # text -> clips of users
    replies: dict[tuple[str, str], tuple[int, ...]]  # voice, text -> clips of the assistant
    voices: tuple[str, ...]
    vocabulary: dict[str, int]  # words that users say -> class, from 1


@dataclasses.dataclass(frozen=True, slots=True)
class SpeechBank:
    """Samples and tracks on one device."""

    index: Index
    samples: Tensor  # int16 [N]
    phones: Tensor  # uint8 [N / TRACK_SAMPLES], PHONES or UNKNOWN_PHONE
    words: Tensor  # int16 [N / TRACK_SAMPLES], class of the word being said; 0 is none

    @classmethod
    def load(cls, folders: Sequence[Path], device: torch.device) -> SpeechBank:
        """Read packed corpora into memory."""
        samples: list[np.ndarray] = []
        clips: list[Clip] = []
        for folder in folders:
            pcm, found = read_audio(folder, read_index(folder))
            offset = sum(len(part) for part in samples)
            clips += [dataclasses.replace(clip, start=clip.start + offset) for clip in found]
            samples.append(pcm)
        joined = np.concatenate(samples)
        index = make_index(clips)
        phones, words = _tracks(index, len(joined))
        return cls(index, *(torch.from_numpy(part).to(device) for part in (joined, phones, words)))

    def restricted(self, count: int) -> SpeechBank:
        """The same samples with the first `count` clips alone."""
        return dataclasses.replace(self, index=make_index(self.index.clips[:count]))


def make_index(clips: Sequence[Clip]) -> Index:
    """Sort clips by role and text."""
    asks, replies = defaultdict(list), defaultdict(list)
    for i, clip in enumerate(clips):
        if clip.role == "user":
            asks[clip.text].append(i)
        else:
            replies[clip.speaker, clip.text].append(i)
    spoken = sorted({plain(word) for clip in clips if clip.role == "user" for _, word, _ in clip.words} - {""})
    return Index(
        clips=tuple(clips),
        asks={text: tuple(found) for text, found in asks.items()},
        replies={key: tuple(found) for key, found in replies.items()},
        voices=tuple(sorted({voice for voice, _ in replies})),
        vocabulary={word: 1 + i for i, word in enumerate(spoken)},
    )


def _tracks(index: Index, count: int) -> tuple[np.ndarray, np.ndarray]:
    size = count // TRACK_SAMPLES + 1
    phones, words = np.zeros(size, dtype=np.uint8), np.zeros(size, dtype=np.int16)
    for clip in index.clips:
        end = (clip.start + clip.length) // TRACK_SAMPLES
        if not clip.phones:
            phones[clip.start // TRACK_SAMPLES : end] = UNKNOWN_PHONE
        for start, phone in clip.phones:
            phones[(clip.start + start) // TRACK_SAMPLES : end] = phone
        if clip.role == "user":
            for start, word, _ in clip.words:
                words[(clip.start + start) // TRACK_SAMPLES : end] = index.vocabulary.get(plain(word), 0)
    return phones, words
