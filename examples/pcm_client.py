"""Say a WAV file to the model over /v1/audio/duplex and write what it answers.

    python -m examples.pcm_client question.wav answer.wav            # as fast as the server can
    python -m examples.pcm_client question.wav answer.wav --live     # in real time, one frame every 80 ms
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import time

import aiohttp
import numpy as np

from examples.dial import dial
from examples.wav import RATE, read_wav, write_wav


async def send(ws: aiohttp.ClientWebSocketResponse, pcm: np.ndarray, frame_samples: int, sent_s: list[float] | None) -> None:
    """Send every frame, paced when the times of sending are wanted, then say that there is no more."""
    started_s = time.perf_counter()
    with contextlib.suppress(ConnectionError):  # the reader tells why
        for start in range(0, len(pcm), frame_samples):
            if sent_s is not None:
                await asyncio.sleep(started_s + (start + frame_samples) / RATE - time.perf_counter())  # a microphone has it only then
                sent_s.append(time.perf_counter())
            await ws.send_bytes(pcm[start : start + frame_samples].tobytes())
        await ws.send_str(json.dumps({"type": "close"}))


async def talk(args: argparse.Namespace, pcm: np.ndarray) -> list[np.ndarray]:
    """Hold the conversation; return the frames of the answer."""
    frames: list[np.ndarray] = []
    got_s: list[float] = []
    sent_s: list[float] | None = [] if args.live else None
    opening = {"type": "open", "voice": args.voice, "persona": args.persona, "seed": args.seed, "pacing": "live" if args.live else "script"}
    async with dial(args.url, args.key) as ws:
        await ws.send_str(json.dumps({key: value for key, value in opening.items() if value is not None}))
        sender = None
        error = ""
        async for message in ws:
            if message.type is aiohttp.WSMsgType.BINARY:
                got_s.append(time.perf_counter())
                frames.append(np.frombuffer(message.data, "<f4"))
                continue
            event = json.loads(message.data)
            match event["type"]:
                case "ready":
                    started_s = time.perf_counter()
                    sender = asyncio.create_task(send(ws, pcm, event["frame_samples"], sent_s))
                case "text":
                    print(event["text"], end="", flush=True)
                case "queued":
                    print(f"waiting, number {event['position']} in line")
                case "warning" | "error":
                    error = event.get("error") or event["warning"]
                    print(f"\n! {error}")
        if sender is not None:
            sender.cancel()
        if ws.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER:
            raise SystemExit(f"server full: {error} (1013)")
        if ws.close_code != aiohttp.WSCloseCode.OK:
            raise SystemExit(f"closed by the server: {error} ({ws.close_code})")
    print(f"\n{len(frames)} frames", end="")
    if sent_s:
        latency_ms = 1000 * (np.array(got_s) - np.array(sent_s[: len(got_s)]))
        print(f", answered after {np.median(latency_ms):.1f} ms (median), {np.percentile(latency_ms, 95):.1f} ms (95 %)")
    elif frames:
        print(f", {1000 * (got_s[-1] - started_s) / len(frames):.1f} ms each")
    return frames


def main() -> None:
    """Run the client."""
    parser = argparse.ArgumentParser(description="Say a WAV file to the model, write its answer.")
    parser.add_argument("input", help="WAV to say (16-bit)")
    parser.add_argument("output", help="WAV to write")
    parser.add_argument("--url", default="ws://127.0.0.1:8998/v1/audio/duplex")
    parser.add_argument("--key", help="API key, where the server wants one")
    parser.add_argument("--listen-seconds", type=float, default=5.0, help="silence after the WAV, in which the model may speak")
    parser.add_argument("--live", action="store_true", help="speak in real time")
    parser.add_argument("--voice", help="a voice of the server, see /v1/voices")
    parser.add_argument("--persona", help="who the model is")
    parser.add_argument("--seed", type=int, help="for the same answer every time")
    args = parser.parse_args()
    pcm = np.concatenate([read_wav(args.input), np.zeros(int(args.listen_seconds * RATE), np.float32)])
    try:
        frames = asyncio.run(talk(args, pcm))
    except aiohttp.ClientError as error:
        raise SystemExit(f"no connection: {error}") from None
    write_wav(args.output, np.concatenate([np.empty(0, np.float32), *frames]))


if __name__ == "__main__":
    main()
