"""The figures of whole sets of calls with made-up models: a perfect one reaches every bar, a bad one none."""

import json
import math

import numpy as np
import pytest

from gateway.training import grammar, persona
from gateway.training.evaluation import report, voices
from gateway.training.evaluation.asr import Reading
from gateway.training.evaluation.call import Utterance, converse, interrupt, linger
from gateway.training.evaluation.report import Timing
from gateway.training.evaluation.scoring import Case
from gateway.training.evaluation.signals import FRAME
from gateway.training.evaluation.voices import Heard
from tests.training.evaluation_line import NOVA, MadeUpModel, asked, call, murmur

NOVA_GREETS = "Your name is Nova. Greet the caller first."
SILENCE_FRAMES = 750
GATED = 10  # figures with a bar, and the calls that broke


def answer(text: str, who: str = NOVA) -> str:
    return grammar.reply(*grammar.intent_of(text), persona.read(who))


def read(case: Case, *, is_heard: bool = True) -> Case:
    """Let the recognisers hear exactly what was written, or nothing of it."""
    for one in case.answers:
        heard = Reading(one.text, grammar.plain(one.text)) if is_heard else Reading("mumble", "")
        case.readings.append(heard)
    return case


def perfect() -> list[Case]:
    """One call of each kind by a model that does everything right."""
    asks = ["What is your name?", "Tell me a joke.", "What is the capital of France?"]
    right = [(answer(text), 12) for text in asks]
    questions = [asked(text) for text in asks]
    quiet = np.zeros(SILENCE_FRAMES * FRAME, np.float32)
    talk = converse(questions)
    story, name = asked("Tell me a story."), asked("What is your name?")
    stops = [("Once upon a time, a little fox", 120), (answer("What is your name?"), 12)]
    return [
        read(call(MadeUpModel(right[:1]), converse(questions[:1]), "question")),
        read(call(MadeUpModel(right[:1]), converse(questions[:1]), "name")),
        read(call(MadeUpModel([*right]), talk, "conversation")),
        call(MadeUpModel(right[1:2]), converse(questions[1:2]), "pause"),
        call(MadeUpModel([*stops], stopping=3), interrupt(story, name), "barge_in"),
        call(MadeUpModel([(answer("Tell me a story."), 120)]), interrupt(story, murmur()), "murmur"),
        call(MadeUpModel([*right]), linger(quiet, questions), "silence"),
        call(MadeUpModel([], opening=f" {grammar.greeting(persona.read(NOVA_GREETS))}"), linger(quiet, []), "greeting", NOVA_GREETS),
        call(MadeUpModel([]), linger(quiet, []), "noise"),
    ]


def bad() -> list[Case]:
    """The same calls by a model that interrupts, answers wrongly, mumbles and never stops."""
    wrong = [("Two plus two is four.", 30)] * 9
    quiet = np.zeros(SILENCE_FRAMES * FRAME, np.float32)
    questions = [asked("What is your name?"), asked("Tell me a joke."), asked("What is the capital of France?")]
    story, name = asked("Tell me a story."), asked("What is your name?")
    return [
        read(call(MadeUpModel([*wrong]), converse(questions[:1]), "question"), is_heard=False),
        read(call(MadeUpModel([*wrong]), converse(questions[:1]), "name"), is_heard=False),
        read(call(MadeUpModel([*wrong]), converse(questions), "conversation"), is_heard=False),
        call(MadeUpModel([*wrong], eagerness=4), converse(questions[1:2]), "pause"),
        call(MadeUpModel([("Two plus two is four.", 120)]), interrupt(story, name), "barge_in"),
        call(MadeUpModel([*wrong], stopping=0), interrupt(story, murmur()), "murmur"),
        call(MadeUpModel([*wrong], opening=" Hello?"), linger(quiet, questions), "silence"),
        call(MadeUpModel([], opening=" Bye."), linger(quiet, []), "greeting", NOVA_GREETS),
        call(MadeUpModel([], opening=" Who is there?"), linger(quiet, []), "noise"),
    ]


@pytest.fixture(params=[True, False], ids=["perfect", "bad"])
def is_perfect(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the voice that is heard is the one asked for: a tone has none."""
    nearest, has_pitch = ("af_heart", True) if request.param else ("am_adam", False)
    monkeypatch.setattr(voices, "judge", lambda pcm, voice: Heard(150.0, has_pitch, nearest) if pcm.size else None)
    return bool(request.param)


def test_a_perfect_model_reaches_every_bar_and_a_bad_one_none(is_perfect: bool) -> None:
    cases = perfect() if is_perfect else bad()
    p95_s = 0.02 if is_perfect else math.inf
    timings = [Timing(1, p95_s, 100), Timing(4, p95_s, 100)]
    found = report.measures(cases, timings, SILENCE_FRAMES, broken=0 if is_perfect else 1)
    gated = {measure.name: measure.is_reached for measure in found if measure.bar is not None}
    assert len(gated) == GATED
    assert set(gated.values()) == {is_perfect}, gated
    reported = {
        "exactly this persona's answer", "right from the third turn on", "answer is one whole known reply", "greets first when told to",
        "right after a barge-in", "goes on through a murmur", "silent during noise alone", "reply recognised exactly (pocketsphinx)",
    }  # fmt: skip
    values = {measure.name: measure.value for measure in found}
    whole = {"answer is one whole known reply"}  # of which the bad model says only one that does not exist
    assert {name: values[name] for name in reported - whole} == dict.fromkeys(reported - whole, 1.0 if is_perfect else 0.0)


def test_nothing_is_reached_where_nothing_was_measured() -> None:
    found = report.measures([], [], SILENCE_FRAMES, broken=0)
    assert [measure.is_reached for measure in found if measure.bar is not None] == [False] * (GATED - 3) + [True]  # no call broke


def test_an_answer_that_no_recogniser_read_does_not_count_for_or_against() -> None:
    case = call(MadeUpModel([(answer("Tell me a joke."), 12)]), converse([asked("Tell me a joke.")]))
    case.readings = [Reading(None, None)]
    values = {measure.name: measure.count for measure in report.measures([case], [], SILENCE_FRAMES, 0)}
    assert values["reply WER ≤ 20% (Whisper)"] == values["reply recognised exactly (pocketsphinx)"] == 0
    assert values["intent right by monologue"] == 1


def test_people_are_asked_apart_from_what_nobody_can_know() -> None:
    def person(intent: str, text: str, reply: str) -> Case:
        said = asked(text)
        heard = Utterance(type(said.ask)(intent, "", "recording"), "recording.g722", said.pcm)
        return call(MadeUpModel([(reply, 12)]), converse([heard]), "person")

    cases = [person("hello", "Hello.", "Hello! How can I help you?"), person("nonsense", "Hello.", "Hello! How can I help you?")]
    values = {measure.name: (measure.value, measure.count) for measure in report.measures(cases, [], SILENCE_FRAMES, 0)}
    assert values["right to recordings of people"] == (1.0, 1)
    assert values["does not follow what it cannot know (people)"] == (0.0, 1)


def test_the_details_of_a_call_are_plain_json() -> None:
    case = read(call(MadeUpModel([(answer("Tell me a joke."), 12)]), converse([asked("Tell me a joke.")])))
    facts = json.loads(json.dumps(report.details(case)))
    assert facts["kind"] == "question"
    (one,) = facts["answers"]
    assert (one["asked"], one["intent"], one["is_right"], one["word_error_rate"]) == ("Tell me a joke.", "joke", True, 0.0)
