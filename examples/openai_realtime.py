"""Say a WAV file to the model with OpenAI's own Python client and write what it answers. Needs `pip install 'openai[realtime]'`.

    python -m examples.openai_realtime question.wav answer.wav

Only the URL differs from OpenAI's service. The model listens all the time: no commit and no response.create, just a microphone's pace.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import time

import numpy as np
from openai import APIConnectionError, AsyncOpenAI
from openai.resources.realtime.realtime import AsyncRealtimeConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus

from examples.wav import RATE, read_wav, write_wav

CHUNK = RATE // 25  # 40 ms


async def speak(connection: AsyncRealtimeConnection, pcm: np.ndarray) -> None:
    """Send the microphone's audio, 40 ms at a time, when it would have been recorded; then hang up."""
    started_s = time.perf_counter()
    for start in range(0, len(pcm), CHUNK):
        await asyncio.sleep(started_s + (start + CHUNK) / RATE - time.perf_counter())
        samples = (pcm[start : start + CHUNK] * 32767).astype("<i2")
        await connection.input_audio_buffer.append(audio=base64.b64encode(samples.tobytes()).decode())
    await connection.close()


async def talk(args: argparse.Namespace, pcm: np.ndarray) -> list[bytes]:
    """Hold the conversation; return the audio of the answers."""
    answer: list[bytes] = []
    client = AsyncOpenAI(api_key=args.key, base_url=args.url)
    async with client.realtime.connect(model=args.model) as connection:
        await connection.session.update(session={"type": "realtime", "instructions": args.persona})
        speaking = asyncio.create_task(speak(connection, pcm))
        async for event in connection:
            match event.type:
                case "response.output_audio.delta":
                    answer.append(base64.b64decode(event.delta))
                case "response.output_audio_transcript.delta":
                    print(event.delta, end="", flush=True)
                case "response.done":
                    print(f" [{event.response.status}]")
                case "input_audio_buffer.speech_started":
                    print("[you]")  # an application with a loudspeaker empties it here
                case "error":
                    print(f"! {event.error.message}")
        await asyncio.gather(speaking, return_exceptions=True)
    return answer


def main() -> None:
    """Run the client."""
    parser = argparse.ArgumentParser(description="Say a WAV file to the model, write its answer.")
    parser.add_argument("input", help="WAV to say (16-bit)")
    parser.add_argument("output", help="WAV to write")
    parser.add_argument("--url", default="http://127.0.0.1:8998/v1")
    parser.add_argument("--key", default="none", help="an API key, where the server wants one")
    parser.add_argument("--model", default="gateway", help="any name will do")
    parser.add_argument("--persona", default="Your name is Nova.", help="who the model is")
    parser.add_argument("--listen-seconds", type=float, default=8.0, help="silence after the WAV, in which the model may speak")
    args = parser.parse_args()
    pcm = np.concatenate([read_wav(args.input), np.zeros(int(args.listen_seconds * RATE), np.float32)])
    try:
        answer = asyncio.run(talk(args, pcm))
    except (OSError, APIConnectionError, ConnectionClosed, InvalidStatus) as error:
        raise SystemExit(f"no call: {error}") from None
    write_wav(args.output, np.frombuffer(b"".join(answer), "<i2").astype(np.float32) / 32768)


if __name__ == "__main__":
    main()
