"""Real speech in, real speech out: four questions of speakers that the bundled model never heard, to one persona each.

The answer's keyword must be in the monologue, and recognisers that know neither model nor persona must hear it in the sound: neither alone
proves that the model understood and can be understood.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest
import soundfile

from gateway.training import grammar, sources
from gateway.training.evaluation import asr
from tests.integration.real import RATE, ROOT, Call, Pcm, RealGateway, converse, running

LISTEN_S = 5.0  # after the question
LEAD_S = 0.6


@dataclasses.dataclass(frozen=True)
class Spoken:
    """A recording of tests/data/spoken, who answers it in which voice, and what must be in the answer."""

    name: str
    persona: str
    voice: str
    keyword: str


CASES = [
    Spoken("capital", "Your name is Oliver.", "am_michael", "moscow"),
    Spoken("menu", "Your name is Maya. You are cheerful. You work for Luna Bakery.", "af_heart", "cookies"),
    Spoken("opposite", "Your name is Nova. You are formal.", "am_adam", "sad"),
    Spoken("name", "Your name is Anna.", "af_heart", "anna"),
]


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    yield from running(tmp_path_factory.mktemp("gateway") / "log.txt", "--batch-size", "1")


@pytest.fixture(scope="module")
def answers() -> dict[str, Call]:
    """What was answered so far, so that each question is asked once."""
    return {}


async def answer(process: RealGateway, answers: dict[str, Call], spoken: Spoken) -> Call:
    if spoken.name not in answers:
        speech, rate = soundfile.read(ROOT / "tests" / "data" / "spoken" / f"{spoken.name}.flac", dtype="float32")
        assert rate == RATE
        quiet = [np.zeros(round(seconds * RATE), np.float32) for seconds in (LEAD_S, LISTEN_S)]
        pcm = np.concatenate([quiet[0], speech, quiet[1]])
        answers[spoken.name] = await converse(process, pcm, persona=spoken.persona, voice=spoken.voice, seed=0)
    return answers[spoken.name]


@pytest.mark.parametrize("spoken", CASES, ids=lambda spoken: spoken.name)
async def test_the_monologue_answers_the_question(process: RealGateway, answers: dict[str, Call], spoken: Spoken) -> None:
    call = await answer(process, answers, spoken)
    assert spoken.keyword in grammar.plain(call.text).split(), call.text


def whisper(pcm: Pcm) -> str:
    pytest.importorskip("faster_whisper", reason="faster-whisper is not installed")
    try:
        return asr.Whisper(sources.DEFAULT_CACHE).read(pcm)
    except sources.SourceError as error:
        pytest.skip(f"no weights for Whisper: {error}")


def sphinx(pcm: Pcm) -> str:
    pytest.importorskip("pocketsphinx", reason="pocketsphinx is not installed")
    return asr.Sphinx(grammar.replies()).read(pcm)


@pytest.mark.parametrize("recognise", [whisper, sphinx], ids=lambda recognise: recognise.__name__)
@pytest.mark.parametrize("spoken", CASES, ids=lambda spoken: spoken.name)
async def test_the_sound_says_the_answer(process: RealGateway, answers: dict[str, Call], spoken: Spoken, recognise) -> None:  # type: ignore[no-untyped-def]
    call = await answer(process, answers, spoken)
    heard = recognise(call.pcm[round(LEAD_S * RATE) :])
    assert spoken.keyword in asr.words(heard), (heard, call.text)
