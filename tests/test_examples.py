"""The example clients, executed against a gateway on a real port."""

import asyncio
import subprocess
import sys
import wave
from pathlib import Path

import numpy as np
import pytest

from examples.wav import read_wav, write_wav
from tests.helpers import rms, tone
from tests.integration.rig import PATHS, Gateway, PcmCaller, gateway, own_environ, until

ROOT = Path(__file__).parent.parent


async def _run(server: Gateway, protocol: str, *flags: str, url: str = "") -> tuple[int | None, str, str]:
    """Run the protocol's client to its end: status, standard output, standard error."""
    module = {"rawpcm": "examples.pcm_client", "moshi": "examples.chat_client"}[protocol]
    url = url or f"ws://127.0.0.1:{server.port}{PATHS[protocol]}"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *flags, "--url", url, cwd=ROOT, env=own_environ(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    async with asyncio.timeout(30):
        output, error = await process.communicate()
    return process.returncode, output.decode(), error.decode()


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """0.4 s of a tone, and 7 samples."""
    write_wav(str(tmp_path / "question.wav"), tone(9607))
    return tmp_path / "question.wav"


@pytest.mark.parametrize("flags", [(), ("--live",)])
async def test_the_pcm_client_writes_what_it_hears_and_tells_the_latency(question: Path, tmp_path: Path, flags: tuple[str, ...]) -> None:
    answer, options = tmp_path / "answer.wav", ("--seed", "0", "--voice", "tenor")
    async with gateway(1) as server:
        status, output, error = await _run(server, "rawpcm", str(question), str(answer), "--listen-seconds", "0", *options, *flags)
    assert (status, error) == (0, "")
    assert "6 frames" in output
    assert "hello" in output
    assert ("(median)" if flags else "ms each") in output
    heard = read_wav(str(answer))
    assert heard.size == 9607
    assert rms(heard) == pytest.approx(0.5 * rms(tone(9607)), rel=0.6)  # its echo


async def test_the_chat_client_writes_what_it_hears(question: Path, tmp_path: Path) -> None:
    answer = tmp_path / "answer.wav"
    async with gateway(1) as server:
        flags = ("--listen-seconds", "0.4", "--seed", "0", "--persona", "You are kind.", "--voice", "alto")
        status, output, error = await _run(server, "moshi", str(question), str(answer), *flags)
        await until(lambda: server.ended("moshi", "caller") == 1)
    assert (status, error) == (0, "")
    assert "hello" in output
    heard = read_wav(str(answer))
    assert heard.size >= 1920 * 8
    assert rms(heard) > 0.03


async def test_a_refused_client_says_so_in_one_line(question: Path, tmp_path: Path) -> None:
    files = (str(question), str(tmp_path / "answer.wav"))
    async with gateway(1) as server, server.connect("rawpcm") as ws:
        await PcmCaller(ws).open()
        runs = [_run(server, protocol, *files, *flags) for flags in ((), ("--voice", "../x")) for protocol in PATHS]
        errors = [error for status, _, error in await asyncio.gather(*runs) if status == 1]
    assert errors[:2] == ["server full: every slot is taken (1 of 1) (1013)\n"] * 2
    assert all(error.startswith("closed by the server: the voice must be") and error.endswith("(1008)\n") for error in errors[2:])
    for status, _, error in await asyncio.gather(*(_run(server, protocol, *files) for protocol in PATHS)):  # it is gone
        assert status == 1
        assert error.startswith("no connection: ")
        assert error.count("\n") == 1
    assert len(errors) == 4


async def test_a_client_without_a_key_prints_what_the_server_wants_and_one_with_it_is_served(question: Path, tmp_path: Path) -> None:
    """A plain 403 leaves people guessing: the answer names the header, and the client shows it."""
    files = (str(question), str(tmp_path / "answer.wav"), "--listen-seconds", "0")
    async with gateway(1, api_keys=("sk-good",)) as server:
        for protocol in PATHS:
            status, _, error = await _run(server, protocol, *files)
            assert (status, error.count("\n")) == (1, 1)
            assert error.startswith("refused with HTTP 401: ")
            assert "Authorization: Bearer" in error
            assert (await _run(server, protocol, *files, "--key", "sk-good"))[0] == 0
            await until(lambda: server.is_empty)


@pytest.mark.parametrize("rate", [8_000, 16_000, 24_000, 44_100, 48_000])
@pytest.mark.parametrize("num_channels", [1, 2])
def test_wav_files_of_any_rate_become_24_khz_mono(rate: int, num_channels: int, tmp_path: Path) -> None:
    path = str(tmp_path / "any.wav")
    seconds = np.arange(rate) / rate
    samples = (0.5 * 32767 * np.sin(2 * np.pi * 440 * seconds)).astype("<i2")
    with wave.open(path, "wb") as file:
        file.setnchannels(num_channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.repeat(samples, num_channels).tobytes())
    pcm = read_wav(path)
    expected = 0.5 * np.sin(2 * np.pi * 440 * np.arange(24_000) / 24_000)
    assert pcm.size == 24_000
    assert np.abs(pcm[:-10] - expected[:-10]).max() < 0.02


def test_the_examples_are_short() -> None:
    for path in (ROOT / "examples").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 100, path


async def test_a_client_that_is_given_a_page_says_so_without_printing_it(question: Path) -> None:
    async with gateway(1) as server:
        url = f"http://127.0.0.1:{server.port}"
        code, _, error = await _run(server, "rawpcm", str(question), "answer.wav", url=url)
        assert (code, error.strip()) == (1, f"{url} is a page, not a call: its path must be one of the README's")
