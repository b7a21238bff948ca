"""The stage from end to end: against a gateway whose engine echoes, with recordings that are tones."""

import argparse
import concurrent.futures
import json
import math
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.training import grammar
from gateway.training.evaluation import asr, run, scenarios, speech
from gateway.training.evaluation.call import Utterance
from gateway.training.evaluation.scenarios import Size
from gateway.training.evaluation.speech import Questions
from tests.integration.rig import own_environ
from tests.training.evaluation_line import murmur, tone

ROOT = Path(__file__).parents[2]
SMALL = Size(2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4.0)
START_S = 60.0


def options(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    return parser.parse_args(flags)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("gateway") / "log.txt"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [sys.executable, str(ROOT / "tests" / "fake_gateway.py"), "{}", "--port", str(port), "--batch-size", "4"]
    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, env=own_environ(), stdout=file, stderr=file)
    try:
        deadline_s = time.monotonic() + START_S
        while "ready: " not in log.read_text(encoding="utf-8"):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handful of calls and recordings that nobody has to speak; no recogniser."""
    spoken = [Utterance(ask, "nobody", tone(0.3), tuple(range(0, 2400 * len(ask.text.split()), 2400))) for ask in grammar.asks()]
    monkeypatch.setattr(scenarios, "QUICK", SMALL)
    monkeypatch.setattr(speech, "make", lambda *arguments: Questions(spoken, [murmur()]))
    monkeypatch.setattr(asr, "missing", lambda cache: ["whisper: is not here"])
    monkeypatch.setattr(asr, "read_all", lambda pcms, cache: [asr.Reading(None, "") for _ in pcms])
    monkeypatch.setattr(run, "_pool", lambda: concurrent.futures.ThreadPoolExecutor(1))


@pytest.mark.usefixtures("small")
def test_an_echo_is_judged_and_misses_the_bars(url: str, tmp_path: Path) -> None:
    lines: list[str] = []
    assert run.run(tmp_path, options("--url", url, "--quick", "--gate", "--keep"), progress=lines.append) == 1
    facts = json.loads((tmp_path / "evaluation.json").read_text(encoding="utf-8"))
    kinds = {call["kind"] for call in facts["calls"]}
    assert kinds >= {"question", "conversation", "name", "pause", "silence", "noise", "music", "babble", "faint", "greeting"}
    assert (facts["broken"], facts["missing"], facts["quick"]) == ([], ["whisper: is not here"], True)
    figures = {measure["name"]: measure for measure in facts["measures"]}
    assert figures["intent right by monologue"]["value"] == 0.0
    assert figures["false starts in pauses"]["is_reached"] is False  # an echo speaks at once
    assert figures["p95 of the tick, callers in real time: 4"]["count"] > 0
    assert any("MISSED" in line for line in lines)
    assert any("not used: whisper" in line for line in lines)
    assert len(list((tmp_path / "answers").glob("*.flac"))) == len(facts["calls"])


def test_numbers_that_json_does_not_have_become_null(tmp_path: Path) -> None:
    assert run._finite({"a": [math.inf, 1.5, "x"], "b": {"c": math.nan}}) == {"a": [None, 1.5, "x"], "b": {"c": None}}


def test_the_flags_have_defaults() -> None:
    given = options()
    assert (given.model, given.url, given.heldout, given.seed, given.quick, given.gate) == ("tiny", None, None, 0, False, False)
