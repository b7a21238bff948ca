from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.realtime.turns import Backchannel, Cause, Effect, ModelView, Rule, Started, Stopped, TurnEvent, TurnPolicy, TurnTracker

NATIVE = TurnPolicy(rule=Rule.NATIVE)
CLASSIC = TurnPolicy(rule=Rule.CLASSIC)
LISTEN_ONLY = TurnPolicy(rule=Rule.LISTEN_ONLY)
SILENT = TurnPolicy(rule=Rule.SILENT)


def views(model: str) -> list[ModelView]:
    """One letter a frame: . nothing open, p pending, V open and voiced, q open and quiet, n open and neither."""
    frames: list[ModelView] = []
    opened, quiet = -1, 0
    for i, letter in enumerate(model):
        is_open = letter in "Vqn"
        if is_open and (i == 0 or model[i - 1] not in "Vqn"):
            opened = i
        quiet = quiet + 1 if letter == "q" else 0
        frames.append(ModelView(is_open, letter == "p", opened, letter == "V", quiet))
    return frames


def run(policy: TurnPolicy, user: str, model: str) -> dict[int, list[TurnEvent]]:
    """Events by frame; # is a frame in which the user speaks. The last letter of `model` goes on."""
    tracker = TurnTracker(policy)
    found = {}
    for i, view in enumerate(views(model.ljust(len(user), model[-1]))[: len(user)]):
        if events := tracker.step(i, user[i] == "#", view):
            found[i] = events
    return found


def started(onset: int, cause: Cause = Cause.USER_TURN, overlap: int = 0, effect: Effect = Effect.NONE) -> list[TurnEvent]:
    return [Started(onset, cause, overlap, effect)]


def stopped(end: int) -> list[TurnEvent]:
    return [Stopped(end)]


POLITE = dataclasses.replace(NATIVE, interrupts=False)
SHORT = dataclasses.replace(NATIVE, max_frames=10)
QUIET = "." * 5  # nobody speaks
BARGE_IN = started(5, Cause.OVERLAP, 12, Effect.BARGE_IN)
YIELDED = Effect.YIELDED
HAND_OVER = started(5, effect=Effect.HAND_OVER)

NATIVE_CASES = [
    ("U1: three active frames are a turn, a short gap or none between them", NATIVE, "...##.#", ".", {6: started(3)}),
    ("U1: two are not", NATIVE, "...##......#", ".", {10: [Backchannel(2, 0)]}),
    ("U1: a pending response is dropped", NATIVE, "###", "p", {2: started(0, effect=Effect.DROP_PENDING)}),
    ("U1: but not without interrupt_response", POLITE, "###", "p", {2: started(0)}),
    ("U2: twelve frames of both together are a barge-in", NATIVE, QUIET + "#" * 12, "V", {16: BARGE_IN}),
    ("U2: eleven are not", NATIVE, QUIET + "#" * 11, "V", {}),
    ("U2: only announced without interrupt_response", POLITE, QUIET + "#" * 12, "V", {16: started(5, Cause.OVERLAP, 12)}),
    ("U2: gaps of 400 ms are allowed", NATIVE, QUIET + "#" * 6 + "." * 5 + "#" * 6, "V", {21: BARGE_IN}),
    ("U2: longer ones are not", NATIVE, QUIET + "#" * 6 + "." * 6 + "#" * 11, "V", {16: [Backchannel(6, 6)]}),
    ("U2: frames without the model's voice do not count", NATIVE, QUIET + "#" * 30, "VV" + "n" * 30, {}),
    ("U3: the model yields", NATIVE, QUIET + "#" * 7, "V" * 9 + "q", {11: started(5, Cause.YIELD, 4, YIELDED)}),
    ("U3: only announced without interrupt_response", POLITE, QUIET + "#" * 7, "V" * 9 + "q", {11: started(5, Cause.YIELD, 4)}),
    ("U3: two quiet frames are no yielding", NATIVE, QUIET + "#" * 6, "V" * 9 + "q", {}),
    ("U3: quiet from the user's second frame on", NATIVE, QUIET + "####", "V" * 6 + "q", {8: started(5, Cause.YIELD, 1, YIELDED)}),
    ("U4: quiet from the user's first frame on", NATIVE, QUIET + "###", "V" * 5 + "q", {7: HAND_OVER}),
    ("U4: quiet since long before", NATIVE, QUIET + "###", "V" * 2 + "q", {7: HAND_OVER}),
    ("U4: interrupts nothing", POLITE, QUIET + "###", "V" * 2 + "q", {7: HAND_OVER}),
    ("U4: two active frames are no turn", NATIVE, QUIET + "##.", "V" * 2 + "q", {}),
    ("U5: eight inactive frames end the turn", NATIVE, "###" + "." * 8, ".", {2: started(0), 10: stopped(3)}),
    ("U5: short pauses do not add up", NATIVE, "###" + "." * 7 + "#" + "." * 7, ".", {2: started(0)}),
    ("U5: two are enough when the model answers into the turn", NATIVE, "#####..", "...V", {2: started(0), 6: stopped(5)}),
    ("U5: and when it answers in the pause", NATIVE, "###" + "." * 4, "." * 6 + "V", {2: started(0), 6: stopped(3)}),
    ("U5: not when it spoke before", POLITE, ".####" + "." * 8, "VVq", {4: started(1, Cause.YIELD, 1), 12: stopped(5)}),
    ("U6: a backchannel changes nothing", NATIVE, QUIET + "####" + "." * 6, "V", {14: [Backchannel(4, 4)]}),
    ("U6: not even right before a pause of the model", NATIVE, QUIET + "####" + "." * 6, "V" * 9 + "q", {14: [Backchannel(4, 4)]}),
    ("U6: or right before the end of its response", NATIVE, QUIET + "####" + "." * 6, "V" * 9 + ".", {14: [Backchannel(4, 4)]}),
    ("U7: speech that was not announced when the model began", NATIVE, "#" * 40, ".V", {}),
    ("U7: speech that began in the same frame", NATIVE, "#" * 40, "V", {}),
    ("U7: announced speech is not announced twice", NATIVE, "#" * 40, "....V", {2: started(0)}),
    ("U7: nor is the model's pause a yielding", NATIVE, "#" * 20, ".Vq", {}),
    ("U7: it is a turn once the response is over", NATIVE, "#" * 10, ".V" + "q" * 6 + ".", {8: started(0, overlap=1)}),
    (
        "U7: the next stretch interrupts again",
        NATIVE, "#####.." + "#" * 12, "....V",
        {2: started(0), 6: stopped(5), 18: started(7, Cause.OVERLAP, 12, Effect.BARGE_IN)},
    ),
    ("limit: stopped, and started again", SHORT, "#" * 14, ".", {2: started(0), 10: stopped(10), 12: started(10)}),
    ("limit: speech ended where it was last heard", SHORT, "#" * 9 + "..#", ".", {2: started(0), 11: stopped(9)}),
    ("limit: nothing is started while a response is open", SHORT, "#" * 40, "....V", {2: started(0), 10: stopped(10)}),
    (
        "limit: but after it",
        SHORT, "#" * 18, "...." + "V" * 11 + ".",
        {2: started(0), 10: stopped(10), 15: started(10, overlap=5)},
    ),
]  # fmt: skip

OTHER_CASES = [
    ("classic: two active frames take the floor", CLASSIC, "##", "V", {1: started(0, Cause.OVERLAP, 2, Effect.BARGE_IN)}),
    ("classic: also while nothing is said", CLASSIC, "##", ".", {1: started(0)}),
    ("classic: a pending response is dropped", CLASSIC, "##", "p", {1: started(0, effect=Effect.DROP_PENDING)}),
    ("classic: one active frame does not", CLASSIC, "#" + "." * 6, "V", {6: [Backchannel(1, 1)]}),
    (
        "classic: only announced without interrupt_response",
        dataclasses.replace(CLASSIC, interrupts=False), "##", "V", {1: started(0, Cause.OVERLAP, 2)},
    ),
    ("classic: seven inactive frames end it, answer or not", CLASSIC, "##" + "." * 7, "..V", {1: started(0), 8: stopped(2)}),
    (
        "classic: the limit is the same",
        dataclasses.replace(CLASSIC, max_frames=10), "#" * 30, "...V", {1: started(0), 10: stopped(10)},
    ),
    ("listen only: speech never ends a response", LISTEN_ONLY, QUIET + "#" * 30, "V" * 20 + "q" * 15, {}),
    ("listen only: it is a turn after it", LISTEN_ONLY, QUIET + "#" * 11, "V" * 15 + ".", {15: started(5, overlap=10)}),
    ("listen only: nothing is dropped", LISTEN_ONLY, "###", "p", {2: started(0)}),
    ("null: nothing is announced", SILENT, "#" * 30, ".", {}),
]  # fmt: skip

CASES = [pytest.param(*case, id=name) for name, *case in NATIVE_CASES + OTHER_CASES]


@pytest.mark.parametrize(("policy", "user", "model", "events"), CASES)
def test_turns_change(policy: TurnPolicy, user: str, model: str, events: dict[int, list[TurnEvent]]) -> None:
    assert run(policy, user, model) == events


def test_a_turn_can_be_ended_from_outside_and_begins_anew_when_speech_goes_on() -> None:
    tracker = TurnTracker(NATIVE)
    assert (tracker.is_active, tracker.is_announced, tracker.close()) == (False, False, None)
    assert [tracker.step(i, True, ModelView()) for i in range(2)] == [[], []]
    assert not tracker.is_announced
    assert tracker.close() is None  # not announced: forgotten
    assert [tracker.step(i, True, ModelView()) for i in range(2, 5)] == [[], [], started(2)]
    assert tracker.step(5, False, ModelView()) == []
    assert tracker.close() == Stopped(5)
    assert tracker.close() is None
    assert [tracker.step(i, True, ModelView()) for i in range(6, 9)] == [[], [], started(6)]


def test_speech_is_judged_by_the_policy_of_the_moment() -> None:
    tracker = TurnTracker(SILENT)
    for i in range(20):
        assert tracker.step(i, True, ModelView()) == []
    tracker.policy = NATIVE
    assert tracker.step(20, True, ModelView()) == started(0)


def test_activity_is_told_frame_by_frame() -> None:
    tracker = TurnTracker(NATIVE)
    seen = []
    for i, letter in enumerate("..#.#..#"):
        tracker.step(i, letter == "#", ModelView())
        seen.append((tracker.is_active, tracker.inactive_frames))
    assert seen == [(False, 1), (False, 2), (True, 0), (False, 1), (True, 0), (False, 1), (False, 2), (True, 0)]


policies = st.builds(
    TurnPolicy,
    rule=st.sampled_from(Rule),
    interrupts=st.booleans(),
    overlap_frames=st.integers(1, 5),
    silence_frames=st.integers(1, 4),
    max_frames=st.integers(3, 20),
)
runs = st.lists(st.tuples(st.sampled_from("#."), st.sampled_from(".pVVqn"), st.integers(1, 12)), max_size=25)


@settings(max_examples=300)
@given(drawn=runs, plan=st.lists(st.tuples(st.integers(0, 60), st.none() | policies), max_size=4), first=policies)
def test_every_started_is_followed_by_exactly_one_stopped(
    drawn: list[tuple[str, str, int]], plan: list[tuple[int, TurnPolicy | None]], first: TurnPolicy
) -> None:
    """A plan entry exchanges the policy before a frame, or closes the turn."""
    tracker = TurnTracker(first)
    user = "".join(letter * length for letter, _, length in drawn)
    model = views("".join(letter * length for _, letter, length in drawn))
    log: list[Started | Stopped] = []
    for i, view in enumerate(model):
        for at, policy in plan:
            if at == i and policy is None:
                log += filter(None, [tracker.close()])
            elif at == i and policy is not None:
                tracker.policy = policy
        events = tracker.step(i, user[i] == "#", view)
        if any(isinstance(event, Started) for event in events):
            assert user[i] == "#"
            assert tracker.policy.rule is not Rule.SILENT
            assert tracker.is_announced
        log += [event for event in events if not isinstance(event, Backchannel)]
    log += filter(None, [tracker.close()])
    assert [type(event) for event in log] == [Started, Stopped] * (len(log) // 2)
    places = [event.onset_frame if isinstance(event, Started) else event.end_frame for event in log]
    assert places == sorted(places)  # no speech begins within another one
    assert all(user[place] == "#" for place in places[::2])
    assert all(user[place - 1] == "#" for place in places[1::2])
