from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import MAX_GAPS, MAX_TEXTS, PlaybackLedger


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


def test_only_played_text_is_heard() -> None:
    ledger = sent(240)
    for end_ms, word in ((80, " one"), (160, " two"), (240, " three")):
        ledger.add_text(end_ms, word)
    ledger.play(159)
    assert ledger.commit() == " one"
    ledger.play(160)
    assert ledger.commit() == " two"


def test_commit_moves_heard_text_into_the_transcript_once() -> None:
    ledger = sent(240)
    ledger.add_text(80, " one")
    ledger.add_text(240, " two")
    ledger.play(100)
    assert ledger.commit() == " one"
    assert ledger.committed_ms == 100
    assert ledger.commit() == ""
    ledger.play(240)
    assert ledger.commit() == " two"


def test_cut_text_is_never_heard() -> None:
    ledger = sent(240)
    ledger.add_text(80, " heard")
    ledger.add_text(160, " cut")
    ledger.play(80)
    ledger.cut()
    ledger.play(240)
    ledger.add_text(240, " next")
    assert ledger.commit() == " heard next"


def test_text_of_a_wire_that_never_acknowledges_is_bounded() -> None:
    ledger = PlaybackLedger()
    for frame_idx in range(MAX_TEXTS + 10):
        ledger.add_text(80 * frame_idx, "x")
    ledger.generate(80 * MAX_TEXTS * 2)
    ledger.send(0, 80 * MAX_TEXTS * 2)
    ledger.play(80 * MAX_TEXTS * 2)
    assert len(ledger.commit()) == MAX_TEXTS


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


@given(
    st.lists(st.tuples(st.sampled_from(["generate", "send", "play", "commit", "cut"]), st.integers(0, 10_000), st.integers(0, 10_000)))
)
def test_cursors_only_rise_and_keep_their_order(operations: list[tuple[str, int, int]]) -> None:
    ledger = PlaybackLedger()
    before = (0, 0, 0, 0)
    for name, at_ms, end_ms in operations:
        method = getattr(ledger, name)
        arguments = {"send": (at_ms, end_ms), "commit": (), "cut": ()}.get(name, (at_ms,))
        method(*arguments)
        cursors = (ledger.generated_ms, ledger.sent_ms, ledger.played_ms, ledger.committed_ms)
        assert list(cursors) == sorted(cursors, reverse=True)
        assert all(now >= then for now, then in zip(cursors, before, strict=True))
        before = cursors
