"""Counter-based sampling: what a draw depends on, and that it follows the distribution."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from lm_reference import GREEDY

from gateway.engine.lm.sampling import Sampler, SamplingRows, gumbel, uniform

CARD = 50


def draws(count: int, *, seed: int = 1, codebook: int = 0, card: int = CARD) -> torch.Tensor:
    return uniform(torch.full((count,), seed), torch.arange(count), range(codebook, codebook + 1), card)[:, 0]


def sample(logits: torch.Tensor, temperature: torch.Tensor, topk: torch.Tensor, **options: object) -> torch.Tensor:
    count, card = logits.shape
    noise = gumbel(torch.ones(count, dtype=torch.int64), torch.arange(count), range(1), card)
    return Sampler(temperature, topk, noise).draw(0, logits, **options)


def test_uniform_is_uniform_and_open() -> None:
    values = draws(4000)
    assert values.min() > 0
    assert values.max() < 1
    assert values.mean().item() == pytest.approx(0.5, abs=0.005)  # 200,000 draws: sigma of the mean is 0.0007
    assert values.var().item() == pytest.approx(1 / 12, abs=0.002)
    centred = values - 0.5
    for lag_axis in (0, 1):  # neighbours in position and in index are uncorrelated
        other = centred.roll(1, lag_axis)
        assert abs((centred * other).mean().item() * 12) < 0.02


@given(st.integers(0, 2**63 - 1), st.integers(0, 10**6), st.integers(0, 8), st.integers(1, 7))
def test_a_draw_depends_on_its_key_alone(seed: int, position: int, codebook: int, rows: int) -> None:
    alone = uniform(torch.tensor([seed]), torch.tensor([position]), range(codebook, codebook + 1), CARD)
    seeds, positions = torch.arange(rows) * 7 + 1, torch.arange(rows)
    seeds[-1], positions[-1] = seed, position
    together = uniform(seeds, positions, range(10), CARD)
    assert torch.equal(alone[0, 0], together[-1, codebook])
    assert not torch.equal(together[-1, codebook], together[-1, codebook + 1])
    assert not torch.equal(alone, uniform(torch.tensor([seed]), torch.tensor([position + 1]), range(codebook, codebook + 1), CARD))


def test_samples_follow_the_tempered_distribution() -> None:
    logits = torch.linspace(-2, 2, CARD).expand(20000, CARD)
    drawn = sample(logits, torch.full((20000,), 0.7), torch.zeros(20000, dtype=torch.int64))
    expected = (logits[0] / 0.7).softmax(0)
    share = torch.bincount(drawn, minlength=CARD) / 20000
    assert (share - expected).abs().max() < 5 * (expected.max() * (1 - expected.max()) / 20000).sqrt()


def test_topk_keeps_the_largest_and_differs_by_row() -> None:
    logits = torch.randn(300, CARD, generator=torch.Generator().manual_seed(3))
    topk = torch.arange(300) % 3 + 1
    drawn = sample(logits, torch.ones(300), topk)
    ranks = (logits > logits.gather(1, drawn[:, None])).sum(1)
    assert (ranks < topk).all()
    assert set(ranks.tolist()) == {0, 1, 2}


def test_ties_with_the_kth_are_kept_and_nothing_below() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 1.0, 1.0, 0.5]]).repeat(2000, 1)
    drawn = sample(logits, torch.ones(2000), torch.full((2000,), 2))
    assert set(drawn.tolist()) == {1, 2, 3, 4}


def test_each_step_of_a_sampler_draws_with_its_own_noise() -> None:
    noise = gumbel(torch.ones(400, dtype=torch.int64), torch.arange(400), range(1, 4), CARD)
    sampler = Sampler(torch.ones(400), torch.zeros(400, dtype=torch.int64), noise.clone())
    logits = torch.zeros(400, CARD)
    for step in range(3):
        assert torch.equal(sampler.draw(step, logits), noise[:, step].argmax(dim=1))


def test_topk_beyond_the_vocabulary_keeps_everything() -> None:
    """PersonaPlex raises here (specs: moshi-model section 7)."""
    logits = torch.zeros(4, CARD)
    everything = sample(logits, torch.ones(4), torch.full((4,), 10**6))
    assert torch.equal(everything, sample(logits, torch.ones(4), torch.zeros(4, dtype=torch.int64)))


def test_temperature_zero_is_greedy_beside_sampled_rows() -> None:
    logits = torch.randn(2, CARD, generator=torch.Generator().manual_seed(5)).repeat(500, 1)
    temperature = torch.tensor([0.0, 5.0]).repeat(500)
    drawn = sample(logits, temperature, torch.zeros(1000, dtype=torch.int64))
    assert (drawn[::2] == logits[0].argmax()).all()
    assert len(set(drawn[1::2].tolist())) > 10


def rows_with(**options: object) -> SamplingRows:
    rows = SamplingRows.empty(3, torch.device("cpu"))
    rows.set(1, dataclasses.replace(GREEDY, **{"text_temperature": 1.0, "text_seed": 4, **options}))
    return rows


def test_pad_mult_multiplies_the_probability_of_padding() -> None:
    logits, at = torch.zeros(2000, CARD), torch.ones(2000, dtype=torch.int64)
    plain = (rows_with().sample_text(at, logits, torch.arange(2000), 3) == 3).float().mean().item()
    more = (rows_with(pad_mult=3.0).sample_text(at, logits, torch.arange(2000), 3) == 3).float().mean().item()
    weight = torch.tensor(3.0).exp().item()
    assert plain == pytest.approx(1 / CARD, abs=0.015)
    assert more == pytest.approx(weight / (weight + CARD - 1), abs=0.05)


def text_rows(bias: float, count: int = 500, **options: object) -> torch.Tensor:
    """Draws of a row whose padding (id 3) is likely, with `bias` on it."""
    rows = rows_with(**options)
    rows.set_pad_bias(np.array([0.0, bias], dtype=np.float32))
    logits = torch.randn(count, CARD, generator=torch.Generator().manual_seed(8))
    logits[:, 3] += 4
    return rows.sample_text(torch.ones(count, dtype=torch.int64), logits, torch.arange(count), 3)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_pad_bias_makes_padding_rare_or_certain_at_any_temperature(temperature: float) -> None:
    plain, less, more = (text_rows(bias, text_temperature=temperature) for bias in (0.0, -20.0, 20.0))
    assert 0.3 < (plain == 3).float().mean() < 1
    assert not (less == 3).any()
    assert (more == 3).all()
    said = plain != 3
    assert said.any()
    assert torch.equal(less[said], plain[said])  # where it spoke anyway, it says the same


def test_a_pad_bias_comes_on_top_of_pad_mult_and_before_the_temperature() -> None:
    assert torch.equal(text_rows(-3.0, pad_mult=2.0), text_rows(-1.0))
    assert torch.equal(text_rows(-2.0, pad_mult=2.0), text_rows(0.0))
    assert torch.equal(text_rows(-1.0, text_temperature=0.25), text_rows(0.0, text_temperature=0.25, pad_mult=-4.0))


def test_a_pad_bias_touches_its_own_row_alone_and_goes_away() -> None:
    rows = rows_with()
    padding = rows.padding
    rows.set_pad_bias(np.array([0.5, -4.0], dtype=np.float32))
    assert padding.tolist() == [0.5, -4.0, 0.0]
    rows.set(1, dataclasses.replace(GREEDY, text_temperature=1.0, pad_mult=1.0))  # another caller takes the slot: the bias is of the step
    assert padding.tolist() == [0.5, -3.0, 0.0]
    rows.set_pad_bias(np.zeros(2, dtype=np.float32))
    assert padding.tolist() == [0.0, 1.0, 0.0]


def test_repetition_penalty_damps_each_recent_word_once() -> None:
    rows, at = rows_with(repetition_penalty=2.0, repetition_penalty_context=2), torch.tensor([1])
    for word in (10, 3, 11, 11, 0):  # 3 and 0 are special and count for nothing
        rows.note_text(at, torch.tensor([word]))
    logits = torch.ones(1, CARD)
    logits[0, 11] = -1.0
    damped = rows._penalise(at, logits)[0]
    assert damped[11] == -2.0  # once, though it was said twice
    assert damped[10] == 1.0  # outside the context of two words
    rows.note_text(at, torch.tensor([10]))
    damped = rows._penalise(at, logits)[0]
    assert damped[10] == 0.5
    assert damped[3] == 1.0


def test_penalty_context_survives_the_ring() -> None:
    rows, at = rows_with(repetition_penalty=2.0, repetition_penalty_context=256), torch.tensor([1])
    for i in range(600):
        rows.note_text(at, torch.tensor([4 + i % 40]))
    assert (rows._penalise(at, torch.ones(1, CARD))[0] == 0.5).sum() == 40
    rows.set(1, dataclasses.replace(GREEDY, repetition_penalty=2.0, repetition_penalty_context=256))
    assert (rows._penalise(at, torch.ones(1, CARD))[0] == 1.0).all()


def test_rows_with_any_topk_keep_what_a_whole_sort_says() -> None:
    topk, card = torch.tensor([0, 1, 3, 40, 63, 64, 1000]), 64
    logits = torch.randn(7, card, generator=torch.Generator().manual_seed(3))
    logits[:, 5] = logits[:, 9]
    seen = Sampler(torch.ones(7), topk, torch.zeros(7, 1, card))._smallest_kept(logits)[:, 0]
    for row, kept in enumerate(topk.tolist()):
        smallest = sorted(logits[row].tolist(), reverse=True)[kept - 1] if 0 < kept < card else -torch.inf
        assert seen[row] == smallest
