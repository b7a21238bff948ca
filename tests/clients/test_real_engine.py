"""Every client against `python -m gateway` with the real engine and the bundled model: a spoken question gets a spoken answer."""

import asyncio
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.clients import brackets, validate
from tests.clients.capture import Proxy, proxy
from tests.clients.clients import A, B, C, Client, J, L, N, P, each
from tests.helpers import rms
from tests.integration.real import RealGateway, hello, running
from tests.integration.rig import until


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealGateway]:
    yield from running(tmp_path_factory.mktemp("gateway") / "log", "--batch-size", "2")


@dataclasses.dataclass(frozen=True)
class Place:
    """What a client needs to know of where it connects to."""

    relay: Proxy
    secure: str

    def http(self, path: str = "/v1") -> str:
        return f"http{self.secure}://127.0.0.1:{self.relay.port}{path}"

    def ws(self, path: str = "/v1/realtime") -> str:
        return f"ws{self.secure}://127.0.0.1:{self.relay.port}{path}"


@each(P, B, N, A, J, C, L)
async def test_a_question_is_answered(client: Client, gateway: RealGateway, tmp_path: Path) -> None:
    tls = client.tls(tmp_path)
    async with proxy(f"http://127.0.0.1:{gateway.port}", tls=tls) as relay:
        place = Place(relay, "s" if client.needs_tls else "")
        async with client.run(place, tmp_path) as driver:  # type: ignore[arg-type]
            await driver.seen("connected", timeout_s=60)
            await driver.say(hello(1.0))
            await until(lambda: bool(relay.captures and relay.captures[0].server("response.done")), timeout_s=60)
            await asyncio.sleep(0.5)
        capture = relay.captures[0]
        capture.save(tmp_path / "capture.jsonl")
        assert validate.complaints(capture.records) == []
        assert brackets.complaints(capture.records, expected_errors={"response_cancel_not_active"}) == []
    done = capture.server("response.done")[0]["response"]
    assert done["status"] == "completed"
    said = done["output"][0]["content"][0]["transcript"]
    assert len(said.split()) >= 2
    assert client.text(driver.reports).startswith(said)
    sound = driver.pcm().astype(np.float32) / 32768
    assert sound.size > 24_000 / 2
    assert rms(sound) > 0.01
    assert await gateway.wait_empty() < 5
