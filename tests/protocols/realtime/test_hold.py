from __future__ import annotations

import pytest

from protocols.realtime.hold import FOR_EVER, MAX_FRAMES, Hold, HoldReason


@pytest.mark.parametrize(
    ("reason", "user", "num_frames"),
    [
        # # is a frame in which the user speaks; the last letter goes on; None: never over
        (HoldReason.BARGE_IN, ".", 6),  # at least
        (HoldReason.BARGE_IN, "##.", 6),
        (HoldReason.BARGE_IN, "######.", 10),  # while the user speaks; gaps between words are no end
        (HoldReason.BARGE_IN, "#######..##.", 15),
        (HoldReason.BARGE_IN, "#", 25),  # at most
        (HoldReason.CLIENT, ".", 20),  # cancel_hold_ms
        (HoldReason.CLIENT, "#", 20),
        (HoldReason.CLIENT, "###.", 7),
        (HoldReason.CLIENT, "..#.", 20),  # a click is no turn
        (HoldReason.CLIENT, "......###.", 13),
        (HoldReason.LIMIT, ".", None),
        (HoldReason.LIMIT, "#", None),
        (HoldReason.LIMIT, "#." * 2 + ".", None),
        (HoldReason.LIMIT, "." * 300 + "###.", 307),
        (HoldReason.GATE, "###.", None),
    ],
)
def test_a_hold_lasts_as_long_as_its_reason(reason: HoldReason, user: str, num_frames: int | None) -> None:
    hold = Hold(reason, 20)
    inactive = 100  # frames since the user spoke, before the hold
    is_over = []
    for letter in user.ljust(1000, user[-1]):
        inactive = 0 if letter == "#" else inactive + 1
        is_over.append(hold.step(inactive))
    assert (is_over.index(True) + 1 if True in is_over else None) == num_frames


@pytest.mark.parametrize(
    ("reason", "client_frames", "most"),
    [
        (HoldReason.BARGE_IN, 40, MAX_FRAMES),
        (HoldReason.CLIENT, 40, 40),
        (HoldReason.CLIENT, 0, 6),
        (HoldReason.LIMIT, 40, FOR_EVER),
        (HoldReason.GATE, 40, FOR_EVER),
    ],
)
def test_the_model_is_steered_no_longer_than_a_hold_can_last(reason: HoldReason, client_frames: int, most: int) -> None:
    hold = Hold(reason, client_frames)
    assert hold.steer_frames == most
    if most < FOR_EVER:
        assert [hold.step(0) for _ in range(most)].index(True) + 1 == most
