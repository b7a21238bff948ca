"""Voice prompts of a checkpoint: the allow-list, the two file kinds, and the maker of `.pt` bundles.

Every file of `voices/` is read once at load, so a name on the wire never becomes a path. `.pt` bundles are read with `weights_only=True`:
tensors, no code. Audio files are resampled, mixed down, levelled and encoded by the codec (specs: moshi-model section 8.2). A file that
cannot be used is left out and logged; it never stops the server. Thread: tick (load), any (look-up).
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Callable, Mapping
from functools import partial
from math import gcd
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gateway.engine.layout import ROW_WIDTH, LMConfig, Profile
from gateway.engine.prompt import RING, Voice, voice_ring
from gateway.errors import ConfigError

logger = logging.getLogger(__name__)

AUDIO_SUFFIXES = (".wav", ".flac", ".ogg", ".mp3")
LOUDNESS_LUFS = -24.0  # source: NVIDIA/personaplex moshi/models/lm.py, normalize_audio
MAX_VOICE_S = 30.0  # a voice prompt of this length is 375 rows; the published ones have about 4 s
MIN_VOICE_S = 0.4  # one block of the loudness meter (ITU-R BS.1770-4, 400 ms)

Encode = Callable[[NDArray[np.float32]], NDArray[np.int64]]  # mono PCM at the codec's rate -> codes int64 [T, CODEBOOKS]
Embed = Callable[[Tensor], Tensor]  # rows int64 [N, ROW_WIDTH] -> embeddings [N, dim]


class VoiceBook(Mapping[str, Voice]):
    """Voices by name, without suffix; aliases and the suffix of the file are understood by `find` alone."""

    def __init__(self, voices: Mapping[str, Voice], aliases: Mapping[str, str]) -> None:
        self._voices = dict(voices)
        self._aliases = {name: target for name, target in aliases.items() if target in voices}

    def __getitem__(self, name: str) -> Voice:
        return self._voices[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(sorted(self._voices))

    def __len__(self) -> int:
        return len(self._voices)

    def find(self, name: str) -> Voice:
        """Look a client's name up.

        Raises:
            ConfigError: no such voice; the message lists the ones there are.
        """
        stem = name
        for suffix in (".pt", *AUDIO_SUFFIXES):
            stem = stem.removesuffix(suffix)
        voice = self._voices.get(self._aliases.get(stem, stem))
        if voice is None:
            raise ConfigError(f"unknown voice; this server has: {', '.join(self) or 'none'}")
        return voice


def load_voices(folder: Path | None, aliases: Mapping[str, str], config: LMConfig, encode: Encode, sample_rate: int) -> VoiceBook:
    """Read every voice of a folder; a bundle wins over audio of the same name."""
    voices: dict[str, Voice] = {}
    for path in sorted(folder.iterdir()) if folder else ():
        try:
            if path.suffix == ".pt":
                voices[path.stem] = read_bundle(path, config)
            elif path.suffix.lower() in AUDIO_SUFFIXES and not path.with_suffix(".pt").exists():
                voices[path.stem] = Voice(name=path.stem, codes=encode(read_audio(path, sample_rate)))
        except ConfigError as error:
            logger.error("voice left out: %s", error)
    return VoiceBook(voices, aliases)


def read_bundle(path: Path, config: LMConfig) -> Voice:
    """Read an official `.pt` bundle: `embeddings` [M, 1, 1, dim] and `cache` int64 [1, ROW_WIDTH, RING].

    Raises:
        ConfigError: not a bundle of tensors, or not of this model's shapes.
    """
    try:
        bundle = torch.load(path, map_location="cpu", weights_only=True)
        embeddings, ring = bundle["embeddings"], bundle["cache"]
        shapes = list(embeddings.shape), list(ring.shape)
    except Exception as error:  # the unpickler raises whatever a hostile file makes it raise
        raise ConfigError(f"{path}: not a voice bundle ({type(error).__name__})") from error
    count = embeddings.shape[0] if embeddings.ndim else 0
    if shapes != ([count, 1, 1, config.dim], [1, ROW_WIDTH, RING]) or count == 0:
        expected = f"[M, 1, 1, {config.dim}] and [1, {ROW_WIDTH}, {RING}]"
        raise ConfigError(f"{path}: embeddings {shapes[0]} and cache {shapes[1]}, expected {expected}")
    ring = ring[0].to(torch.int64).numpy()
    embeddings = embeddings.reshape(count, config.dim).to(torch.float32).numpy()
    text, *codes = ring[:, count % RING]
    codes += [*ring[2:9, (count + 1) % RING], *ring[10:, (count + 1) % RING]]
    is_legal = 0 <= text <= config.text_initial and 0 <= min(codes) <= max(codes) <= config.audio_initial
    if not is_legal or not np.isfinite(embeddings).all():
        raise ConfigError(f"{path}: values out of range")
    return Voice(name=path.stem, embeddings=embeddings, ring=ring)


def read_audio(path: Path, sample_rate: int) -> NDArray[np.float32]:
    """Read audio as mono float32 [N] at `sample_rate`, levelled to LOUDNESS_LUFS.

    Raises:
        ConfigError: unreadable, silent, too short or too long.
    """
    import soundfile
    from scipy.signal import resample_poly

    try:
        pcm, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise ConfigError(f"{path}: not readable as audio ({error})") from error
    mono = pcm.mean(axis=1)
    if not MIN_VOICE_S <= len(mono) / rate <= MAX_VOICE_S:
        raise ConfigError(f"{path}: lasts {len(mono) / rate:.2f} s; a voice prompt has {MIN_VOICE_S} to {MAX_VOICE_S} s")
    divisor = gcd(rate, sample_rate)
    return level(resample_poly(mono, sample_rate // divisor, rate // divisor).astype(np.float32), sample_rate, path)


def level(pcm: NDArray[np.float32], sample_rate: int, path: Path) -> NDArray[np.float32]:
    """Scale to LOUDNESS_LUFS of integrated loudness.

    Raises:
        ConfigError: silence has no loudness.
    """
    import pyloudnorm

    loudness = pyloudnorm.Meter(sample_rate).integrated_loudness(pcm.astype(np.float64))
    if not np.isfinite(loudness):
        raise ConfigError(f"{path}: is silent")
    levelled: NDArray[np.float32] = (pcm * 10.0 ** ((LOUDNESS_LUFS - loudness) / 20.0)).astype(np.float32)
    return levelled


def make_bundle(codes: NDArray[np.int64], config: LMConfig, profile: Profile, embed: Embed) -> dict[str, Tensor]:
    """Turn a voice's codes int64 [N, CODEBOOKS], N >= 2, into the official bundle."""
    rows, ring = voice_ring(config, profile, codes)
    embeddings = embed(torch.from_numpy(rows))
    return {"embeddings": embeddings[:, None, None].clone(), "cache": torch.from_numpy(ring)[None].clone()}


def main(argv: list[str] | None = None) -> None:
    """Make a `.pt` bundle from audio: `python -m gateway.engine.voices --model tiny speaker.wav speaker.pt`."""
    from gateway.engine.checkpoint import find_checkpoint
    from gateway.engine.lm.weights import TensorSource, embed_rows, load_embeddings
    from gateway.engine.moshi import load_codec

    parser = argparse.ArgumentParser(prog="python -m gateway.engine.voices", description=main.__doc__)
    parser.add_argument("--model", default="tiny", help="checkpoint whose codec and embeddings make the bundle")
    parser.add_argument("audio", type=Path, help="reference speech of 0.4 to 30 s")
    parser.add_argument("bundle", type=Path, help="the .pt file to write, for the checkpoint's voices/ folder")
    options = parser.parse_args(argv)
    checkpoint = find_checkpoint(options.model, print)
    assert checkpoint.weights is not None
    config = checkpoint.lm
    table = torch.empty(config.table_rows, config.dim, dtype=torch.bfloat16)
    with TensorSource.open(checkpoint.weights) as source:
        load_embeddings(source, table, config)
    mimi = load_codec(checkpoint, num_slots=1, device=torch.device("cpu"))
    codes = mimi.encode_offline(torch.from_numpy(read_audio(options.audio, mimi.config.sample_rate))).numpy()
    bundle = make_bundle(codes, config, checkpoint.profile, partial(embed_rows, table, torch.tensor(config.table_starts)))
    torch.save(bundle, options.bundle)
    print(f"{options.bundle}: {len(codes)} frames")


if __name__ == "__main__":
    main()
