"""Frame logic and depth transformer without vLLM: appendix A.2, whose heads of 16 vLLM's CPU attention does not take."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
import torch
from lm_reference import GREEDY, PlainTemporal, golden_checkpoint, golden_prompt, golden_table, user_frame

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.lm.depth import DepthTransformer
from gateway.engine.lm.frames import Chunk, LockstepFrames
from gateway.engine.lm.weights import TensorSource, load_embeddings


def run_plain(checkpoint: Checkpoint, users: list[list[int]], *, slot_idx: int = 1, num_slots: int = 3) -> list[list[int]]:
    """Output frames (text, 8 codes): the one that completes the prompt, then one for each user frame."""
    config = checkpoint.lm
    table = torch.empty(16 * (config.card + 1) + config.text_card + 1, config.dim)
    depth = DepthTransformer(config)
    assert checkpoint.weights is not None
    with TensorSource.open(checkpoint.weights) as source, torch.no_grad():
        load_embeddings(source, table, config)
        depth.load(source)
    frames = LockstepFrames(config, checkpoint.profile, table, depth, num_slots=num_slots)
    temporal = PlainTemporal(checkpoint)
    prompt = golden_prompt(checkpoint)
    frames.open(slot_idx, prompt, GREEDY)
    rows = torch.from_numpy(prompt.rows)
    outputs = []
    for i, user in enumerate([None, *users]):
        if user is not None:
            frames.set_user(torch.tensor([slot_idx]), torch.tensor([user]))
            target = torch.zeros(1, config.dim)
            frames.embed([Chunk(slot_idx, len(rows), 1)], target)
            rows = torch.cat([rows, frames._row[slot_idx][None]])
            torch.testing.assert_close(target[0], frames.embed_rows(rows[-1:])[0])
        hidden, logits = temporal(rows)
        _, codes = frames.advance([slot_idx], [i > 0], [False], hidden[-1:], logits[-1:])
        outputs.append([int(frames.read_rows([slot_idx])[0, 0]), *codes[0].tolist()])
    return outputs


@pytest.mark.parametrize("params", [golden.A2, golden.A4], ids=["a2", "a4"])
@torch.inference_mode()
def test_personaplex_table(tmp_path: Path, params: dict[str, int]) -> None:
    outputs = run_plain(golden_checkpoint(tmp_path, params, "personaplex"), [user_frame(i) for i in range(15)])
    table = golden_table("a2_personaplex" if params is golden.A2 else "a4_personaplex")
    assert outputs == [table[line] for line in range(16)]


@pytest.mark.parametrize("params", [golden.A2, golden.A4], ids=["a2", "a4"])
@torch.inference_mode()
def test_moshi_table(tmp_path: Path, params: dict[str, int]) -> None:
    """The reference loses w_0 in call 0; here the first frame received is w_1."""
    outputs = run_plain(golden_checkpoint(tmp_path, params, "moshi"), [user_frame(i) for i in range(1, 16)])
    table = golden_table("a2_moshi" if params is golden.A2 else "a4_moshi")
    assert outputs[1:] == [table[line] for line in range(1, 16)]


@torch.inference_mode()
def test_the_golden_run_notices_a_window_that_is_one_key_too_long(tmp_path: Path) -> None:
    import dataclasses

    checkpoint = golden_checkpoint(tmp_path, golden.A2, "personaplex")
    wrong = dataclasses.replace(checkpoint, profile=dataclasses.replace(checkpoint.profile, window=12))
    table = golden_table("a2_personaplex")
    assert run_plain(wrong, [user_frame(i) for i in range(15)]) != [table[line] for line in range(16)]
