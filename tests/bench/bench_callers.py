"""Callers of both kinds on one engine: `python -m tests.bench.bench_callers --realtime 8 --chat 8 --seconds 40`.

A gateway with the bundled model and a slot for each caller runs in a process of its own. Realtime callers send 20 ms messages, /api/chat
callers an Opus page every 80 ms; all say "Hello." every five seconds, at different phases. Their messages are made beforehand, so that the
callers cost little. Printed, after a warm-up: share of the 80 ms that a step takes, frames that were dropped or missing, the longest gaps
between the answers of /api/chat, and the CPU that the server and the callers took.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import tempfile
import time
from pathlib import Path

import aiohttp
import numpy as np
import psutil
from prometheus_client.parser import text_string_to_metric_families

from protocols import FRAME_SAMPLES, SAMPLE_RATE
from protocols.opus import OggOpusWriter
from tests.integration.real import RealGateway, hello

FRAME_S = FRAME_SAMPLES / SAMPLE_RATE
TURN_S = 5.0  # one "Hello." in so many seconds
WARM_UP_S = 5.0  # calls of different phases settle


async def send(
    ws: aiohttp.ClientWebSocketResponse, messages: list[str] | list[bytes], every_s: float, start: int, stop: asyncio.Event
) -> int:
    """Send messages at their pace, over and over; return how many."""
    due_s, num_sent = time.monotonic(), 0
    while not stop.is_set():
        message = messages[(start + num_sent) % len(messages)]
        await (ws.send_str(message) if isinstance(message, str) else ws.send_bytes(message))
        num_sent += 1
        due_s += every_s
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
    return num_sent


async def realtime(http: aiohttp.ClientSession, url: str, idx: int, messages: list[str], stop: asyncio.Event) -> dict[str, float]:
    """One Realtime caller; what came."""
    deltas: list[float] = []
    seen: dict[str, float] = {}
    async with http.ws_connect(f"{url}/v1/realtime", max_msg_size=0) as ws:

        async def listen() -> None:
            async for message in ws:
                kind = json.loads(message.data)["type"]
                seen[kind] = seen.get(kind, 0) + 1
                if kind == "response.output_audio.delta":
                    deltas.append(time.monotonic())

        listening = asyncio.create_task(listen())
        await send(ws, messages, 0.02, idx * 37, stop)
        await ws.close()
        await listening
    gaps = np.diff(deltas)
    return {"deltas": len(deltas), "responses": seen.get("response.done", 0), "late": float(np.sum((gaps > 0.2) & (gaps < 0.8)))}


async def chat(http: aiohttp.ClientSession, url: str, idx: int, pages: list[bytes], stop: asyncio.Event) -> dict[str, float]:
    """One /api/chat caller; what came."""
    answers: list[float] = []
    async with http.ws_connect(f"{url}/api/chat", max_msg_size=0) as ws:
        while (await ws.receive_bytes())[:1] != b"\x00":
            pass

        async def listen() -> None:
            async for message in ws:
                if message.data[:1] == b"\x01":
                    answers.append(time.monotonic())

        listening = asyncio.create_task(listen())
        # an Ogg stream cannot start in its middle: the phase is a pause
        await asyncio.sleep(idx * FRAME_S / 8)
        num_sent = await send(ws, pages, FRAME_S, 0, stop)
        await ws.close()
        await listening
    gaps = np.diff([at for at in answers if at > answers[0] + WARM_UP_S])
    return {"sent": num_sent, "answered": len(answers), "max_gap_s": float(gaps.max()), "p99_gap_s": float(np.percentile(gaps, 99))}


async def histogram(http: aiohttp.ClientSession, url: str) -> tuple[dict[str, float], dict[str, float]]:
    """Buckets of the step time, and dropped frames by direction and reason."""
    async with http.get(f"{url}/metrics") as reply:
        families = list(text_string_to_metric_families(await reply.text()))
    samples = [sample for family in families for sample in family.samples]
    steps = {s.labels["le"]: s.value for s in samples if s.name == "gateway_step_seconds_bucket"}
    steps["sum"] = next(s.value for s in samples if s.name == "gateway_step_seconds_sum")
    steps["rows"] = next(s.value for s in samples if s.name == "gateway_batch_rows_sum")
    dropped = {f"{s.labels['direction']} {s.labels['reason']}": s.value for s in samples if s.name == "gateway_frames_dropped_total"}
    return steps, dropped


async def run(args: argparse.Namespace, gateway: RealGateway) -> None:
    """Hold the calls and print what was measured."""
    url = f"http://127.0.0.1:{gateway.port}"
    pcm = hello(TURN_S)
    chunks = (pcm * 32767).astype("<i2").reshape(-1, SAMPLE_RATE // 50)
    texts = [json.dumps({"type": "input_audio_buffer.append", "audio": base64.b64encode(chunk.tobytes()).decode()}) for chunk in chunks]
    writer = OggOpusWriter(SAMPLE_RATE)
    frames = pcm[: pcm.size // FRAME_SAMPLES * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    pages = [b"\x01" + writer.encode(frame) for _ in range(int(args.seconds / TURN_S) + 4) for frame in frames]
    stop = asyncio.Event()
    async with aiohttp.ClientSession() as http:
        calls = [asyncio.create_task(realtime(http, url, idx, texts, stop)) for idx in range(args.realtime)]
        calls += [asyncio.create_task(chat(http, url, idx, pages, stop)) for idx in range(args.chat)]
        await asyncio.sleep(WARM_UP_S)
        server, own = psutil.Process(gateway.process.pid), psutil.Process()
        before, used = await histogram(http, url), [sum(process.cpu_times()[:2]) for process in (server, own)]
        started_s = time.monotonic()
        await asyncio.sleep(args.seconds)
        wall_s = time.monotonic() - started_s
        cpu = [(sum(process.cpu_times()[:2]) - then) / wall_s for process, then in zip((server, own), used, strict=True)]
        after = await histogram(http, url)
        stop.set()
        results = await asyncio.gather(*calls)
    report(args, before, after, cpu, results)


def report(args: argparse.Namespace, before: tuple, after: tuple, cpu: list[float], results: list[dict[str, float]]) -> None:
    """Print it."""
    steps = {key: after[0][key] - before[0][key] for key in after[0]}
    count = steps["+Inf"]
    print(f"{args.realtime} Realtime and {args.chat} /api/chat callers, {args.seconds} s after the warm-up")
    mean = steps["sum"] / count / FRAME_S
    print(f"steps: {count / args.seconds:.1f} a second of {steps['rows'] / count:.1f} rows, mean {mean:.2f} of a frame")
    shares = ", ".join(f"{steps[le] / count:.1%} <= {float(le) / FRAME_S:.2f}" for le in steps if le not in ("+Inf", "sum", "rows"))
    print(f"share of steps that took at most so much of a frame: {shares}")
    dropped = {key: after[1][key] - before[1].get(key, 0) for key in after[1]}
    print(f"frames dropped: { {key: value for key, value in dropped.items() if value} or 'none'}")
    print(f"CPU: server {cpu[0]:.2f} of a core, callers {cpu[1]:.2f}")
    for result in results:
        print("  " + ", ".join(f"{key} {value:.3g}" for key, value in result.items()))


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--realtime", type=int, default=8)
    parser.add_argument("--chat", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=40.0)
    parser.add_argument("--flags", nargs="*", default=[], help="further flags of the gateway, without --")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--model", "tiny", "--batch-size", str(args.realtime + args.chat), *(f"--{flag}" for flag in args.flags)]
        gateway = RealGateway(Path(folder) / "log", *flags)
        try:
            gateway.wait_for("ready: ")
            print(next(line for line in gateway.log.splitlines() if "a step takes" in line).split("ticker ")[-1])
            asyncio.run(run(args, gateway))
        finally:
            gateway.kill()


if __name__ == "__main__":
    main()
