"""Recordings to a packed corpus: a few Ogg Opus shards and one index, small enough to carry.

Reads what `speech` made, adds the times of `alignment` and the pieces of `tokenizer`, writes what `corpus` reads. The one rule: parts are
complete corpora of their own, and the first one has the whole assistant. Alignments are kept beside the recordings, so that packing again
costs only the new ones. Thread: any.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gateway.training import speech, tokenizer
from gateway.training.alignment import Aligner, Alignment
from gateway.training.corpus import GAP_SAMPLES, INDEX, SAMPLE_RATE, Clip, shard_path, write_index

PART_BYTES = 58_000_000  # of one part, index included
SHARD_BYTES = 12_000_000
_BIT_RATES = {"user": 18_000, "assistant": 32_000}
_SHARD_SECONDS = {role: int(SHARD_BYTES * 0.75) * 8 // rate for role, rate in _BIT_RATES.items()}  # 4000 s and 2250 s: the rate varies
_INDEX_BYTES = 600  # of one clip, about
_ALIGNED = "aligned.jsonl"
_PARTS = "abcdefgh"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this stage's flags."""
    parser.add_argument("--out", type=Path, required=True, help="folder of the packed corpus; its parts are a, b, ...")
    parser.add_argument("--held-out", type=Path, help="folder of the packed evaluation questions")


def run(folder: Path, options: argparse.Namespace, *, progress: Callable[[str], None] = print) -> None:
    """Align and pack the recordings that exist in `folder`, where the file of the text pieces must be too.

    Raises:
        FileNotFoundError: there is no tokenizer, or no recording.
        ValueError: a shard came out too large.
    """
    there = set(folder.glob("clips/*/*.flac"))
    takes = [take for take in speech.plan() if take.path(folder) in there]
    if not takes:
        raise FileNotFoundError(f"{folder}: no recordings")
    times = align(folder, takes, progress=progress)
    encoder = load_encoder(folder)
    clips = [(_clip(take, times[take.path(folder).stem], encoder), take.path(folder)) for take in takes]
    heard = [clip for take, clip in zip(takes, clips, strict=True) if take.role != "heldout"]
    for name, part in zip(_PARTS, _parts(heard), strict=False):
        pack(options.out / name, part, progress=progress)
    if options.held_out:
        pack(options.held_out, [clip for take, clip in zip(takes, clips, strict=True) if take.role == "heldout"], progress=progress)


def align(folder: Path, takes: Sequence[speech.Take], *, progress: Callable[[str], None] = print) -> dict[str, Alignment]:
    """Return the alignment of each recording by the stem of its file; those that are not known yet are made and kept."""
    known = _read_alignments(folder / _ALIGNED)
    missing = [take for take in takes if take.path(folder).stem not in known]
    aligner = Aligner() if missing else None
    with open(folder / _ALIGNED, "a", encoding="utf-8") as file:
        for index, take in enumerate(missing, 1):
            assert aligner is not None
            path = take.path(folder)
            found = aligner.align(np.asarray(_read(path) / 32768, np.float32), take.text)
            known[path.stem] = found
            file.write(json.dumps([path.stem, found.words, found.phones], separators=(",", ":")) + "\n")
            if index % 500 == 0 or index == len(missing):
                file.flush()
                progress(f"aligned {index} of {len(missing)}")
    return known


def load_encoder(folder: Path) -> tokenizer.Encoder:
    """Return the text pieces of a folder.

    Raises:
        FileNotFoundError: the folder has none.
    """
    import sentencepiece

    path = folder / tokenizer.FILE
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; the stage `tokenizer` makes it")
    encoder: tokenizer.Encoder = sentencepiece.SentencePieceProcessor(model_file=str(path))
    return encoder


def pack(out: Path, clips: Sequence[tuple[Clip, Path]], *, progress: Callable[[str], None] = print) -> None:
    """Write one complete corpus into `out`, in place of what is there.

    Raises:
        ValueError: a shard is larger than SHARD_BYTES.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in (*out.glob("audio-*.opus"), out / INDEX):
        old.unlink(missing_ok=True)
    placed = write_shards(out, clips)
    write_index(out, placed)
    size = sum(path.stat().st_size for path in out.iterdir())
    hours = {role: sum(clip.length for clip in placed if clip.role == role) / SAMPLE_RATE / 3600 for role in ("assistant", "user")}
    flagged = sum(not clip.phones for clip in placed)
    progress(
        f"{out}: {len(placed)} clips, assistant {hours['assistant']:.2f} h, user {hours['user']:.2f} h, {flagged} without phones, "
        f"{1 + max((clip.shard for clip in placed), default=-1)} shards, {size / 1e6:.1f} MB"
    )


def write_shards(out: Path, clips: Sequence[tuple[Clip, Path | NDArray[np.int16]]]) -> list[Clip]:
    """Write the sound of clips, files or int16 [N], and return them with their places: the assistant's first.

    Raises:
        ValueError: a shard is larger than SHARD_BYTES.
    """
    placed: list[Clip] = []
    shards = 0
    for role in ("assistant", "user"):
        for chunk in _chunks([clip for clip in clips if clip[0].role == role], _SHARD_SECONDS[role] * SAMPLE_RATE):
            placed += _write_shard(out, shards, chunk, _BIT_RATES[role])
            shards += 1
    return placed


# Private


def _clip(take: speech.Take, times: Alignment, encoder: tokenizer.Encoder) -> Clip:
    role: Literal["user", "assistant"] = "assistant" if take.role == "assistant" else "user"
    words = take.text.split()
    pieces = tokenizer.by_word(encoder, take.text) if role == "assistant" else [()] * len(words)
    return Clip(role, take.speaker, take.text, tuple(zip(times.words, words, pieces, strict=True)), times.phones)


def _parts(clips: Sequence[tuple[Clip, Path]]) -> list[list[tuple[Clip, Path]]]:
    """Distribute clips over as few parts as they need: the assistant into the first, users in turn where there is room."""
    sized = [(clip, path, _bytes(clip, path)) for clip, path in clips]
    assistant = [(clip, path) for clip, path, _ in sized if clip.role == "assistant"]
    users = [entry for entry in sized if entry[0].role == "user"]
    fixed = sum(size for clip, _, size in sized if clip.role == "assistant")
    total = fixed + sum(size for *_, size in users)
    count = -(-total // (PART_BYTES * 9 // 10))
    parts: list[list[tuple[Clip, Path]]] = [[] for _ in range(count)]
    parts[0] = assistant
    filled = [fixed] + [0] * (count - 1)
    for clip, path, size in users:
        part = filled.index(min(filled))
        parts[part].append((clip, path))
        filled[part] += size
    return parts


def _bytes(clip: Clip, path: Path) -> int:
    import soundfile

    return int(soundfile.info(path).duration * _BIT_RATES[clip.role] / 8) + _INDEX_BYTES


def _chunks(clips: Sequence[tuple[Clip, Path | NDArray[np.int16]]], samples: int) -> Iterator[list[tuple[Clip, NDArray[np.int16]]]]:
    """Runs of clips with their audio, each run of at most so many samples."""
    run: list[tuple[Clip, NDArray[np.int16]]] = []
    length = 0
    for clip, sound in clips:
        pcm = _read(sound) if isinstance(sound, Path) else sound
        if run and length + len(pcm) > samples:
            yield run
            run, length = [], 0
        run.append((clip, pcm))
        length += len(pcm) + GAP_SAMPLES
    if run:
        yield run


def _write_shard(out: Path, shard: int, clips: Sequence[tuple[Clip, NDArray[np.int16]]], bit_rate: int) -> list[Clip]:
    import soundfile

    path = shard_path(out, shard)
    gap = np.zeros(GAP_SAMPLES, np.int16)
    placed, start = [], GAP_SAMPLES
    level = 1 - (bit_rate - 6_000) / 250_000  # libsndfile: bits per second = 6,000 + 250,000 * (1 - level)
    with soundfile.SoundFile(path, "w", SAMPLE_RATE, 1, format="OGG", subtype="OPUS", compression_level=level) as file:
        file.write(gap)
        for clip, pcm in clips:
            file.write(np.concatenate([pcm, gap]))
            placed.append(dataclasses.replace(clip, shard=shard, start=start, length=len(pcm)))
            start += len(pcm) + GAP_SAMPLES
    if path.stat().st_size > SHARD_BYTES:
        raise ValueError(f"{path}: {path.stat().st_size} bytes, more than {SHARD_BYTES}")
    return placed


def _read(path: Path) -> NDArray[np.int16]:
    import soundfile

    pcm, _ = soundfile.read(path, dtype="int16")
    return np.asarray(pcm)


def _read_alignments(path: Path) -> dict[str, Alignment]:
    known = {}
    if path.exists():
        for line in path.read_text(encoding="utf-8").splitlines():
            stem, words, phones = json.loads(line)
            known[stem] = Alignment(tuple(words), tuple((start, phone) for start, phone in phones))
    return known
