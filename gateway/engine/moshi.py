"""The engine of Moshi-class models: Mimi encode, temporal transformer (vLLM), depth transformer, Mimi decode, behind engine.base.

Only the order of a step and the life of a slot live here; each part knows nothing of the others. A step: encode the frames of the armed
slots, run armed and prefilling slots through vLLM, decode the slots that advanced. The one rule: whatever a slot carries (KV, codec
streams, token and codes) moves in the same step or not at all. Thread: tick, except `prepare` and `piece`.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import logging
import os
import time
from collections.abc import Callable

import numpy as np
import sentencepiece
import torch
from numpy.typing import NDArray

from gateway.engine.base import EngineInfo, FrameBatch, FrameOutput, Prompt
from gateway.engine.checkpoint import Checkpoint, find_checkpoint
from gateway.engine.codec import Mimi, MimiConfig, load_mimi, random_mimi
from gateway.engine.layout import CODEBOOKS, FRAME_RATE, SPECIAL_TEXT_IDS, LMConfig
from gateway.engine.prompt import build_prompt, wrap_persona
from gateway.engine.voices import VoiceBook, load_voices
from gateway.errors import ConfigError
from protocols.events import SamplingOptions

logger = logging.getLogger(__name__)

MAX_PROMPT_ROWS = 1024  # at most; a prompt must also leave half of the window to the conversation
MIN_PROMPT_ROWS = 64  # whatever the window: the shortest useful prompt has 12 silence frames, 25 of voice and a sentence
SMALL_DIM = 1024  # models up to this run on one thread: tiny's step took half the time of two threads on two cores (1 to 16 calls)
KEPT_BLOCK_BYTES = 32 * 2**20  # on a CPU: blocks up to this size come from the heap, the largest that glibc takes as a threshold
KEPT_BYTES = 256 * 2**20  # on a CPU: freed memory that stays with the process
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # source: glibc's malloc.h
_WARM_UP_FRAMES = 4


class MoshiEngine:
    """Moshi, PersonaPlex and the bundled tiny model, for `num_slots` callers at once."""

    info: EngineInfo

    def __init__(
        self,
        model: str | Checkpoint,
        *,
        num_slots: int,
        max_call_frames: int,
        kv_cache_dtype: str = "auto",
        gpu_memory_utilization: float = 0.9,
        dtype: str | None = None,
    ) -> None:
        """Remember what to load; `load` does the work.

        Args:
            model: folder, hub id, "tiny", or a checkpoint already read.
            num_slots: callers at once.
            max_call_frames: longest call in frames.
            kv_cache_dtype: of vLLM; "auto" is the run dtype.
            gpu_memory_utilization: share of the GPU for weights and KV; the codec's streams come on top (16.5 MB a slot at full size).
            dtype: run dtype of the language model; None is bfloat16 on CUDA, float32 on a CPU.
        """
        self._model = model
        self._num_slots = num_slots
        self._max_call_frames = max_call_frames
        self._kv_cache_dtype = kv_cache_dtype
        self._gpu_memory_utilization = gpu_memory_utilization
        self._dtype = dtype

    def load(self, progress: Callable[[str], None]) -> None:
        """As engine.base.Engine.load."""
        try:
            self._load(progress)
        except torch.OutOfMemoryError as error:
            raise ConfigError(f"the GPU's memory does not suffice; lower --batch-size or --gpu-memory-utilization ({error})") from error

    def _load(self, progress: Callable[[str], None]) -> None:
        import gateway.engine.vllm  # noqa: F401  sets vLLM's switches before vLLM is imported
        from gateway.engine.vllm.core import LockstepCore
        from gateway.engine.vllm.setup import CoreSetup, batch_buckets

        checkpoint = self._model if isinstance(self._model, Checkpoint) else find_checkpoint(self._model, progress)
        self.checkpoint = checkpoint
        device = _device(checkpoint.lm)
        is_cuda = device.type == "cuda"
        codec_config = read_codec_config(checkpoint)
        setup = CoreSetup(
            checkpoint=checkpoint,
            num_slots=self._num_slots,
            max_model_len=self._max_call_frames + MAX_PROMPT_ROWS + 1,  # vLLM ends a request that reaches this length
            kv_cache_dtype=self._kv_cache_dtype,
            gpu_memory_utilization=self._gpu_memory_utilization,
            dtype=self._dtype or ("bfloat16" if is_cuda else "float32"),
            is_cuda=is_cuda,
            slot_bytes=codec_config.slot_bytes,
        )
        fits = setup.check_memory()
        progress(f"loading {checkpoint.name} on {_device_name(device)}")
        self._tokenizer = _tokenizer(checkpoint)
        self.mimi = load_codec(checkpoint, num_slots=self._num_slots, device=device)
        self._voices = self._load_voices()
        self._core = LockstepCore(setup, fits, progress)
        progress("warming up")
        self.mimi.warm_up(batch_buckets(self._num_slots))
        takes_prompt = checkpoint.profile.takes_prompt
        self.info = EngineInfo(
            model=checkpoint.name,
            sample_rate=self.mimi.config.sample_rate,
            frame_samples=self.mimi.config.frame_samples,
            num_slots=self._num_slots,
            voices=tuple(self._voices) if takes_prompt else (),
            default_voice=self._default_voice,
            default_persona=checkpoint.profile.default_persona if takes_prompt else "",
            sampling=checkpoint.sampling,
            max_frames=self._max_call_frames,
            device=_device_name(device),
            slots_that_fit=self._core.slots_that_fit,
        )
        self._warm_up(progress)

    def prepare(self, voice_prompt: str | None, persona: str | None) -> Prompt:
        """As engine.base.Engine.prepare; a model without prompts takes neither and says so by `voice_prompt` None."""
        profile = self.checkpoint.profile
        if not profile.takes_prompt:
            return Prompt(voice_prompt=None, num_rows=1, payload=build_prompt(self.checkpoint.lm, profile, None, ()))
        name = voice_prompt or self._default_voice
        voice = self._voices.find(name) if name else None
        text = wrap_persona(profile.default_persona if persona is None else persona.strip())
        tokens = self._tokenizer.encode(text) if self._tokenizer and text else []
        rows = build_prompt(self.checkpoint.lm, profile, voice, tokens)
        most = min(MAX_PROMPT_ROWS, max(profile.window // 2, MIN_PROMPT_ROWS))
        if len(rows.rows) > most:
            raise ConfigError(f"the persona is too long: voice and persona take {len(rows.rows)} frames, this model has room for {most}")
        return Prompt(voice_prompt=voice.name if voice else None, num_rows=len(rows.rows), payload=rows)

    def piece(self, text_id: int) -> bytes:
        """As engine.base.Engine.piece."""
        if text_id < SPECIAL_TEXT_IDS or self._tokenizer is None or text_id >= self._tokenizer.vocab_size():
            return b""
        piece = self._tokenizer.id_to_piece(text_id)
        if self._tokenizer.is_byte(text_id):
            return bytes([int(piece[3:-1], 16)])  # "<0xE2>"
        return b"" if self._tokenizer.is_control(text_id) else piece.replace("\u2581", " ").encode()

    def open(self, slot_idx: int, prompt: Prompt, sampling: SamplingOptions) -> None:
        """As engine.base.Engine.open."""
        self.mimi.reset(self._mask([slot_idx]))
        with torch.inference_mode():
            self._core.open(slot_idx, prompt.payload, sampling)

    @torch.inference_mode()
    def step(self, batch: FrameBatch) -> FrameOutput:
        """As engine.base.Engine.step."""
        num_slots, samples = batch.pcm.shape
        pcm = np.zeros((num_slots, samples), dtype=np.float32)
        text_ids = np.full(num_slots, self.checkpoint.lm.padding_id, dtype=np.int64)
        ready = np.zeros(num_slots, dtype=np.bool_)
        armed = [int(slot_idx) for slot_idx in np.flatnonzero(batch.exec_mask)]
        steered = frozenset(int(slot_idx) for slot_idx in np.flatnonzero(batch.steer_mask))
        if armed:
            rows = torch.tensor(armed, device=self.mimi.device)
            frames = torch.from_numpy(batch.pcm[armed]).to(self.mimi.device)
            self._core.frames.set_user(rows, self.mimi.encode_rows(frames, rows))
        self._core.frames.set_pad_bias(batch.pad_bias)
        slots, completed, codes = self._core.step(armed, steered)
        if codes is not None:
            self._decode(slots, completed, codes, pcm)
            text_ids[slots] = self._core.frames.read_rows(slots)[:, 0]
        ready[completed] = True
        return FrameOutput(pcm=pcm, text_ids=text_ids, ready_mask=ready)

    def close(self, slot_idx: int) -> None:
        """As engine.base.Engine.close."""
        self._core.close(slot_idx)

    def window_rows(self, slot_idx: int) -> NDArray[np.int32]:
        """As engine.base.Engine.window_rows; -1 where a voice bundle's embedding stands instead of a row."""
        return self._core.frames.window_rows(slot_idx)

    def shutdown(self) -> None:
        """As engine.base.Engine.shutdown."""
        self._core.shutdown()

    def _decode(self, slots: list[int], completed: list[int], codes: torch.Tensor, pcm: NDArray[np.float32]) -> None:
        """Decode what advanced into `pcm`. The frame that completes a prompt primes the decoder; without a prompt it has no audio yet."""
        kept = [i for i, slot_idx in enumerate(slots) if self.checkpoint.profile.takes_prompt or slot_idx not in completed]
        if not kept:
            return
        rows = [slots[i] for i in kept]
        chosen = codes if len(kept) == len(slots) else codes[kept]
        pcm[rows] = self.mimi.decode_rows(chosen, torch.tensor(rows, device=self.mimi.device)).cpu().numpy()

    def _load_voices(self) -> VoiceBook:
        checkpoint, mimi = self.checkpoint, self.mimi

        def encode(pcm: NDArray[np.float32]) -> NDArray[np.int64]:
            codes: NDArray[np.int64] = mimi.encode_offline(torch.from_numpy(pcm)).numpy()
            return codes

        return load_voices(checkpoint.voices, checkpoint.profile.voice_aliases, checkpoint.lm, encode, mimi.config.sample_rate)

    def _warm_up(self, progress: Callable[[str], None]) -> None:
        """Run every slot through the real path, so that nothing is done for the first time in a call, and say how long a step takes."""
        sampling = dataclasses.replace(self.checkpoint.sampling, text_seed=0, audio_seed=0)
        prompt, slots = self.prepare(None, None), np.arange(self._num_slots)
        times: dict[int, float] = {}
        ready = np.zeros(self._num_slots, dtype=np.bool_)
        self.open(0, prompt, sampling)
        ready = self._run(ready, until=1)
        times[1] = self._time(ready)
        if not self._core.is_finite:
            raise ConfigError(f"{self.checkpoint.name}: the weights give values that are not finite")
        for slot_idx in slots[1:]:
            self.open(int(slot_idx), prompt, sampling)
        ready = self._run(ready, until=self._num_slots)  # the first slot goes on beside the prompts of the others
        times[self._num_slots] = self._time(ready)
        for slot_idx in slots:
            self.close(int(slot_idx))
        frame_ms = 1000 / FRAME_RATE
        said = ", ".join(f"{seconds * 1000:.0f} ms at {count} call{'s' * (count > 1)}" for count, seconds in times.items())
        progress(f"a step takes {said}; a frame lasts {frame_ms:.0f} ms")
        if times[1] * 1000 > frame_ms:
            logger.warning("this machine is too slow for real time: one call takes %.0f ms a frame of %.0f ms", times[1] * 1000, frame_ms)

    def _run(self, ready: NDArray[np.bool_], *, until: int) -> NDArray[np.bool_]:
        """Step the ready slots on silence until so many are ready."""
        silence = np.zeros((self._num_slots, self.info.frame_samples), dtype=np.float32)
        while ready.sum() < until:
            ready = ready | self.step(FrameBatch(pcm=silence, exec_mask=ready, steer_mask=ready & False)).ready_mask
        return ready

    def _time(self, ready: NDArray[np.bool_]) -> float:
        """Seconds of a step of the ready slots: the least of a few."""
        silence, times = np.zeros((self._num_slots, self.info.frame_samples), dtype=np.float32), []
        for _ in range(_WARM_UP_FRAMES):
            started = time.perf_counter()
            self.step(FrameBatch(pcm=silence, exec_mask=ready, steer_mask=ready & False))
            times.append(time.perf_counter() - started)
        return min(times)

    @property
    def _default_voice(self) -> str | None:
        """The voice of callers who name none, if the checkpoint has it."""
        profile = self.checkpoint.profile
        return profile.default_voice if profile.takes_prompt and profile.default_voice in self._voices else None

    def _mask(self, slots: list[int]) -> torch.Tensor:
        mask = torch.zeros(self._num_slots, dtype=torch.bool)
        mask[slots] = True
        return mask


def read_codec_config(checkpoint: Checkpoint) -> MimiConfig:
    """Sizes of a checkpoint's codec.

    Raises:
        ConfigError: a setting does not fit, also not to the language model.
    """
    config = MimiConfig()
    if checkpoint.mimi_config is not None:
        try:
            config = MimiConfig.from_json(json.loads(checkpoint.mimi_config.read_text()))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{checkpoint.mimi_config}: not readable as JSON ({error})") from error
    if config.codebook_size != checkpoint.lm.card:
        raise ConfigError(f"the codec has {config.codebook_size} codes in a codebook, the language model {checkpoint.lm.card}")
    return config


def load_codec(checkpoint: Checkpoint, *, num_slots: int, device: torch.device) -> Mimi:
    """Load the codec of a checkpoint, in the window variant of its family.

    Raises:
        ConfigError: a tensor or a setting does not fit.
    """
    config, window = read_codec_config(checkpoint), checkpoint.profile.name
    if checkpoint.mimi is None:
        return random_mimi(config, num_slots=num_slots, num_codebooks=CODEBOOKS, window=window, device=device)
    return load_mimi(checkpoint.mimi, config, num_slots=num_slots, num_codebooks=CODEBOOKS, window=window, device=device)


def _tokenizer(checkpoint: Checkpoint) -> sentencepiece.SentencePieceProcessor | None:
    if checkpoint.tokenizer is None:
        return None
    try:
        return sentencepiece.SentencePieceProcessor(model_file=str(checkpoint.tokenizer))
    except (RuntimeError, OSError) as error:
        raise ConfigError(f"{checkpoint.tokenizer}: not a SentencePiece model ({error})") from error


def _device(lm: LMConfig) -> torch.device:
    """The GPU if there is one; on a CPU also settle the number of threads, which counts for the calling thread."""
    if torch.cuda.is_available():
        return torch.device("cuda")
    if "OMP_NUM_THREADS" not in os.environ and lm.dim <= SMALL_DIM:
        torch.set_num_threads(1)
    _keep_freed_memory()
    return torch.device("cpu")


def _keep_freed_memory() -> None:
    """Have the C library keep what a step frees for the next one; by itself glibc hands large blocks back to the system each time.

    At 16 calls of the tiny model that was 5,000 page faults a step, 19 ms of 113 (one EPYC core). Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
