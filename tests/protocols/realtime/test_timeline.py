from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.realtime.timeline import HISTORY_S, KEY_BYTES, MAX_PLACES, MAX_TRIES, REPLAY_S, ReplayGuard, Timeline

RATE = 24_000
FRAME = 1920  # 80 ms


def heard(num_frames: int, *, first: int = 0) -> Timeline:
    """A client that wrote whole frames, all of them heard."""
    timeline = Timeline(RATE)
    timeline.write(num_frames * FRAME)
    for i in range(num_frames):
        timeline.hear(first + i, FRAME, 0)
    return timeline


# -- Timeline ------------------------------------------------------------------------------------------------------------------------


def test_places_are_those_of_what_was_written_and_not_of_what_the_clock_put_in_between() -> None:
    timeline = Timeline(RATE)
    timeline.write(3 * FRAME)
    assert timeline.queued_ms == 240
    timeline.hear(0, FRAME, 0)
    timeline.hear(1, 0, 0)  # a frame of padding
    timeline.hear(2, 480, 0)  # one that is padded
    timeline.hear(3, FRAME, 240)  # 10 ms were dropped before it
    assert [timeline.start_ms(i, 0) for i in range(4)] == [0, 80, 80, 110]
    assert timeline.end_ms(4) == 190
    assert timeline.queued_ms == 50


def test_what_is_heard_was_written() -> None:
    timeline = Timeline(RATE)
    timeline.write(FRAME)
    timeline.hear(0, FRAME, FRAME)
    timeline.hear(1, FRAME, 0)
    assert (timeline.consumed, timeline.queued_ms) == (FRAME, 0)


@pytest.mark.parametrize(
    ("onset", "prefix_ms", "start_ms"),
    [(10, 0, 800), (10, 300, 500), (2, 300, 0), (0, 0, 0)],  # V12: max(0, 200 - 300) = 0
)
def test_speech_starts_a_prefix_before_its_first_frame(onset: int, prefix_ms: int, start_ms: int) -> None:
    assert heard(20).start_ms(onset, prefix_ms) == start_ms


def test_speech_never_starts_within_the_segment_before() -> None:
    timeline = heard(20)
    assert timeline.end_ms(10) == 800
    assert [timeline.start_ms(11, prefix_ms) for prefix_ms in (0, 80, 300)] == [880, 800, 800]
    assert timeline.end_ms(5) == 800  # nor does a segment end in another one


def test_speech_never_starts_before_a_clear() -> None:
    timeline = heard(5)
    timeline.write(FRAME)
    assert timeline.clear() == FRAME
    timeline.write(FRAME)
    timeline.hear(5, FRAME, 0)
    assert timeline.start_ms(5, 300) == 480


def test_frames_of_unknown_place_get_the_nearest_one() -> None:
    timeline = Timeline(RATE)
    assert (timeline.start_ms(3, 0), timeline.end_ms(4)) == (0, 0)
    timeline = heard(MAX_PLACES + 10)
    assert timeline.start_ms(3, 0) == 10 * 80  # forgotten: the oldest that is known
    assert timeline.end_ms(MAX_PLACES + 10) == (MAX_PLACES + 10) * 80  # not heard yet: as far as the model has got


def test_a_commit_needs_audio_since_the_last_commit_or_clear() -> None:
    timeline = Timeline(RATE)
    steps = []
    for step in ("write", "commit", "write", "clear", "suppress"):
        getattr(timeline, step)(*([FRAME] if step in ("write", "suppress") else []))
        steps.append(timeline.can_commit)
    assert steps == [True, False, True, False, True]  # what was suppressed "still counts for the next commit"


def test_what_is_suppressed_counts_as_written_and_heard() -> None:
    timeline = heard(2)
    timeline.suppress(FRAME)
    assert (timeline.written, timeline.consumed) == (3 * FRAME, 3 * FRAME)


moves = st.one_of(
    st.tuples(st.just("write"), st.integers(0, 5000)),
    st.tuples(st.just("hear"), st.integers(0, FRAME), st.sampled_from([0, 0, 700])),
    st.tuples(st.just("clear")),
    st.tuples(st.just("turn"), st.integers(0, 6), st.integers(0, 600)),
)


@given(drawn=st.lists(moves, max_size=60))
def test_heard_is_never_more_than_written_and_places_only_rise(drawn: list[tuple[str, int, int]]) -> None:
    timeline, num_frames, last_end_ms = Timeline(RATE), 0, 0
    for name, *args in drawn:
        before = timeline.written, timeline.consumed
        match name:
            case "write":
                timeline.write(args[0])
            case "hear":
                timeline.hear(num_frames, *args)
                num_frames += 1
            case "clear":
                timeline.clear()
            case _:
                start_ms = timeline.start_ms(num_frames - args[0], args[1])
                end_ms = timeline.end_ms(num_frames)
                assert last_end_ms <= start_ms <= end_ms <= timeline.written * 1000 // RATE
                last_end_ms = end_ms
        assert timeline.consumed <= timeline.written
        assert (timeline.written, timeline.consumed) >= before
        assert timeline.consumed >= before[1]


# -- ReplayGuard ---------------------------------------------------------------------------------------------------------------------

PCM_BYTES_PER_S = 48_000
FRAME_BYTES = 2 * FRAME


def noise(num_bytes: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(num_bytes)


def cleared(received: bytes, unheard_bytes: int = 0, bytes_per_s: int = PCM_BYTES_PER_S) -> ReplayGuard:
    guard = ReplayGuard()
    for start in range(0, len(received), 960):
        guard.note(received[start : start + 960], bytes_per_s)
    guard.clear(unheard_bytes, 100.0)
    return guard


def skip(guard: ReplayGuard, chunks: list[bytes], sample_bytes: int = 2) -> bytes:
    """What the model hears of appends that come within the time."""
    passed = b""
    for chunk in chunks:
        num_known = guard.known_prefix(chunk, 100.0 + REPLAY_S, sample_bytes)
        guard.note(chunk, PCM_BYTES_PER_S)
        passed += chunk[num_known:]
    return passed


def split(data: bytes, cuts: list[int], first: int = KEY_BYTES) -> list[bytes]:
    """Cut at places of which none is before `first`."""
    edges = sorted({0, len(data), *(first + cut % max(1, len(data) - first) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(edges)]


@pytest.mark.parametrize("size", [KEY_BYTES, 161, 640, 960, FRAME_BYTES, 6 * FRAME_BYTES, 7 * FRAME_BYTES])
def test_audio_that_comes_again_is_heard_once_however_it_is_cut(size: int) -> None:  # V42
    frames = [noise(FRAME_BYTES, i) for i in range(51)]
    again = b"".join(frames[44:])  # F45...F50, and F51, which is new
    chunks = [again[start : start + size] for start in range(0, len(again), size)]
    assert skip(cleared(b"".join(frames[:50])), chunks) == frames[50]


def test_audio_that_was_cleared_before_it_was_heard_is_heard_when_it_comes_again() -> None:
    received = noise(20 * FRAME_BYTES, 1)
    assert skip(cleared(received, 3 * FRAME_BYTES), [received[-6 * FRAME_BYTES :]]) == received[-3 * FRAME_BYTES :]
    assert skip(cleared(received, 30 * FRAME_BYTES), [received]) == received  # nothing was heard


@pytest.mark.parametrize("size", [960, FRAME_BYTES])
def test_silence_before_words_that_come_again_is_no_trap(size: int) -> None:
    words = noise(5 * FRAME_BYTES, 1)
    received = noise(5 * FRAME_BYTES, 2) + bytes(10 * FRAME_BYTES) + words
    again = bytes(2 * FRAME_BYTES) + words + (new := noise(FRAME_BYTES, 3))
    assert skip(cleared(received), [again[start : start + size] for start in range(0, len(again), size)]) == new


def test_the_longest_end_that_comes_again_counts_though_a_longer_stretch_is_like_it_for_a_while() -> None:
    received = bytes(1000) + noise(500, 1) + bytes(300)
    again = bytes(400) + noise(500, 2)
    assert skip(cleared(received), [again]) == again[300:]
    received = bytes(1000) + noise(500, 1) + bytes(300) + noise(100, 2) + bytes(100) + noise(70, 2)
    again = bytes(100) + noise(70, 2) + noise(500, 3)
    assert skip(cleared(received), [again]) == again[170:]


def test_new_audio_is_heard_and_ends_the_comparison() -> None:
    received = noise(10 * FRAME_BYTES, 1)
    guard = cleared(received)
    assert skip(guard, [new := noise(FRAME_BYTES, 2), received[-FRAME_BYTES:]]) == new + received[-FRAME_BYTES:]
    assert skip(ReplayGuard(), [new]) == new


def test_audio_that_begins_like_what_was_heard_is_heard_from_where_it_differs_on() -> None:
    received = noise(10 * FRAME_BYTES, 1)
    chunks = [received[:FRAME_BYTES], noise(FRAME_BYTES, 2)]
    assert skip(cleared(received), chunks) == chunks[1]


def test_less_than_ten_milliseconds_prove_nothing() -> None:
    received = noise(FRAME_BYTES, 1)
    assert skip(cleared(received), [received[-KEY_BYTES + 2 :]]) == received[-KEY_BYTES + 2 :]
    assert skip(cleared(received), [received[-KEY_BYTES:]]) == b""


def test_audio_may_come_again_for_two_seconds() -> None:
    received = noise(FRAME_BYTES, 1)
    for late_s, num_known in ((REPLAY_S, FRAME_BYTES), (REPLAY_S + 0.01, 0)):
        assert cleared(received).known_prefix(received, 100.0 + late_s) == num_known


def test_what_was_received_is_remembered_for_three_seconds() -> None:
    most = int(HISTORY_S * PCM_BYTES_PER_S)
    received = noise(2 * most, 1)
    assert skip(cleared(received), [received[-most:]]) == b""
    assert skip(cleared(received), [received[-most - 960 :]]) == received[-most - 960 :]
    guard = ReplayGuard()
    guard.note(received, PCM_BYTES_PER_S)  # all in one append: no more is kept of it
    guard.clear(0, 100.0)
    assert skip(guard, [received[-most:]]) == b""


@pytest.mark.parametrize(
    ("sample_bytes", "unheard_bytes", "num_passed"),
    [(1, 1001, 1001), (2, 1001, 1002), (4, 1001, 1004), (4, 1004, 1004)],
)
def test_what_is_skipped_ends_between_two_samples(sample_bytes: int, unheard_bytes: int, num_passed: int) -> None:
    received = noise(10 * FRAME_BYTES, 1)
    assert skip(cleared(received, unheard_bytes), [received], sample_bytes) == received[-num_passed:]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_sample_whose_first_half_was_skipped_is_skipped_whole(is_late: bool) -> None:
    received, new = noise(10 * FRAME_BYTES, 1), noise(FRAME_BYTES, 2)
    guard = cleared(received)
    assert guard.known_prefix(received[:161], 100.0, 4) == 161
    now = 200.0 if is_late else 100.0
    assert [guard.known_prefix(chunk, now, 4) for chunk in (new[:1], new[1:5], new[5:])] == [1, 2, 0]


def test_whoever_wants_to_keep_us_searching_is_left_alone() -> None:
    """Every beginning of the append, a little longer each, is in what was heard, and none of them is its end."""
    again = bytes(KEY_BYTES + 2 * MAX_TRIES) + b"\1"
    received = b"".join(bytes(KEY_BYTES + i) + b"\2" for i in range(2 * MAX_TRIES)) + again[: KEY_BYTES * 2]
    assert skip(cleared(received), [again], 1) == again


pieces = st.lists(st.tuples(st.booleans(), st.integers(1, 900), st.integers(0, 3)), min_size=1, max_size=6)


@settings(max_examples=300)
@given(
    drawn=pieces,
    fresh=pieces,
    length=st.integers(KEY_BYTES, 4000),
    cuts=st.lists(st.integers(0, 5000), max_size=6),
    size=st.sampled_from([1, 2, 4]),
)
def test_nothing_is_heard_twice_and_nothing_new_is_lost(
    drawn: list[tuple[bool, int, int]], fresh: list[tuple[bool, int, int]], length: int, cuts: list[int], size: int
) -> None:
    """Silence and few different noises, so that one stretch resembles another."""
    received, new = (b"".join(bytes(n) if quiet else noise(n, seed) for quiet, n, seed in part) for part in (drawn, fresh))
    received = received.rjust(KEY_BYTES, b"\7")
    length = min(length, len(received))
    again = received[-length:] + new
    passed = skip(cleared(received), split(again, cuts), size)
    num_skipped = len(again) - len(passed)
    assert again.endswith(passed)
    assert num_skipped >= length - length % size
    assert num_skipped % size == 0 or not passed
    assert again[: num_skipped - size + 1] in received  # with at most the rest of one sample
