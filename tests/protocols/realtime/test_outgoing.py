from __future__ import annotations

import json
from typing import Any

import pytest

from protocols.codec import Close
from protocols.errors import CloseCode
from protocols.realtime.dialect import Dialect
from protocols.realtime.meter import Count, Timer
from protocols.realtime.outgoing import Outgoing
from protocols.realtime.server_events import AudioDelta, InputCleared, Item, ItemDone

BYE = Close(CloseCode.NORMAL, "closed")
DONE = ItemDone(previous_item_id=None, item=Item(id="a1", status="completed", role="assistant"))


class Counts(dict[tuple[Count, str], int]):
    """A meter."""

    def count(self, what: Count, label: str = "", by: int = 1) -> None:
        self[what, label] = self.get((what, label), 0) + by

    def observe(self, what: Timer, seconds: float) -> None:
        raise AssertionError


def delta(name: str) -> AudioDelta:
    return AudioDelta(response_id="r1", item_id="a1", delta=name)


def taken(out: Outgoing, now: float = 0.0) -> list[Any]:
    found: list[Any] = []
    while (message := out.take(now)) is not None:
        body = json.loads(message) if isinstance(message, str) else message
        found.append(body.get("delta", body["type"]) if isinstance(body, dict) else body)
    return found


@pytest.fixture
def counts() -> Counts:
    return Counts()


@pytest.fixture
def out(counts: Counts) -> Outgoing:
    return Outgoing(Dialect.GA, counts)


def test_messages_go_out_in_order_each_with_an_id_of_its_own(out: Outgoing) -> None:
    out.put(InputCleared(), InputCleared())
    out.put_output(delta("a"))
    events = [json.loads(str(out.take(0.0))) for _ in range(3)]
    assert [event["type"] for event in events] == ["input_audio_buffer.cleared"] * 2 + ["response.output_audio.delta"]
    assert len({event["event_id"] for event in events}) == 3
    assert out.take(0.0) is None


def test_what_waits_of_an_epoch_that_ends_is_taken_back_and_counted_and_the_rest_stays(out: Outgoing, counts: Counts) -> None:
    out.bump()
    assert counts == {(Count.EPOCHS, ""): 1}
    out.put_output(delta("a"))
    out.put(InputCleared())
    out.put_output(delta("b"))
    out.bump()
    out.put_output(delta("c"))
    assert out.epoch == 2
    assert taken(out) == ["input_audio_buffer.cleared", "c"]
    assert counts == {(Count.EPOCHS, ""): 2, (Count.STALE, "queue"): 2}


def test_what_was_kept_outlives_its_epoch(out: Outgoing) -> None:
    sent: list[float] = []
    out.put_output(delta("a"), sent.append)
    out.keep()
    out.put_output(delta("b"), sent.append)
    out.bump()
    assert taken(out, 5.0) == ["a"]
    assert sent == [5.0]  # and is told when it goes


def test_a_message_of_an_old_epoch_is_not_even_handed_out_if_it_was_left_in_the_queue(out: Outgoing, counts: Counts) -> None:
    sent: list[float] = []
    out.put_output(delta("a"), sent.append)
    out.put_output(delta("b"), sent.append)
    out.epoch += 1  # without a purge
    out.put_output(delta("c"), sent.append)
    assert taken(out) == ["c"]
    assert sent == [0.0]
    assert counts == {(Count.STALE, "writer"): 2}


def test_what_a_dialect_has_no_name_for_is_not_sent(out: Outgoing) -> None:
    out.put(DONE, InputCleared())
    out.dialect = Dialect.BETA
    assert taken(out) == ["input_audio_buffer.cleared"]
    out.put(DONE)
    assert out.take(0.0) is None


def test_nothing_follows_the_close(out: Outgoing) -> None:
    out.put(InputCleared(), BYE, InputCleared())
    out.put_output(delta("a"))
    assert taken(out) == ["input_audio_buffer.cleared", BYE]
