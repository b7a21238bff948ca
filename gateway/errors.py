"""Exceptions of the gateway, one class for each decision a caller of the code can take. Facts are attributes.

Each has the `ErrorKind` that its caller sees on the wire. Thread: any.
"""

from __future__ import annotations

from protocols.errors import ErrorKind


class GatewayError(Exception):
    """Base: `kind` for the wire, `str()` for people."""

    kind = ErrorKind.INTERNAL


class ConfigError(GatewayError):
    """A value that cannot be served: unknown voice, bad checkpoint, too many slots. At boot: exit status 2."""

    kind = ErrorKind.BAD_PARAMETER


class NoFreeSlot(GatewayError):
    """No slot for this caller now.

    Attributes:
        kind: CAPACITY, LOADING, OVERLOADED or SHUTDOWN.
        retry_after_s: seconds after which another attempt makes sense.
    """

    def __init__(self, kind: ErrorKind, detail: str, *, retry_after_s: int = 5) -> None:
        super().__init__(detail)
        self.kind = kind
        self.retry_after_s = retry_after_s


class SessionGone(GatewayError):
    """The session has ended; nothing can be pushed any more."""

    kind = ErrorKind.BAD_REQUEST


class EngineError(GatewayError):
    """A step failed: every live session ends and the process should be restarted."""

    kind = ErrorKind.INTERNAL
