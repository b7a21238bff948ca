"""The structural type of every WebSocket codec: messages in, events out, and back; no I/O, no clock, no thread.

A codec is a value bound to one connection. `receive` and `send` are never called at the same time (the transport serialises them), but may
be called from different threads, one after the other. After an exception the codec is in ERROR for good. Thread: any, one at a time.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
from collections.abc import Iterator, Mapping
from typing import ClassVar, Protocol

from protocols.errors import CloseCode, LocalProtocolError, RemoteProtocolError
from protocols.events import ClientEvent, ServerEvent


@dataclasses.dataclass(frozen=True, slots=True)
class Close:
    """The codec's wish to close the WebSocket; always the last message of a `send`."""

    code: CloseCode
    reason: str  # cut to 123 bytes of UTF-8 (RFC 6455 section 5.5) when made

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", self.reason.encode(errors="replace")[:123].decode(errors="ignore"))


Message = bytes | str | Close  # binary message, text message, or the end


class CodecState(enum.Enum):
    """Where the conversation on this wire stands."""

    OPENING = "opening"  # connected, no Open yet
    WAITING = "waiting"  # Open sent to the session, not Ready yet
    LIVE = "live"
    CLOSED = "closed"
    ERROR = "error"


class Codec(Protocol):
    """One connection's translator."""

    name: ClassVar[str]  # label in logs and metrics
    refusal_delay_s: ClassVar[float]  # seconds after the upgrade before which this wire's clients do not hear why a call failed
    state: CodecState

    @property
    def due_s(self) -> float:
        """Monotonic seconds at which `due` must be called at the latest. Thread: any.

        -math.inf while something waits to be handed out; math.inf while nothing does, not even for its time.
        """

    def connect(self, query: Mapping[str, str]) -> list[ClientEvent]:
        """Take the query of the upgrade request; first call of every codec.

        Raises:
            RemoteProtocolError: a parameter that must be refused.
        """

    def receive(self, message: bytes | str, now: float) -> list[ClientEvent]:
        """Take one WebSocket message; `now` is monotonic seconds.

        Raises:
            RemoteProtocolError: the peer broke the wire for good.
        """

    def send(self, event: ServerEvent, now: float) -> list[Message]:
        """Word one event for this wire.

        Raises:
            LocalProtocolError: the event is illegal in this state.
        """

    def due(self, now: float) -> list[Message | ClientEvent]:
        """Return what is to be written, and pushed to the session, at `now` though no event asked for it; usually nothing.

        Called after every `send`, at `due_s` whenever that has become less, and again until it returns nothing. A codec with a queue of its
        own hands out one message at a time, so that it can still take the later ones back.
        """

    def faults(self) -> Mapping[str, int]:
        """What could not be used of what came in, by name and without zeros, for the log. Thread: any, at any time."""


def check_legal(codec: Codec, event: ServerEvent, legal: Mapping[CodecState, tuple[type, ...]]) -> None:
    """Look an event up in a codec's table of what may be sent in which state; the first part of every `send`.

    Raises:
        LocalProtocolError: the event is illegal; the codec is in ERROR now.
    """
    if not isinstance(event, legal[codec.state]):
        before, codec.state = codec.state, CodecState.ERROR
        raise LocalProtocolError(f"{type(event).__name__} may not be sent in state {before.value}")


@contextlib.contextmanager
def ending_in_error(codec: Codec) -> Iterator[None]:
    """Put the codec into ERROR when the block raises RemoteProtocolError: no `connect` or `receive` goes on after one."""
    try:
        yield
    except RemoteProtocolError:
        codec.state = CodecState.ERROR
        raise
