"""The figures of an evaluation, and the facts behind them.

The bars are those of the acceptance in the study of the bundled model (tiny-model, section 6). The one rule: every figure is computed from
the cases alone. Not here: how a call is judged (`scoring`). Thread: any.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from gateway.training import grammar
from gateway.training.evaluation import voices
from gateway.training.evaluation.measures import Measure, median, number, share
from gateway.training.evaluation.scoring import GOOD_WER, STOP_S, Answer, Case, opening, silence_faults, stop_s

INTENT, GOOD_REPLIES, NAME, VOICE, FALSE_STARTS, STOPS = 0.90, 0.85, 0.95, 0.95, 0.10, 0.80
TICK_ONE_S, TICK_FOUR_S = 0.040, 0.080
READ_KINDS = ("question", "conversation")  # whose answers recognisers read; it takes about a second an answer and recogniser
VOICED_KINDS = (*READ_KINDS, "name")  # whose voices are judged


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """95th percentile of the tick with so many callers in real time."""

    callers: int
    p95_s: float
    ticks: int


def measures(cases: Sequence[Case], timings: Sequence[Timing], silence_frames: int, broken: int) -> list[Measure]:
    """Compute all figures.

    Args:
        cases: the calls that were held.
        timings: of one and of four callers.
        silence_frames: length of the silent part of "silence" calls.
        broken: calls that the server did not hold to their end.
    """
    kinds: dict[str, list[Case]] = collections.defaultdict(list)
    for case in cases:
        kinds[case.plan.kind].append(case)
    found = [*_understanding(kinds), *_speech(kinds), *_turn_taking(kinds, silence_frames), *_circumstances(kinds)]
    for timing in timings:
        bar = {1: TICK_ONE_S, 4: TICK_FOUR_S}.get(timing.callers)
        found.append(number(f"p95 of the tick, callers in real time: {timing.callers}", timing.p95_s, timing.ticks, "ms", bar))
    return [*found, number("calls that broke", broken, len(cases) + broken, "calls", 0)]


def details(case: Case) -> dict[str, Any]:
    """Return what there is to look up about one call."""
    plan = case.plan
    facts = {"kind": plan.kind, "wire": plan.wire, "persona": plan.persona, "voice": plan.voice, "seed": case.seed}
    answers = [
        {
            "asked": answer.utterance.ask.text,
            "intent": answer.utterance.ask.intent,
            "slot": answer.utterance.ask.slot,
            "speaker": answer.utterance.speaker,
            "text": answer.text,
            "expected": answer.expected,
            "is_right": answer.is_right,
            "has_false_start": answer.has_false_start,
            "latency_s": answer.latency_s,
            "whisper": answer.reading.whisper if answer.reading else None,
            "word_error_rate": answer.word_error_rate,
            "sphinx": answer.reading.sphinx if answer.reading else None,
        }
        for answer in case.answers
    ]
    return {**facts, "frames": len(case.record.said), "text": case.record.text(), "answers": answers}


# Private

_Kinds = Mapping[str, Sequence[Case]]
_Judge = Callable[[Answer], bool | None]


def _answers(kinds: _Kinds, *names: str) -> list[Answer]:
    return [answer for name in names for case in kinds.get(name, ()) for answer in case.answers]


def _share(name: str, answers: Iterable[Answer], judge: _Judge, bar: float | None = None, note: str = "") -> Measure:
    """Share of the answers for which `judge` says yes, of those about which it says anything."""
    outcomes = map(judge, answers)
    return share(name, [outcome for outcome in outcomes if outcome is not None], bar, note=note)


def _understanding(kinds: _Kinds) -> list[Measure]:
    asked, named, talked = (_answers(kinds, kind) for kind in ("question", "name", "conversation"))
    chat = [answer for case in kinds.get("question", ()) if case.plan.wire == "chat" for answer in case.answers]
    greeted = [grammar.plain(opening(case)) == grammar.plain(grammar.greeting(case.persona)) for case in kinds.get("greeting", ())]
    return [
        _share("intent right by monologue", asked, lambda one: one.is_right, INTENT, "(question and slot, in any persona's words)"),
        _share("own name right", named, lambda one: one.has_own_name, NAME, "(of all asked for it)"),
        _share("own name right, where it says one", (one for one in named if one.has_a_name), lambda one: one.has_own_name),
        _share("exactly this persona's answer", asked + talked, lambda one: one.is_exact),
        _share("exactly, personas never trained", (one for one in asked + talked if one.persona.is_held_out), lambda one: one.is_exact),
        _share("right from the third turn on", (one for one in talked if one.turn >= 2), lambda one: one.is_right),
        _share("right over /api/chat", chat, lambda one: one.is_right),
        _share("answers at all", asked, lambda one: one.is_given),
        _share("answer is one whole known reply", asked + talked, lambda one: one.is_complete if one.is_given else None),
        share("greets first when told to", greeted),
    ]


def _speech(kinds: _Kinds) -> list[Measure]:
    read = _answers(kinds, *READ_KINDS)
    rates = [rate for one in read if (rate := one.word_error_rate) is not None]
    calls = [case for kind in VOICED_KINDS for case in kinds.get(kind, ())]
    spoken = ((np.concatenate([np.empty(0, np.float32), *(one.pcm for one in case.answers)]), case.plan.voice) for case in calls)
    heard = [(voice, judged) for pcm, voice in spoken if (judged := voices.judge(pcm, voice)) is not None]
    mean = sum(min(1.0, rate) for rate in rates) / len(rates) if rates else None  # at most all of a reply is lost
    return [
        share(f"reply WER ≤ {GOOD_WER:.0%} (Whisper)", [rate <= GOOD_WER for rate in rates], GOOD_REPLIES),
        number("mean reply WER (Whisper)", mean, len(rates), "%"),
        _share("reply recognised exactly (pocketsphinx)", read, lambda one: one.is_recognised),
        share(
            "voice follows the prompt", [judged.has_pitch and judged.nearest == voice for voice, judged in heard], VOICE,
            note="(pitch within 20 % and nearest voice)",
        ),
        share("  pitch within 20 %", [judged.has_pitch for _, judged in heard]),
        share("  nearest voice is the one asked for", [judged.nearest == voice for voice, judged in heard]),
    ]  # fmt: skip


def _turn_taking(kinds: _Kinds, silence_frames: int) -> list[Measure]:
    interrupted = kinds.get("barge_in", ())
    stops = [stop for case in interrupted if (stop := stop_s(case)) is not None]
    seconds = [case.answers[1] for case in interrupted if len(case.answers) > 1]
    murmured = [case for case in kinds.get("murmur", ()) if len(case.record.marks) > 1]
    latencies = [latency for one in _answers(kinds, "question") if (latency := one.latency_s) is not None]
    silences = [silence_faults(case, silence_frames) for case in kinds.get("silence", ())]
    void = f"({len(interrupted) - len(stops)} more did not get to a barge-in)"
    return [
        share("false starts in pauses", [one.has_false_start for one in _answers(kinds, "pause")], FALSE_STARTS, is_ceiling=True),
        _share("right after a pause inside the question", _answers(kinds, "pause"), lambda one: one.is_right),
        _share("false starts without a pause", _answers(kinds, "question"), lambda one: one.has_false_start),
        share(f"stops within {1000 * STOP_S:.0f} ms of a barge-in", [stop <= STOP_S for stop in stops], STOPS, note=void),
        number("median time to stop", median(stops), len(stops), "ms"),
        _share("right after a barge-in", seconds, lambda one: one.is_right_after_all),
        share("goes on through a murmur", [case.answers[0].is_complete for case in murmured]),
        number("median latency of an answer", median(latencies), len(latencies), "ms"),
        share(
            f"{silence_frames / 750:.0f} min of silence without fault", [not faults for faults in silences], 1.0,
            note="; ".join(fault for faults in silences for fault in faults),
        ),
    ]  # fmt: skip


def _circumstances(kinds: _Kinds) -> list[Measure]:
    people = _answers(kinds, "person")
    asked = [one for one in people if one.utterance.ask.intent != "nonsense"]
    said = {kind: [opening(case) for case in kinds.get(kind, ())] for kind in ("noise", "music")}
    return [
        _share("right in babble, 15 dB", _answers(kinds, "babble"), lambda one: one.is_right),
        _share("right at -12 dB", _answers(kinds, "faint"), lambda one: one.is_right),
        *(share(f"silent during {kind} alone", [not text for text in texts], note=_quoted(texts)) for kind, texts in said.items()),
        _share("right to recordings of people", asked, lambda one: one.is_right),
        _share("does not follow what it cannot know (people)", (one for one in people if one not in asked), lambda one: one.is_right),
    ]  # fmt: skip


def _quoted(texts: Iterable[str]) -> str:
    """What was written, the beginning of it."""
    written = "; ".join(filter(None, texts))
    return f"(wrote {written[:60]!r})" if written else ""
