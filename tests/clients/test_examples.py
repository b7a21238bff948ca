"""The example clients of frameworks, executed against a gateway with a scripted model."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from examples.wav import read_wav
from tests.clients.clients import node, python
from tests.clients.hall import Hall, hall
from tests.clients.scripted import Line, share_at
from tests.clients.tls import make_certificate

ROOT = Path(__file__).parents[2]
HELLO = ROOT / "tests" / "data" / "hello.wav"
ANSWER = Line(660, 25, (" Good", " morning."))


async def execute(command: list[str], *arguments: str) -> tuple[int | None, str, str]:
    """Run an example to its end: status, standard output, standard error."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith(("GATEWAY_", "OPENAI_"))}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = await asyncio.create_subprocess_exec(*command, *arguments, cwd=ROOT, env=environ, **pipes)
    async with asyncio.timeout(60):
        output, error = await process.communicate()
    return process.returncode, output.decode(), error.decode()


def check_answer(place: Hall, path: Path) -> None:
    """The WAV file has the whole answer and nothing louder; the model got the persona and the words."""
    heard = read_wav(str(path))
    sound = heard[np.abs(heard) > 0.01]
    assert abs(sound.size / ANSWER.frames.size - 1) < 0.06
    assert share_at(heard, 660) > 0.95
    assert "Nova" in place.engine.parts[-1].persona
    assert np.abs(place.engine.parts[-1].heard_pcm).max() > 0.3
    place.check()


async def test_openai_python(tmp_path: Path) -> None:
    async with hall(ANSWER) as place:
        files = (str(HELLO), str(tmp_path / "answer.wav"))
        url = ("--url", place.http(), "--listen-seconds", "5")
        status, output, error = await execute([sys.executable, "-m", "examples.openai_realtime"], *files, *url)
        assert (status, error) == (0, "")
        assert "Good morning. [completed]" in output
        await place.ended()
    check_answer(place, tmp_path / "answer.wav")


async def test_openai_python_says_in_one_line_that_there_is_no_call(tmp_path: Path) -> None:
    async with hall(api_keys=("right",)) as place:
        files = (str(HELLO), str(tmp_path / "answer.wav"))
        status, output, error = await execute([sys.executable, "-m", "examples.openai_realtime"], *files, "--url", place.http())
    assert (status, output) == (1, "")
    assert error.startswith("no call: ")
    assert error.count("\n") == 1


@pytest.mark.clients
async def test_openai_node_over_tls(tmp_path: Path) -> None:
    make_certificate(tmp_path)
    async with hall(ANSWER, ssl=tmp_path) as place:  # the gateway's own TLS
        files = (str(HELLO), str(tmp_path / "answer.wav"))
        url = f"https://127.0.0.1:{place.server.port}/v1"
        status, output, error = await execute(node("openai_realtime.mjs"), *files, url, "5")
        assert (status, error) == (0, "")
        assert "Good morning. [completed]" in output
        await place.ended()
    check_answer(place, tmp_path / "answer.wav")


@pytest.mark.clients
async def test_pipecat(tmp_path: Path) -> None:
    async with hall(ANSWER) as place:
        files = (str(HELLO), str(tmp_path / "answer.wav"))
        status, _, error = await execute([*python("pipecat"), "examples/pipecat_bot.py"], *files, place.ws(), "6")
        assert status == 0, error
        assert "ERROR" not in error
        await place.ended()
    check_answer(place, tmp_path / "answer.wav")


@pytest.mark.clients
async def test_livekit(tmp_path: Path) -> None:
    async with hall(ANSWER) as place:
        files = (str(HELLO), str(tmp_path / "answer.wav"))
        url = place.http("/v1/realtime?capacity=http")
        status, output, error = await execute([*python("livekit"), "examples/livekit_agent.py"], *files, url, "6")
        assert status == 0, error
        assert output == "Good morning.\n"
        await place.ended()
    check_answer(place, tmp_path / "answer.wav")


def test_the_examples_are_short() -> None:
    for name in ("openai_realtime.py", "openai_realtime.mjs", "pipecat_bot.py", "livekit_agent.py"):
        assert len((ROOT / "examples" / name).read_text(encoding="utf-8").splitlines()) < 80, name
