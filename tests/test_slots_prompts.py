"""Steering, and another prompt in the same slot."""

from __future__ import annotations

import numpy as np
import pytest
from slot_callers import DRAINING, IDLE, PREFILL, PROMPT, SAMPLING, Caller, S, answer_batch, in_frame, make_live, states

from gateway.engine.base import Prompt
from gateway.errors import NoFreeSlot
from gateway.slots import Answer, Scattered, SlotTable
from protocols.errors import LocalProtocolError
from protocols.events import Pacing

# -- steering and bias ---------------------------------------------------------------------------------------------------------------


def test_steer_sets_what_cut_only_lengthens() -> None:
    table = SlotTable(2)
    caller, _ = make_live(table)
    other, _ = make_live(table)
    table.cut(0, caller, steer_frames=9)
    epoch = table.slots[0].epoch
    table.steer(0, caller, 1, -2.5)
    assert table.slots[0].epoch == epoch
    batches = []
    for _ in range(2):
        table.push_frame(0, caller, in_frame(1.0), 0.0)
        table.push_frame(1, other, in_frame(1.0), 0.0)
        batches.append(table.gather(S).batch)
    assert [batch.steer_mask.tolist() for batch in batches] == [[True, False], [False, False]]
    assert [batch.pad_bias.tolist() for batch in batches] == [[-2.5, 0.0]] * 2  # until the next steer
    assert batches[0].pad_bias.dtype == np.float32
    table.push_frame(1, other, in_frame(1.0), 0.0)
    assert table.gather(S).batch.pad_bias.tolist() == [0.0, 0.0]  # a paused row has none


def test_a_slot_may_be_steered_before_it_is_armed_and_a_new_occupant_is_not() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    table.steer(0, caller, 3, 1.0)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    assert (table.slots[0].steer_frames, table.slots[0].pad_bias) == (3, 1.0)
    table.release(0, caller)
    assert (table.slots[0].steer_frames, table.slots[0].pad_bias) == (0, 0.0)


def test_a_cleared_inbox_says_how_much_was_in_it() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    for value in range(3):
        table.push_frame(0, caller, in_frame(value), 0.0)
    table.gather(S)
    assert [table.clear_inbox(0, caller), table.clear_inbox(0, caller)] == [2, 0]
    assert not table.has_work()


# -- another prompt ------------------------------------------------------------------------------------------------------------------


def test_another_prompt_closes_and_opens_the_row_in_one_gather() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table, max_frames=7)
    table.steer(0, caller, 3, -1.0)
    for value in range(3):
        table.push_frame(0, caller, in_frame(value), 0.0)
    table.gather(S)
    epoch = table.slots[0].epoch
    assert table.disarm(0, caller) == (epoch + 1, 2)
    other = Prompt(voice_prompt="alto", num_rows=2, payload=None)
    table.rearm(0, caller, other, SAMPLING)
    assert table.has_work()
    gathered = table.gather(S)
    assert (list(gathered.closings), [opening.prompt for opening in gathered.openings]) == ([0], [other])
    assert gathered.needs_step
    assert not gathered.rows
    slot = table.slots[0]
    assert (slot.state, slot.steer_frames, slot.pad_bias, slot.frames_left) == (PREFILL, 2, -1.0, 6)
    scattered = answer_batch(table, gathered, ready=(0,))
    assert (list(scattered.ready), scattered.num_freed) == ([caller], 0)  # closed, and nobody may have it
    table.push_frame(0, caller, in_frame(5.0), 0.0)
    ((_, answer),) = answer_batch(table, table.gather(S)).answers
    assert (answer.epoch, answer.pcm is not None) == (epoch + 1, True)


def test_a_row_whose_prompt_is_not_there_yet_is_closed_and_waits() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.disarm(0, caller)
    assert table.has_work()
    gathered = table.gather(S)
    assert (list(gathered.closings), gathered.needs_step) == ([0], False)
    assert table.scatter(gathered, None) == Scattered()
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    assert not table.has_work()
    with pytest.raises(NoFreeSlot):
        table.claim(Caller())
    table.rearm(0, caller, PROMPT, SAMPLING)
    gathered = table.gather(S)
    assert (list(gathered.closings), len(gathered.openings)) == ([], 1)
    answer_batch(table, gathered, ready=(0,))
    assert table.gather(S).batch.exec_mask.tolist() == [True]  # what came meanwhile


def test_output_of_the_old_prompt_is_of_an_epoch_that_is_over() -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.push_frame(0, caller, in_frame(1.0), 0.0)
    gathered = table.gather(S)
    epoch, _ = table.disarm(0, caller)
    table.rearm(0, caller, PROMPT, SAMPLING)
    ((occupant, answer),) = answer_batch(table, gathered).answers
    assert (occupant, answer) == (caller, Answer(epoch=epoch - 1, pcm=None, text_id=0))


@pytest.mark.parametrize("num_gathers", [0, 1])
@pytest.mark.parametrize("is_rearmed", [False, True])
def test_a_slot_released_between_two_prompts_is_closed_once(num_gathers: int, is_rearmed: bool) -> None:
    table = SlotTable(1)
    caller, _ = make_live(table)
    table.disarm(0, caller)
    if is_rearmed:
        table.rearm(0, caller, PROMPT, SAMPLING)
    gathers = [table.gather(S) for _ in range(num_gathers)]
    state = table.release(0, caller)
    assert state is (IDLE if num_gathers and not is_rearmed else DRAINING)
    gathers.append(table.gather(S))
    closings = sum(len(gathered.closings) for gathered in gathers)
    openings = sum(len(gathered.openings) for gathered in gathers)
    assert closings == openings + 1  # the first prompt's row was open
    assert states(table) == [IDLE]
    assert not table.has_work()


def test_prompts_come_one_after_the_other() -> None:
    table = SlotTable(1)
    caller = Caller()
    table.claim(caller)
    with pytest.raises(LocalProtocolError, match="not live"):
        table.disarm(0, caller)
    table.arm(0, caller, PROMPT, SAMPLING, pacing=Pacing.LIVE, max_frames=5)
    with pytest.raises(LocalProtocolError, match="not live"):
        table.disarm(0, caller)
    with pytest.raises(LocalProtocolError, match="armed already"):
        table.rearm(0, caller, PROMPT, SAMPLING)
    answer_batch(table, table.gather(S), ready=(0,))
    table.disarm(0, caller)
    with pytest.raises(LocalProtocolError, match="not live"):
        table.disarm(0, caller)
    table.rearm(0, caller, PROMPT, SAMPLING)
    with pytest.raises(LocalProtocolError, match="armed already"):
        table.rearm(0, caller, PROMPT, SAMPLING)
    for operation in (
        lambda: table.disarm(0, Caller()),
        lambda: table.rearm(0, Caller(), PROMPT, SAMPLING),
        lambda: table.steer(0, Caller(), 1, 0.0),
        lambda: table.clear_inbox(0, Caller()),
    ):
        with pytest.raises(LocalProtocolError, match="not held"):
            operation()
