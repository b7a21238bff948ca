"""Cancel a connection's tasks at every await point, one after the other: the slot comes back and the neighbour is served."""

import asyncio
import contextlib
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import pytest
from aiohttp import web

from tests.helpers import MoshiClient, tone
from tests.integration.rig import Gateway, PcmCaller, frame, gateway, no_tracebacks, until

Step = Callable[[], None]


@types.coroutine
def _stepping(coroutine: Coroutine[Any, Any, Any], on_step: Step) -> Generator[Any, Any, Any]:
    """Run a coroutine and call `on_step` each time it waits."""
    error: BaseException | None = None
    while True:
        try:
            waits_for = coroutine.send(None) if error is None else coroutine.throw(error)
        except StopIteration as stop:
            return stop.value
        on_step()
        try:
            yield waits_for
            error = None
        except BaseException as raised:
            error = raised


class CancelAt:
    """Cancels the current task when it waits for the n-th time."""

    def __init__(self) -> None:
        self.at = 0
        self.num_steps = 0

    def arm(self, at: int) -> None:
        self.at, self.num_steps = at, 0

    def __call__(self) -> None:
        if self.num_steps == self.at:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
        self.num_steps += 1


async def _call(server: Gateway, protocol: str) -> None:
    """A short call that takes whatever comes."""
    async with server.connect(protocol) as ws:
        if protocol == "rawpcm":
            await ws.send_json({"type": "open"})
            await ws.send_bytes(frame(0.5, 3))
            await ws.send_json({"type": "close"})
            await PcmCaller(ws).end()
            return
        client = MoshiClient()
        while client.pcm.size < 1920:
            message = await ws.receive(timeout=5)
            if not isinstance(message.data, bytes):
                return
            client.take([message.data])
            if client.handshakes and client.pcm.size == 0:
                await ws.send_bytes(client.say(tone(1920 * 2)))


async def _cancel_everywhere(server: Gateway, protocol: str, cancel: CancelAt, neighbour: PcmCaller) -> int:
    for at in range(1000):
        cancel.arm(at)
        with contextlib.suppress(ConnectionError):
            await _call(server, protocol)
        await until(lambda: len(server.engine.open_rows) == 1, timeout_s=2)
        await neighbour.ws.send_bytes(frame(0.25))
        await neighbour.answers(at + 1)
        if cancel.num_steps <= at:
            return at
    raise AssertionError("the call never came to its end")


@pytest.mark.parametrize("protocol", ["moshi", "rawpcm"])
async def test_a_handler_cancelled_at_any_await_gives_its_slot_back(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    cancel = CancelAt()

    @web.middleware
    async def fault(request: web.Request, handler: Any) -> web.StreamResponse:
        is_neighbour = request.query.get("pacing") == "script"
        return await (handler(request) if is_neighbour else _stepping(handler(request), cancel))

    async with gateway(2, middlewares=[fault]) as server, server.connect("rawpcm", pacing="script") as ws:
        neighbour = PcmCaller(ws)
        await neighbour.open()
        assert await _cancel_everywhere(server, protocol, cancel, neighbour) > 3
    no_tracebacks(caplog)


@pytest.mark.parametrize("protocol", ["moshi", "rawpcm"])
async def test_a_receiver_cancelled_at_any_await_ends_its_call(protocol: str, caplog: pytest.LogCaptureFixture) -> None:
    cancel = CancelAt()
    is_armed = False

    def make_task(loop: asyncio.AbstractEventLoop, coroutine: Any, **kwargs: Any) -> asyncio.Task[Any]:
        if is_armed and getattr(coroutine, "__qualname__", "").endswith("_receive_loop"):
            coroutine = _wrapped(coroutine, cancel)
        return asyncio.Task(coroutine, loop=loop, **kwargs)

    asyncio.get_running_loop().set_task_factory(make_task)
    async with gateway(2) as server, server.connect("rawpcm", pacing="script") as ws:
        neighbour = PcmCaller(ws)
        await neighbour.open()
        is_armed = True
        assert await _cancel_everywhere(server, protocol, cancel, neighbour) > 2
    no_tracebacks(caplog)


async def _wrapped(coroutine: Coroutine[Any, Any, Any], on_step: Step) -> Any:
    return await _stepping(coroutine, on_step)
