"""The evaluation's ends of the wires, against a gateway on a real port whose engine echoes."""

import asyncio
import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

from gateway.training.evaluation import server as servers
from gateway.training.evaluation.call import converse, linger
from gateway.training.evaluation.server import Plan, connected, percentile
from gateway.training.evaluation.signals import FRAME
from gateway.training.evaluation.wires import CallError
from tests.integration.rig import Gateway, gateway, until
from tests.training.evaluation_line import NOVA, asked, tone

ASK = asked("Hello.", 0.4)


def plan(wire: servers.Wire, voice: str = "alto") -> Plan:
    return Plan("question", NOVA, voice, converse([ASK]), wire)


def url(rig: Gateway) -> str:
    return f"http://127.0.0.1:{rig.port}"


@pytest.mark.parametrize("wire", ["duplex", "live", "chat"])
async def test_a_call_hears_its_own_echo_at_its_time(wire: servers.Wire) -> None:
    """FakeEngine answers each frame with half of it and writes all the time."""
    async with gateway(1) as rig, connected(url(rig)) as server:
        record = await server.call(plan(wire), seed=1)
        ending = ("moshi", "caller") if wire == "chat" else ("rawpcm", "finished")
        await until(lambda: rig.ended(*ending) == 1)
    (mark,) = record.marks
    assert mark.end - mark.start == ASK.pcm.size
    loud = record.loud_frames(0, len(record.said))
    late = 2 if wire == "chat" else 0  # frames: what Opus looks ahead, and its headers
    assert abs(loud[0] - mark.first_frame) <= late
    assert 0 <= loud[-1] + 1 - mark.end_frame <= late + 1  # the fake echoes the frame before, too
    assert "hello" in record.text()
    assert all(frame.shape == (FRAME,) for frame in record.said)


async def test_the_same_seed_gives_the_same_call() -> None:
    async with gateway(2) as rig, connected(url(rig)) as server:
        first, second = await asyncio.gather(server.call(plan("duplex"), 3), server.call(plan("duplex"), 3))
        other = await server.call(plan("duplex"), 4)
    assert np.array_equal(first.pcm(), second.pcm())
    assert first.text() == second.text()
    assert first.marks[0].start == second.marks[0].start != other.marks[0].start


async def test_frames_sent_ahead_are_all_answered() -> None:
    silence = dataclasses.replace(plan("duplex"), script=linger(np.zeros(50 * FRAME, np.float32), []))
    async with gateway(1) as rig, connected(url(rig)) as server:
        record = await server.call(silence, 0)
    assert len(record.said) == 50
    assert record.marks == []


async def test_a_background_is_heard_in_every_frame() -> None:
    noisy = dataclasses.replace(plan("duplex"), background=tone(0.3, amplitude=0.05))
    async with gateway(1) as rig, connected(url(rig)) as server:
        record = await server.call(noisy, 0)
    assert len(record.loud_frames(0, len(record.said))) == len(record.said)


@pytest.mark.parametrize("wire", ["duplex", "chat"])
async def test_a_refused_call_is_an_error(wire: servers.Wire) -> None:
    async with gateway(1) as rig, connected(url(rig)) as server:
        with pytest.raises(CallError):
            await server.call(plan(wire, "nobody"), 0)


@pytest.mark.parametrize("wire", ["duplex", "chat"])
async def test_a_full_server_is_called_again(wire: servers.Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_RETRY_S", 0.02)
    async with gateway(1) as rig, connected(url(rig)) as server:
        calls = [asyncio.create_task(server.call(plan(wire), seed)) for seed in range(3)]
        records = await asyncio.gather(*calls)
        assert sum(rig.ended(name, "refused") for name in ("moshi", "rawpcm")) > 0
    assert all(record.said for record in records)


async def test_a_server_that_stays_full_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_RETRY_S", 0.02)
    monkeypatch.setattr(servers, "FULL_S", 0.1)
    async with gateway(1) as rig, connected(url(rig)) as server, rig.connect("rawpcm") as ws:
        await ws.send_json({"type": "open"})
        await ws.receive()
        with pytest.raises(CallError):
            await server.call(plan("duplex"), 0)


async def test_voices_and_ticks_are_read_from_the_server() -> None:
    async with gateway(1) as rig, connected(url(rig)) as server:
        before = await server.ticks()
        record = await server.call(plan("duplex"), 0)
        after = await server.ticks()
        assert await server.voices() == ["alto", "tenor"]
    seconds, count = percentile(before, after, 0.95)
    assert len(record.said) <= count <= len(record.said) + 20  # and those that read the prompt
    assert 0 < seconds < 1


async def test_a_gateway_that_does_not_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CallError, match="did not start"):
        async with servers.started(str(tmp_path / "nothing"), tmp_path / "log.txt"):
            pass
    assert "nothing" in (tmp_path / "log.txt").read_text(encoding="utf-8")


async def test_nobody_answers_where_no_gateway_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "START_S", 0.0)
    monkeypatch.setattr(servers, "_RETRY_S", 0.0)
    with pytest.raises(CallError, match="did not become ready"):
        async with connected("http://127.0.0.1:9"):
            pass


@pytest.mark.parametrize(
    ("counts", "share", "seconds"),
    [
        ({0.01: 0.0, 0.02: 100.0, math.inf: 100.0}, 0.95, 0.0195),
        ({0.01: 50.0, 0.02: 100.0, math.inf: 100.0}, 0.25, 0.005),
        ({0.01: 90.0, 0.02: 94.0, math.inf: 100.0}, 0.95, math.inf),
        ({0.01: 0.0, 0.02: 0.0, math.inf: 0.0}, 0.95, math.inf),
    ],
)
def test_a_percentile_is_interpolated_between_the_bounds(counts: dict[float, float], share: float, seconds: float) -> None:
    total = int(counts[math.inf])
    assert percentile({}, counts, share) == (pytest.approx(seconds), total)
    doubled = {bound: count + 7 for bound, count in counts.items()}
    assert percentile(dict.fromkeys(counts, 7.0), doubled, share) == (pytest.approx(seconds), total)
