"""The background part of a session's life: finding a slot and preparing a prompt, one piece of work at a time.

The one rule: whatever becomes of the work, its end is told once; whoever cancels it is told of its own cancellation too. Thread: loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gateway.errors import GatewayError, NoFreeSlot
from gateway.logs import SessionAdapter
from protocols.errors import ErrorKind
from protocols.events import Failed

Work = Callable[[], Awaitable[None]]


class Admission:
    """The work of one session.

    Attributes:
        refusal: why the session got no slot, where that is why it failed.

    Args:
        on_failed: takes the last event of a session whose work failed.
    """

    def __init__(self, name: str, log: SessionAdapter, on_failed: Callable[[Failed], None]) -> None:
        self.refusal: NoFreeSlot | None = None
        self._name = name
        self._log = log
        self._on_failed = on_failed
        self._task: asyncio.Task[None] | None = None

    def start(self, work: Work) -> None:
        """Do some work. What was started before has done its part by now, and is let go."""
        self._task = asyncio.get_running_loop().create_task(self._run(work), name=self._name)
        self._task.add_done_callback(self._ran)

    def cancel(self) -> None:
        """Stop working; often called by this very work, which is about to return: then it does no harm."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self, work: Work) -> None:
        try:
            await work()
        except GatewayError as error:
            self.refusal = error if isinstance(error, NoFreeSlot) else None
            self._on_failed(Failed(kind=error.kind, detail=str(error)))

    def _ran(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():  # by the session's end (then this does nothing), or by a loop that is being torn down
            self._on_failed(Failed(kind=ErrorKind.SHUTDOWN, detail="the server is stopping"))
        elif (error := task.exception()) is not None:
            self._log.error("admission failed", exc_info=error)
            self._on_failed(Failed(kind=ErrorKind.INTERNAL, detail="internal error"))
