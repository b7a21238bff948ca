"""What the session clock does when more waits than should (specs/realtime.md 4.2.4). A sample is a millisecond."""

from __future__ import annotations

import numpy as np
import pytest
from clock_speech import RATE, T0, S, armed, ramp, silence, speak, take_all

from gateway.clock import InputClock

# -- excess (4.2.4) ------------------------------------------------------------------------------------------------------------------


def test_a_microphone_is_heard_to_the_last_sample_and_no_later_than_the_margins() -> None:
    clock = armed()
    frames = speak(clock, 10_000)
    heard = np.concatenate([frame.pcm[: frame.real_samples] for frame in frames])
    np.testing.assert_array_equal(heard, ramp(0, heard.size))
    assert heard.size >= 10_000 - 120 - 20 - 80
    assert sum(frame.skipped_samples for frame in frames) == 0


def test_a_backlog_of_more_than_400_ms_for_2_s_is_skipped_through_where_it_is_silent() -> None:
    clock = armed()
    speak(clock, 200)
    clock.push(ramp(200, 500), T0 + 0.2)  # a burst that came late
    loud = speak(clock, 2000, start_ms=700, now=T0 + 0.2)
    assert clock.waiting_samples > 400
    assert sum(frame.skipped_samples for frame in loud) == 0
    loud = speak(clock, 1000, start_ms=2700, now=T0 + 2.2)
    assert sum(frame.skipped_samples for frame in loud) == 0  # speech is not skipped
    quiet = speak(clock, 1600, now=T0 + 3.2, loud=False)
    skips = [frame.skipped_samples for frame in quiet if frame.skipped_samples]
    assert set(skips) == {S}  # whole frames, one a tick
    assert clock.waiting_samples <= 160 + 20
    assert clock.dropped_samples == sum(skips)
    assert all(frame.real_samples == S for frame in quiet)
    after = speak(clock, 1000, now=T0 + 4.8, loud=False)
    assert sum(frame.skipped_samples for frame in after) == 0  # short enough


def test_a_backlog_that_is_short_again_in_time_is_left_alone() -> None:
    clock = armed()
    clock.push(silence(590), T0)
    for at in range(0, 1900, 20):
        take_all(clock, T0 + at / 1000)
        if at % 80 == 0 and at > 500:
            clock.push(silence(80), T0 + at / 1000)
    frames = speak(clock, 2000, now=T0 + 1.9, loud=False)
    assert sum(frame.skipped_samples for frame in frames) == 0


def test_late_audio_is_dropped_by_what_was_padded_and_no_more_than_200_ms_in_10_s_besides() -> None:
    clock = armed()
    speak(clock, 400)
    padded = [frame for at in range(400, 1400, 10) for frame in take_all(clock, T0 + at / 1000)]  # a second without a word
    gap_debt = sum(S - frame.real_samples for frame in padded)
    assert gap_debt > 700
    for start in (400, 1100):  # it arrives all at once, in pieces that are no upload
        clock.push(ramp(start, 700), T0 + 1.4)
    clock.push(ramp(1800, 400), T0 + 1.4)
    before = clock.waiting_samples
    assert before > 1500
    (frame,) = take_all(clock, T0 + 1.4)[:1]
    assert frame.skipped_samples == min(before - 400, gap_debt + 200)
    assert frame.pcm[0] == ramp(400, 1800)[1800 - before + frame.skipped_samples]  # the oldest went


def test_without_a_gap_before_it_a_backlog_shrinks_by_the_drift_only() -> None:
    clock = InputClock(S, RATE)
    for start in range(0, 2000, 500):  # 2 s while the prompt was read: no upload, just live
        clock.push(ramp(start, 500), T0 + start / 1000)
    clock.start(T0 + 2)
    frames = speak(clock, 9_990, start_ms=2000, now=T0 + 2)
    assert 200 <= sum(frame.skipped_samples for frame in frames) <= 400  # one allowance, and what it regained in 10 s
    heard = [frame.pcm[: frame.real_samples] for frame in frames]
    assert np.all(np.diff(np.concatenate(heard)) >= 1)


@pytest.mark.parametrize("pieces", [[1001], [700, 700, 700], [30_000]])
def test_an_upload_is_heard_to_the_last_sample_at_1x(pieces: list[int]) -> None:
    clock = armed()
    start = 0
    for size in pieces:
        clock.push(ramp(start, size), T0)
        start += size
    frames, k = [], 0
    while clock.waiting_samples:
        taken = take_all(clock, T0 + k * 0.08 + 0.04)
        assert len(taken) == 1
        frames += taken
        k += 1
    heard = np.concatenate([frame.pcm[: frame.real_samples] for frame in frames])
    np.testing.assert_array_equal(heard, ramp(0, start))


def test_after_an_upload_the_input_is_live_again() -> None:
    clock = armed()
    clock.push(silence(1600), T0)
    for k in range(21):
        take_all(clock, T0 + k * 0.08 + 0.04)
    assert clock.waiting_samples == 0
    now = T0 + 20 * 0.08 + 1
    for at in range(0, 1000, 100):  # a backlog of a second, in small pieces
        clock.push(silence(100), now + at / 10_000)
    frames = speak(clock, 5000, now=now + 0.1, loud=False)
    assert sum(frame.skipped_samples for frame in frames) >= 600


def test_what_does_not_fit_is_refused_whole_and_counted() -> None:
    clock = armed(max_input_ms=1000)
    assert clock.push(ramp(0, 900), T0) == 0
    assert clock.push(ramp(900, 101), T0) == 101
    assert (clock.waiting_samples, clock.dropped_samples) == (900, 101)
    assert clock.push(ramp(900, 100), T0) == 0


def test_a_stalled_network_is_no_upload_for_long() -> None:
    """A microphone whose audio was held up for four seconds, and comes at once: two seconds later the delay is gone."""
    clock = armed()
    speak(clock, 1000)
    for at in range(1000, 5000, 10):  # nothing comes: silence is heard
        take_all(clock, T0 + at / 1000)
    for at in range(1000, 5000, 20):
        clock.push(ramp(at, 20), T0 + 5)
    assert clock.waiting_samples > 3500
    speak(clock, 2600, start_ms=5000, now=T0 + 5)
    assert clock.waiting_samples <= 700
