"""A speaker's name says how its voice is mixed, and the model gets what it was trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.training import kokoro, sources


class FakeSession:
    """Answers with silence and remembers what it was asked."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.asked: dict[str, Any] = {}

    def run(self, _: Any, inputs: dict[str, Any]) -> list[np.ndarray]:
        self.asked = inputs
        return [np.zeros((1, 240), np.float32)]


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> kokoro.Kokoro:
    rows = np.arange(510, dtype=np.float32)[:, None] * np.ones((1, 256), np.float32)
    monkeypatch.setattr(sources, "symbols", lambda cache: {"h": 50, "I": 25, ".": 4})
    monkeypatch.setattr(sources, "voices", lambda cache: {"af_a": rows, "bm_b": rows + 1000})
    monkeypatch.setattr(kokoro, "_fast_model", lambda cache: Path("model.onnx"))
    monkeypatch.setattr("onnxruntime.InferenceSession", FakeSession)
    made = kokoro.Kokoro(Path("cache"))
    for phonemizer in made.phonemizers.values():
        phonemizer._known = {"Hi": "hˈI", "Mmm": "m"}
    return made


def test_tokens_are_padded_and_the_style_is_that_of_their_number(engine: kokoro.Kokoro) -> None:
    assert engine.say("af_a", "Hi.", 1.1).shape == (240,)
    asked = engine._session.asked
    assert asked["tokens"].tolist() == [[0, 50, 25, 4, 0]]  # the stress mark is not among the symbols
    assert asked["style"].shape == (1, 256)
    assert asked["style"][0, 0] == 2  # row of three phonemes
    assert asked["speed"] == np.float32(1.1)


def test_a_blend_is_the_weighted_mean(engine: kokoro.Kokoro) -> None:
    engine.say(kokoro.blend("af_a", "bm_b", 30), "Hi.", 1.0)
    assert engine._session.asked["style"][0, 0] == pytest.approx(2 + 0.7 * 1000)


def test_what_cannot_be_said_is_refused(engine: kokoro.Kokoro) -> None:
    with pytest.raises(ValueError, match="0 phonemes"):
        engine.say("af_a", "Mmm", 1.0)
    with pytest.raises(KeyError):
        engine.say("nobody", "Hi.", 1.0)


@pytest.mark.parametrize(
    ("speaker", "parts", "accent"),
    [
        ("af_heart", [("af_heart", 1.0)], "en-us"),
        ("bf_emma", [("bf_emma", 1.0)], "en-gb"),
        ("blend:bm_lewis+ef_dora@70", [("bm_lewis", 0.7), ("ef_dora", 0.3)], "en-gb"),
        ("blend:ef_dora+bm_lewis@50", [("ef_dora", 0.5), ("bm_lewis", 0.5)], "en-us"),
    ],
)
def test_speakers(speaker: str, parts: list[tuple[str, float]], accent: str) -> None:
    assert kokoro.parts(speaker) == [(voice, pytest.approx(weight)) for voice, weight in parts]
    assert kokoro.accent(speaker) == accent
