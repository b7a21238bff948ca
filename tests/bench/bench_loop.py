"""What callers cost the event loop: `python -m tests.bench.bench_loop --calls 8`.

The server runs in a process of its own with an engine that takes no time, so that its main thread, the loop, can be looked at alone: CPU
time by thread is the kernel's. Three kinds of callers, one after another: Realtime callers whose model is kept silent (50 messages of 20 ms
a second come in, next to nothing goes out), the same with a model that always speaks (a delta a frame goes out as well), and /api/chat (an
Opus page each way a frame). Printed: microseconds of the loop for each message of 20 ms, or each frame, and as a share of one core.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
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
from tests.bench.bench_callers import send
from tests.bench.bench_gateway import ROOT, wait_ready

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
APPEND_S = 0.02
GATE = {"turn_detection": {"type": "server_vad", "create_response": False}}  # the model is kept silent
GATED = json.dumps({"type": "session.update", "session": {"type": "realtime", "audio": {"input": GATE}}})


async def realtime(http: aiohttp.ClientSession, url: str, stop: asyncio.Event, phase_s: float, *, first: str | None) -> None:
    """One Realtime caller; `first` is sent before any audio."""
    rng = np.random.default_rng(0)
    noise = (rng.standard_normal((50, SAMPLE_RATE // 50)) * 300).astype("<i2")
    texts = [json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(chunk.tobytes()).decode()}) for chunk in noise]
    async with http.ws_connect(f"{url}/v1/realtime", max_msg_size=0) as ws:
        if first is not None:
            await ws.send_str(first)
        await _talk(ws, texts, APPEND_S, stop, phase_s)


async def chat(http: aiohttp.ClientSession, url: str, stop: asyncio.Event, phase_s: float, *, seconds: float) -> None:
    """One /api/chat caller."""
    writer = OggOpusWriter(SAMPLE_RATE)
    tone = (0.2 * np.sin(np.arange(FRAME_SAMPLES) / 9)).astype(np.float32)
    pages = [b"\x01" + writer.encode(tone) for _ in range(int(seconds / FRAME_S))]
    async with http.ws_connect(f"{url}/api/chat", max_msg_size=0) as ws:
        while (await ws.receive_bytes())[:1] != b"\x00":
            pass
        await _talk(ws, pages, FRAME_S, stop, phase_s)


async def _talk(
    ws: aiohttp.ClientWebSocketResponse, messages: list[str] | list[bytes], every_s: float, stop: asyncio.Event, phase_s: float
) -> None:
    async def listen() -> None:
        async for _ in ws:
            pass

    listening = asyncio.create_task(listen())
    await asyncio.sleep(phase_s)
    await send(ws, messages, every_s, 0, stop)
    await ws.close()
    await listening


def loop_s(server: psutil.Process) -> float:
    """CPU seconds of the server's main thread; those of psutil come in steps of 10 ms."""
    return int(Path(f"/proc/{server.pid}/task/{server.pid}/schedstat").read_text(encoding="ascii").split()[0]) / 1e9


async def measure(url: str, server: psutil.Process, kind: str, calls: int, seconds: float) -> str:
    """Hold calls of one kind; return one line of the table."""
    stop = asyncio.Event()
    async with aiohttp.ClientSession() as http:
        every_s = FRAME_S if kind == "chat" else APPEND_S
        phases = np.random.default_rng(calls).random(calls) * every_s
        callers = [
            asyncio.create_task(
                chat(http, url, stop, float(phase_s), seconds=seconds + 8)
                if kind == "chat"
                else realtime(http, url, stop, float(phase_s), first=GATED if kind == "silent" else None)
            )
            for phase_s in phases
        ]
        await asyncio.sleep(3)  # everybody is in
        before, before_s = loop_s(server), time.monotonic()
        await asyncio.sleep(seconds)
        spent, wall_s = loop_s(server) - before, time.monotonic() - before_s
        stop.set()
        await asyncio.gather(*callers)
    return f"{kind:8s} {1e6 * spent / wall_s * every_s / calls:12.0f} {100 * spent / wall_s:12.1f} %"


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--kinds", nargs="+", default=["silent", "speaking", "chat"])
    parser.add_argument("--port", type=int, default=18971)
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}"
    command = [sys.executable, "tests/fake_gateway.py", json.dumps({}), "--port", str(options.port), "--log-level", "error"]
    with subprocess.Popen([*command, "--batch-size", str(options.calls)], cwd=ROOT, env={"PYTHONPATH": str(ROOT)}) as process:
        try:
            asyncio.run(wait_ready(url))
            print("callers  us of the loop for a message   a core")
            for kind in options.kinds:
                print(asyncio.run(measure(url, psutil.Process(process.pid), kind, options.calls, options.seconds)), flush=True)
        finally:
            process.terminate()


if __name__ == "__main__":
    main()
