"""How vLLM is configured for lockstep calls, and what memory that takes; refusals before anything large is loaded. Thread: tick."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import torch

from gateway.engine.checkpoint import Checkpoint
from gateway.engine.layout import CODEBOOKS, LMConfig
from gateway.errors import ConfigError

# Positions of one KV block: the smallest that each platform's attention takes, so that short prompts are shared by whole blocks.
BLOCK_SIZE_CPU, BLOCK_SIZE_CUDA = 128, 16
PREFILL_CHUNK_CPU, PREFILL_CHUNK_CUDA = 64, 256  # prompt rows per step: what a joining caller may cost the others
CPU_MEMORY_SHARE = 0.8  # of the memory that is free: the rest is for activations, audio and other programs
FLASH_HEAD_DIM = 128  # head size with which FlashAttention's decode graphs were right on one H200 (see engine_config)


def batch_buckets(num_slots: int) -> list[int]:
    """Batch sizes that are captured as CUDA graphs: powers of two, then multiples of 16, and `num_slots` itself."""
    sizes = {size for size in (1, 2, 4, 8, *range(16, num_slots, 16)) if size < num_slots}
    return sorted(sizes | {num_slots})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CoreSetup:
    """One engine's configuration.

    Attributes:
        checkpoint: the model.
        num_slots: calls at once.
        max_model_len: longest call in positions, prompt included.
        kv_cache_dtype: "auto" or one of vLLM's, e.g. "fp8".
        gpu_memory_utilization: share of the GPU's memory that vLLM may take for weights and KV.
        dtype: run dtype by torch's name.
        slot_bytes: memory of one slot outside vLLM, the codec's streams.
    """

    checkpoint: Checkpoint
    num_slots: int
    max_model_len: int
    kv_cache_dtype: str
    gpu_memory_utilization: float
    dtype: str
    is_cuda: bool
    slot_bytes: int

    @property
    def block_size(self) -> int:
        return BLOCK_SIZE_CUDA if self.is_cuda else BLOCK_SIZE_CPU

    @property
    def chunk(self) -> int:
        """Prompt rows per step."""
        return PREFILL_CHUNK_CUDA if self.is_cuda else PREFILL_CHUNK_CPU

    @property
    def blocks_per_slot(self) -> int:
        """KV blocks of a call at its full window, whose keys may start inside a block. A call that is being prefilled has fewer, because
        prompts are shorter than a window."""
        return math.ceil(self.checkpoint.profile.window / self.block_size) + 1

    @property
    def block_bytes(self) -> int:
        """Bytes of one KV block over all layers."""
        lm = self.checkpoint.lm
        return self.block_size * 2 * lm.num_layers * lm.dim * (1 if self.kv_cache_dtype.startswith("fp8") else self._itemsize)

    @property
    def weight_bytes(self) -> int:
        """Bytes of the language model in its run dtype."""
        return num_parameters(self.checkpoint.lm) * self._itemsize

    def kv_bytes(self) -> int:
        """KV memory of all slots at their full windows, vLLM's null block, and what vLLM insists on for one request of maximal chunks."""
        one_request = math.ceil((self.checkpoint.profile.window + self.chunk + self.num_slots) / self.block_size) + 2
        return max(self.num_slots * self.blocks_per_slot + 1, one_request) * self.block_bytes

    def slots_that_fit(self, free_bytes: int) -> int:
        """How many full windows `free_bytes` of KV memory hold."""
        return max(0, free_bytes // self.block_bytes - 1) // self.blocks_per_slot

    def check_memory(self) -> int | None:
        """Compare what the model needs with what is free, before it is loaded.

        Returns:
            the number of slots that fit on a CPU; None on CUDA, where vLLM measures it.

        Raises:
            ConfigError: the weights and the slots do not fit; names both sizes.
        """
        if self.is_cuda:
            free, total = torch.cuda.mem_get_info()
            room = min(free - self.num_slots * self.slot_bytes, int(total * self.gpu_memory_utilization)) - self.weight_bytes
            where = f"the GPU has {free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
        else:
            import psutil

            free = psutil.virtual_memory().available
            room = int(free * CPU_MEMORY_SHARE) - self.weight_bytes - self.num_slots * self.slot_bytes
            where = f"this machine has {free / 2**30:.1f} GiB free"
        fits = self.slots_that_fit(room)
        if fits < 1:
            need = self.weight_bytes + self.blocks_per_slot * self.block_bytes
            raise ConfigError(f"{self.checkpoint.name} needs {need / 2**30:.1f} GiB for its weights and one call; {where}")
        self.check_slots(fits)
        return None if self.is_cuda else fits

    def check_slots(self, fits: int) -> None:
        """Refuse more slots than fit.

        Raises:
            ConfigError: names the largest number that does.
        """
        if fits < self.num_slots:
            raise ConfigError(
                f"--batch-size {self.num_slots} does not fit: the KV memory holds {fits} full windows of"
                f" {self.checkpoint.profile.window} frames; lower --batch-size to {fits}"
                + (" or raise --gpu-memory-utilization" if self.is_cuda else "")
            )

    def engine_config(self, folder: Path) -> Any:
        """vLLM's configuration; writes the `config.json` that vLLM wants to read into `folder`.

        Raises:
            ConfigError: vLLM refuses a value.
        """
        from vllm.engine.arg_utils import EngineArgs
        from vllm.model_executor.models import ModelRegistry

        from gateway.engine.vllm import model as lockstep_model
        from gateway.engine.vllm.scheduler import LockstepScheduler

        architecture = lockstep_model.ARCHITECTURE
        if architecture not in ModelRegistry.get_supported_archs():
            ModelRegistry.register_model(architecture, f"{lockstep_model.__name__}:{architecture}")
        (folder / "config.json").write_text(json.dumps(self._hub_config(architecture)), encoding="utf-8")
        options: dict[str, Any] = {"enforce_eager": True, "kv_cache_memory_bytes": self.kv_bytes()}
        if self.is_cuda:
            options = {
                # FlashAttention's decode graphs gave wrong attention on one H200 for heads of 32 while a call was shorter than its window
                # (eager ones were right, heads of 128 were right either way): other head sizes take the Triton kernel.
                "attention_backend": None if self.checkpoint.lm.head_dim == FLASH_HEAD_DIM else "TRITON_ATTN",
                "compilation_config": {
                    "cudagraph_mode": "FULL_DECODE_ONLY",
                    "mode": 0,
                    "cudagraph_capture_sizes": batch_buckets(self.num_slots),
                },
            }
        try:
            return EngineArgs(
                model=str(folder),
                load_format=lockstep_model.LOAD_FORMAT,
                skip_tokenizer_init=True,
                dtype=self.dtype,
                block_size=self.block_size,
                kv_cache_dtype=self.kv_cache_dtype,
                gpu_memory_utilization=self.gpu_memory_utilization,
                max_num_seqs=self.num_slots,
                max_model_len=self.max_model_len,
                max_num_batched_tokens=self.chunk + self.num_slots,
                long_prefill_token_threshold=self.chunk,
                enable_prompt_embeds=True,
                enable_prefix_caching=True,
                async_scheduling=False,
                disable_log_stats=True,
                worker_cls="gateway.engine.vllm.runner.LockstepWorker",
                scheduler_cls=LockstepScheduler,
                additional_config={"checkpoint": self.checkpoint},
                **options,
            ).create_engine_config()
        except ValueError as error:  # pydantic's included: a kv_cache_dtype that does not exist, say
            raise ConfigError(f"vLLM refuses the configuration: {error}") from error

    @property
    def _itemsize(self) -> int:
        return torch.finfo(getattr(torch, self.dtype)).bits // 8

    def _hub_config(self, architecture: str) -> dict[str, Any]:
        """The configuration in the form of transformers; the weights stay where they are."""
        lm = self.checkpoint.lm
        return {
            "architectures": [architecture],
            "model_type": "llama",
            "hidden_size": lm.dim,
            "intermediate_size": lm.hidden,
            "num_hidden_layers": lm.num_layers,
            "num_attention_heads": lm.num_heads,
            "num_key_value_heads": lm.num_heads,
            "head_dim": lm.head_dim,
            "vocab_size": lm.text_card,
            "max_position_embeddings": self.max_model_len,
            "tie_word_embeddings": False,
        }


def num_parameters(lm: LMConfig) -> int:
    """Parameters that are loaded: all but depth steps 8 and up."""
    temporal = lm.num_layers * (4 * lm.dim**2 + 3 * lm.hidden * lm.dim + 2 * lm.dim) + (lm.table_rows + lm.text_card + 1) * lm.dim
    layer = CODEBOOKS * (4 * lm.depth_dim**2 + 3 * lm.depth_hidden * lm.depth_dim) + 2 * lm.depth_dim
    edges = CODEBOOKS * (lm.dim + lm.card) + (CODEBOOKS - 1) * (lm.card + 1) + lm.text_card + 1
    return temporal + lm.depth_num_layers * layer + edges * lm.depth_dim
