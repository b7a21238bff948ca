"""The real engine's start: `--check`, and every checkpoint, name and port that will not do, told in one line with status 2."""

import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from gateway.engine.checkpoint import TINY
from tests.integration.real import START_S, spawn


def _edit(change: Callable[[dict[str, torch.Tensor]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        path = folder / "model.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)

    return edit


def _drop(tensors: dict[str, torch.Tensor]) -> None:
    del tensors["transformer.layers.3.norm1.alpha"]


def _reshape(tensors: dict[str, torch.Tensor]) -> None:
    tensors["text_linear.weight"] = tensors["text_linear.weight"][:-1].clone()


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


# name: (what is done to a copy of the tiny checkpoint, what the line must say)
BROKEN: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "tensor missing": (_edit(_drop), ("model.safetensors", "transformer.layers.3.norm1.alpha is missing")),
    "tensor misshapen": (_edit(_reshape), ("model.safetensors", "text_linear.weight has shape [511, 224], expected [512, 224]")),
    "file cut": (_truncate, ("model.safetensors", "not a readable safetensors file")),
    "no tokenizer": (lambda folder: (folder / "tokenizer.model").unlink(), ("tokenizer.model is missing",)),
    "broken config": (lambda folder: (folder / "config.json").write_text('{"dim": '), ("config.json", "not readable as JSON")),
}


class Outcome:
    """What a process said, and its status."""

    def __init__(self, log: Path, *flags: str) -> None:
        process = spawn(*flags, log=log)
        try:
            self.status = process.wait(START_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        # vLLM's C++ tells on the standard error of every start what memory policy it uses; it cannot be told not to.
        self.lines = [line for line in log.read_text(encoding="utf-8").splitlines() if "NUMA binding" not in line]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Every start of this module, two at a time: each spends seconds on importing torch and vLLM."""
    root = tmp_path_factory.mktemp("boot")
    with socket.create_server(("127.0.0.1", 0)) as other, ThreadPoolExecutor(2) as pool:
        commands = {
            "check": ("--check", "--model", "tiny", "--batch-size", "3"),
            "unknown name": ("--check", "--model", "no-such-model"),
            "port in use": ("--model", "tiny", "--port", str(other.getsockname()[1])),
        }
        for name, (spoil, _) in BROKEN.items():
            folder = root / name.replace(" ", "-")
            shutil.copytree(TINY, folder)
            spoil(folder)
            commands[name] = ("--check", "--model", str(folder))
        logs = (root / f"{name}.txt" for name in commands)
        started = [pool.submit(Outcome, log, *flags, "--log-level", "error") for log, flags in zip(logs, commands.values(), strict=True)]
        yield dict(zip(commands, (future.result() for future in started), strict=True))


def test_check_says_how_many_slots_fit(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["check"].status == 0
    (line,) = outcomes["check"].lines
    assert line.startswith("ok: tiny on cpu, 3 slots of ")
    assert int(line.split()[-3]) > 3  # "... of N that fit"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_checkpoint_is_one_line_that_names_the_file(outcomes: dict[str, Outcome], name: str) -> None:
    assert outcomes[name].status == 2
    (line,) = outcomes[name].lines
    assert line.startswith("gateway: ")
    assert all(part in line for part in BROKEN[name][1]), line


def test_an_unknown_model_is_one_line_that_says_what_would_do(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["unknown name"].status == 2
    (line,) = outcomes["unknown name"].lines
    assert line.startswith("gateway: --model no-such-model: no such folder; give a folder, a hub id")


def test_a_port_in_use_is_one_line(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["port in use"].status == 2
    (line,) = outcomes["port in use"].lines
    assert "is in use on 127.0.0.1: stop the other server or choose another --port" in line
