"""espeak-ng's phonemes in Kokoro's spelling, with the punctuation that Kokoro speaks."""

from __future__ import annotations

import shutil

import pytest

from gateway.training import grammar
from gateway.training.phonemes import Phonemizer, spell

KOKORO = set(";:,.!?—…\"()“” ̃ʣʥʦʨᵝꭧAIOQSTWYᵊabcdefhijklmnopqrstuvwxyzɑɐɒæβɔɕçɖðʤəɚɛɜɟɡɥɨɪʝɯɰŋɳɲɴøɸθœɹɾɻʁɽʂʃʈʧʊʋʌɣɤχʎʒʔˈˌːʰʲ↓→↗↘ᵻ")
needs_espeak = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")


@pytest.mark.parametrize(
    ("ipa", "accent", "spelt"),
    [
        ("ma^ɪ nˈe^ɪm ɪz nˈo^ʊvə", "en-us", "mI nˈAm ɪz nˈOvə"),
        ("həlˈə^ʊ ðˈe^ə", "en-gb", "həlˈQ ðˈɛː"),
        ("t^ʃˈa^ʊ d^ʒˈɔ^ɪ", "en-us", "ʧˈW ʤˈY"),
        ("bˈɜːd", "en-us", "bˈɜɹd"),
        ("bˈɜːd", "en-gb", "bˈɜːd"),
        ("bˈʌʔn̩ lˈɪɾə^l", "en-us", "bˈʌtᵊn lˈɪɾᵊl"),
    ],
)
def test_spelling(ipa: str, accent: str, spelt: str) -> None:
    assert spell(ipa, accent) == spelt


@needs_espeak
def test_punctuation_stays_in_its_place() -> None:
    assert Phonemizer("en-us")("Hello, what is your name?") == "həlˈO, wˌʌt ɪz jʊɹ nˈAm?"


@needs_espeak
def test_letters_are_read_one_by_one() -> None:
    assert Phonemizer("en-us")("A, B, C.") == "ˈA, bˈi, sˈi."


@needs_espeak
@pytest.mark.parametrize("accent", ["en-us", "en-gb"])
def test_everything_that_is_said_has_symbols_that_kokoro_knows(accent: str) -> None:
    texts = [ask.text for ask in grammar.asks()] + grammar.replies() + list(grammar.BACKCHANNELS)
    phonemizer = Phonemizer(accent)
    phonemizer.learn(texts)
    for text in texts:
        said = phonemizer(text)
        assert set(said) <= KOKORO, (text, set(said) - KOKORO)
        assert sum(said.count(mark) for mark in ",.!?") == sum(text.count(mark) for mark in ",.!?")
        assert len(said) > len(text) / 3
