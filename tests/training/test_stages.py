"""The training stages from end to end at a toy size, on a CPU: they learn something, resume, and export what the engine loads."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from gateway.engine.checkpoint import find_checkpoint
from gateway.engine.moshi import load_codec
from gateway.training import codec_training, export, grammar, lm_training, packing, tokenizer
from gateway.training.corpus import GAP_SAMPLES, SAMPLE_RATE, Clip, shard_path, write_index
from gateway.training.persona import Persona

BUNDLED = Path("gateway/engine/tiny")
NOVA = Persona("Nova")


def write_sizes(folder: Path) -> None:
    """The bundled model's configuration with small numbers."""
    codec = json.loads((BUNDLED / "mimi.json").read_text())
    codec["seanet"] |= {"dimension": 32, "n_filters": 4}
    codec["transformer"] |= {"d_model": 32, "num_heads": 2, "num_layers": 1, "dim_feedforward": 64}
    codec["transformer"] |= {"input_dimension": 32, "output_dimensions": [32]}
    codec["quantizer"] |= {"dimension": 16, "bins": 64, "input_dimension": 32, "output_dimension": 32}
    lm = json.loads((BUNDLED / "config.json").read_text())
    lm |= {"dim": 64, "num_heads": 2, "num_layers": 2, "card": 64, "depformer_dim": 32, "depformer_num_heads": 2,
           "depformer_dim_feedforward": 64, "depformer_num_layers": 1}  # fmt: skip
    lm["gateway"] |= {"silence_codes": [0] * 8, "sine_codes": [1] * 8}
    (folder / "mimi.json").write_text(json.dumps(codec))
    (folder / "config.json").write_text(json.dumps(lm))


def write_corpus(folder: Path, encoder: tokenizer.Encoder) -> None:
    """A whistle for every word of a few questions and their answers."""
    folder.mkdir()
    chosen = [ask for ask in grammar.asks() if ask.intent in ("hello", "stop", "wait", "thank_you")]
    said = [("user", "flite:slt", ask.text) for ask in chosen]
    said += [("assistant", "af_heart", text) for text in sorted({grammar.reply(ask.intent, ask.slot, NOVA) for ask in chosen})]
    clips, parts, start = [], [], 0
    for role, speaker, text in said:
        words = text.split()
        time = np.arange(SAMPLE_RATE // 4) / SAMPLE_RATE
        pcm = np.concatenate([0.2 * np.sin(2 * np.pi * (200 + 37 * len(word)) * time) for word in words])
        pieces = tokenizer.by_word(encoder, text) if role == "assistant" else [()] * len(words)
        spoken = tuple((len(time) * i, word, tuple(piece)) for i, (word, piece) in enumerate(zip(words, pieces, strict=True)))
        phones = tuple((len(time) * i, 1 + len(word) % 39) for i, word in enumerate(words))
        clips.append(Clip(role, speaker, text, spoken, phones, 0, start, len(pcm)))  # type: ignore[arg-type]
        parts += [pcm, np.zeros(GAP_SAMPLES)]
        start += len(pcm) + GAP_SAMPLES
    soundfile.write(shard_path(folder, 0), np.concatenate(parts).astype(np.float32), SAMPLE_RATE, format="OGG", subtype="OPUS")
    write_index(folder, clips)


def codec_options(root: Path, minutes: float) -> Namespace:
    return Namespace(corpus=[root / "corpus"], sizes=root / "mimi.json", initial=None, minutes=minutes, polish=0.2, rate=1e-3, rows=2)


def lm_options(root: Path, minutes: float) -> Namespace:
    return Namespace(
        corpus=[root / "corpus"], heldout=root / "corpus", codec=root / "work" / "mimi.safetensors", sizes=root,
        tokenizer=root / "work" / tokenizer.FILE, initial=None, prompts=None, rate=1.5e-3, minutes=minutes, rows=2, questions=2, workers=0,
    )  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_sizes(tmp_path)
    (tmp_path / "work").mkdir()
    tokenizer.train(tmp_path / "work" / tokenizer.FILE, tokenizer.sentences())
    write_corpus(tmp_path / "corpus", packing.load_encoder(tmp_path / "work"))
    return tmp_path


@pytest.mark.timeout(300)
def test_codec_and_language_model_are_trained_resumed_exported_and_loaded(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    work = root / "work"
    codec_training.run(work, codec_options(root, 0.1))
    first = torch.load(work / "codec.ckpt", weights_only=True)["step"]
    codec_training.run(work, codec_options(root, 0.4))
    assert torch.load(work / "codec.ckpt", weights_only=True)["step"] > first > 0
    lm_training.run(work, lm_options(root, 0.7))
    said = capsys.readouterr().err
    losses = [float(line.split("  text ")[1].split()[0]) for line in said.splitlines() if line.startswith("lm ")]
    assert "examination: " in said
    assert losses[-1] < losses[0] - 0.2
    (root / "further").mkdir()
    further = {"initial": work / "model.safetensors", "prompts": work / "prompts.pt", "rate": 1e-4, "heldout": None}
    lm_training.run(root / "further", Namespace(**vars(lm_options(root, 0.25)) | further))
    first_loss = float(capsys.readouterr().err.split("  text ")[1].split()[0])
    assert first_loss < losses[0] - 0.1  # goes on from there
    export.run(work, Namespace(sizes=root, tokenizer=work / tokenizer.FILE, out=root / "checkpoint"))
    checkpoint = find_checkpoint(str(root / "checkpoint"))
    mimi = load_codec(checkpoint, num_slots=1, device=torch.device("cpu"))
    silence = mimi.encode_offline(torch.zeros(40 * 1920))
    assert tuple(silence[-1].tolist()) == checkpoint.profile.silence_codes
    assert checkpoint.voices is not None
    assert [path.name for path in checkpoint.voices.iterdir()] == ["af_heart.pt"]
