"""What the language model's losses look at."""

from __future__ import annotations

import torch

from gateway.engine.layout import CODEBOOKS, ROW_WIDTH
from gateway.training.dialogues import EPAD, PAD
from gateway.training.lm_batches import Rows
from gateway.training.lm_training import NAME_WEIGHT, OVERLAP_WEIGHT, PAD_WEIGHT, text_weights
from gateway.training.mixing import SUBFRAMES

NOVA, MAYA, WORD = 40, 41, 50


def rows(text: list[list[int]], names: list[int], live_from: int, overlap: tuple[int, int] | None = None) -> Rows:
    """A batch with these text targets [B, T]."""
    targets = torch.zeros(len(text), len(text[0]), 1 + CODEBOOKS, dtype=torch.int64)
    targets[..., 0] = torch.tensor(text)
    count, length = targets.shape[:2]
    flags, classes = torch.zeros(count, length, dtype=torch.bool), torch.zeros(count, length, dtype=torch.int64)
    is_live, is_overlap = flags.clone(), flags.clone()
    is_live[:, live_from:] = True
    if overlap:
        is_overlap[:, slice(*overlap)] = True
    row = torch.zeros(count, length + 1, ROW_WIDTH, dtype=torch.int64)
    phones = torch.zeros(count, length, SUBFRAMES, dtype=torch.int64)
    return Rows(
        row, targets, is_live, flags, is_overlap, phones, classes, classes, torch.tensor(names), torch.zeros(count, dtype=torch.int64)
    )


def test_the_persona_own_name_counts_more_than_other_words_and_padding_less() -> None:
    batch = rows([[WORD, NOVA, MAYA, PAD], [WORD, NOVA, MAYA, PAD]], [NOVA, MAYA], live_from=0)
    assert text_weights(batch).tolist() == [[1, NAME_WEIGHT, 1, pad := torch.tensor(PAD_WEIGHT).item()], [1, 1, NAME_WEIGHT, pad]]


def test_without_a_prompt_no_piece_is_the_name() -> None:
    assert text_weights(rows([[EPAD, WORD]], [0], live_from=0)).tolist() == [[1, 1]]


def test_in_an_overlap_padding_counts_like_words_and_in_the_prompt_nothing_does() -> None:
    batch = rows([[NOVA, PAD, WORD, PAD]], [NOVA], live_from=1, overlap=(0, 3))
    assert text_weights(batch).tolist() == [[0, OVERLAP_WEIGHT, OVERLAP_WEIGHT, torch.tensor(PAD_WEIGHT).item()]]
