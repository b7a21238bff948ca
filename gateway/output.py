"""The assistant's side of one call: answers of the model in, events for the caller out, and how much of them was sent and heard.

The one rule: a token's bytes are taken even where its frame is dropped, for the next token may end its character; that belongs to the frame
in which it became whole. Nothing is queued or dropped here. Thread: loop.
"""

from __future__ import annotations

from gateway.clock import ClockFrame
from gateway.engine.base import Engine
from gateway.ledger import PlaybackLedger
from gateway.slots import Answer
from gateway.text import TextAssembler
from protocols.events import AudioOut, Heard, ServerEvent, TextDelta


class Output:
    """What one call says.

    Attributes:
        ledger: how much audio was made, sent and heard.
        num_frames: frames that the model answered.
    """

    def __init__(self) -> None:
        self.ledger = PlaybackLedger()
        self.num_frames = 0
        self._engine: Engine | None = None
        self._text = TextAssembler()
        self._text_epoch = 0  # of the last frame whose text was told

    def arm(self, engine: Engine) -> None:
        """Say who answers. A character that another prompt began is forgotten."""
        self._engine = engine
        self._text.flush()

    def answered(self, answer: Answer, is_current: bool, given: ClockFrame | None) -> list[ServerEvent]:
        """Return the events of one frame: AudioOut and TextDelta unless its epoch is over, then Heard where a clock gave the frame."""
        assert self._engine is not None  # or nothing could have been answered
        frame_idx, epoch = self.num_frames, answer.epoch
        self.num_frames += 1
        num_samples = self._engine.info.frame_samples if answer.pcm is None else answer.pcm.size
        self.ledger.generate(self._ms(frame_idx, num_samples))
        text = self._text.push(self._engine.piece(answer.text_id))
        events: list[ServerEvent] = []
        if is_current and answer.pcm is not None:
            self._text_epoch = epoch
            events.append(AudioOut(pcm=answer.pcm, frame_idx=frame_idx, epoch=epoch))
            if text:
                events.append(TextDelta(text=text, frame_idx=frame_idx, epoch=epoch))
        if given is not None:
            events.append(
                Heard(
                    pcm=given.pcm,
                    real_samples=given.real_samples,
                    skipped_samples=given.skipped_samples,
                    frame_idx=frame_idx,
                    is_replay=given.is_replay,
                    epoch=epoch,
                )
            )
        return events

    def tail(self, epoch: int) -> TextDelta | None:
        """End the text: the last word where the call ends within a character that `epoch` began."""
        text = self._text.flush()
        return TextDelta(text=text, frame_idx=self.num_frames - 1, epoch=epoch) if text and self._text_epoch == epoch else None

    def sent(self, event: AudioOut) -> None:
        """The reader has taken a frame."""
        self.ledger.send(self._ms(event.frame_idx, 0), self._ms(event.frame_idx, event.pcm.size))

    def _ms(self, frame_idx: int, num_samples: int) -> int:
        """End of so many samples of a frame in media time."""
        assert self._engine is not None
        info = self._engine.info
        return (frame_idx * info.frame_samples + num_samples) * 1000 // info.sample_rate
