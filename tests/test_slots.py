from __future__ import annotations

import math

import pytest
from slot_callers import DRAINING, IDLE, LIVE, PREFILL, PROMPT, SAMPLING, Caller, S, answer_batch, in_frame, make_live, states

from gateway.errors import NoFreeSlot
from gateway.slots import Answer, PushResult, Scattered, SlotTable
from protocols.errors import ErrorKind, LocalProtocolError
from protocols.events import Pacing

# -- claim, arm, release -------------------------------------------------------------------------------------------------------------


def test_claim_takes_each_slot_once_and_then_refuses() -> None:
    table = SlotTable(2)
    assert [table.claim(Caller()) for _ in range(2)] == [(0, 1), (1, 1)]
    with pytest.raises(NoFreeSlot) as refused:
        table.claim(Caller())
    assert refused.value.kind is ErrorKind.CAPACITY
    assert states(table) == [PREFILL, PREFILL]
    assert table.count(PREFILL) == 2


def test_a_claimed_slot_is_no_work_until_it_is_armed() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    assert not table.has_work()
    assert not table.gather(S).needs_step
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    assert table.has_work()
    gathered = table.gather(S)
    assert [opening.slot_idx for opening in gathered.openings] == [0]
    assert gathered.needs_step
    assert not gathered.batch.exec_mask.any()


def test_a_row_is_opened_once_and_prefills_until_the_engine_says_ready() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    assert len(table.gather(S).openings) == 1
    for _ in range(3):
        gathered = table.gather(S)
        assert not gathered.openings
        assert answer_batch(table, gathered) == Scattered([], [], 0, 0)
        assert states(table) == [PREFILL]
    assert list(answer_batch(table, table.gather(S), ready=(0,)).ready) == [caller]
    assert states(table) == [LIVE]
    assert not table.has_work()


@pytest.mark.parametrize("is_gathered", [False, True])
def test_a_slot_is_armed_once(is_gathered: bool) -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    if is_gathered:
        table.gather(S)
    with pytest.raises(LocalProtocolError, match="armed already"):
        table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)


def test_a_live_slot_cannot_be_armed_again() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    with pytest.raises(LocalProtocolError, match="armed already"):
        table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)


def test_a_slot_the_engine_never_saw_is_idle_at_once() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    assert table.release(0, caller) is IDLE
    gathered = table.gather(S)
    assert (list(gathered.openings), list(gathered.closings), gathered.needs_step) == ([], [], False)


def test_a_live_slot_is_closed_by_the_next_tick_and_then_idle() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    assert table.release(0, caller) is DRAINING
    with pytest.raises(NoFreeSlot):
        table.claim(Caller())
    assert table.has_work()
    gathered = table.gather(S)
    assert list(gathered.closings) == [0]
    assert not gathered.needs_step
    assert table.scatter(gathered, None) == Scattered(num_freed=1)
    assert states(table) == [IDLE]


def test_a_slot_is_released_once_and_only_by_its_occupant() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    with pytest.raises(LocalProtocolError, match="not held"):
        table.release(0, Caller())
    table.release(0, caller)
    for operation in (
        lambda: table.release(0, caller),
        lambda: table.push_frame(0, caller, in_frame(1.0), 0.0),
        lambda: table.cut(0, caller),
        lambda: table.grant(0, caller, 1),
        lambda: table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=1),
    ):
        with pytest.raises(LocalProtocolError, match="not held"):
            operation()


def test_the_epoch_rises_on_claim_cut_and_release() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    slot = table.slots[0]
    seen = [slot.epoch, table.cut(0, caller), table.cut(0, caller, steer_frames=3)]
    table.release(0, caller)
    seen.append(slot.epoch)
    table.gather(S)
    seen.append(table.claim(Caller())[1])
    assert seen == [1, 2, 3, 4, 5]


def test_a_new_occupant_finds_nothing_of_the_old_one() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table, pacing=Pacing.SCRIPT)
    table.push_frame(0, caller, in_frame(1.0), 5.0)
    table.cut(0, caller, steer_frames=9)
    table.release(0, caller)
    table.gather(S)
    table.claim(Caller())
    slot = table.slots[0]
    assert not slot.inbox
    assert (slot.steer_frames, slot.credit, slot.frames_left, slot.to_open, slot.is_in_engine) == (0, None, 0, None, False)
    assert slot.last_push_s == -math.inf


# -- frames in -----------------------------------------------------------------------------------------------------------------------


def test_a_live_inbox_drops_its_oldest_whole_frame() -> None:
    table = SlotTable(1, inbox_frames=3)
    caller, _ = make_live(table)
    results = [table.push_frame(0, caller, in_frame(value), 0.0) for value in range(5)]
    assert results == [PushResult.ACCEPTED] * 3 + [PushResult.DROPPED_OLDEST] * 2
    assert [waiting.pcm[0] for waiting in table.slots[0].inbox] == [2, 3, 4]
    assert table.gather(S).max_backlog == 2


def test_a_script_inbox_says_full_and_loses_nothing() -> None:
    table = SlotTable(1, inbox_frames=2)
    caller, _ = make_live(table, pacing=Pacing.SCRIPT)
    results = [table.push_frame(0, caller, in_frame(value), 0.0) for value in range(3)]
    assert results == [PushResult.ACCEPTED, PushResult.ACCEPTED, PushResult.FULL]
    assert [waiting.pcm[0] for waiting in table.slots[0].inbox] == [0, 1]


def test_a_step_takes_one_frame_of_each_slot_that_has_one() -> None:
    table = SlotTable(4)
    callers = [make_live(table)[0] for _ in range(3)]
    for slot_idx in (0, 2):
        for value in (10 + slot_idx, 20 + slot_idx):
            table.push_frame(slot_idx, callers[slot_idx], in_frame(value), 0.0)
    gathered = table.gather(S)
    assert gathered.batch.exec_mask.tolist() == [True, False, True, False]
    assert gathered.batch.pcm[:, 0].tolist() == [10, 0, 12, 0]
    scattered = answer_batch(table, gathered)
    assert [(occupant, answer.text_id, answer.pcm is not None and answer.pcm.tolist()) for occupant, answer in scattered.answers] == [
        (callers[0], 0, [-10.0] * S),
        (callers[2], 2, [-12.0] * S),
    ]
    assert table.gather(S).batch.pcm[:, 0].tolist() == [20, 0, 22, 0]
    assert not table.has_work()


def test_the_answer_is_trimmed_to_the_real_samples() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.push_frame(0, caller, in_frame(1.0, real_samples=3), 0.0)
    (_, answer), *_ = answer_batch(table, table.gather(S)).answers
    assert answer.pcm is not None
    assert answer.pcm.tolist() == [-1.0] * 3
    assert answer.pcm.base is None  # the batch's buffer is not kept alive


def test_frames_wait_while_the_slot_prefills() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    gathered = table.gather(S)
    assert not gathered.rows
    answer_batch(table, gathered, ready=(0,))
    assert table.gather(S).batch.exec_mask.tolist() == [True]


def test_the_engine_is_never_stepped_past_the_limit() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table, max_frames=2)
    for value in range(4):
        table.push_frame(0, caller, in_frame(value), 0.0)
    assert [len(table.gather(S).rows) for _ in range(4)] == [1, 1, 0, 0]
    assert not table.has_work()


def test_a_script_is_stepped_only_while_its_outbox_has_room() -> None:
    table = SlotTable(1, outbox_frames=2)
    caller, _ = make_live(table, pacing=Pacing.SCRIPT)
    for value in range(4):
        table.push_frame(0, caller, in_frame(value), 0.0)
    assert [len(table.gather(S).rows) for _ in range(3)] == [1, 1, 0]
    assert not table.has_work()
    table.grant(0, caller, 1)
    assert table.has_work()
    assert [len(table.gather(S).rows) for _ in range(2)] == [1, 0]


def test_credit_means_nothing_to_a_live_slot() -> None:
    table = SlotTable(1, outbox_frames=1)
    caller, _ = make_live(table)
    table.grant(0, caller, 5)
    assert table.slots[0].credit is None


# -- epochs --------------------------------------------------------------------------------------------------------------------------


def test_audio_of_an_old_epoch_is_dropped_and_its_text_kept() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    gathered = table.gather(S)
    table.cut(0, caller)
    scattered = answer_batch(table, gathered)
    assert [(occupant, answer) for occupant, answer in scattered.answers] == [(caller, Answer(epoch=1, pcm=None, text_id=0))]
    assert scattered.num_late == 0


@pytest.mark.parametrize("is_reclaimed", [False, True])
def test_late_output_never_reaches_a_new_occupant(is_reclaimed: bool) -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    gathered = table.gather(S)
    table.release(0, caller)
    if is_reclaimed:
        table.gather(S)
        table.claim(Caller())
    scattered = answer_batch(table, gathered)
    assert not scattered.answers
    assert scattered.num_late == 1


def test_late_ready_never_reaches_a_new_occupant() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    gathered = table.gather(S)
    table.release(0, caller)
    table.gather(S)
    table.claim(Caller())
    assert not answer_batch(table, gathered, ready=(0,)).ready
    assert states(table) == [PREFILL]


def test_a_cut_during_the_prefill_does_not_lose_its_ready() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    gathered = table.gather(S)
    table.cut(0, caller)
    assert list(answer_batch(table, gathered, ready=(0,)).ready) == [caller]
    assert states(table) == [LIVE]


def test_steering_lasts_its_frames_and_a_shorter_one_does_not_end_it() -> None:
    table = SlotTable(2)
    caller, _ = make_live(table)
    other, _ = make_live(table)
    table.cut(0, caller, steer_frames=2)
    table.cut(0, caller, steer_frames=1)
    masks = []
    for _ in range(3):
        table.push_frame(0, caller, in_frame(1.0), 0.0)
        table.push_frame(1, other, in_frame(1.0), 0.0)
        masks.append(table.gather(S).batch.steer_mask.tolist())
    assert masks == [[True, False], [True, False], [False, False]]


def test_a_paused_slot_is_not_steered_in_the_meantime() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.cut(0, caller, steer_frames=1)
    assert not table.gather(S).batch.steer_mask.any()
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    assert table.gather(S).batch.steer_mask.tolist() == [True]


# -- coalescing ----------------------------------------------------------------------------------------------------------------------


def test_a_step_waits_for_a_peer_that_spoke_recently_and_for_nobody_else() -> None:
    table = SlotTable(2)
    caller, _ = make_live(table)
    peer, _ = make_live(table)
    assert not table.is_worth_waiting(10.0, 0.16)  # nothing is due
    table.push_frame(0, caller, in_frame(1.0), 10.0)
    assert not table.is_worth_waiting(10.0, 0.16)  # the peer never spoke
    table.push_frame(1, peer, in_frame(1.0), 10.0)
    assert not table.is_worth_waiting(10.0, 0.16)  # all are there
    table.gather(S)
    table.push_frame(0, caller, in_frame(1.0), 10.08)
    assert table.is_worth_waiting(10.08, 0.16)  # the peer is due
    assert not table.is_worth_waiting(10.17, 0.16)  # the peer has paused


def test_a_slot_that_is_only_cleared_waits_for_nobody() -> None:
    table = SlotTable(2)
    caller, _ = make_live(table)
    peer, _ = make_live(table)
    table.push_frame(1, peer, in_frame(1.0), 10.0)
    table.gather(S)
    table.release(0, caller)
    assert table.has_work()
    assert not table.is_worth_waiting(10.0, 0.16)
