"""From trained files to a checkpoint folder that the engine loads: configuration, weights, tokenizer, voice bundles.

Thread: main.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import torch

from gateway.engine.layout import LMConfig, Profile
from gateway.engine.lm.weights import TensorSource, embed_rows, load_embeddings
from gateway.engine.voices import make_bundle


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sizes", type=Path, required=True, help="folder with the config.json and mimi.json that were trained")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, help="checkpoint folder to write")


def run(folder: Path, options: argparse.Namespace) -> None:
    """Write the checkpoint; the model card is written by hand."""
    out: Path = options.out
    (out / "voices").mkdir(parents=True, exist_ok=True)
    raw = json.loads((options.sizes / "config.json").read_text())
    prompts = torch.load(folder / "prompts.pt", weights_only=True)
    raw["gateway"] |= {name: prompts[name] for name in ("silence_codes", "sine_codes")}
    config = LMConfig.from_json(raw)
    profile = Profile.from_json(raw, config, is_personaplex=False)
    (out / "config.json").write_text(json.dumps(raw, indent=1) + "\n")
    for source, name in (
        (options.sizes / "mimi.json", "mimi.json"),
        (folder / "mimi.safetensors", "mimi.safetensors"),
        (folder / "model.safetensors", "model.safetensors"),
        (options.tokenizer, "tokenizer.model"),
    ):
        if source.resolve() != (out / name).resolve():
            shutil.copyfile(source, out / name)
    table = torch.empty(config.table_rows, config.dim, dtype=torch.bfloat16)
    with TensorSource.open(out / "model.safetensors") as weights:
        load_embeddings(weights, table, config)
    embed = partial(embed_rows, table, torch.tensor(config.table_starts))
    for voice, codes in prompts["codes"].items():
        torch.save(make_bundle(codes[0].numpy().astype(np.int64), config, profile, embed), out / "voices" / f"{voice}.pt")
