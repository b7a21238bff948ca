"""Say a WAV file to the model over /api/chat, as the official Moshi clients do (Ogg-Opus), listen, and write what it answers.

    python -m examples.chat_client question.wav answer.wav --listen-seconds 5
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import time

import aiohttp
import numpy as np

from examples.dial import dial
from examples.wav import RATE, read_wav, write_wav
from protocols import OggOpusReader, OggOpusWriter

FRAME = 1920  # samples, 80 ms
HANDSHAKE, AUDIO, TEXT, ERROR = 0, 1, 2, 5  # the first byte of a message


async def speak(ws: aiohttp.ClientWebSocketResponse, pcm: np.ndarray) -> None:
    """Send the frames in real time, then hang up."""
    writer = OggOpusWriter(RATE)
    started_s = time.perf_counter()
    with contextlib.suppress(ConnectionError):  # the reader tells why
        for start in range(0, len(pcm), FRAME):
            await asyncio.sleep(started_s + (start + FRAME) / RATE - time.perf_counter())
            await ws.send_bytes(bytes([AUDIO]) + writer.encode(pcm[start : start + FRAME]))
    await asyncio.sleep(2 * FRAME / RATE)  # for the answer to the last frame
    await ws.close()


async def talk(args: argparse.Namespace, pcm: np.ndarray) -> list[np.ndarray]:
    """Hold the conversation; return the pieces of the answer."""
    query = {"voice_prompt": args.voice, "text_prompt": args.persona, "seed": args.seed}
    params = {key: value for key, value in query.items() if value is not None}
    reader = OggOpusReader(RATE)
    pieces: list[np.ndarray] = []
    speaker = None
    error = ""
    async with dial(args.url, args.key, params=params) as ws:
        async for message in ws:
            tag, payload = message.data[0], message.data[1:]
            if tag == HANDSHAKE:
                speaker = asyncio.create_task(speak(ws, pcm))
            elif tag == AUDIO:
                pieces.append(reader.feed(payload, time.perf_counter()))
            elif tag == TEXT:
                print(payload.decode(), end="", flush=True)
            elif tag == ERROR:
                error = payload.decode()
                print(f"\n! {error}")
        if speaker is not None:
            await speaker
        if ws.close_code == aiohttp.WSCloseCode.TRY_AGAIN_LATER:
            raise SystemExit(f"server full: {error} (1013)")
        if ws.close_code != aiohttp.WSCloseCode.OK:
            raise SystemExit(f"closed by the server: {error} ({ws.close_code})")
    print(f"\n{sum(map(len, pieces)) / RATE:.2f} s of audio")
    return pieces


def main() -> None:
    """Run the client."""
    parser = argparse.ArgumentParser(description="Say a WAV file to the model, listen, write its answer.")
    parser.add_argument("input", help="WAV to say (16-bit)")
    parser.add_argument("output", help="WAV to write")
    parser.add_argument("--url", default="ws://127.0.0.1:8998/api/chat")
    parser.add_argument("--key", help="API key, where the server wants one")
    parser.add_argument("--listen-seconds", type=float, default=5.0, help="silence after the WAV, in which the model may speak")
    parser.add_argument("--voice", help="a voice of the server, see /v1/voices")
    parser.add_argument("--persona", help="who the model is")
    parser.add_argument("--seed", help="for the same answer every time")
    args = parser.parse_args()
    silence = np.zeros(int(args.listen_seconds * RATE), np.float32)
    pcm = np.concatenate([read_wav(args.input), silence])
    pcm = pcm[: len(pcm) // FRAME * FRAME]
    try:
        pieces = asyncio.run(talk(args, pcm))
    except aiohttp.ClientError as error:
        raise SystemExit(f"no connection: {error}") from None
    write_wav(args.output, np.concatenate([np.empty(0, np.float32), *pieces]))


if __name__ == "__main__":
    main()
