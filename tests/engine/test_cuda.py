"""The CUDA path against float32: what a CPU run cannot show. On a GPU host, `pytest tests/engine` runs this and the golden tables."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest
import torch
from lm_reference import GREEDY, PlainTemporal, golden_checkpoint, golden_prompt, golden_setup, golden_table, user_frame

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")]


# Heads of 128 as in the published models, which take another attention kernel than heads of 32.
WIDE = {**golden.A4, "dim": 256, "heads": 2, "hidden": 704}


@pytest.mark.parametrize("params", [golden.A4, WIDE], ids=["heads_of_32", "heads_of_128"])
@pytest.mark.parametrize("family", ["personaplex", "moshi"])
@torch.inference_mode()
def test_bf16_logits_follow_float32_under_teacher_forcing(tmp_path: Path, family: str, params: dict[str, int]) -> None:
    """Every step reads the golden rows whatever bf16 would have drawn; its text logits must point where float32's do (specs section 12)."""
    import gateway.engine.vllm  # noqa: F401
    from gateway.engine.vllm.core import LockstepCore

    checkpoint = golden_checkpoint(tmp_path, params, family)
    setup = golden_setup(checkpoint, num_slots=2, dtype="bfloat16")
    core = LockstepCore(setup, setup.check_memory())
    table = golden_table(f"a4_{family}")
    prompt = golden_prompt(checkpoint)
    core.open(0, prompt, GREEDY)
    core.step([], frozenset())
    first = 0 if family == "personaplex" else 1
    rows, logits = [torch.from_numpy(row) for row in prompt.rows], []
    for line in range(1, 16):
        # Line j holds text and first code of row P + j - 1, and the other codes of the row after it.
        text, *codes = table[line]
        before = table.get(line - 1, [0] * 9)
        frames = core.frames
        frames._text[0], frames._audio[0, 0] = text, codes[0]
        frames._audio[0, 1:] = torch.tensor(before[2:], device=frames._device)
        user = torch.tensor([user_frame(line - 1 + first)], device=frames._device)
        frames.set_user(torch.tensor([0], device=frames._device), user)
        core.step([0], frozenset())
        rows.append(torch.from_numpy(frames.read_rows([0])[0]))
        logits.append(core._runner.model.compute_logits(core._runner.model.last_hidden)[0].float().cpu())
    core.shutdown()
    _, expected = PlainTemporal(checkpoint)(torch.stack(rows))
    cosine = torch.nn.functional.cosine_similarity(torch.stack(logits), expected[-15:], dim=1)
    assert cosine.min() > 0.999, cosine
