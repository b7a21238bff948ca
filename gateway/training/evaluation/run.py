"""The stage `evaluate`: hold the calls, have the answers read, print the figures, keep everything.

Steps are timed first, while nothing else runs; then a few calls are held at once, the silent one beside the others, and the recognisers
read in a process of their own. The one rule: the figures, times and calls in real time apart, depend on weights, recordings and seed only.
Thread: loop.
"""

from __future__ import annotations

import argparse
import asyncio
import concurrent.futures
import dataclasses
import json
import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from gateway.training import sources
from gateway.training.evaluation import asr, measures, report, scenarios, server, speech
from gateway.training.evaluation.measures import Measure
from gateway.training.evaluation.report import Timing
from gateway.training.evaluation.scoring import Case
from gateway.training.evaluation.server import Plan, Server
from gateway.training.evaluation.signals import RATE
from gateway.training.evaluation.wires import CallError

AT_ONCE = 4  # calls; the gateway's default number of slots
MOST_CALLS = 10_000  # of one evaluation: calls of different seeds share no seed of the model
QUICK_QUESTIONS = 60  # recordings that a quick evaluation makes, where there are no packed ones

Progress = Callable[[str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this stage's flags."""
    parser.add_argument("--model", default="tiny", help="checkpoint to serve (default: %(default)s)")
    parser.add_argument("--url", help="a gateway that runs already, http://HOST:PORT, instead of starting one")
    parser.add_argument("--heldout", type=Path, help="packed corpus of held-out speakers; without it their questions are spoken now")
    parser.add_argument("--people", type=Path, help="folder with Debian's asterisk and pocketsphinx recordings of people")
    parser.add_argument("--cache", type=Path, default=sources.DEFAULT_CACHE, help="folder of the downloads (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the calls and of the model (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="about 60 calls and 2 minutes of silence")
    parser.add_argument("--gate", action="store_true", help="fail when a bar is missed")
    parser.add_argument("--keep", action="store_true", help="write the answers of every call as FLAC")


def run(folder: Path, options: argparse.Namespace, *, progress: Progress = print) -> int:
    """Evaluate; evaluation.json, the gateway's log and recordings go into `folder`.

    Returns:
        The exit status: 1 if a bar is missed and --gate is set.

    Raises:
        CallError: the gateway did not start.
        sources.SourceError: without --heldout: a file of the speech engine cannot be had.
        OSError: without --heldout: flite or espeak-ng is not installed.
    """
    questions = _questions(folder, options, progress)
    size = scenarios.QUICK if options.quick else scenarios.FULL
    session = _Session(options.cache, options.seed, progress)
    started_s = time.monotonic()

    async def evaluate() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # or the gateway would outlive this process
        connection = server.connected(options.url) if options.url else server.started(options.model, folder / "gateway.log")
        async with connection as gateway:
            drawn = scenarios.Scenarios(questions, await gateway.voices(), size, options.seed)
            await session.time_steps(gateway, drawn)
            await session.hold_all(gateway, drawn.plans() + drawn.of_people(speech.people(options.people) if options.people else []))
        await session.read_answers()
        return drawn.silence_frames

    silence_frames = asyncio.run(evaluate())
    found = report.measures(session.cases, session.timings, silence_frames, len(session.broken))
    missing = asr.missing(options.cache)
    progress(measures.table(found))
    for line in (*(f"not used: {reason}" for reason in missing), *(f"broke: {reason}" for reason in session.broken)):
        progress(line)
    facts = {"model": options.url or options.model, "seed": options.seed, "quick": options.quick, "cpus": os.cpu_count()}
    facts |= {"seconds": round(time.monotonic() - started_s), "missing": missing, "broken": session.broken}
    _write(folder / "evaluation.json", facts, found, session.cases)
    if options.keep:
        _keep(folder / "answers", session.cases)
    return int(options.gate and any(measure.is_reached is False for measure in found))


def _questions(folder: Path, options: argparse.Namespace, progress: Progress) -> speech.Questions:
    if options.heldout:
        return speech.read(options.heldout)
    return speech.make(folder, options.cache, QUICK_QUESTIONS if options.quick else None, progress)


class _Session:
    """The calls of one evaluation, held and read.

    Attributes:
        timings: of the tick.
        broken: why calls were not held to their end.
    """

    def __init__(self, cache: Path, seed: int, progress: Progress) -> None:
        self.timings: list[Timing] = []
        self.broken: list[str] = []
        self._cache, self._seed, self._progress = cache, seed, progress
        self._planned = 0
        self._cases: dict[int, Case] = {}
        self._pool = _pool()
        self._readings: dict[int, asyncio.Future[list[asr.Reading]]] = {}

    @property
    def cases(self) -> list[Case]:
        """Calls that were held, in the order of their plans."""
        return [case for _, case in sorted(self._cases.items())]

    async def time_steps(self, gateway: Server, drawn: scenarios.Scenarios) -> None:
        """Time the tick with one and with AT_ONCE callers in real time; what they say is scored like everything else."""
        for callers in (1, AT_ONCE):
            before = await gateway.ticks()
            calls = [asyncio.create_task(self._hold(gateway, plan, index)) for index, plan in self._numbered(drawn.paced(callers))]
            await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)  # from then on there are fewer
            p95_s, ticks = server.percentile(before, await gateway.ticks(), 0.95)
            self.timings.append(Timing(callers, p95_s, ticks))
            await asyncio.gather(*calls)
            self._progress(f"{callers} in real time: p95 of the tick {1000 * p95_s:.0f} ms over {ticks}")
        for index, case in self._cases.items():
            self._read(index, case)

    async def hold_all(self, gateway: Server, plans: Sequence[Plan]) -> None:
        """Hold calls, AT_ONCE at a time."""
        slots, done = asyncio.Semaphore(AT_ONCE), 0

        async def hold(plan: Plan, index: int) -> None:
            nonlocal done
            async with slots:
                await self._hold(gateway, plan, index)
            if index in self._cases:
                self._read(index, self._cases[index])
            done += 1
            if done % 20 == 0 or done == len(plans):
                self._progress(f"{done} of {len(plans)} calls")

        await asyncio.gather(*(hold(plan, index) for index, plan in self._numbered(plans)))

    async def read_answers(self) -> None:
        """Wait for the recognisers."""
        for index, reading in self._readings.items():
            self._cases[index].readings = list(await reading)
        self._pool.shutdown()

    def _numbered(self, plans: Sequence[Plan]) -> list[tuple[int, Plan]]:
        first = self._planned
        self._planned += len(plans)
        return list(enumerate(plans, first))

    async def _hold(self, gateway: Server, plan: Plan, index: int) -> None:
        seed = self._seed * MOST_CALLS + index
        try:
            self._cases[index] = Case(plan, await gateway.call(plan, seed), seed)
        except (CallError, aiohttp.ClientError, OSError, TimeoutError) as error:
            self.broken.append(f"{plan.kind} over {plan.wire}: {type(error).__name__}: {error}")

    def _read(self, index: int, case: Case) -> None:
        """Have the answers read, beside the calls."""
        if case.plan.kind in report.READ_KINDS:
            pcms = [answer.pcm for answer in case.answers]
            self._readings[index] = asyncio.get_running_loop().run_in_executor(self._pool, asr.read_all, pcms, self._cache)


def _pool() -> concurrent.futures.Executor:
    """A process for the recognisers; spawned, because this one has threads."""
    return concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _be_nice)


def _be_nice() -> None:
    """Let the gateway go first. Runs in the recognisers' process."""
    os.nice(5)


def _write(path: Path, facts: dict[str, Any], found: Sequence[Measure], cases: Sequence[Case]) -> None:
    """Write all figures and calls."""
    figures = [{**dataclasses.asdict(measure), "is_reached": measure.is_reached} for measure in found]
    whole = {**facts, "measures": figures, "calls": [report.details(case) for case in cases]}
    path.write_text(json.dumps(_finite(whole), indent=1, ensure_ascii=False), encoding="utf-8")


def _finite(value: Any) -> Any:
    """The same with None for numbers that JSON does not have."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _keep(folder: Path, cases: Sequence[Case]) -> None:
    """Write what the model said, one file a call, named by kind and seed."""
    import soundfile

    folder.mkdir(exist_ok=True)
    for case in cases:
        soundfile.write(folder / f"{case.plan.kind}-{case.seed}.flac", case.record.pcm(), RATE, subtype="PCM_16")
