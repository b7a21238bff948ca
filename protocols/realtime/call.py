"""What the parts of one Realtime connection share: settings, the queue to the client, the events for the session, the list of items.

Owned by `RealtimeCodec`; the parts hold it by reference. The rule: nobody but the codec replaces `config`. Thread: any, one at a time.
"""

from __future__ import annotations

import dataclasses

from protocols.events import ClientEvent
from protocols.realtime.conversation import Conversation
from protocols.realtime.meter import Meter
from protocols.realtime.options import RealtimeOptions
from protocols.realtime.outgoing import Outgoing
from protocols.realtime.settings import Catalogue, SessionConfig
from protocols.realtime.timeline import Timeline


@dataclasses.dataclass(slots=True)
class Call:
    """Shared state of one connection."""

    config: SessionConfig  # effective settings; replaced as a whole by an accepted session.update
    options: RealtimeOptions
    catalogue: Catalogue
    out: Outgoing
    conversation: Conversation
    meter: Meter
    frame_ms: float
    rate: int  # Hz, of the engine
    timeline: Timeline
    session_epoch: int = 0  # of the session: output stamped with another one is stale
    heard_frames: int = 0  # with user audio, since the last response.done; its input audio tokens
    prompt_tokens: int = 0  # of persona and history, until the first response.done after a priming reports them
    events: list[ClientEvent] = dataclasses.field(default_factory=list)  # for the session, oldest first

    @property
    def input_ms(self) -> int:
        """How much of the input timeline the model has heard."""
        return self.timeline.consumed * 1000 // self.rate

    def frames(self, duration_ms: float) -> int:
        """Whole frames that last at least so long."""
        return max(0, -int(-duration_ms // self.frame_ms))

    def new_epoch(self, event: ClientEvent) -> None:
        """End the epoch here and, by `event`, in the session: no output that exists by now is sent."""
        self.out.bump()
        self.session_epoch += 1
        self.events.append(event)

    def take_events(self) -> list[ClientEvent]:
        """Return what is to be pushed to the session, and forget it."""
        events, self.events = self.events, []
        return events
