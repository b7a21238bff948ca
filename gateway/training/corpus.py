"""Speech on disk and in memory: clips of one utterance each, packed into a few Ogg Opus shards and one index.

Written by `speech` and `pack`, read by the codec's and the language model's training, also on a machine that has nothing but PyTorch and
soundfile. Not here: what is said, who says it, and the mixing of dialogues. The one rule: a clip's times are samples of its own audio at
SAMPLE_RATE, whatever shard it lies in. Thread: any.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

SAMPLE_RATE = 24_000  # Hz, the codec's
GAP_SAMPLES = 2_400  # silence between two clips of a shard, 100 ms: Opus smears less than that
INDEX = "clips.jsonl"
OWN_CODES = "codes.pt"  # of a corpus that a model said itself: "VOICE TEXT" -> int16 [frames, CODEBOOKS]

# Phones of the aligner's dictionary (ARPAbet, CMUdict without stress) behind silence; the index of one is its class in training.
PHONES = (
    "SIL", "AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH", "IH", "IY", "JH", "K", "L", "M", "N",
    "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH", "UH", "UW", "V", "W", "Y", "Z", "ZH",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Clip:
    """One utterance."""

    role: Literal["user", "assistant"]
    speaker: str  # "af_heart", "blend:af_bella+am_adam", "flite:slt"
    text: str
    words: tuple[tuple[int, str, tuple[int, ...]], ...]  # first sample, word, its text pieces (assistant; no pieces for users); ascending
    phones: tuple[tuple[int, int], ...]  # first sample, index into PHONES; ascending, each lasts until the next, the last to the end
    shard: int = 0
    start: int = 0  # first sample in the shard
    length: int = 0  # samples


def write_index(folder: Path, clips: Iterable[Clip]) -> None:
    """Write the index of a packed corpus."""
    with open(folder / INDEX, "w", encoding="utf-8") as file:
        for clip in clips:
            file.write(json.dumps(dataclasses.asdict(clip), ensure_ascii=False, separators=(",", ":")) + "\n")


def read_index(folder: Path) -> list[Clip]:
    """Read the index of a packed corpus."""
    return list(_read(folder / INDEX))


def _read(path: Path) -> Iterator[Clip]:
    with open(path, encoding="utf-8") as file:
        for line in file:
            raw = json.loads(line)
            raw["words"] = tuple((start, word, tuple(pieces)) for start, word, pieces in raw["words"])
            raw["phones"] = tuple((start, phone) for start, phone in raw["phones"])
            yield Clip(**raw)


def shard_path(folder: Path, shard: int) -> Path:
    """File of one shard, Ogg Opus, mono, SAMPLE_RATE."""
    return folder / f"audio-{shard:03d}.opus"


def read_audio(folder: Path, clips: Sequence[Clip]) -> tuple[NDArray[np.int16], list[Clip]]:
    """Read all shards behind one another.

    Returns:
        int16 [N], and the clips with `start` counted in it and `shard` 0.
    """
    import soundfile

    count = 1 + max(clip.shard for clip in clips)
    parts: list[NDArray[np.int16]] = []
    starts: list[int] = []
    for shard in range(count):
        pcm, rate = soundfile.read(shard_path(folder, shard), dtype="int16")
        if rate != SAMPLE_RATE or pcm.ndim != 1:
            raise ValueError(f"{shard_path(folder, shard)}: must be mono at {SAMPLE_RATE} Hz")
        starts.append(sum(len(part) for part in parts))
        parts.append(pcm)
    return np.concatenate(parts), [dataclasses.replace(clip, shard=0, start=starts[clip.shard] + clip.start) for clip in clips]
