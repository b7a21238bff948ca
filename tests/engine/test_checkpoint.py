"""Checkpoint folders: what is read, and how each thing that is wrong is named."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from gateway.engine.checkpoint import TINY, _unpack, depth_steps, find_checkpoint, read_checkpoint
from gateway.engine.moshi import read_codec_config
from gateway.errors import ConfigError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of tiny whose large files are links."""
    for path in TINY.iterdir():
        if path.suffix == ".safetensors":
            (tmp_path / path.name).symlink_to(path)
        elif path.is_file():
            shutil.copy(path, tmp_path)
    return tmp_path


def edit(path: Path, **values: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_tiny_says_what_it_is() -> None:
    tiny = find_checkpoint("tiny")
    assert (tiny.name, tiny.lm.dim, tiny.lm.head_dim, depth_steps(tiny.weights)) == ("tiny", 224, 32, 8)
    assert tiny.profile.takes_prompt
    assert tiny.profile.window == 600
    assert (tiny.sampling.text_temperature, tiny.sampling.audio_topk) == (0.2, 40)


def test_a_local_folder_makes_no_network_call(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import socket

    monkeypatch.setattr(socket, "socket", None)
    assert find_checkpoint(str(folder)).lm.dim == 224


@pytest.mark.parametrize("name", ["nowhere", "./nowhere", "/nowhere/at/all", "a/b/c", "../x/y", "~nobody/x"])
def test_a_name_that_is_neither_folder_nor_hub_id_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="no such folder"):
        find_checkpoint(name)


@pytest.mark.parametrize("missing", ["model.safetensors", "mimi.safetensors", "mimi.json", "tokenizer.model"])
def test_a_missing_file_is_named(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        read_checkpoint(folder, name="x")


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"dim": "224"}, "dim must be a positive number, not '224'"),
        ({"num_layers": 0}, "num_layers"),
        ({"num_heads": 5}, "multiple of num_heads"),
        ({"causal": False}, "causal"),
        ({"kv_repeat": 2}, "kv_repeat"),
        ({"model_type": "tts"}, "model_type"),
        ({"lora_name": "x.safetensors"}, "LoRA"),
        ({"lm_gen_config": {"temp": "hot"}}, "lm_gen_config"),
        ({"moshi_name": "../../etc/passwd"}, "is missing"),
        ({"card": 1024}, "the codec has 512 codes"),
    ],
)
def test_a_setting_that_cannot_be_honoured_is_named(folder: Path, values: dict[str, object], said: str) -> None:
    edit(folder / "config.json", **values)
    with pytest.raises(ConfigError, match=said):
        read_codec_config(read_checkpoint(folder, name="x"))


@pytest.mark.parametrize("name", ["config.json", "mimi.json"])
def test_broken_json_is_named(folder: Path, name: str) -> None:
    (folder / name).write_text("{")
    with pytest.raises(ConfigError, match=name):
        read_codec_config(read_checkpoint(folder, name="x"))


def test_a_file_that_is_not_safetensors_is_named(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").write_bytes(b"\xff" * 100)
    with pytest.raises(ConfigError, match="not a readable safetensors file"):
        read_checkpoint(folder, name="x")


def test_without_config_the_published_shapes_hold(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "mimi.safetensors").rename(folder / "tokenizer-e351c8d8-checkpoint125.safetensors")
    (folder / "tokenizer.model").rename(folder / "tokenizer_spm_32k_3.model")
    moshi, personaplex = (read_checkpoint(folder, name=name) for name in ("kyutai/moshiko", "nvidia/personaplex-7b-v1"))
    assert (moshi.lm.dim, moshi.lm.hidden, moshi.lm.depth_hidden) == (4096, 11264, 2816)
    assert (moshi.profile.window, moshi.profile.takes_prompt, moshi.profile.default_voice) == (3000, False, None)
    assert (personaplex.profile.window, personaplex.profile.takes_prompt, personaplex.profile.default_voice) == (2999, True, "NATF0")


def test_voices_are_unpacked_whole_or_not_at_all(tmp_path: Path) -> None:
    source, goal = tmp_path / "source", tmp_path / "goal"
    (source / "voices").mkdir(parents=True)
    (source / "voices" / "NATF0.pt").write_bytes(b"x")
    goal.mkdir()
    with tarfile.open(goal / "voices.tgz", "w:gz") as tar:
        tar.add(source / "voices", "voices")
    whole = (goal / "voices.tgz").read_bytes()
    (goal / "voices.tgz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError, match=r"voices\.tgz"):
        _unpack(goal / "voices.tgz", goal)
    assert [path.name for path in goal.iterdir()] == ["voices.tgz"]
    (goal / "voices.tgz").write_bytes(whole)
    _unpack(goal / "voices.tgz", goal)
    _unpack(goal / "voices.tgz", goal)
    assert [path.name for path in (goal / "voices").iterdir()] == ["NATF0.pt"]
