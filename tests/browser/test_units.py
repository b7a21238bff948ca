"""The page's modules that know no browser, under node: jitter buffer, resampler, Ogg, sentences, transcript, recording, numbers."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = sorted((Path(__file__).parent / "units").glob("*.test.mjs"))
STATIC = Path(__file__).parents[2] / "static"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name.removesuffix(".test.mjs"))
def test_module(path: Path) -> None:
    ran = subprocess.run(["node", "--test", "--test-reporter=tap", str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    counted = re.search(r"^# pass (\d+)$", ran.stdout, re.MULTILINE)
    assert counted is not None
    assert int(counted[1]) > 0


@pytest.mark.parametrize("path", sorted(STATIC.glob("js/*.js")), ids=lambda path: path.name)
def test_files_are_small_and_open_with_what_they_are_for(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    assert len(lines) < 300
    assert lines[0].startswith("// ")
    assert max(map(len, lines)) <= 140


def test_the_page_has_no_inline_script_style_or_handler_and_no_address_of_another_host() -> None:
    for path in (*STATIC.glob("*.html"), *STATIC.glob("*.css"), *STATIC.glob("js/*.js")):
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://[a-z]", text), path.name
        if path.suffix == ".html":
            assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", text), path.name
            assert not re.search(r'(src|href)="/', text), f"{path.name}: addresses are relative, or no proxy could put a prefix before them"
