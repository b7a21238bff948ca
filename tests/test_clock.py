"""The session clock. A frame has 80 samples at 1 kHz: a sample is a millisecond."""

from __future__ import annotations

import math

import numpy as np
import pytest
from clock_speech import RATE, T0, S, armed, ramp, silence, speak, take_all
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.clock import ClockFrame, InputClock
from protocols.events import MAX_REPLAY_FRAMES

# -- start (4.2.2) -------------------------------------------------------------------------------------------------------------------


def test_nothing_ticks_before_the_model_listens() -> None:
    clock = InputClock(S, RATE)
    clock.push(ramp(0, 500), T0)
    assert clock.due_s == math.inf
    assert clock.take(T0 + 60) is None
    assert clock.waiting_samples == 500


def test_the_first_tick_comes_when_a_frame_and_the_jitter_margin_wait() -> None:
    clock = armed()
    clock.push(ramp(0, 119), T0 + 0.02)
    assert clock.take(T0 + 0.02) is None
    clock.push(ramp(119, 1), T0 + 0.04)
    assert clock.due_s == pytest.approx(T0 + 0.04)
    frame = clock.take(T0 + 0.04)
    assert frame is not None
    np.testing.assert_array_equal(frame.pcm, ramp(0, S))
    assert (frame.real_samples, frame.skipped_samples) == (S, 0)
    assert clock.due_s == pytest.approx(T0 + 0.12 + 0.04)  # the next, should nothing come: due and grace


def test_the_first_tick_comes_120_ms_after_arming_at_the_latest() -> None:
    clock = armed()
    clock.push(ramp(0, 100), T0)
    assert clock.take(T0 + 0.119) is None
    assert clock.due_s == pytest.approx(T0 + 0.12)
    assert clock.take(T0 + 0.12) is not None


def test_a_caller_who_says_nothing_is_heard_as_silence() -> None:
    clock = armed()
    assert clock.take(T0 + 0.159) is None  # 120 ms and the grace time
    frames = [clock.take(T0 + 0.16 + k * 0.08) for k in range(5)]
    assert all(frame is not None and not frame.pcm.any() and frame.real_samples == 0 for frame in frames)


def test_what_waited_for_the_model_starts_it_at_once() -> None:
    clock = InputClock(S, RATE)
    clock.push(ramp(0, 300), T0 - 1)
    clock.start(T0)
    assert len(take_all(clock, T0)) == 1
    assert clock.due_s == pytest.approx(T0 + 0.08)


@pytest.mark.parametrize("phase_s", [0.0, 0.001, 0.0123, 0.0199])
def test_ticks_lie_on_a_grid_of_20_ms_that_costs_less_than_that(phase_s: float) -> None:
    clock = InputClock(S, RATE)
    clock.push(ramp(0, 300), T0)
    clock.start(T0 + phase_s)
    assert 0 <= clock.due_s - (T0 + phase_s) < 0.02
    assert (clock.due_s / 0.02) == pytest.approx(round(clock.due_s / 0.02), abs=1e-6)


# -- ticks and gaps (4.2.1, 4.2.3) ---------------------------------------------------------------------------------------------------


def test_tick_k_is_due_at_t0_plus_k_frames_without_drift() -> None:
    clock = InputClock(S, RATE, max_input_ms=10_000_000)
    clock.push(ramp(0, 2_000_000), T0)  # an upload, so that every tick has its frame
    clock.start(T0)
    for k in range(20_000):
        assert clock.due_s == pytest.approx(T0 + k * 0.08, abs=1e-6)
        assert clock.take(T0 + k * 0.08 + 0.003) is not None  # the timer is always late
        assert clock.take(T0 + k * 0.08 + 0.003) is None


def test_a_frame_that_is_not_whole_is_waited_for_and_then_padded() -> None:
    clock = armed()
    clock.push(ramp(0, 130), T0)
    assert len(take_all(clock, T0)) == 1
    assert take_all(clock, T0 + 0.08 + 0.039) == []
    clock.push(ramp(130, 20), T0 + 0.08 + 0.039)  # 70 of 80
    (frame,) = take_all(clock, T0 + 0.08 + 0.04)
    np.testing.assert_array_equal(frame.pcm, np.concatenate([ramp(80, 70), silence(10)]))
    assert frame.real_samples == 70
    assert clock.due_s == pytest.approx(T0 + 0.16 + 0.04)


def test_a_frame_that_becomes_whole_within_the_grace_time_is_given_at_once() -> None:
    clock = armed()
    clock.push(ramp(0, 130), T0)
    take_all(clock, T0)
    assert take_all(clock, T0 + 0.1) == []
    clock.push(ramp(130, 30), T0 + 0.1)
    (frame,) = take_all(clock, T0 + 0.1)
    assert frame.real_samples == S
    assert clock.due_s == pytest.approx(T0 + 0.16 + 0.04)


def test_a_short_stall_is_caught_up_and_a_long_one_is_not() -> None:
    clock = InputClock(S, RATE)
    clock.push(ramp(0, 1500), T0)
    clock.start(T0)
    assert len(take_all(clock, T0)) == 1
    assert len(take_all(clock, T0 + 0.08 + 0.33)) == 5  # four ticks were missed
    assert len(take_all(clock, T0 + 0.48 + 0.41)) == 1
    assert clock.due_s == pytest.approx(T0 + 0.88 + 0.08)  # on the grid, from now on


def test_after_a_long_stall_a_frame_that_is_not_whole_has_its_grace_time_again() -> None:
    clock = armed()
    clock.push(ramp(0, 150), T0)
    take_all(clock, T0)
    assert take_all(clock, T0 + 1.0) == []
    (frame,) = take_all(clock, T0 + 1.04)
    assert frame.real_samples == 70


# -- pausing, clearing, hearing again ------------------------------------------------------------------------------------------------


def test_a_paused_clock_is_never_due_and_the_time_in_between_never_was() -> None:
    clock = armed()
    speak(clock, 400)
    clock.pause()
    assert clock.due_s == math.inf
    assert clock.take(T0 + 100) is None
    clock.resume(T0 + 100)
    assert T0 + 100 < clock.due_s <= T0 + 100.08 + 0.04
    assert len(take_all(clock, T0 + 100.12)) == 1


def test_audio_starts_a_paused_clock_within_one_tick() -> None:
    clock = armed()
    speak(clock, 400)
    take_all(clock, T0 + 5)
    clock.pause()
    clock.push(silence(0), T0 + 10)
    assert clock.due_s == math.inf  # nothing is no audio
    frames = speak(clock, 400, start_ms=400, now=T0 + 10)
    assert [frame.real_samples for frame in frames] == [S] * len(frames)
    assert len(frames) == 4  # the first after 80 ms


def test_a_clock_that_is_paused_before_the_model_listens_stays_so() -> None:
    clock = InputClock(S, RATE)
    clock.pause()
    clock.start(T0)
    assert clock.due_s == math.inf
    clock.resume(T0 + 1)
    assert clock.due_s < math.inf


def test_cleared_audio_is_never_heard_and_the_clock_ticks_on() -> None:
    clock = armed()
    clock.push(ramp(0, 300), T0)
    (first,) = take_all(clock, T0)
    clock.clear()
    clock.push(ramp(300, 80), T0 + 0.05)
    (frame,) = take_all(clock, T0 + 0.08)
    np.testing.assert_array_equal(frame.pcm, ramp(300, 80))
    assert (first.real_samples, frame.skipped_samples) == (S, 0)  # cleared is not dropped: the caller knows
    assert clock.dropped_samples == 0


def test_frames_that_were_taken_back_are_given_again_in_order() -> None:
    clock = armed()
    clock.push(ramp(0, 250), T0)
    frames = [*take_all(clock, T0), *take_all(clock, T0 + 0.08), *take_all(clock, T0 + 0.16), *take_all(clock, T0 + 0.28)]
    assert [frame.real_samples for frame in frames] == [80, 80, 80, 10]
    clock.put_back(frames[1:])
    assert clock.waiting_samples == 170
    clock.replay(MAX_REPLAY_FRAMES)
    again = take_all(clock, T0 + 0.29)
    np.testing.assert_array_equal(again[0].pcm, ramp(0, 80))
    assert again[0].is_replay
    later = [clock.take(T0 + 0.32 + k * 0.08 + 0.04) for k in range(3)]
    heard = np.concatenate([frame.pcm[: frame.real_samples] for frame in later if frame is not None])
    np.testing.assert_array_equal(heard, ramp(80, 170))


def test_dropped_samples_of_a_frame_that_was_taken_back_are_told_with_the_next() -> None:
    clock = armed()
    for start in range(0, 1800, 300):
        clock.push(ramp(start, 300), T0 + start / 1000)
    (frame,) = take_all(clock, T0 + 2)[:1]
    assert frame.skipped_samples == 200
    clock.put_back([frame])
    again = clock.take(T0 + 2.08)
    assert again is not None
    num_regained = again.skipped_samples - 200  # the allowance grows by 20 ms a second
    assert num_regained in (1, 2)
    np.testing.assert_array_equal(again.pcm, ramp(200 + num_regained, S))


def test_the_last_frames_with_audio_are_heard_again_at_once_and_first() -> None:
    clock = armed()
    for k in range(40):
        if k != 35:
            clock.push(ramp(80 * k, 80), T0 + 0.12 + k * 0.08)
        take_all(clock, T0 + 0.12 + k * 0.08 + 0.04)  # a gap in place of piece 35
    clock.stop()
    assert clock.due_s == math.inf
    clock.push(ramp(3200, 80), T0 + 4)
    clock.replay(10)
    clock.start(T0 + 5)
    assert clock.due_s == -math.inf
    frames = [clock.take(T0 + 5) for _ in range(10)]
    assert all(frame is not None and frame.is_replay and frame.real_samples == frame.skipped_samples == 0 for frame in frames)
    starts = [int(frame.pcm[0]) // 80 for frame in frames if frame is not None]
    assert starts == [29, 30, 31, 32, 33, 34, 36, 37, 38, 39]  # gaps are not repeated
    assert clock.take(T0 + 5) is None  # what is new waits for its tick
    frame = clock.take(T0 + 5.12)
    assert frame is not None
    np.testing.assert_array_equal(frame.pcm, ramp(3200, 80))
    assert not frame.is_replay


def test_another_replay_takes_the_place_of_one_that_is_under_way() -> None:
    clock = armed()
    clock.push(ramp(0, 400), T0)
    for k in range(5):
        take_all(clock, T0 + k * 0.08)
    clock.replay(5)
    first = [clock.take(T0 + 1) for _ in range(2)]
    assert first[1] is not None
    clock.put_back([frame for frame in first if frame is not None])
    clock.replay(3)
    again = [clock.take(T0 + 1) for _ in range(3)]
    assert [int(frame.pcm[0]) // 80 for frame in again if frame is not None] == [2, 3, 4]
    clock.replay(0)
    assert clock.due_s > 0


def test_a_replay_that_was_taken_back_is_given_again_and_a_clear_leaves_it() -> None:
    clock = armed()
    clock.push(ramp(0, 240), T0)
    for k in range(3):
        take_all(clock, T0 + k * 0.08)
    clock.replay(3)
    taken = [frame for frame in (clock.take(T0 + 1) for _ in range(2)) if frame is not None]
    clock.put_back(taken[1:])
    clock.clear()
    again = [clock.take(T0 + 1) for _ in range(2)]
    assert [int(frame.pcm[0]) // 80 for frame in again if frame is not None] == [1, 2]


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("push"), st.integers(0, 1500)),
            st.tuples(st.just("wait"), st.integers(0, 900)),
            st.tuples(st.sampled_from(["pause", "resume", "stop", "start", "clear", "back"]), st.integers(0, 2)),
        ),
        max_size=60,
    )
)
def test_every_sample_is_heard_once_dropped_once_or_waits(operations: list[tuple[str, int]]) -> None:
    """In any order of events: what was written = what was heard + dropped + cleared + what waits, and what was heard is in order."""
    clock = armed(max_input_ms=4000)
    now, written, cleared = T0, 0, 0
    heard: list[ClockFrame] = []
    for name, number in operations:
        match name:
            case "push":
                refused = clock.push(ramp(written, number), now)
                assert refused in (0, number)
                written += number - refused
                heard += take_all(clock, now)
            case "wait":
                now += number / 1000
                heard += take_all(clock, now)
            case "clear":
                cleared += clock.waiting_samples
                clock.clear()
            case "back":
                split = max(0, len(heard) - number)
                clock.put_back(heard[split:])
                heard = heard[:split]
            case "pause":
                clock.pause()
            case "stop":
                clock.stop()
            case "start":
                clock.start(now)
            case _:
                clock.resume(now)
        if clock.due_s <= now:
            heard += take_all(clock, now)
    clock.start(now)
    clock.resume(now)
    final = clock.take(now + 10)  # whatever was dropped is told by now
    heard += [final] if final is not None else []
    skipped = sum(frame.skipped_samples for frame in heard)
    assert written == sum(frame.real_samples for frame in heard) + skipped + cleared + clock.waiting_samples
    samples = np.concatenate([silence(0), *(frame.pcm[: frame.real_samples] for frame in heard)])
    assert np.all(np.diff(samples) >= 1)
    for frame in heard:
        assert not frame.pcm[frame.real_samples :].any()
