"""Voice prompts from files: audio of every kind, bundles, and files that cannot be used."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from gateway.engine.checkpoint import TINY, find_checkpoint
from gateway.engine.lm.weights import TensorSource, embed_rows, load_embeddings
from gateway.engine.moshi import load_codec
from gateway.engine.prompt import Voice, build_prompt
from gateway.engine.voices import load_voices, main, read_audio, read_bundle
from gateway.errors import ConfigError

WAVS = Path(__file__).parents[1] / "data" / "voices"


def test_a_bundle_made_of_a_recording_gives_the_rows_that_the_recording_gives(tmp_path: Path) -> None:
    checkpoint = find_checkpoint("tiny")
    assert checkpoint.weights is not None
    config, profile = checkpoint.lm, checkpoint.profile
    table = torch.empty(config.table_rows, config.dim)
    with TensorSource.open(checkpoint.weights) as source:
        load_embeddings(source, table, config)
    mimi = load_codec(checkpoint, num_slots=1, device=torch.device("cpu"))
    for wav in sorted(WAVS.glob("*.wav")):
        main(["--model", "tiny", str(wav), str(tmp_path / "made.pt")])
        bundle = read_bundle(tmp_path / "made.pt", config)
        codes = mimi.encode_offline(torch.from_numpy(read_audio(wav, 24_000))).numpy()
        from_bundle, from_audio = (build_prompt(config, profile, voice, (4, 5)) for voice in (bundle, Voice(name="a", codes=codes)))
        assert from_bundle.embeddings is not None
        count = len(from_bundle.embeddings)
        assert count == len(codes) - 1
        np.testing.assert_array_equal(from_bundle.rows[count:], from_audio.rows[count:])
        embedded = embed_rows(table, torch.tensor(config.table_starts), torch.from_numpy(from_audio.rows[:count]))
        np.testing.assert_allclose(from_bundle.embeddings, embedded, atol=0.05)  # bundles are bfloat16


def test_every_shipped_bundle_is_read_and_lasts_two_seconds() -> None:
    config = find_checkpoint("tiny").lm
    shipped = {path.stem: read_bundle(path, config) for path in (TINY / "voices").glob("*.pt")}
    assert sorted(shipped) == ["af_heart", "am_adam", "am_michael", "bf_emma"]
    assert {len(voice.embeddings) for voice in shipped.values() if voice.embeddings is not None} == {25}


def test_audio_is_mixed_down_resampled_and_levelled(tmp_path: Path) -> None:
    import pyloudnorm

    pcm, rate = soundfile.read(WAVS / "af_heart.wav", dtype="float32")
    plain = read_audio(WAVS / "af_heart.wav", 24_000)
    soundfile.write(tmp_path / "stereo.wav", np.stack([0.1 * pcm, 0.1 * pcm], axis=1), rate)
    soundfile.write(tmp_path / "other.flac", pcm, 48_000)
    stereo = read_audio(tmp_path / "stereo.wav", 24_000)
    assert pyloudnorm.Meter(24_000).integrated_loudness(plain.astype(np.float64)) == pytest.approx(-24.0, abs=0.1)
    np.testing.assert_allclose(stereo, plain, atol=1e-3)  # 16-bit steps of a file 20 dB down
    assert len(read_audio(tmp_path / "other.flac", 24_000)) == -(-len(pcm) // 2)


@pytest.mark.parametrize(("seconds", "level", "said"), [(0.1, 0.1, "lasts 0.10 s"), (31.0, 0.1, "lasts 31.00 s"), (1.0, 0.0, "is silent")])
def test_audio_that_cannot_be_a_voice_is_refused(tmp_path: Path, seconds: float, level: float, said: str) -> None:
    soundfile.write(tmp_path / "v.wav", level * np.random.default_rng(0).standard_normal(int(24_000 * seconds)), 24_000)
    with pytest.raises(ConfigError, match=said):
        read_audio(tmp_path / "v.wav", 24_000)


def test_files_that_cannot_be_used_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = find_checkpoint("tiny")
    (tmp_path / "broken.pt").write_bytes(b"not a bundle")
    (tmp_path / "broken.wav").write_bytes(b"RIFF")  # no second chance for the name of a broken bundle
    (tmp_path / "noise.flac").write_bytes(b"fLaC")
    (tmp_path / "notes.txt").write_text("not audio")
    (tmp_path / "good.wav").symlink_to(WAVS / "am_michael.wav")
    mimi = load_codec(checkpoint, num_slots=1, device=torch.device("cpu"))
    with caplog.at_level(logging.ERROR):
        aliases = {"alias": "good", "dangling": "gone"}
        book = load_voices(tmp_path, aliases, checkpoint.lm, lambda pcm: mimi.encode_offline(torch.from_numpy(pcm)).numpy(), 24_000)
    assert list(book) == ["good"]
    assert {name for name in ("broken.pt", "noise.flac") if name in caplog.text} == {"broken.pt", "noise.flac"}
    assert book.find("good.wav") is book.find("alias.pt") is book.find("good")
    assert book["good"].codes is not None
    assert book["good"].codes.shape == (25, 8)
    for name in ("dangling", "gone", "../good", "", "GOOD"):
        with pytest.raises(ConfigError, match="this server has: good"):
            book.find(name)
