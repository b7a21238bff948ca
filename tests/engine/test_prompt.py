"""Prompt rows: the layout of specs moshi-model section 8, and the equality of its two voice forms."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import golden
import numpy as np
import pytest
import torch
from lm_reference import PERSONA, VOICE

from gateway.engine.layout import LMConfig, Profile
from gateway.engine.prompt import EMBEDDED, Voice, build_prompt, voice_ring, wrap_persona
from gateway.engine.voices import make_bundle, read_bundle
from gateway.errors import ConfigError

RAW = golden.lm_config(**golden.A4, steps=8)
LM = LMConfig.from_json(RAW)
PERSONAPLEX = Profile.from_json(RAW, LM, is_personaplex=True)
MOSHI = Profile.from_json(RAW, LM, is_personaplex=False)


def test_rows_of_a_voice_and_a_persona() -> None:
    prompt = build_prompt(LM, PERSONAPLEX, VOICE, PERSONA)
    assert VOICE.codes is not None
    silence, sine = PERSONAPLEX.silence_codes, PERSONAPLEX.sine_codes
    assert prompt.rows.shape == (3 + 12 + 2, 17)
    assert prompt.rows[0].tolist() == [320] + [2048] * 16
    # Position 1: acoustic codes of a position before the first do not exist.
    assert prompt.rows[1].tolist() == [3, VOICE.codes[1][0], *[2048] * 7, sine[0], *[2048] * 7]
    assert prompt.rows[2].tolist() == [3, VOICE.codes[2][0], *VOICE.codes[1][1:], sine[0], *sine[1:]]
    assert prompt.rows[3].tolist() == [3, silence[0], *VOICE.codes[2][1:], *sine]
    assert prompt.rows[4].tolist() == [3, *silence, *sine]
    assert prompt.rows[9:11, 0].tolist() == list(PERSONA)
    assert prompt.forced.tolist() == [-1, *silence[1:]]
    assert prompt.user.tolist() == list(sine)


def test_without_a_voice_the_first_silence_frame_is_lost() -> None:
    prompt = build_prompt(LM, PERSONAPLEX, None, ())
    assert prompt.rows.shape == (12, 17)
    assert prompt.rows[1, 2:9].tolist() == [2048] * 7


def test_a_model_without_prompts_starts_from_the_initial_row() -> None:
    prompt = build_prompt(LM, MOSHI, VOICE, PERSONA)
    assert prompt.rows.tolist() == [[320] + [2048] * 16]
    assert prompt.forced.tolist() == [-1] * 8
    assert prompt.user.tolist() == [2048] * 8


@pytest.mark.parametrize("num_frames", [2, 3, 4, 5, 9])
def test_a_bundle_gives_the_rows_of_the_audio_it_was_made_from(tmp_path: Path, num_frames: int) -> None:
    table = torch.randn(17, 2049, LM.dim)

    def embed(rows: torch.Tensor) -> torch.Tensor:
        return sum(table[k][rows[:, k]] for k in range(17))  # type: ignore[return-value]

    codes = np.random.default_rng(num_frames).integers(0, 2048, (num_frames, 8))
    torch.save(make_bundle(codes, LM, PERSONAPLEX, embed), tmp_path / "v.pt")
    bundle = build_prompt(LM, PERSONAPLEX, read_bundle(tmp_path / "v.pt", LM), PERSONA)
    audio = build_prompt(LM, PERSONAPLEX, Voice(name="v", codes=codes), PERSONA)
    count = num_frames - 1
    assert bundle.embeddings is not None
    assert (bundle.rows[:count] == EMBEDDED).all()
    torch.testing.assert_close(torch.from_numpy(bundle.embeddings), embed(torch.from_numpy(audio.rows[:count])))
    assert bundle.rows[count:].tolist() == audio.rows[count:].tolist()
    assert bundle.salt != audio.salt


def test_salts_tell_prompts_apart() -> None:
    prompts = [build_prompt(LM, PERSONAPLEX, voice, persona) for voice in (None, VOICE) for persona in ((), (5,), (6,))]
    assert len({prompt.salt for prompt in prompts}) == 6
    assert build_prompt(LM, PERSONAPLEX, VOICE, (5,)).salt == prompts[4].salt


@pytest.mark.parametrize(
    ("text", "wrapped"),
    [("", ""), ("  ", ""), ("be kind ", "<system> be kind <system>"), ("<system> a <system>", "<system> a <system>"),
     ("<system> a", "<system> <system> a <system>"), ("<system>", "<system> <system> <system>")],
)  # fmt: skip
def test_persona_is_wrapped_once(text: str, wrapped: str) -> None:
    assert wrap_persona(text) == wrapped


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"embeddings": torch.zeros(3, 1, 1, 7), "cache": torch.zeros(1, 17, 4, dtype=torch.int64)},
        {"embeddings": torch.zeros(3, 1, 1, 128), "cache": torch.zeros(1, 17, 3, dtype=torch.int64)},
        {"embeddings": torch.zeros(0, 1, 1, 128), "cache": torch.zeros(1, 17, 4, dtype=torch.int64)},
        {"embeddings": torch.full((3, 1, 1, 128), torch.nan), "cache": torch.zeros(1, 17, 4, dtype=torch.int64)},
        {"embeddings": torch.zeros(3, 1, 1, 128), "cache": torch.full((1, 17, 4), 5000)},
        {"embeddings": torch.zeros(3, 1, 1, 128), "cache": torch.full((1, 17, 4), -2)},
        [1, 2],
    ],
)
def test_a_broken_bundle_is_refused(tmp_path: Path, broken: object) -> None:
    torch.save(broken, tmp_path / "v.pt")
    with pytest.raises(ConfigError, match=r"v\.pt"):
        read_bundle(tmp_path / "v.pt", LM)


def test_a_bundle_with_code_in_it_is_refused_and_nothing_runs(tmp_path: Path) -> None:
    """NVIDIA/personaplex#101: a planted voice file was unpickled."""
    import os
    import pickle

    marker = tmp_path / "ran"

    class Planted:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(marker),)

    (tmp_path / "v.pt").write_bytes(pickle.dumps(Planted()))
    with pytest.raises(ConfigError):
        read_bundle(tmp_path / "v.pt", LM)
    torch.save({"embeddings": Planted()}, tmp_path / "v.pt")
    with pytest.raises(ConfigError):
        read_bundle(tmp_path / "v.pt", LM)
    assert not marker.exists()


def test_ring_columns_are_positions_modulo_four() -> None:
    codes = np.arange(40).reshape(5, 8)
    rows, ring = voice_ring(LM, PERSONAPLEX, codes)
    assert len(rows) == 4
    assert ring[:, 0].tolist() == [3, 32, *range(25, 32), *PERSONAPLEX.sine_codes]
    assert ring[2:9, 1].tolist() == list(range(33, 40))


def test_profiles_follow_the_family() -> None:
    assert (PERSONAPLEX.window, MOSHI.window) == (11, 12)
    with pytest.raises(ConfigError, match="unknown keys"):
        Profile.from_json({**RAW, "gateway": {"windoww": 3}}, LM, is_personaplex=True)
    with pytest.raises(ConfigError, match="silence_codes"):
        Profile.from_json({**RAW, "gateway": {"silence_codes": [1, 2]}}, LM, is_personaplex=True)
    with pytest.raises(ConfigError, match="cross_attention"):
        LMConfig.from_json({**RAW, "cross_attention": True})
    assert dataclasses.astuple(LMConfig.from_json({}))[:4] == (4096, 32, 32, 11264)
