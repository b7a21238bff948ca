"""Drive Pipecat's OpenAI Realtime service inside an ordinary pipeline with a transport that plays in real time.

Arguments: the base URL, the key, a JSON object with `session` (session properties) and `vad` (true: turns are found locally, and the
server's detection is off). Orders: `run` (the application starts the conversation), `append` with `text`, `instructions` with `text`,
`user` with `is_speaking` (a turn that the application found), `history`, `send` with `event`.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from loguru import logger
from pipecat.frames import frames
from pipecat.pipeline.pipeline import Pipeline
from pipecat.pipeline.worker import PipelineParams, PipelineWorker
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.processors.aggregators.llm_response_universal import LLMContextAggregatorPair
from pipecat.processors.frame_processor import FrameDirection, FrameProcessor
from pipecat.services.openai.realtime import events
from pipecat.services.openai.realtime.llm import OpenAIRealtimeLLMService
from pipecat.transports.base_input import BaseInputTransport
from pipecat.transports.base_output import BaseOutputTransport
from pipecat.transports.base_transport import TransportParams
from pipecat.workers.runner import WorkerRunner

from tests.clients.stage import RATE, Order, Stage, report, report_audio

SHOWN = {
    frames.LLMFullResponseStartFrame: "response_started",
    frames.LLMFullResponseEndFrame: "response_ended",
    frames.TTSStartedFrame: "turn_started",
    frames.TTSStoppedFrame: "turn_ended",
    frames.InterruptionFrame: "interrupted",
    frames.UserStartedSpeakingFrame: "user_started",
    frames.UserStoppedSpeakingFrame: "user_stopped",
    frames.BotStoppedSpeakingFrame: "bot_stopped",
}


class Reporter(FrameProcessor):
    """Reports what the service hands on to the rest of the pipeline."""

    async def process_frame(self, frame: frames.Frame, direction: FrameDirection) -> None:
        await super().process_frame(frame, direction)
        if isinstance(frame, frames.TTSAudioRawFrame):
            report_audio(frame.audio, rate=frame.sample_rate)
        elif isinstance(frame, frames.TTSTextFrame):
            report("text", text=frame.text)
        elif type(frame) in SHOWN:
            report(SHOWN[type(frame)])
        await self.push_frame(frame, direction)


class Ear(BaseInputTransport):
    """The microphone's end of the pipeline."""

    is_ready = False

    async def start(self, frame: frames.StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)
        self.is_ready = True

    async def hear(self, pcm: bytes) -> None:
        if self.is_ready:
            await self.push_audio_frame(frames.InputAudioRawFrame(audio=pcm, sample_rate=RATE, num_channels=1))


class Mouth(BaseOutputTransport):
    """A loudspeaker without sound, as slow as a real one."""

    async def start(self, frame: frames.StartFrame) -> None:
        await super().start(frame)
        await self.set_transport_ready(frame)

    async def write_audio_frame(self, frame: frames.OutputAudioRawFrame) -> bool:
        await asyncio.sleep(len(frame.audio) / 2 / RATE)
        return True


async def main(url: str, key: str, options: str = "{}") -> None:
    logger.remove()
    logger.add(sys.stderr, level="WARNING")
    chosen: dict[str, Any] = json.loads(options)
    settings = OpenAIRealtimeLLMService.Settings(
        system_instruction="You are Ada.", session_properties=events.SessionProperties(**chosen.get("session", {}))
    )
    service = OpenAIRealtimeLLMService(api_key=key, base_url=url, settings=settings)
    context = LLMContext([])
    aggregators = LLMContextAggregatorPair(context)
    params = TransportParams(audio_in_enabled=True, audio_out_enabled=True, audio_in_sample_rate=RATE, audio_out_sample_rate=RATE)
    ear = Ear(params)
    pipeline = Pipeline([ear, aggregators.user(), service, Reporter(), Mouth(params), aggregators.assistant()])
    worker = PipelineWorker(pipeline, params=PipelineParams(audio_in_sample_rate=RATE, audio_out_sample_rate=RATE), enable_rtvi=False)

    @worker.event_handler("on_pipeline_error")
    async def on_pipeline_error(_worker: Any, frame: frames.ErrorFrame) -> None:
        report("error", detail=frame.error, is_fatal=frame.fatal, is_usable=getattr(frame.processor, "is_usable", None))

    @worker.event_handler("on_pipeline_started")
    async def on_pipeline_started(_worker: Any, _frame: Any) -> None:
        report("connected")

    async def act(order: Order) -> None:
        match order["do"]:
            case "run":
                await worker.queue_frame(frames.LLMRunFrame())
            case "append":
                message = {"role": "user", "content": order["text"]}
                await worker.queue_frame(frames.LLMMessagesAppendFrame([message], run_llm=order.get("run", False)))
            case "instructions":
                delta = OpenAIRealtimeLLMService.Settings(system_instruction=order["text"])
                await worker.queue_frame(frames.LLMUpdateSettingsFrame(delta=delta))
            case "user":
                kind = frames.UserStartedSpeakingFrame if order["is_speaking"] else frames.UserStoppedSpeakingFrame
                if order["is_speaking"]:
                    await worker.queue_frame(frames.InterruptionFrame())
                await worker.queue_frame(kind())
            case "history":
                report("history", items=context.get_messages())
            case "send":
                await service._ws_send(order["event"])

    runner = WorkerRunner(handle_sigint=False)
    await runner.add_workers(worker)
    stage = Stage()
    await stage.run(runner.run(), act=act, send=ear.hear)
    await worker.cancel()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
