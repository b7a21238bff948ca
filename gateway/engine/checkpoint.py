"""Find, fetch and read a checkpoint folder in the official layout; no tensor is loaded here.

`--model` is a folder, a hub id or `tiny` (the folder beside this file). A local folder makes no network call. The result names every file
and says what the model is; the rule for a maintainer: whatever differs between checkpoints is decided here or in layout.py, never later.
Thread: any.
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gateway.engine.layout import LMConfig, Profile
from gateway.errors import ConfigError
from protocols.events import SamplingOptions

TINY = Path(__file__).parent / "tiny"
PERSONAPLEX = "nvidia/personaplex-7b-v1"

MIMI_NAME = "tokenizer-e351c8d8-checkpoint125.safetensors"  # source: kyutai-labs/moshi@e6a55d2 moshi/models/loaders.py, MIMI_NAME
TOKENIZER_NAME = "tokenizer_spm_32k_3.model"  # same file, TEXT_TOKENIZER_NAME
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpoint:
    """A validated checkpoint folder."""

    name: str  # what people call it: the hub id, "tiny" or the folder's name
    weights: Path | None  # None: random values, for benchmarks
    mimi: Path | None  # as weights
    mimi_config: Path | None  # None: the published codec's built-in values
    tokenizer: Path | None  # None: no text in, no text out
    voices: Path | None  # folder of voice prompts
    lm: LMConfig
    profile: Profile
    sampling: SamplingOptions  # defaults, every field but the seeds set


def find_checkpoint(model: str, progress: Callable[[str], None] = lambda line: None) -> Checkpoint:
    """Resolve `model` to a checkpoint, downloading a hub id if needed.

    Raises:
        ConfigError: no such folder or repository, no access, or a file that is missing or unreadable (named).
    """
    if model == "tiny":
        return read_checkpoint(TINY, name="tiny")
    folder = Path(model).expanduser()
    if folder.is_dir():
        return read_checkpoint(folder, name=folder.resolve().name)
    if model.startswith((".", "/", "~")) or not _HUB_ID.fullmatch(model):
        raise ConfigError(f"--model {model}: no such folder; give a folder, a hub id such as {PERSONAPLEX}, or tiny")
    return read_checkpoint(_download(model, progress), name=model)


def read_checkpoint(folder: Path, *, name: str) -> Checkpoint:
    """Read and check a local checkpoint folder.

    Raises:
        ConfigError: as `find_checkpoint`.
    """
    config_path = folder / "config.json"
    raw = _read_json(config_path) if config_path.is_file() else {}
    if raw.get("model_type", "moshi") not in ("moshi", "personaplex"):
        raise ConfigError(f"{config_path}: model_type {raw['model_type']!r} is not a speech-to-speech dialogue model")
    if raw.get("lora_name"):
        raise ConfigError(f"{config_path}: LoRA checkpoints (lora_name) must be merged first")
    weights = _file(folder, raw.get("moshi_name") or "model.safetensors")
    lm = LMConfig.from_json(raw)
    steps = depth_steps(weights)
    is_personaplex = "personaplex" in name.lower() or raw.get("model_type") == "personaplex" or steps == 2 * 8
    mimi_config = raw.get("mimi_config_name")
    voices = folder / "voices"
    return Checkpoint(
        name=name,
        weights=weights,
        mimi=_file(folder, raw.get("mimi_name") or MIMI_NAME),
        mimi_config=_file(folder, mimi_config) if mimi_config else None,
        tokenizer=_file(folder, raw.get("tokenizer_name") or TOKENIZER_NAME),
        voices=voices if voices.is_dir() else None,
        lm=lm,
        profile=Profile.from_json(raw, lm, is_personaplex=is_personaplex),
        sampling=_sampling(raw.get("lm_gen_config") or {}),
    )


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes in a safetensors file, from its header alone.

    Raises:
        ConfigError: not a safetensors file.
    """
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            if length > 100_000_000:  # limit of the format: https://github.com/huggingface/safetensors, MAX_HEADER_SIZE
                raise ValueError("header too long")
            header = json.loads(file.read(length))
        return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, struct.error, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: not a readable safetensors file ({error})") from error


def depth_steps(weights: Path) -> int:
    """Number of depth steps in the file: 16 in PersonaPlex, 8 in Moshi (specs: moshi-model section 3)."""
    return sum(1 for name in tensor_shapes(weights) if re.fullmatch(r"linears\.\d+\.weight", name))


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack beside the goal and move it there whole, so that neither a crash nor a second process leaves half a folder."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as scratch, tarfile.open(archive) as tar:
            tar.extractall(scratch, filter="data")
            if not (folder / "voices").exists():
                (Path(scratch) / "voices").rename(folder / "voices")
    except (tarfile.TarError, EOFError, OSError) as error:
        if not (folder / "voices").is_dir():  # else another process was faster
            raise ConfigError(f"{archive}: cannot be unpacked ({error})") from error


def _sampling(raw: Mapping[str, Any]) -> SamplingOptions:
    # Defaults of the Python servers and web clients (specs: moshi-model section 7).
    try:
        return SamplingOptions(
            text_temperature=float(raw.get("temp_text", 0.7)),
            text_topk=int(raw.get("top_k_text", 25)),
            audio_temperature=float(raw.get("temp", 0.8)),
            audio_topk=int(raw.get("top_k", 250)),
            pad_mult=0.0,
            repetition_penalty=1.0,
            repetition_penalty_context=64,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError(f"config.json: lm_gen_config: {error}") from error


def _file(folder: Path, name: str) -> Path:
    path = folder / name
    if Path(name).name != name or not path.is_file():
        raise ConfigError(f"{folder}: the file {name} is missing")
    return path


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8") or "{}")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not readable as JSON ({error})") from error
    if not isinstance(raw, dict):
        raise ConfigError(f"{path}: must hold a JSON object")
    return raw


def _download(repo: str, progress: Callable[[str], None]) -> Path:
    """Fetch the files of a hub repository (cached ones are not fetched again) and unpack its voices."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    progress(f"fetching {repo} (files already in the cache are not fetched again)")
    try:
        folder = Path(snapshot_download(repo, allow_patterns=["*.json", "*.safetensors", "*.model", "voices.tgz", "voices/*"]))
    except GatedRepoError as error:
        raise ConfigError(
            f"{repo} is gated: accept its licence at https://huggingface.co/{repo} and set HF_TOKEN to a token of that account"
        ) from error
    except RepositoryNotFoundError as error:
        raise ConfigError(f"{repo}: no such repository, or it is private or gated and HF_TOKEN is not set") from error
    except LocalEntryNotFoundError as error:
        raise ConfigError(f"{repo} is not in the cache and the hub cannot be reached: give --model a local folder") from error
    except (HfHubHTTPError, OSError) as error:
        raise ConfigError(f"{repo}: download failed: {error}") from error
    archive = folder / "voices.tgz"
    if archive.is_file() and not (folder / "voices").is_dir():
        progress("unpacking voices.tgz")
        _unpack(archive, folder)
    return folder
