"""What can go wrong on a wire, as values.

Two exception classes, after h11: `RemoteProtocolError` when the peer broke the protocol, `LocalProtocolError` when we asked a codec
for something illegal in its state. `ErrorKind` names every failure that crosses the session API; each codec words it for its own wire
(close code, `05` message, JSON body). Nobody matches on text. Thread: any.
"""

from __future__ import annotations

import enum


class CloseCode(enum.IntEnum):
    """WebSocket close codes that this gateway sends (RFC 6455 section 7.4.1; 1012-1014 from the IANA registry)."""

    NORMAL = 1000
    GOING_AWAY = 1001
    PROTOCOL_ERROR = 1002
    UNSUPPORTED = 1003
    INVALID_DATA = 1007
    POLICY = 1008
    TOO_BIG = 1009
    INTERNAL = 1011
    TRY_AGAIN_LATER = 1013


class ErrorKind(enum.Enum):
    """Every failure a caller can be told about. The values are stable identifiers: they appear in JSON bodies and metrics labels."""

    BAD_REQUEST = "bad_request"  # the peer broke the protocol: a message that cannot be read
    BAD_AUDIO = "bad_audio"  # audio that cannot be decoded, beyond the error budget
    BAD_TEXT = "bad_text"  # a text message that is not UTF-8
    TOO_BIG = "too_big"  # one message over the size limit
    BAD_PARAMETER = "bad_parameter"  # unknown voice, malformed number, text too long
    CAPACITY = "capacity"  # every slot is taken, or the queue time ran out
    LOADING = "loading"  # the model is not ready yet
    OVERLOADED = "overloaded"  # slots are free, but steps are too slow to admit another caller
    IDLE = "idle_timeout"  # no audio from the caller for the idle time
    SLOW_READER = "slow_reader"  # the peer does not read what it is sent
    SHUTDOWN = "shutdown"  # the server drains
    INTERNAL = "internal"  # our fault; no detail on the wire

    @property
    def close_code(self) -> CloseCode:
        """The WebSocket close code for this kind (STYLE: one table for every wire)."""
        return _CLOSE_CODES[self]

    @property
    def http_status(self) -> int:
        """The HTTP status for this kind when it is answered before or without an upgrade."""
        return _HTTP_STATUS[self]


_CLOSE_CODES = {
    ErrorKind.BAD_REQUEST: CloseCode.PROTOCOL_ERROR,
    ErrorKind.BAD_AUDIO: CloseCode.INVALID_DATA,
    ErrorKind.BAD_TEXT: CloseCode.INVALID_DATA,
    ErrorKind.TOO_BIG: CloseCode.TOO_BIG,
    ErrorKind.BAD_PARAMETER: CloseCode.POLICY,
    ErrorKind.CAPACITY: CloseCode.TRY_AGAIN_LATER,
    ErrorKind.LOADING: CloseCode.TRY_AGAIN_LATER,
    ErrorKind.OVERLOADED: CloseCode.TRY_AGAIN_LATER,
    ErrorKind.IDLE: CloseCode.POLICY,
    ErrorKind.SLOW_READER: CloseCode.POLICY,
    ErrorKind.SHUTDOWN: CloseCode.GOING_AWAY,
    ErrorKind.INTERNAL: CloseCode.INTERNAL,
}

_HTTP_STATUS = {
    ErrorKind.BAD_REQUEST: 400,
    ErrorKind.BAD_AUDIO: 400,
    ErrorKind.BAD_TEXT: 400,
    ErrorKind.TOO_BIG: 413,
    ErrorKind.BAD_PARAMETER: 400,
    ErrorKind.CAPACITY: 503,
    ErrorKind.LOADING: 503,
    ErrorKind.OVERLOADED: 503,
    ErrorKind.IDLE: 408,
    ErrorKind.SLOW_READER: 408,
    ErrorKind.SHUTDOWN: 503,
    ErrorKind.INTERNAL: 500,
}


class ProtocolError(Exception):
    """Base of the two below; never raised itself.

    Attributes:
        kind: what happened, for the wire and the metrics.
        detail: one sentence for the person at the other end.
    """

    def __init__(self, kind: ErrorKind, detail: str) -> None:
        if type(self) is ProtocolError:
            raise TypeError("raise RemoteProtocolError or LocalProtocolError")
        super().__init__(f"{kind.value}: {detail}")
        self.kind = kind
        self.detail = detail


class RemoteProtocolError(ProtocolError):
    """The peer did something that ends this connection."""


class LocalProtocolError(ProtocolError):
    """We did something illegal in this state: a bug of ours."""

    def __init__(self, detail: str) -> None:
        super().__init__(ErrorKind.INTERNAL, detail)
