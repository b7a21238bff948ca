"""One vLLM EngineCore in this process, driven one step at a time: one request per call, for as long as the call lasts.

Here: the four verbs open, step, close, shutdown. How vLLM is configured is setup.py; no frame logic and no codec here. The core must be
made and driven on one thread. Thread: tick.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gateway.engine.lm.frames import LockstepFrames
from gateway.engine.prompt import PromptRows
from gateway.engine.vllm.setup import CoreSetup, batch_buckets
from gateway.errors import ConfigError, EngineError
from protocols.events import SamplingOptions

_PLACEHOLDER = 7  # token id of every prompt row as vLLM sees it; the rows are ours, the salt tells prompts apart


class LockstepCore:
    """vLLM under the lockstep scheduler and runner."""

    def __init__(self, setup: CoreSetup, fits: int | None, progress: Callable[[str], None] = lambda line: None) -> None:
        """Load the model and allocate its KV cache.

        Args:
            setup: what to load and for how many.
            fits: what `setup.check_memory` returned.
            progress: takes lines for people.

        Raises:
            ConfigError: the checkpoint is broken, or the memory does not hold `num_slots` full windows; says how many fit.
        """
        self.setup = setup
        self.checkpoint = checkpoint = setup.checkpoint
        self._requests: dict[int, str] = {}
        self._prefilling: set[int] = set()
        self._num_opened = 0
        self._hits = 0
        progress("loading the language model")
        self._core = self._make_core()
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        self._runner.slot_of = {}
        self._runner.finished = []
        if fits is None:
            num_blocks = self._core.vllm_config.cache_config.num_gpu_blocks
            fits = self.setup.slots_that_fit(num_blocks * self.setup.block_bytes)
            self.setup.check_slots(fits)
        self.slots_that_fit = fits
        model = self._runner.model
        self.frames = LockstepFrames(checkpoint.lm, checkpoint.profile, model.embeddings.data, model.depth, num_slots=setup.num_slots)
        self.frames.warm_up(batch_buckets(setup.num_slots))
        self._runner.frames = self.frames

    def _make_core(self) -> Any:
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        with tempfile.TemporaryDirectory(prefix="duplex-gateway-") as folder:
            config = self.setup.engine_config(Path(folder))
            try:
                return EngineCore(config, Executor.get_class(config), log_stats=True)
            except (ValueError, torch.OutOfMemoryError) as error:  # vLLM's words for memory that does not suffice
                raise ConfigError(f"vLLM cannot start: {error}") from error

    @property
    def prefix_cache_hits(self) -> int:
        """Prompt rows served from vLLM's prefix cache so far, by its own counters."""
        return self._hits

    def open(self, slot_idx: int, prompt: PromptRows, sampling: SamplingOptions) -> None:
        """Start the request of a call; the following steps prefill it."""
        from vllm import SamplingParams
        from vllm.v1.engine import EngineCoreRequest

        self.frames.open(slot_idx, prompt, sampling)
        self._num_opened += 1
        request_id = f"{slot_idx}-{self._num_opened}"
        request, wave = self._core.preprocess_add_request(
            EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=[_PLACEHOLDER] * len(prompt.rows),
                cache_salt=prompt.salt,
                sampling_params=SamplingParams(temperature=0.0, max_tokens=2**31 - 1, ignore_eos=True, detokenize=False),
                mm_features=None,
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                data_parallel_rank=None,
            )
        )
        self._requests[slot_idx] = request_id
        self._prefilling.add(slot_idx)
        self._runner.slot_of[request_id] = slot_idx
        self._core.add_request(request, wave)

    def close(self, slot_idx: int) -> None:
        """End the request of a call and free its blocks."""
        request_id = self._requests.pop(slot_idx)
        self._prefilling.discard(slot_idx)
        self._core.abort_requests([request_id])
        self._runner.slot_of.pop(request_id)
        self.frames.close(slot_idx)

    def step(self, armed: Sequence[int], steered: frozenset[int]) -> tuple[list[int], list[int], Tensor | None]:
        """Run the armed slots by one position and the prefilling ones by one chunk.

        Returns:
            the slots that advanced (armed ones, and those whose prompt is complete now), which of them were prefilling, and the codec codes
            int64 [N, CODEBOOKS] of the advanced slots in that order (None when no slot advanced).

        Raises:
            EngineError: an armed slot did not advance (out of memory or past the model's length).
        """
        if not armed and not self._prefilling:
            return [], [], None
        self._core.scheduler.armed = frozenset(self._requests[slot_idx] for slot_idx in (*armed, *self._prefilling))
        self._runner.steered = steered
        self._runner.finished = []
        outputs, executed = self._core.step_fn()
        self._core.post_step(model_executed=executed)
        for output in (outputs or {}).values():
            if output.scheduler_stats is not None:
                self._hits += output.scheduler_stats.prefix_cache_stats.hits
        slots = [slot_idx for part, _ in self._runner.finished for slot_idx in part]
        if not set(armed) <= set(slots):
            raise EngineError(f"slots {sorted(set(armed) - set(slots))} were armed but did not run")
        completed = [slot_idx for slot_idx in slots if slot_idx in self._prefilling]
        self._prefilling.difference_update(completed)
        codes = torch.cat([codes for _, codes in self._runner.finished]) if slots else None
        return slots, completed, codes

    @property
    def is_finite(self) -> bool:
        """Whether the states of the last step are numbers; broken weights make others."""
        return bool(torch.isfinite(self._runner.model.last_hidden).all())

    def shutdown(self) -> None:
        """Free the model and the cache."""
        self._core.shutdown()
