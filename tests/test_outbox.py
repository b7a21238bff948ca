from __future__ import annotations

import asyncio

import numpy as np

from gateway.outbox import EventStream, Outbox
from protocols.events import AudioOut, Ended, EndReason, Heard, ServerEvent, TextDelta, Warned

PCM = np.zeros(4, np.float32)


def frame_events(frame_idx: int) -> list[ServerEvent]:
    return [
        AudioOut(pcm=PCM, frame_idx=frame_idx, epoch=1),
        TextDelta(text="x", frame_idx=frame_idx, epoch=1),
        Heard(pcm=PCM, real_samples=4, skipped_samples=0, frame_idx=frame_idx, epoch=1),
    ]


def take_all(stream: EventStream) -> list[ServerEvent]:
    events = []
    while (event := stream.take()) is not None:
        events.append(event)
    return events


def stream_of(outbox: Outbox) -> EventStream:
    return EventStream(outbox, lambda event: event)


def test_the_oldest_audio_and_its_words_go_and_what_was_heard_stays() -> None:
    outbox = Outbox(max_audio=2)
    num_dropped = [outbox.put(event) for frame_idx in range(4) for event in frame_events(frame_idx)]
    assert sum(num_dropped) == 2
    events = take_all(stream_of(outbox))
    assert [event.frame_idx for event in events if isinstance(event, AudioOut)] == [2, 3]
    assert [event.frame_idx for event in events if isinstance(event, TextDelta)] == [2, 3]
    assert [event.frame_idx for event in events if isinstance(event, Heard)] == [0, 1, 2, 3]
    assert len(outbox) == 0


def test_a_purge_takes_audio_and_words_and_leaves_what_was_heard() -> None:
    outbox = Outbox(max_audio=None)
    for frame_idx in range(3):
        for event in frame_events(frame_idx):
            outbox.put(event)
    outbox.put(Warned(detail="careful"))
    assert outbox.purge_output() == 3
    assert [type(event) for event in take_all(stream_of(outbox))] == [Heard, Heard, Heard, Warned]
    assert outbox.purge_output() == 0


def test_a_stream_is_over_after_the_last_word() -> None:
    outbox = Outbox(max_audio=None)
    taken: list[ServerEvent] = []

    def on_taken(event: ServerEvent) -> ServerEvent:
        taken.append(event)
        return event

    stream = EventStream(outbox, on_taken)
    assert stream.take() is None
    outbox.put(Warned(detail="careful"))
    outbox.put(Ended(reason=EndReason.CALLER))
    assert not stream.is_over
    events = take_all(stream)
    assert (stream.is_over, taken) == (True, events)


async def test_a_poke_wakes_the_reader_once_though_it_comes_first() -> None:
    stream = stream_of(Outbox(max_audio=None))
    stream.poke()
    stream.poke()
    await stream.wait()
    assert stream.take() is None
    waiting = asyncio.create_task(stream.wait())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not waiting.done()
    stream.poke()
    await waiting


async def test_a_poke_is_no_event_for_one_who_iterates() -> None:
    outbox = Outbox(max_audio=None)
    stream = stream_of(outbox)
    reading = asyncio.create_task(anext(stream))
    for _ in range(2):
        await asyncio.sleep(0)
    stream.poke()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not reading.done()
    outbox.put(Warned(detail="careful"))
    assert await reading == Warned(detail="careful")


async def test_a_wait_that_is_cancelled_loses_neither_events_nor_pokes() -> None:
    outbox = Outbox(max_audio=None)
    stream = stream_of(outbox)
    waiting = asyncio.create_task(stream.wait())
    await asyncio.sleep(0)
    stream.poke()
    waiting.cancel()
    await asyncio.wait([waiting])
    async with asyncio.timeout(1):
        await stream.wait()
    outbox.put(Warned(detail="careful"))
    await stream.wait()
    assert stream.take() == Warned(detail="careful")
