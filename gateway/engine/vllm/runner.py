"""vLLM's CPU and CUDA workers with two seams taken over: the input embeddings before the forward pass, and sampling after it.

All frame logic is lm.frames.LockstepFrames; this file only tells it which slots vLLM runs and in what order. While vLLM profiles or
captures (`frames` is None) everything is vLLM's own. vLLM's newer runner offers the same seams as `ModelState.prepare_inputs_embeds` and
`custom_sampler`. Thread: tick.
"""

from __future__ import annotations

from array import array
from typing import Any

import torch
from torch import Tensor
from vllm.platforms import current_platform
from vllm.v1.outputs import SamplerOutput
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from gateway.engine.lm.frames import Chunk, LockstepFrames


class LockstepRunner:
    """Mixin over one of vLLM's model runners."""

    frames: LockstepFrames | None = None
    slot_of: dict[str, int]  # request id -> slot
    steered: frozenset[int] = frozenset()  # slots forced to silence in this step
    finished: list[tuple[list[int], Tensor]]  # slots advanced in this step with their codec codes [N, CODEBOOKS]
    _chunks: list[Chunk]

    def _update_states(self, scheduler_output: Any) -> Any:
        # A call that skips a step leaves vLLM's batch, and on its return all its tokens are copied in: from an array that is a block copy,
        # from vLLM's list it would take milliseconds after an hour.
        result = super()._update_states(scheduler_output)  # type: ignore[misc]
        for request in scheduler_output.scheduled_new_reqs:
            tokens: array[int] = array("i")
            self.requests[request.req_id].output_token_ids = tokens  # type: ignore[attr-defined]
            batch = self.input_batch  # type: ignore[attr-defined]
            batch.req_output_token_ids[batch.req_id_to_index[request.req_id]] = tokens
        return result

    def _preprocess(self, scheduler_output: Any, num_input_tokens: int, intermediate_tensors: Any = None) -> Any:
        result = super()._preprocess(scheduler_output, num_input_tokens, intermediate_tensors)  # type: ignore[misc]
        if self.frames is None:
            return result
        batch = self.input_batch  # type: ignore[attr-defined]
        self._chunks = [
            Chunk(self.slot_of[request_id], int(batch.num_computed_tokens_cpu[i]), scheduler_output.num_scheduled_tokens[request_id])
            for i, request_id in enumerate(batch.req_ids)
        ]
        target = self.inputs_embeds.gpu  # type: ignore[attr-defined]
        self.frames.embed(self._chunks, target)
        _, _, positions, intermediate_tensors, kwargs, connector = result
        return None, target[:num_input_tokens], positions, intermediate_tensors, kwargs, connector

    def _sample(self, logits: Tensor, spec_decode_metadata: Any) -> SamplerOutput:
        if self.frames is None:
            return super()._sample(logits, spec_decode_metadata)  # type: ignore[misc]
        tokens = torch.zeros(len(self._chunks), 1, dtype=torch.int32, device=logits.device)
        ends = [i for i, chunk in enumerate(self._chunks) if chunk.start + chunk.count >= self.frames.prompt_len(chunk.slot_idx)]
        if ends:
            slots = [self._chunks[i].slot_idx for i in ends]
            live = [self._chunks[i].start >= self.frames.prompt_len(slot_idx) for i, slot_idx in zip(ends, slots, strict=True)]
            steered = [slot_idx in self.steered for slot_idx in slots]
            hidden = self.model.last_hidden  # type: ignore[attr-defined]
            if len(ends) < len(self._chunks):
                hidden, logits = hidden[ends], logits[ends]
            text, codes = self.frames.advance(slots, live, steered, hidden, logits)
            tokens[ends, 0] = text.to(torch.int32)
            self.finished.append((slots, codes))
        return SamplerOutput(sampled_token_ids=tokens, logprobs_tensors=None)


if current_platform.is_cuda():
    from vllm.v1.worker.gpu_worker import Worker

    class CudaRunner(LockstepRunner, GPUModelRunner):
        """The CUDA runner with our seams."""

    class LockstepWorker(Worker):
        """The CUDA worker with our runner."""

        def _make_model_runner(self) -> GPUModelRunner:
            return CudaRunner(self.vllm_config, self.device)

else:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner
    from vllm.v1.worker.cpu_worker import CPUWorker

    class CpuRunner(LockstepRunner, CPUModelRunner):
        """The CPU runner with our seams."""

    class LockstepWorker(CPUWorker):  # type: ignore[no-redef]
        """The CPU worker with our runner."""

        def init_device(self) -> None:
            super().init_device()
            self.model_runner = CpuRunner(self.vllm_config, torch.device("cpu"))
