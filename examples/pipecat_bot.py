"""A Pipecat bot on this gateway, with WAV files in place of a telephone. Needs `pip install 'pipecat-ai[openai]'`.

    python examples/pipecat_bot.py question.wav answer.wav [URL [SECONDS_TO_LISTEN]]

A real bot has its transport's input and output where Ear and Mouth are. The service appends `?model=...` to the URL by itself.
"""

import asyncio
import os
import sys
import wave
from pathlib import Path

from pipecat.frames.frames import InputAudioRawFrame, OutputAudioRawFrame, StartFrame
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

RATE = 24_000
CHUNK_BYTES, HEADER_BYTES = RATE // 50 * 2, 44  # 20 ms


class Ear(BaseInputTransport):
    """Hears the WAV file at its own pace, then silence."""

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def hear(self, pcm: bytes) -> None:
        for at in range(0, len(pcm), CHUNK_BYTES):
            await self.push_audio_frame(InputAudioRawFrame(audio=pcm[at : at + CHUNK_BYTES], sample_rate=RATE, num_channels=1))
            await asyncio.sleep(0.02)


class Mouth(BaseOutputTransport):
    """Plays into memory, as slowly as a loudspeaker: an interruption cuts it off as it would there."""

    said = b""

    async def start(self, frame: StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: OutputAudioRawFrame) -> bool:
        self.said += frame.audio
        await asyncio.sleep(len(frame.audio) / 2 / RATE)
        return True


async def main(question: str, answer: str, url: str = "ws://127.0.0.1:8998/v1/realtime", listen_s: str = "8") -> None:
    settings = OpenAIRealtimeLLMService.Settings(system_instruction="Your name is Nova.")
    service = OpenAIRealtimeLLMService(api_key=os.environ.get("OPENAI_API_KEY", "none"), base_url=url, settings=settings)
    aggregators = LLMContextAggregatorPair(LLMContext())
    params = TransportParams(audio_in_enabled=True, audio_out_enabled=True, audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    ear, mouth = Ear(params), Mouth(params)
    worker = PipelineWorker(Pipeline([ear, aggregators.user(), service, mouth, aggregators.assistant()]), params=PipelineParams())

    @worker.event_handler("on_pipeline_started")
    async def on_pipeline_started(_worker: PipelineWorker, _frame: StartFrame) -> None:
        await ear.hear(Path(question).read_bytes()[HEADER_BYTES:] + bytes(int(float(listen_s) * RATE) * 2))
        await worker.cancel()

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    await runner.run()
    with wave.open(answer, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(mouth.said)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
