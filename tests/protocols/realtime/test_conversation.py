from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.realtime.conversation import ROOT, Conversation
from protocols.realtime.fault import EventError
from protocols.realtime.server_events import ContentPart, Item
from protocols.realtime.watermarks import SETTLE_S, Watermarks


def item(item_id: str, part: ContentPart | None = None) -> Item:
    return Item(id=item_id, status="completed", role="assistant", content=() if part is None else (part,))


def order(conversation: Conversation) -> list[str]:
    return [entry.item.id for entry in conversation.entries()]


def filled(*item_ids: str, max_items: int = 1000) -> Conversation:
    conversation = Conversation("conv_1", max_items)
    for item_id in item_ids:
        conversation.add(item(item_id))
    return conversation


def test_an_empty_conversation_has_no_last_item() -> None:
    conversation = filled()
    assert (conversation.conversation_id, conversation.last_id, conversation.entries()) == ("conv_1", None, [])


@pytest.mark.parametrize(
    ("after", "previous", "expected"),
    [
        (None, "c", ["a", "b", "c", "new"]),
        (ROOT, None, ["new", "a", "b", "c"]),
        ("a", "a", ["a", "new", "b", "c"]),
        ("c", "c", ["a", "b", "c", "new"]),
    ],
)
def test_an_item_goes_where_it_is_wanted_and_its_predecessor_is_told(after: str | None, previous: str | None, expected: list[str]) -> None:
    conversation = filled("a", "b", "c")
    assert conversation.add(item("new"), after) == previous
    assert (order(conversation), conversation.last_id) == (expected, expected[-1])


@pytest.mark.parametrize(
    ("item_id", "after", "code", "param"),
    [
        ("a", None, "item_create_duplicate_item_id", "item.id"),
        ("a", "zzz", "item_create_duplicate_item_id", "item.id"),
        ("new", "zzz", "item_create_invalid_previous_item_id", "previous_item_id"),
    ],
)
def test_what_cannot_be_added_is_refused_by_name_and_changes_nothing(item_id: str, after: str | None, code: str, param: str) -> None:
    conversation = filled("a", "b")
    with pytest.raises(EventError) as caught:
        conversation.add(item(item_id), after)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert order(conversation) == ["a", "b"]


@pytest.mark.parametrize(("after", "expected"), [(None, ["b", "new"]), ("a", ["new", "b"]), ("b", ["b", "new"]), (ROOT, ["new", "b"])])
def test_the_oldest_item_makes_room(after: str | None, expected: list[str]) -> None:
    conversation = filled("a", "b", max_items=2)
    conversation.add(item("new"), after)
    assert order(conversation) == expected
    assert "a" not in conversation


places = st.none() | st.just(ROOT) | st.integers(0, 20).map(str)


@given(drawn=st.lists(st.tuples(st.integers(0, 20), places, st.booleans()), max_size=40), max_items=st.integers(1, 5))
def test_look_up_and_order_agree_whatever_is_added_and_removed(drawn: list[tuple[int, str | None, bool]], max_items: int) -> None:
    conversation = Conversation("conv_1", max_items)
    for number, after, is_added in drawn:
        item_id = str(number)
        if is_added:
            try:
                conversation.add(item(item_id), after)
            except EventError:
                continue
            assert item_id in conversation
        elif item_id in conversation:
            conversation.remove(item_id)
            assert item_id not in conversation
        known = order(conversation)
        assert len(known) == len(set(known)) <= max_items
        assert all(conversation.find(known_id, "").item.id == known_id for known_id in known)


def test_an_item_that_is_not_there_is_refused_with_the_code_of_the_request() -> None:  # V22
    for look_up, code in (
        (lambda: filled("a").find("nope", "item_truncate_invalid_item_id"), "item_truncate_invalid_item_id"),
        (lambda: filled("a").retrieve("nope", 0.0), "item_retrieve_invalid_item_id"),
    ):
        with pytest.raises(EventError) as caught:
            look_up()
        assert (caught.value.code, caught.value.param) == (code, "item_id")


def test_an_item_of_the_client_is_retrieved_as_it_was_given() -> None:
    conversation = Conversation("conv_1", 10)
    given_item = Item(id="a", status="completed", role="user", content=(ContentPart(type="input_text", text="hi"),))
    conversation.add(given_item)
    assert conversation.retrieve("a", 0.0) == given_item


def marked(conversation: Conversation, part: ContentPart) -> Watermarks:
    marks = Watermarks()
    for end_ms, text in ((80, "one"), (160, " two")):
        marks.generate(end_ms, text)
        marks.send_text()
    marks.send(160, 0.0)
    conversation.add(item("a", part), marks=marks)
    return marks


@pytest.mark.parametrize(
    "part", [ContentPart(type="output_audio", transcript="one two"), ContentPart(type="output_text", text="one two")]
)
def test_of_an_item_that_was_truncated_only_the_words_that_were_heard_are_retrieved(part: ContentPart) -> None:  # V21
    conversation = filled()
    marks = marked(conversation, part)
    assert conversation.retrieve("a", 0.0).content == (part,)
    marks.truncate(80, 0.0)
    (found,) = conversation.retrieve("a", 0.0).content
    assert (found.type, found.text or found.transcript) == (part.type, "one")
    assert conversation.find("a", "").item.content == (part,)  # the stored item is another matter


def test_what_is_retrieved_is_settled_first() -> None:
    conversation = filled()
    marks = marked(conversation, ContentPart(type="output_audio", transcript="one two"))
    marks.end(0.08, was_interrupted=True)
    texts = [conversation.retrieve("a", now).content[0].transcript for now in (1.0, 0.08 + SETTLE_S + 0.08)]
    assert texts == ["one two", "one"]
