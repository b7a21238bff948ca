from __future__ import annotations

import pytest

from protocols.realtime.fault import EventError
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.voices import VOICE_PARAM, resolve_voice
from tests.protocols.realtime.catalogues import VOICES, catalogue
from tests.protocols.test_params import HOSTILE_VOICES

OPTIONS = RealtimeOptions()
FULL = catalogue()
TINY = catalogue(voices=("af_heart", "am_michael"), default_voice="af_heart")
NONE = catalogue(voices=(), default_voice=None)


@pytest.mark.parametrize("voice", VOICES)
def test_an_installed_voice_goes_by_any_case_and_suffix(voice: str) -> None:
    for name in (voice, voice.lower(), f"{voice}.pt", f"{voice.lower()}.PT", f"{voice}.wav"):
        assert resolve_voice(name, FULL, OPTIONS) == (voice, False)


def test_the_exact_name_comes_first() -> None:
    both = catalogue(voices=("Ada", "ada", "ada.pt"), default_voice="ada")
    assert [resolve_voice(name, both, OPTIONS)[0] for name in ("Ada", "ada", "ada.pt")] == ["Ada", "ada", "ada.pt"]


@pytest.mark.parametrize(
    ("name", "voice"),
    [
        ("alloy", "NATF2"), ("Ash", "NATM0"), ("ballad", "NATM1"), ("coral", "NATF0"), ("echo", "NATM2"), ("sage", "NATF1"),
        ("shimmer", "NATF3"), ("verse", "NATM3"), ("marin", "NATF2"), ("cedar", "NATM1"),
    ],
)  # fmt: skip
def test_openai_s_voices_have_counterparts(name: str, voice: str) -> None:
    assert resolve_voice(name, FULL, OPTIONS) == (voice, False)


def test_an_alias_without_its_voice_is_the_default_and_the_client_is_told() -> None:
    assert resolve_voice("alloy", TINY, OPTIONS) == ("af_heart", True)
    assert resolve_voice("marin", TINY, OPTIONS) == ("af_heart", False)  # it stands for the default voice: LiveKit always sends it
    assert resolve_voice("marin", NONE, OPTIONS) == (None, False)


def test_the_operator_s_aliases_replace_ours() -> None:
    options = RealtimeOptions(voice_aliases={"Anna": "NATM3"})
    assert resolve_voice("anna", FULL, options) == ("NATM3", False)
    assert resolve_voice("ash", FULL, options) == ("NATF2", True)


def test_any_other_name_is_the_default_and_the_client_is_told() -> None:
    assert resolve_voice("nova", FULL, OPTIONS) == ("NATF2", True)
    assert resolve_voice("nova", NONE, OPTIONS) == (None, True)


def test_no_name_is_the_default() -> None:
    assert resolve_voice("", FULL, OPTIONS) == ("NATF2", False)
    assert resolve_voice("default", NONE, OPTIONS) == (None, False)


@pytest.mark.parametrize("name", ["NATF9", "natm4.pt", "VARF0", "VARM12"])
def test_a_name_of_this_family_that_is_not_installed_is_an_error(name: str) -> None:
    with pytest.raises(EventError) as caught:
        resolve_voice(name, FULL, OPTIONS)
    assert (caught.value.code, caught.value.param) == ("invalid_value", VOICE_PARAM)
    assert "installed are: NATF0, NATF1" in caught.value.message


def test_a_model_without_voices_says_so() -> None:
    with pytest.raises(EventError, match="installed are: none"):
        resolve_voice("NATF2", NONE, OPTIONS)


@pytest.mark.parametrize("name", HOSTILE_VOICES)
def test_a_voice_that_could_be_a_path_is_refused_without_an_echo(name: str) -> None:
    with pytest.raises(EventError) as caught:
        resolve_voice(name, FULL, OPTIONS)
    assert (caught.value.code, caught.value.param) == ("invalid_value", VOICE_PARAM)
    assert name == ".." or name not in caught.value.message
