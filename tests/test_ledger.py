from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import MAX_GAPS, PlaybackLedger


def sent(end_ms: int) -> PlaybackLedger:
    ledger = PlaybackLedger()
    ledger.generate(end_ms)
    ledger.send(0, end_ms)
    return ledger


def test_an_acknowledgement_counts_at_most_what_was_sent() -> None:
    ledger = PlaybackLedger()
    ledger.generate(240)
    ledger.send(0, 160)
    ledger.play(1_000_000)
    assert (ledger.generated_ms, ledger.sent_ms, ledger.played_ms) == (240, 160, 160)


def test_late_and_doubled_acknowledgements_change_nothing() -> None:
    ledger = sent(400)
    for played_ms in (160, 160, 80, 0):
        ledger.play(played_ms)
        assert ledger.played_ms == 160


def test_played_is_a_place_in_what_was_sent_and_gaps_lead_from_it_to_media_time() -> None:
    """A client cannot count frames that were dropped: without the gaps it would acknowledge too little after each of them."""
    ledger = PlaybackLedger()
    ledger.generate(800)
    for start_ms in (0, 80, 160, 400, 480, 720):  # [240, 400) and [560, 720) were dropped
        ledger.send(start_ms, start_ms + 80)
    for delivered_ms, media_ms in ((80, 80), (240, 240), (241, 401), (400, 560), (401, 721), (480, 800), (9999, 800)):
        ledger.play(delivered_ms)
        assert ledger.played_ms == media_ms, delivered_ms


def test_a_late_acknowledgement_from_before_a_gap_claims_nothing_behind_it() -> None:
    ledger = sent(400)
    ledger.generate(720)
    ledger.send(640, 720)
    ledger.play(320)
    assert ledger.played_ms == 320


def test_an_acknowledgement_of_the_future_does_not_spoil_the_next_gap() -> None:
    ledger = sent(80)
    ledger.play(10_000)
    ledger.generate(320)
    ledger.send(160, 320)
    assert ledger.played_ms == 80
    ledger.play(160)
    assert ledger.played_ms == 240


def test_gaps_of_a_wire_that_never_acknowledges_are_bounded_and_never_claim_too_much() -> None:
    ledger = PlaybackLedger()
    for frame_idx in range(MAX_GAPS + 100):
        ledger.generate(160 * frame_idx + 80)
        ledger.send(160 * frame_idx, 160 * frame_idx + 80)  # every other frame is dropped
    assert len(ledger._gaps) == MAX_GAPS
    ledger.play(80 * 50)
    assert ledger.played_ms <= 160 * 50
    ledger.play(80 * (MAX_GAPS + 100))
    assert ledger.played_ms == ledger.sent_ms


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 400))))
def test_what_is_acknowledged_is_what_was_delivered(frames: list[tuple[bool, int]]) -> None:
    """The oracle: the media time of every delivered millisecond, written out."""
    ledger, delivered = PlaybackLedger(), []
    for frame_idx, (is_sent, played_ms) in enumerate(frames):
        ledger.generate(10 * frame_idx + 10)
        if is_sent:
            ledger.send(10 * frame_idx, 10 * frame_idx + 10)
            delivered += range(10 * frame_idx + 1, 10 * frame_idx + 11)
        before = ledger.played_ms
        played_ms = min(played_ms, len(delivered))
        ledger.play(played_ms)
        assert ledger.played_ms == max(before, delivered[played_ms - 1] if played_ms else 0)


@given(st.lists(st.tuples(st.sampled_from(["generate", "send", "play"]), st.integers(0, 10_000), st.integers(0, 10_000))))
def test_cursors_only_rise_and_keep_their_order(operations: list[tuple[str, int, int]]) -> None:
    ledger = PlaybackLedger()
    before = (0, 0, 0)
    for name, at_ms, end_ms in operations:
        getattr(ledger, name)(*((at_ms, end_ms) if name == "send" else (at_ms,)))
        cursors = (ledger.generated_ms, ledger.sent_ms, ledger.played_ms)
        assert list(cursors) == sorted(cursors, reverse=True)
        assert all(now >= then for now, then in zip(cursors, before, strict=True))
        before = cursors
