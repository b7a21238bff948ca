"""One vLLM EngineCore in this process, driven one step at a time: one request per call, for as long as the call lasts.

Here: how vLLM is configured, how many slots its memory holds, and the four verbs open, step, close, shutdown. No frame logic and no codec. The
core must be made and driven on one thread. Thread: tick.
"""

from __future__ import annotations

import json
import logging
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.lm.frames import LockstepFrames
from gateway.engine.prompt import PromptRows
from gateway.errors import ConfigError, EngineError
from protocols.events import SamplingOptions

logger = logging.getLogger(__name__)

# Positions of one KV block: the smallest that each platform's attention takes, so that short prompts are shared by whole blocks.
BLOCK_SIZE_CPU, BLOCK_SIZE_CUDA = 32, 16
PREFILL_CHUNK_CPU, PREFILL_CHUNK_CUDA = 64, 256  # prompt rows per step: what a joining caller may cost the others
_PLACEHOLDER = 7  # token id of every prompt row as vLLM sees it; the rows are ours, the salt tells prompts apart


def batch_buckets(num_slots: int) -> list[int]:
    """Batch sizes that are captured as CUDA graphs: powers of two, then multiples of 16, and `num_slots` itself."""
    sizes = {size for size in (1, 2, 4, 8, *range(16, num_slots, 16)) if size < num_slots}
    return sorted(sizes | {num_slots})


class LockstepCore:
    """vLLM under the lockstep scheduler and runner."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        num_slots: int,
        max_model_len: int,
        kv_cache_dtype: str,
        gpu_memory_utilization: float,
        dtype: str | None = None,
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        """Load the model and allocate its KV cache.

        Args:
            checkpoint: the model.
            num_slots: calls at once.
            max_model_len: longest call in positions, prompt included.
            kv_cache_dtype: "auto" or one of vLLM's, e.g. "fp8".
            gpu_memory_utilization: share of the GPU's memory that vLLM may take for weights and KV.
            dtype: run dtype; None is bfloat16 on CUDA and float32 on a CPU.
            progress: takes lines for people.

        Raises:
            ConfigError: the checkpoint is broken, or the memory does not hold `num_slots` full windows; says how many fit.
        """
        self._is_cuda = torch.cuda.is_available()
        self._block_size = BLOCK_SIZE_CUDA if self._is_cuda else BLOCK_SIZE_CPU
        self._chunk = PREFILL_CHUNK_CUDA if self._is_cuda else PREFILL_CHUNK_CPU
        self._num_slots = num_slots
        self.checkpoint = checkpoint
        self._dtype = dtype or ("bfloat16" if self._is_cuda else "float32")
        self._folder = tempfile.TemporaryDirectory(prefix="duplex-gateway-")
        self._requests: dict[int, str] = {}
        self._prefilling: set[int] = set()
        self._num_opened = 0
        self._hits = 0
        config = self._engine_args(max_model_len, kv_cache_dtype, gpu_memory_utilization)
        from vllm.v1.engine.core import EngineCore
        from vllm.v1.executor import Executor

        progress("loading the language model")
        # An uncaught error inside vLLM's constructor keeps its own type; a ConfigError of our loader passes through it unchanged.
        self._core = EngineCore(config, Executor.get_class(config), log_stats=True)
        self._runner = self._core.model_executor.driver_worker.worker.model_runner
        self._runner.slot_of = {}
        self._runner.finished = []
        self._check_capacity(config)
        model = self._runner.model
        self.frames = LockstepFrames(checkpoint.lm, checkpoint.profile, model.embeddings.data, model.depth, num_slots=num_slots)
        self.frames.warm_up(batch_buckets(num_slots))
        self._runner.frames = self.frames

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self._runner.device

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

    def shutdown(self) -> None:
        """Free the model and the cache."""
        self._core.shutdown()
        self._folder.cleanup()

    def _engine_args(self, max_model_len: int, kv_cache_dtype: str, gpu_memory_utilization: float) -> Any:
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.models import ModelRegistry

        from gateway.engine.vllm import model as lockstep_model
        from gateway.engine.vllm.scheduler import LockstepScheduler

        if lockstep_model.ARCHITECTURE not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(lockstep_model.ARCHITECTURE, f"{lockstep_model.__name__}:{lockstep_model.ARCHITECTURE}")
        self._write_config(max_model_len, lockstep_model.ARCHITECTURE)
        buckets = batch_buckets(self._num_slots)
        options: dict[str, Any] = {"enforce_eager": True}
        if self._is_cuda:
            options = {
                # FlashAttention's decode graphs gave wrong attention on one H200 for heads of 32 while a call was shorter than its window
                # (eager ones were right, heads of 128 were right either way): other head sizes take the Triton kernel.
                "attention_backend": None if self.checkpoint.lm.head_dim == 128 else "TRITON_ATTN",
                "enforce_eager": False,
                "compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY", "mode": 0, "cudagraph_capture_sizes": buckets},
            }
        else:
            options["kv_cache_memory_bytes"] = self._kv_bytes()
        return EngineArgs(
            model=self._folder.name,
            load_format=lockstep_model.LOAD_FORMAT,
            skip_tokenizer_init=True,
            dtype=self._dtype,
            block_size=self._block_size,
            kv_cache_dtype=kv_cache_dtype,
            gpu_memory_utilization=gpu_memory_utilization,
            max_num_seqs=self._num_slots,
            max_model_len=max_model_len,
            max_num_batched_tokens=self._chunk + self._num_slots,
            long_prefill_token_threshold=self._chunk,
            enable_prompt_embeds=True,
            enable_prefix_caching=True,
            async_scheduling=False,
            disable_log_stats=True,
            worker_cls="gateway.engine.vllm.runner.LockstepWorker",
            scheduler_cls=LockstepScheduler,
            additional_config={"checkpoint": self.checkpoint},
            **options,
        ).create_engine_config()

    @property
    def _blocks_per_slot(self) -> int:
        """KV blocks of a call at its full window: its keys may start inside a block. Prompts are shorter than a window, so a call that is
        being prefilled has fewer."""
        return math.ceil(self.checkpoint.profile.window / self._block_size) + 1

    def _kv_bytes(self) -> int:
        """KV memory of all slots at their full windows, vLLM's null block, and what vLLM insists on for one request of maximal chunks."""
        lm = self.checkpoint.lm
        itemsize = torch.finfo(getattr(torch, self._dtype)).bits // 8
        one_request = math.ceil((self.checkpoint.profile.window + self._chunk + self._num_slots) / self._block_size) + 2
        num_blocks = max(self._num_slots * self._blocks_per_slot + 1, one_request)
        return num_blocks * self._block_size * 2 * lm.num_layers * lm.dim * itemsize

    def _check_capacity(self, config: Any) -> None:
        self.slots_that_fit = (config.cache_config.num_gpu_blocks - 1) // self._blocks_per_slot
        if self.slots_that_fit < self._num_slots:
            raise ConfigError(
                f"--batch-size {self._num_slots} does not fit: the KV memory holds {self.slots_that_fit} full windows of"
                f" {self.checkpoint.profile.window} frames; lower --batch-size to {self.slots_that_fit} or raise --gpu-memory-utilization"
            )

    def _write_config(self, max_model_len: int, architecture: str) -> None:
        """vLLM wants a configuration in the form of transformers; the weights stay where they are."""
        lm = self.checkpoint.lm
        config = {
            "architectures": [architecture],
            "model_type": "llama",
            "hidden_size": lm.dim,
            "intermediate_size": lm.hidden,
            "num_hidden_layers": lm.num_layers,
            "num_attention_heads": lm.num_heads,
            "num_key_value_heads": lm.num_heads,
            "head_dim": lm.head_dim,
            "vocab_size": lm.text_card,
            "max_position_embeddings": max_model_len,
            "tie_word_embeddings": False,
        }
        Path(self._folder.name, "config.json").write_text(json.dumps(config), encoding="utf-8")
