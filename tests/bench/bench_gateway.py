"""The gateway's own share of a tick, everything but `Engine.step`: `python -m tests.bench.bench_gateway --calls 4 16 32`.

The server runs in a process of its own with an engine that takes no time; half of the callers come over /api/chat with real Opus, half
over /v1/audio/duplex, each sending a frame every 80 ms. Per tick: what the tick thread spends outside `Engine.step` (from the metrics),
and the CPU time of the whole server process, Opus and event loop included; also as a share of the 80 ms that a frame lasts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import aiohttp
import numpy as np
import psutil

from protocols import FRAME_SAMPLES, SAMPLE_RATE
from protocols.opus import OggOpusWriter

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
ROOT = Path(__file__).parents[2]


async def caller(http: aiohttp.ClientSession, url: str, *, is_moshi: bool, phase_s: float, stop: asyncio.Event) -> int:
    """Send a frame every 80 ms until told to stop; return the frames that came back."""
    tone = (0.2 * np.sin(np.arange(FRAME_SAMPLES) / 9)).astype(np.float32)
    writer = OggOpusWriter(SAMPLE_RATE)
    heard = 0
    async with http.ws_connect(f"{url}/api/chat" if is_moshi else f"{url}/v1/audio/duplex") as ws:
        if not is_moshi:
            await ws.send_str('{"type":"open","pacing":"live"}')

        async def listen() -> None:
            nonlocal heard
            async for message in ws:
                heard += message.type is aiohttp.WSMsgType.BINARY and (not is_moshi or message.data[:1] == b"\x01")

        listener = asyncio.create_task(listen())
        next_s = time.monotonic() + phase_s
        while not stop.is_set():
            await asyncio.sleep(max(0.0, next_s - time.monotonic()))
            next_s += FRAME_S
            await ws.send_bytes(b"\x01" + writer.encode(tone) if is_moshi else tone.tobytes())
        await ws.close()
        await listener
    return heard


async def totals(http: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """Sums and counts of the tick and step histograms."""
    async with http.get(f"{url}/metrics") as response:
        lines = (await response.text()).splitlines()
    wanted = ("gateway_tick_seconds_sum", "gateway_tick_seconds_count", "gateway_step_seconds_sum", "gateway_batch_rows_sum")
    return {name: float(value) for name, _, value in (line.partition(" ") for line in lines) if name in wanted}


async def measure(url: str, server: psutil.Process, calls: int, seconds: float) -> str:
    """Hold `calls` calls; return one line of the table."""
    stop = asyncio.Event()
    async with aiohttp.ClientSession() as http:
        rng = np.random.default_rng(calls)
        callers = [
            asyncio.create_task(caller(http, url, is_moshi=i % 2 == 0, phase_s=float(rng.random() * FRAME_S), stop=stop))
            for i in range(calls)
        ]
        await asyncio.sleep(2)  # everybody is in
        before, cpu_before = await totals(http, url), sum(server.cpu_times()[:2])
        await asyncio.sleep(seconds)
        after, cpu = await totals(http, url), sum(server.cpu_times()[:2]) - cpu_before
        stop.set()
        heard = await asyncio.gather(*callers)
    spent = {name: after[name] - before[name] for name in after}
    ticks, rows = spent["gateway_tick_seconds_count"], spent["gateway_batch_rows_sum"]
    own_ms = 1000 * (spent["gateway_tick_seconds_sum"] - spent["gateway_step_seconds_sum"]) / ticks
    share = cpu / seconds / calls
    return (
        f"{calls:5d} {ticks / seconds:9.1f} {rows / ticks:9.1f} {own_ms:12.2f} {1000 * cpu / ticks:11.2f} {1e6 * cpu / rows:11.0f}"
        f" {100 * share:9.2f} % {min(heard):7d}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, nargs="+", default=[4, 16, 32])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--port", type=int, default=18970)
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    command = [sys.executable, "tests/fake_gateway.py", json.dumps({}), "--port", str(options.port), "--log-level", "error"]
    with subprocess.Popen([*command, "--batch-size", str(max(options.calls))], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}) as process:
        try:
            asyncio.run(wait_ready(url))
            print("calls   ticks/s  rows/tick  own ms/tick  CPU ms/tick  CPU us/frame  a core/call  frames")
            for calls in options.calls:
                print(asyncio.run(measure(url, psutil.Process(process.pid), calls, options.seconds)), flush=True)
        finally:
            process.terminate()


async def wait_ready(url: str) -> None:
    """Wait until the server takes callers."""
    async with aiohttp.ClientSession() as http:
        for _ in range(300):
            try:
                async with http.get(f"{url}/health") as response:
                    if response.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit("the server did not come up")


if __name__ == "__main__":
    main()
