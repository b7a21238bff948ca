"""How the gateway logs: one line format and the adapter that names the session in every record.

Audio, text and persona never enter a message. Loggers are `logging.getLogger(__name__)` in their modules; handlers are set up here
only, once, by the entry point. Thread: any.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

FORMAT = "%(asctime)s %(levelname)-7s %(name)s [%(session_id)s slot=%(slot_idx)s %(protocol)s] %(message)s"
PLAIN_FORMAT = "%(asctime)s %(levelname)-7s %(name)s %(message)s"


class SessionAdapter(logging.LoggerAdapter[logging.Logger]):
    """Adds `session_id`, `slot_idx` and `protocol` to each record.

    Attributes:
        slot_idx: set by the session when it holds a slot, None otherwise.
    """

    def __init__(self, logger: logging.Logger, session_id: str, protocol: str) -> None:
        super().__init__(logger, {})
        self.session_id = session_id
        self.protocol = protocol
        self.slot_idx: int | None = None

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Put the session's fields on the record, beside those of the call."""
        fields = {"session_id": self.session_id, "slot_idx": self.slot_idx, "protocol": self.protocol}
        kwargs["extra"] = {**fields, **(kwargs.get("extra") or {})}
        return msg, kwargs


class _Formatter(logging.Formatter):
    """Session fields where a record has them, a plain line where it has none."""

    def __init__(self) -> None:
        super().__init__(PLAIN_FORMAT)
        self._session = logging.Formatter(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        if hasattr(record, "session_id"):
            return self._session.format(record)
        return super().format(record)


def setup_logging(level: str) -> None:
    """Send every record of `level` (a name such as "info") and above to standard error, one line each. Thread: any, once.

    Raises:
        ValueError: no such level.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_Formatter())
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [handler]
