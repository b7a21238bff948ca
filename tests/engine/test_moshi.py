"""What MoshiEngine asks of the process around it; its contract is test_contract.py."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Page faults of freeing and taking 48 MB once more.
FAULTS = """
import resource, sys, torch
from gateway.engine.moshi import _keep_freed_memory
if sys.argv[1] == "keep":
    _keep_freed_memory()
def take():
    return [torch.ones(3 * 2**20) for _ in range(4)]
take(), take()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
take()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc gives memory back after every step")
def test_memory_that_a_step_frees_is_kept_for_the_next_one() -> None:
    faults = {
        mode: int(subprocess.run([sys.executable, "-c", FAULTS, mode], check=True, cwd=ROOT, timeout=120, capture_output=True).stdout)
        for mode in ("plain", "keep")
    }
    assert faults["keep"] < 100
    assert faults["plain"] > 10 * faults["keep"], "else the setting is needed no more"
