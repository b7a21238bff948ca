"""Golden LM material for engine tests: the tables, the closed-form user frames, and a plain temporal transformer to compare vLLM with.

`PlainTemporal` recomputes the whole window for every position, so it has no cache that could be wrong; it shares no code with the engine.
"""

from __future__ import annotations

from pathlib import Path

import golden
import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.layout import LMConfig, Profile
from gateway.engine.prompt import PromptRows, Voice, build_prompt
from gateway.engine.vllm.setup import CoreSetup
from protocols.events import SamplingOptions

DATA = Path(__file__).parent / "data"
GREEDY = SamplingOptions(
    text_temperature=0.0, text_topk=0, text_seed=0, audio_temperature=0.0, audio_topk=0, audio_seed=0, pad_mult=0.0,
    repetition_penalty=1.0, repetition_penalty_context=0,
)  # fmt: skip
PERSONA = (100, 101)
VOICE = Voice(name="golden", codes=np.array([[(131 * f + 17 * k + 5) % 2048 for k in range(8)] for f in range(3)]))


def user_frame(i: int) -> list[int]:
    """w_i of specs: moshi-model appendix A.2."""
    return [(257 * i + 73 * k + 11) % 2048 for k in range(8)]


def golden_table(name: str) -> dict[int, list[int]]:
    """Line number -> text and 8 codes."""
    lines = (DATA / "golden" / f"{name}.txt").read_text().splitlines()
    return {int(line.split()[0]): [int(word) for word in line.split()[1:]] for line in lines}


def golden_checkpoint(folder: Path, params: dict[str, int], family: str) -> Checkpoint:
    """Write and describe a golden LM: 16 depth steps for personaplex, 8 for moshi; no codec, no tokenizer."""
    golden.write_lm(folder, params, steps=16 if family == "personaplex" else 8)
    raw = golden.lm_config(**params, steps=8)
    lm = LMConfig.from_json(raw)
    profile = Profile.from_json(raw, lm, is_personaplex=family == "personaplex")
    return Checkpoint(
        name=f"golden-{family}", weights=folder / golden.LM_FILE, mimi=None, mimi_config=None, tokenizer=None, voices=None,
        lm=lm, profile=profile, sampling=GREEDY,
    )  # fmt: skip


def golden_setup(checkpoint: Checkpoint, *, num_slots: int, dtype: str) -> CoreSetup:
    """How the golden LM is run through vLLM, on whatever device there is."""
    return CoreSetup(
        checkpoint=checkpoint, num_slots=num_slots, max_model_len=4000, kv_cache_dtype="auto", gpu_memory_utilization=0.3, dtype=dtype,
        is_cuda=torch.cuda.is_available(), slot_bytes=0,
    )  # fmt: skip


def golden_prompt(checkpoint: Checkpoint) -> PromptRows:
    """The prompt of the golden tables: voice and persona for personaplex, the initial row for moshi."""
    return build_prompt(checkpoint.lm, checkpoint.profile, VOICE, PERSONA)


class PlainTemporal:
    """States and text logits of all positions, without any cache."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        assert checkpoint.weights is not None
        self.weights = {name: tensor.float() for name, tensor in load_file(checkpoint.weights).items()}
        self.config, self.window = checkpoint.lm, checkpoint.profile.window

    def __call__(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """rows int64 [T, 17] from position 0 -> states [T, dim], logits [T, text_card]."""
        w, config = self.weights, self.config
        x = sum(w[f"emb.{k}.weight"][rows[:, 1 + k]] for k in range(16)) + w["text_emb.weight"][rows[:, 0]]
        count = len(rows)
        places = torch.arange(count)
        distance = places[:, None] - places[None]
        hidden = ~((distance >= 0) & (distance < self.window))
        for layer in range(config.num_layers):
            base = f"transformer.layers.{layer}."
            qkv = self._norm(x, w[f"{base}norm1.alpha"]) @ w[f"{base}self_attn.in_proj_weight"].T
            query, key, value = qkv.view(count, 3, config.num_heads, config.head_dim).unbind(1)
            query, key = self._rotate(query), self._rotate(key)
            scores = torch.einsum("qhd,khd->hqk", query, key) / config.head_dim**0.5
            mixed = torch.einsum("hqk,khd->qhd", scores.masked_fill(hidden, -torch.inf).softmax(-1), value)
            x = x + mixed.reshape(count, -1) @ w[f"{base}self_attn.out_proj.weight"].T
            gate, up = (self._norm(x, w[f"{base}norm2.alpha"]) @ w[f"{base}gating.linear_in.weight"].T).chunk(2, -1)
            x = x + (torch.nn.functional.silu(gate) * up) @ w[f"{base}gating.linear_out.weight"].T
        x = self._norm(x, w["out_norm.alpha"])
        return x, x @ w["text_linear.weight"].T

    def _norm(self, x: Tensor, alpha: Tensor) -> Tensor:
        return x * alpha.flatten() / (x.square().mean(-1, keepdim=True) + 1e-8).sqrt()

    def _rotate(self, x: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        angle = torch.arange(len(x))[:, None] * self.config.max_period ** (-torch.arange(half) / half)
        turned = torch.view_as_complex(x.unflatten(-1, (half, 2)).contiguous()) * torch.polar(torch.ones_like(angle), angle)[:, None]
        return torch.view_as_real(turned).flatten(-2)
