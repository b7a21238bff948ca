from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.ledger import MAX_TEXTS, PlaybackLedger


def sent(end_ms: int) -> PlaybackLedger:
    ledger = PlaybackLedger()
    ledger.generate(end_ms)
    ledger.send(end_ms)
    return ledger


def test_an_acknowledgement_counts_at_most_what_was_sent() -> None:
    ledger = PlaybackLedger()
    ledger.generate(240)
    ledger.send(160)
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
    assert ledger.heard_text() == " one"
    ledger.play(160)
    assert ledger.heard_text() == " one two"


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
    ledger.send(80 * MAX_TEXTS * 2)
    ledger.play(80 * MAX_TEXTS * 2)
    assert len(ledger.heard_text()) == MAX_TEXTS


@given(st.lists(st.tuples(st.sampled_from(["generate", "send", "play", "commit", "cut"]), st.integers(0, 10_000))))
def test_cursors_only_rise_and_keep_their_order(operations: list[tuple[str, int]]) -> None:
    ledger = PlaybackLedger()
    before = (0, 0, 0, 0)
    for name, at_ms in operations:
        method = getattr(ledger, name)
        method() if name in ("commit", "cut") else method(at_ms)
        cursors = (ledger.generated_ms, ledger.sent_ms, ledger.played_ms, ledger.committed_ms)
        assert list(cursors) == sorted(cursors, reverse=True)
        assert all(now >= then for now, then in zip(cursors, before, strict=True))
        before = cursors
