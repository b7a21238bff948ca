"""Time of one engine step, codec included, at several numbers of calls: `python -m tests.bench.bench_step --model tiny --calls 1 2 4 8 16`.

`--model 7b` is the published shape with random weights (speed does not depend on their values; 16 GB of GPU memory). `--window` gives
every call a full attention window before the clock starts. Prints one line a number of calls: median, p95 and p99 of the step, and the
parts of the median. A figure is only worth something beside its machine, so that is printed first.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import time

import numpy as np
import torch

from gateway.engine.base import FrameBatch, Prompt
from gateway.engine.checkpoint import Checkpoint, find_checkpoint
from gateway.engine.layout import CODEBOOKS, LMConfig, Profile
from gateway.engine.moshi import MoshiEngine
from gateway.engine.prompt import PromptRows
from protocols.events import SamplingOptions

SAMPLING = SamplingOptions(
    text_temperature=0.7, text_topk=25, text_seed=1, audio_temperature=0.8, audio_topk=250, audio_seed=2, pad_mult=0.0,
    repetition_penalty=1.0, repetition_penalty_context=64,
)  # fmt: skip


def random_7b() -> Checkpoint:
    """PersonaPlex's shapes without files."""
    lm = LMConfig.from_json({})
    profile = Profile.from_json({}, lm, is_personaplex=True)
    return Checkpoint(
        name="7b-random", weights=None, mimi=None, mimi_config=None, tokenizer=None, voices=None, lm=lm, profile=profile, sampling=SAMPLING
    )


def fill_window(engine: MoshiEngine, slot_idx: int, seed: int) -> Prompt:
    """A prompt of a whole window of random rows; each slot its own, so that no block is shared."""
    lm, window = engine.checkpoint.lm, engine.checkpoint.profile.window
    rng = np.random.default_rng(1000 * seed + slot_idx)
    rows = rng.integers(0, lm.card, (window, 1 + 2 * CODEBOOKS))
    rows[:, 0] = rng.integers(0, lm.text_card, window)
    silence = np.array([-1, *engine.checkpoint.profile.silence_codes[1:]])
    return Prompt(
        voice_prompt=None,
        num_rows=window,
        payload=PromptRows(rows=rows, embeddings=None, forced=silence, user=rows[-1, 1 + CODEBOOKS :], salt=f"{seed}-{slot_idx}"),
    )


def measure(engine: MoshiEngine, calls: int, steps: int, *, window: bool) -> list[float]:
    """Step times in seconds."""
    num_slots, samples = engine.info.num_slots, engine.info.frame_samples
    idle = np.zeros(num_slots, dtype=np.bool_)
    rng = np.random.default_rng(calls)
    pcm = (0.1 * rng.standard_normal((num_slots, samples))).astype(np.float32)
    for slot_idx in range(calls):
        prompt = fill_window(engine, slot_idx, calls) if window else engine.prepare(engine.info.default_voice, "You enjoy a good talk.")
        engine.open(slot_idx, prompt, dataclasses.replace(SAMPLING, text_seed=slot_idx, audio_seed=slot_idx))
    ready = idle.copy()
    while not ready[:calls].all():
        ready |= engine.step(FrameBatch(pcm=pcm, exec_mask=idle, steer_mask=idle)).ready_mask
    times = []
    for _ in range(steps + 5):
        started = time.perf_counter()
        engine.step(FrameBatch(pcm=pcm, exec_mask=np.arange(num_slots) < calls, steer_mask=idle))
        times.append(time.perf_counter() - started)
    for slot_idx in range(calls):
        engine.close(slot_idx)
    return times[5:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--calls", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--window", action="store_true", help="fill every call's attention window first")
    parser.add_argument("--gpu-memory-utilization", type=float, default=0.9)
    options = parser.parse_args()
    model = random_7b() if options.model == "7b" else find_checkpoint(options.model)
    engine = MoshiEngine(
        model, num_slots=max(options.calls), max_call_frames=20_000, gpu_memory_utilization=options.gpu_memory_utilization
    )
    engine.load(print)
    frame_ms = 1000 * engine.info.frame_samples / engine.info.sample_rate
    print(f"{model.name} on {engine.info.device}, {os.cpu_count()} cores ({platform.machine()}), torch {torch.__version__}")
    print(f"slots that fit: {engine.info.slots_that_fit}")
    print("calls  median   p95    p99    ms; share of a frame at the median")
    for calls in options.calls:
        times = 1000 * np.array(measure(engine, calls, options.steps, window=options.window))
        median, p95, p99 = np.percentile(times, [50, 95, 99])
        print(f"{calls:5d} {median:7.1f} {p95:6.1f} {p99:6.1f}    {median / frame_ms:.2f}", flush=True)
    engine.shutdown()


if __name__ == "__main__":
    main()
