"""The codec against closed-form goldens, against PyPI `moshi` (the numeric reference), and against its own promise of independent rows."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest
import torch

from gateway.engine.codec import Mimi, MimiConfig, Window, load_mimi, random_mimi
from gateway.engine.codec.layers import elu, linear
from gateway.engine.codec.stream import Streams
from gateway.engine.graphs import whole_blocks

os.environ.setdefault("NO_TORCH_COMPILE", "1")  # read when moshi's modules run: eager is exact and starts at once
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # moshi's imports, not ours
    from moshi.models import loaders

FRAME = 1920
WINDOWS: tuple[Window, ...] = ("moshi", "personaplex")

# specs/moshi-model.md appendix A.3: codes 0..7, then PCM samples 0, 959, 1919 of the decoded frame. Frames 0-3 are common.
COMMON = """
13 61 12 59 16 39 40 23 |  0.024935  0.046294  0.028695
13 61 12 59  2 49 29  9 |  0.058583 -0.000866 -0.031202
27 59  3 13 26 52 47  7 |  0.193166 -0.090908  0.050692
 7 28 38 13 29 52 54 25 |  0.190930 -0.034398  0.031111
"""
GOLDEN = {
    "moshi": """
29 59 33 26 19 44 34  9 |  0.109321  0.087956  0.166676
45 59 38 13 26 52 18  7 |  0.072454 -0.019504  0.123703
52 59 15 13 15 29 20 63 | -0.002761  0.147014  0.045089
45 13 45 21  3 41 52 14 |  0.090955  0.077605  0.108244
42 34 26 21 13 32 15 14 |  0.087679 -0.047039  0.069475
52 59 39 24 19 62 25 12 |  0.044620  0.006765  0.169233
 3 59 24 13  1 52 28 16 |  0.085076  0.053505 -0.019930
52 59 58 25 62 41 52 58 |  0.117095  0.061557  0.006846
""",
    "personaplex": """
29 59 33 26  1 62  9  9 |  0.108801  0.085918  0.163105
14 59 38 13 26 19 15 13 |  0.074297 -0.016018  0.133501
52 59 15 26  5 15 34 58 | -0.015736  0.149140  0.048581
45 13 45 21  3 52 57 33 |  0.082731  0.078596  0.104488
42 28 38 21  8 50 14 29 |  0.081444 -0.042641  0.074649
52 20 45 20 56 11 52 36 |  0.038446 -0.002007  0.140973
14 13 24 21 13 52 22 60 |  0.112668  0.049535 -0.030070
52 20 54 26  8 15 22 29 |  0.107184  0.061544  0.018060
""",
}
LATENT = (-1.29887, 2.69361, -1.46838)  # frame 0, unquantised, first three components

# The shape of the shipped tiny codec: other head size, group sizes and context than A.3's.
TINY = golden.mimi_config(n_filters=16, dimension=128, heads=4, layers=4, hidden=512, context=100, codebook_dim=64, bins=512)


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden.write_mimi(tmp_path_factory.mktemp("mimi"))


def make(folder: Path, num_slots: int, window: Window = "personaplex", config: dict[str, Any] | None = None) -> Mimi:
    config = golden.mimi_config() if config is None else config
    return load_mimi(folder / golden.MIMI_FILE, MimiConfig.from_json(config), num_slots=num_slots, window=window)


def golden_pcm(frames: int) -> torch.Tensor:
    n = np.arange(frames * FRAME)
    wave = 0.3 * np.sin(2 * np.pi * 220 * n / 24000) + 0.1 * np.sin(2 * np.pi * 1330 * n / 24000)
    return torch.from_numpy(wave.astype(np.float32)).view(frames, FRAME)


def golden_codes(frame_idx: int, bins: int = 64) -> torch.Tensor:
    return (29 * frame_idx + 13 * torch.arange(8) + 3) % bins


def speech(row: int, frames: int) -> torch.Tensor:
    """A different signal for each row: gliding tones under a slow envelope, and noise. float32 [frames, S]."""
    n = np.arange(frames * FRAME) / 24000
    tones = np.sin(2 * np.pi * (110 + 30 * row + 15 * np.sin(n * (1.1 + row))) * n) + 0.5 * np.sin(2 * np.pi * (900 + 170 * row) * n)
    noise = 2 * golden.golden_uniform(f"noise {row}", frames * FRAME) - 1
    wave = 0.2 * tones * (0.55 + 0.45 * np.sin(n * (2.3 + row))) + 0.03 * noise
    return torch.from_numpy(wave.astype(np.float32)).view(frames, FRAME)


def state_of(mimi: Mimi, row: int) -> list[torch.Tensor]:
    def parts(streams: Streams) -> list[torch.Tensor]:
        return [streams.carried[row].clone(), streams.ring[:, row].clone(), streams.positions[row].clone()]

    return parts(mimi.encoder_streams) + parts(mimi.decoder_streams)


# -- Goldens ---------------------------------------------------------------------------------------------------------------------------


def test_generator_gives_the_spot_values_of_the_specification() -> None:
    np.testing.assert_allclose(golden.golden_uniform("emb.0.weight", 3), [0.24514717911, 0.20432698610, 0.68645661953], atol=1e-11)
    cases = [
        ("text_linear.weight", (320, 64), "lm", [0.03126461, -0.24955292, -0.04762281]),
        ("out_norm.alpha", (1, 1, 64), "lm", [0.94847280, 1.03621340, 1.01057279]),
        ("encoder.model.0.conv.conv.weight", (4, 1, 7), "codec", [0.18009691, -0.32941613, 0.10301505]),
        ("decoder.model.2.convtr.convtr.weight", (64, 32, 16), "codec", [-0.05293167, -0.03197895, 0.03618772]),
        ("upsample.convtr.convtr.convtr.weight", (32, 1, 4), "codec", [0.75845701, -0.61838275, 1.19110858, -0.37756446]),
    ]
    for name, shape, kind, values in cases:
        tensor = golden.golden_tensor(name, shape, kind)  # type: ignore[arg-type]
        assert tensor.dtype == np.float32
        np.testing.assert_allclose(tensor.ravel()[: len(values)], values, atol=6e-9, err_msg=name)


@pytest.mark.parametrize("window", WINDOWS)
def test_golden_codes_and_samples_come_out_of_every_active_row(folder: Path, window: Window) -> None:
    mimi = make(folder, 3, window)
    mask = torch.tensor([True, False, True])
    lines = (COMMON + GOLDEN[window].lstrip()).strip().splitlines()
    for frame_idx, (line, frame) in enumerate(zip(lines, golden_pcm(12), strict=True)):
        codes, samples = ([float(v) for v in part.split()] for part in line.split("|"))
        found = mimi.encode(frame.expand(3, -1), mask)
        pcm = mimi.decode(golden_codes(frame_idx).expand(3, -1), mask)
        assert (found.dtype, pcm.dtype) == (torch.int64, torch.float32)
        for row in (0, 2):
            assert found[row].tolist() == codes, f"frame {frame_idx}"
            np.testing.assert_allclose(pcm[row, [0, 959, 1919]], samples, atol=1e-5, err_msg=f"frame {frame_idx}")
        assert not found[1].any()
        assert not pcm[1].any()


def test_golden_latent(folder: Path) -> None:
    mimi = make(folder, 1)
    latent = mimi.encoder.latents(mimi.encoder_streams, golden_pcm(1), torch.tensor([0]))[:, 0]
    np.testing.assert_allclose(latent[0, :3], LATENT, atol=1e-5)


# -- Parity with the reference ---------------------------------------------------------------------------------------------------------


def reference(folder: Path, config: dict[str, Any], window: Window) -> Any:
    """PyPI moshi's codec. PersonaPlex's window of capacity C is Kyutai's of capacity C - 1 (specs/moshi-model.md section 4.1)."""
    shorter = {**config["transformer"], "context": config["transformer"]["context"] - (window == "personaplex")}
    return loaders.get_mimi(folder / golden.MIMI_FILE, {**config, "transformer": shorter}, num_codebooks=8)


@pytest.mark.parametrize(("config", "window"), [(golden.mimi_config(), "personaplex"), (TINY, "moshi")], ids=["a3", "tiny"])
def test_300_frames_agree_with_the_reference_while_rows_join_pause_and_leave(tmp_path: Path, config: Any, window: Window) -> None:
    frames, rows = 300, 4
    golden.write_mimi(tmp_path, config)
    ours, theirs = make(tmp_path, rows, window, config), reference(tmp_path, config, window)
    bins = config["quantizer"]["bins"]
    signals = torch.stack([speech(row, frames) for row in range(rows)], dim=1)  # [frames, rows, S]
    pauses = golden.golden_uniform("pauses", frames * rows).reshape(frames, rows)
    worst = 0.0
    with torch.no_grad(), theirs.streaming(rows):
        for i in range(frames):
            # Row 0 never stops; row 1 joins late; row 2 pauses a third of the time; row 3 leaves and another caller takes its slot.
            mask = torch.tensor([True, i >= 37, bool(pauses[i, 2] > 1 / 3), not 120 <= i < 171])
            if i == 171:
                newcomer = torch.tensor([False, False, False, True])
                ours.reset(newcomer)
                theirs.reset_streaming(newcomer)
            theirs.set_exec_mask(mask)
            expected = theirs.encode(signals[i][:, None])[:, :, 0]
            found = ours.encode(signals[i], mask)
            assert torch.equal(found[mask], expected[mask]), f"frame {i}"
            codes = (found + torch.stack([golden_codes(i + row, bins) for row in range(rows)])) % bins
            expected_pcm = theirs.decode(codes[:, :, None])[:, 0]
            worst = max(worst, float((ours.decode(codes, mask) - expected_pcm)[mask].abs().max()))
    # The reference adds in another order; its own rounding differs by as much between batch sizes.
    assert worst < 1e-5


# -- Rows ------------------------------------------------------------------------------------------------------------------------------


def test_masked_row_is_unchanged_to_the_last_bit(folder: Path) -> None:
    mimi = make(folder, 3)
    everyone, others = torch.tensor([True, True, True]), torch.tensor([True, False, True])
    for i in range(8):  # past the window of A.3
        mimi.decode(mimi.encode(speech(i, 3), everyone), everyone)
    before = state_of(mimi, 1)
    for i in range(3):
        mimi.decode(mimi.encode(speech(i, 3), others), others)
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(mimi, 1), strict=True))
    mimi.decode(mimi.encode(speech(9, 3), torch.zeros(3, dtype=torch.bool)), torch.zeros(3, dtype=torch.bool))
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(mimi, 1), strict=True))


def test_reset_row_equals_a_fresh_row_and_leaves_its_neighbour_alone(folder: Path) -> None:
    used, fresh = make(folder, 2), make(folder, 2)
    everyone = torch.tensor([True, True])
    for i in range(7):
        used.decode(used.encode(speech(i, 2), everyone), everyone)
    used.encode(torch.full((2, FRAME), torch.nan), torch.tensor([False, True]))  # whatever the row holds must be gone
    neighbour = state_of(used, 0)
    used.reset(torch.tensor([False, True]))
    assert all(torch.equal(a, b) for a, b in zip(neighbour, state_of(used, 0), strict=True))
    only = torch.tensor([False, True])
    for i in range(7):
        codes = used.encode(speech(i, 2), only)
        assert torch.equal(codes, fresh.encode(speech(i, 2), only))
        assert torch.equal(used.decode(codes, only), fresh.decode(codes, only))


@pytest.mark.parametrize("threads", [1, 2])
def test_product_gives_a_row_the_same_bits_in_any_batch(threads: int) -> None:
    torch.set_num_threads(threads)
    for inputs, outputs in ((2048, 256), (128, 384), (64, 512), (32, 32)):  # deep convolution, attention, codebook search, A.3
        values = torch.from_numpy(golden.golden_tensor("product", (26 + inputs, max(inputs, outputs)), "lm"))
        x, weight, bias = values[:26, :inputs], values[26:, :outputs].contiguous(), values[0, :outputs]
        expected = linear(whole_blocks(x), weight, bias)
        for count in range(1, 26):
            found = linear(whole_blocks(x[:count]), weight, bias)[:count]
            assert torch.equal(found, expected[:count]), f"{count} rows of {inputs} x {outputs}"


def test_elu_is_exact_to_rounding_and_may_work_in_place() -> None:
    x = torch.cat((torch.linspace(-20, 5, 4001), torch.tensor([0.0, -0.0, 1e-30, -1e-30, -1e4, 100.0, torch.inf, -torch.inf])))
    expected = torch.nn.functional.elu(x.double())
    out = elu(x, torch.empty_like(x))
    assert (out - expected)[torch.isfinite(x)].abs().max() < 2e-7
    assert out[-2:].tolist() == [torch.inf, -1.0]
    assert elu(torch.tensor([torch.nan]), torch.empty(1)).isnan().all()
    assert elu(x, x) is x
    assert torch.equal(x, out)


@pytest.mark.parametrize(("threads", "frames"), [(1, 18), (2, 4)])
def test_row_depends_neither_on_its_neighbours_nor_on_the_batch_size(tmp_path: Path, threads: int, frames: int) -> None:
    torch.set_num_threads(threads)
    golden.write_mimi(tmp_path, TINY)
    alone, crowd = make(tmp_path, 1, config=TINY), make(tmp_path, 9, config=TINY)
    slot, one = 4, torch.tensor([True])
    signal = speech(0, frames)
    for i in range(frames):
        mask = torch.from_numpy(golden.golden_uniform(f"mask {i}", 9) < ((5 * i) % 9 + 1) / 9)
        mask[slot] = True
        pcm = speech(i + 1, 9)
        pcm[slot] = signal[i]
        codes = crowd.encode(pcm, mask)
        assert torch.equal(codes[slot], alone.encode(signal[i : i + 1], one)[0]), f"{int(mask.sum())} rows"
        # Equal bit for bit where this was written; the promise is 1e-6, for the vector tails of other processors.
        torch.testing.assert_close(crowd.decode(codes, mask)[slot], alone.decode(codes[slot : slot + 1], one)[0], atol=1e-6, rtol=0)


def test_offline_encoding_equals_a_fresh_stream_and_touches_no_live_row(folder: Path) -> None:
    mimi = make(folder, 2)
    both = torch.tensor([True, True])
    mimi.encode(speech(5, 2), both)
    before = [state_of(mimi, row) for row in range(2)]
    pcm = golden_pcm(4).flatten()[: 3 * FRAME + 700]
    codes = mimi.encode_offline(pcm)
    for row in range(2):
        assert all(torch.equal(a, b) for a, b in zip(before[row], state_of(mimi, row), strict=True))
    mimi.reset(both)
    padded = torch.nn.functional.pad(pcm, (0, FRAME - 700)).view(4, FRAME)
    streamed = torch.stack([mimi.encode(frame.expand(2, -1), both)[1] for frame in padded])
    assert torch.equal(codes, streamed)
    assert mimi.encode_offline(torch.zeros(0)).shape == (0, 8)


def test_warm_up_touches_no_live_row(folder: Path) -> None:
    mimi = make(folder, 2)
    mimi.encode(speech(5, 2), torch.tensor([True, True]))
    before = [state_of(mimi, row) for row in range(2)]
    mimi.warm_up([1, 2])
    assert int(mimi.encoder_streams.positions[2]) > 0, "it ran on the scratch slot"
    for row in range(2):
        assert all(torch.equal(a, b) for a, b in zip(before[row], state_of(mimi, row), strict=True))


def test_a_code_outside_the_codebook_is_refused(folder: Path) -> None:
    mimi = make(folder, 1)
    for bad in (-1, 64):
        with pytest.raises(ValueError, match="0 to 63"):
            mimi.decode(torch.tensor([[0, 0, 0, bad, 0, 0, 0, 0]]), torch.tensor([True]))
    assert int(mimi.decoder_streams.positions[0]) == 0


def test_random_codec_runs_without_a_file() -> None:
    mimi = random_mimi(MimiConfig.from_json(TINY), num_slots=2, window="moshi")
    mask = torch.tensor([True, True])
    codes = [mimi.encode(speech(i, 2), mask) for i in range(4)]
    pcm = mimi.decode(codes[-1], mask)
    assert torch.isfinite(pcm).all()
    assert len(torch.stack(codes).unique()) > 8, "codes must vary, or a benchmark would measure nothing"
