"""The house's arrows point down only: which module may import which (STYLE section 2), read from the source, and each module alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
STDLIB = set(sys.stdlib_module_names)

WIRE = {"protocols.events", "protocols.errors"}
BASE = WIRE | {"gateway.errors", "gateway.metrics", "gateway.logs"}
ENGINE = BASE | {"gateway.engine.base", "gateway.engine.layout", "numpy"}

# Module -> what it may import beside the standard library. A name ending in ".*" stands for a package.
ALLOWED: dict[str, set[str]] = {
    "protocols": {"protocols.*"},
    "protocols.errors": set(),
    "protocols.events": {"numpy", "protocols.errors"},
    "protocols.codec": WIRE,
    "protocols.audio": {"numpy"},
    "protocols.ogg": set(),
    "protocols.params": WIRE | {"protocols.audio"},
    "protocols.opus": {"numpy", "opuslib", "protocols.errors", "protocols.audio", "protocols.ogg"},
    "protocols.moshi": WIRE | {"numpy", "protocols.codec", "protocols.audio", "protocols.opus", "protocols.params"},
    "protocols.rawpcm": WIRE | {"numpy", "pydantic", "pydantic_core", "protocols.codec", "protocols.audio", "protocols.params"},
    "protocols.realtime": set(),
    "gateway": set(),
    "gateway.errors": {"protocols.errors"},
    "gateway.metrics": BASE | {"prometheus_client", "protocols.realtime.meter"},
    "gateway.logs": BASE,
    "gateway.state": BASE,
    "gateway.ledger": BASE,
    "gateway.admission": BASE,
    "gateway.auth": {"protocols.realtime.handshake"},
    "gateway.clock": BASE | {"numpy"},
    "gateway.limits": BASE | {"gateway.clock", "gateway.engine.base"},
    "gateway.text": BASE,
    "gateway.outbox": BASE,
    "gateway.slot": BASE | {"numpy", "gateway.engine.base"},
    "gateway.slots": BASE | {"numpy", "gateway.slot", "gateway.engine.base"},
    "gateway.tally": BASE,
    "gateway.lease": BASE | {"gateway.slots", "gateway.engine.base"},
    "gateway.intake": BASE | {"gateway.clock", "gateway.limits", "gateway.slots", "gateway.engine.base", "protocols.audio"},
    "gateway.output": BASE | {"gateway.clock", "gateway.ledger", "gateway.slots", "gateway.text", "gateway.engine.base"},
    "gateway.ticker": BASE | {"gateway.slots", "gateway.engine.base"},
    "gateway.session": BASE
    | {f"gateway.{name}" for name in ("state", "slots", "limits", "outbox", "admission", "intake", "lease", "output", "tally")}
    | {"gateway.engine.base"},
    "gateway.manager": BASE
    | {f"gateway.{name}" for name in ("calls", "session", "limits", "slots", "state", "ticker", "config", "engine.base")},
    "gateway.calls": BASE | {"gateway.session", "gateway.slots", "gateway.state"},
    "gateway.config": BASE | {"pydantic", "protocols", "gateway.auth", "protocols.realtime.options"},
    "gateway.vad": BASE | {"numpy", "onnxruntime", "protocols.audio", "protocols.realtime.audio", "protocols.realtime.detector"},
    "gateway.transport": set(),
    "gateway.transport.pump": BASE | {"aiohttp", "protocols.codec", "gateway.outbox", "gateway.session", "gateway.state"},
    "gateway.transport.ws": BASE
    | {"aiohttp", "protocols.codec", "gateway.manager", "gateway.outbox", "gateway.session", "gateway.transport.pump"},
    "gateway.transport.http": BASE
    | {"aiohttp", "prometheus_client", "gateway", "gateway.auth", "protocols.realtime.handshake"}
    | {f"gateway.{name}" for name in ("manager", "session", "slots", "ticker")},
    "gateway.transport.page": {"aiohttp"},
    "gateway.transport.status": BASE
    | {"aiohttp", "protocols.params", "gateway.calls", "gateway.manager", "gateway.slots", "gateway.ticker", "gateway.transport.http"},
    "gateway.transport.openai": BASE
    | {"aiohttp", "protocols.audio", "protocols.codec", "protocols.realtime.*"}
    | {f"gateway.{name}" for name in ("auth", "config", "engine.base", "manager", "ticker", "vad", "transport.http", "transport.ws")},
    "gateway.app": {"*"},
    "gateway.__main__": BASE
    | {"gateway.app", "gateway.config", "protocols", "torch"}
    | {"gateway.engine.base", "gateway.engine.checkpoint", "gateway.engine.moshi"},
    "gateway.engine": set(),
    "gateway.engine.base": WIRE | {"numpy"},
    "gateway.engine.layout": {"gateway.errors"},
    "gateway.engine.prompt": ENGINE,
    "gateway.engine.fake": ENGINE,
    "gateway.engine.checkpoint": ENGINE | {"huggingface_hub"},
    "gateway.engine.graphs": {"torch"},
    "gateway.engine.codec.*": {"torch", "safetensors", "gateway.errors", "gateway.engine.graphs", "gateway.engine.codec.*"},
    "gateway.engine.lm.*": ENGINE | {"torch", "safetensors", "gateway.engine.graphs", "gateway.engine.prompt", "gateway.engine.lm.*"},
    "gateway.engine.vllm.*": ENGINE
    | {"torch", "vllm", "psutil", "gateway.engine.checkpoint", "gateway.engine.graphs", "gateway.engine.prompt"}
    | {"gateway.engine.lm.*", "gateway.engine.vllm.*"},
    "gateway.engine.voices": ENGINE
    | {"torch", "scipy", "soundfile", "pyloudnorm"}
    | {f"gateway.engine.{name}" for name in ("prompt", "checkpoint", "moshi", "lm.weights")},
    "gateway.engine.moshi": {"*"},
    # Makes the bundled model and judges it; nothing of the server imports it.
    "gateway.training.*": {"gateway.errors", "gateway.engine.*", "gateway.training.*", "protocols.*"}
    | {"numpy", "scipy", "torch", "safetensors", "soundfile", "sentencepiece", "onnx", "onnxruntime", "pocketsphinx", "faster_whisper"}
    | {"aiohttp", "prometheus_client", "av"},
}

# The Realtime wire in layers: a module may import what stands in a row above its own, and the vocabulary of every wire.
REALTIME = (
    ("budget", "ids", "meter", "hold", "detector", "segment", "timeline", "turns", "watermarks", "fault", "options"),
    ("values",),
    ("formats",),
    ("objects", "audio", "voices", "turn_detection", "duplex"),
    ("client_items", "server_events"),
    ("response_options", "dialect", "ext", "conversation", "response"),
    ("client_events", "session_config", "handshake", "outgoing"),
    ("parsing", "session_object"),
    ("wire", "settings"),
    ("call",),
    ("delivery", "input"),
    ("speaking",),
    ("listening", "priming"),
    ("commands",),
    ("codec",),
)
_above: set[str] = WIRE | {"numpy", "pydantic", "pydantic_core", "protocols.audio", "protocols.codec", "protocols.params"}
for _row in REALTIME:
    ALLOWED |= {f"protocols.realtime.{_name}": set(_above) for _name in _row}
    _above |= {f"protocols.realtime.{_name}" for _name in _row}
ALLOWED["protocols.realtime.audio"].add("av")


def modules() -> list[str]:
    names = []
    for path in sorted([*ROOT.glob("gateway/**/*.py"), *ROOT.glob("protocols/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        names.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return names


def imports(module: str) -> set[str]:
    """Modules that a source file imports, at any depth of its code; stdlib left out, third parties by their top name."""
    base = ROOT / module.replace(".", "/")
    path = base / "__init__.py" if base.is_dir() else base.with_suffix(".py")
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            name = str(node.module)
            children = {f"{name}.{alias.name}" for alias in node.names}
            known = {child for child in children if child in set(modules())}
            found |= known or {name}
    ours = {name for name in found if name.split(".")[0] in ("gateway", "protocols")}
    others = {name.split(".")[0] for name in found - ours}
    return ours | (others - STDLIB)


def allowed(module: str) -> set[str]:
    rules = [rule for rule in ALLOWED if rule == module or (rule.endswith(".*") and f"{module}.".startswith(rule[:-1]))]
    assert rules, f"{module} is not in the list of the house"
    return ALLOWED[max(rules, key=len)]


@pytest.mark.parametrize("module", modules())
def test_arrows_point_down(module: str) -> None:
    rules = allowed(module)
    if "*" in rules:
        return
    extra = {
        name
        for name in imports(module)
        if name not in rules and not any(rule.endswith(".*") and f"{name}.".startswith(rule[:-1]) for rule in rules)
    }
    assert not extra, f"{module} must not import {sorted(extra)}"


def test_the_list_has_no_module_that_is_gone() -> None:
    existing = set(modules())
    gone = [rule for rule in ALLOWED if rule.removesuffix(".*") not in existing]
    assert not gone


@pytest.mark.parametrize("module", ["gateway", "gateway.app", "gateway.config", "gateway.manager", "protocols", "gateway.engine.fake"])
def test_importing_the_shell_never_imports_torch(module: str) -> None:
    code = f"import sys, {module}; assert 'torch' not in sys.modules and 'vllm' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=60)


@pytest.mark.parametrize("package", ["protocols"])
def test_all_names_exist_once(package: str) -> None:
    module = __import__(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)
