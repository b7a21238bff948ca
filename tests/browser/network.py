"""A bad network between browser and gateway: a TCP relay that delays, stalls and cuts. Bytes stay in order, as in TCP. Thread: loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator


class Network:
    """The relay and its weather, which may be changed at any time.

    Attributes:
        jitter_s: every piece is late by up to so much.
        stall_share: so many of the pieces are late by `stall_s` as well, and with them all that follows.
        num_connections: that were opened so far.
        arrivals_s: when pieces came from the gateway, on the loop's clock.
    """

    def __init__(self, port: int) -> None:
        self.jitter_s = 0.0
        self.stall_share = 0.0
        self.stall_s = 0.4
        self.num_connections = 0
        self.arrivals_s: list[float] = []
        self._to_port = port
        self._random = random.Random(7)
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections and cut the present ones."""
        if self._server is not None:
            self._server.close()
        self.cut()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server = None

    def cut(self) -> None:
        """Reset every connection."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to_port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, far_writer}
        ways = (self._carry(reader, far_writer, []), self._carry(far_reader, writer, self.arrivals_s))
        tasks = [asyncio.create_task(way) for way in ways]
        self._tasks |= set(tasks)
        await asyncio.wait(tasks)
        self._tasks -= set(tasks)
        self._writers -= {writer, far_writer}

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, arrivals_s: list[float]) -> None:
        """Carry one direction to its end."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        delivering = asyncio.create_task(self._deliver(pieces, writer))
        loop, due_s = asyncio.get_running_loop(), 0.0
        try:
            while piece := await reader.read(65_536):
                arrivals_s.append(loop.time())
                late_s = self._random.uniform(0, self.jitter_s) + (self.stall_s if self._random.random() < self.stall_share else 0.0)
                due_s = max(due_s, loop.time() + late_s)
                pieces.put_nowait((due_s, piece))
        except ConnectionError:
            pass
        finally:
            pieces.put_nowait((due_s, b""))
            await delivering

    async def _deliver(self, pieces: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while True:
                due_s, piece = await pieces.get()
                if due_s > loop.time():
                    await asyncio.sleep(due_s - loop.time())
                if not piece:
                    break
                writer.write(piece)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def network(port: int) -> AsyncIterator[Network]:
    """A relay to `port` of this machine, in fair weather."""
    relay = Network(port)
    await relay.open()
    try:
        yield relay
    finally:
        await relay.close()
