"""Every setting of the gateway: its type, range, default, unit and help, in one frozen model.

argv beats `GATEWAY_*` beats the default; a flag or variable that nobody knows is an error, and so is a value out of range. This module is
the only reader of `os.environ`. The one rule: a setting is one field here; the flag, the variable, `--help` and README's table follow from
it. `python -m gateway.config` prints that table. Whether folders exist is looked at here, what is in them is not. Thread: any.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import pydantic
from pydantic import Field

from gateway.errors import ConfigError

ENV_PREFIX = "GATEWAY_"
BUNDLED_STATIC = Path(__file__).parent.parent / "static"  # the web client of a checkout; a wheel has none


class Config(pydantic.BaseModel):
    """The resolved configuration."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    model: str = Field(
        "auto",
        min_length=1,
        description="checkpoint: a folder, a hub id, tiny, or auto: PersonaPlex where there is a CUDA GPU with room for it, tiny elsewhere",
    )
    batch_size: int = Field(4, ge=1, le=4096, description="slots, that is callers at once")
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 is every IPv4 interface, :: every one")
    port: int = Field(8998, ge=1, le=65535, description="port to listen on")
    ssl: Path | None = Field(None, description="folder with cert.pem and key.pem: serve https and wss")
    static: Path | None = Field(
        None, validate_default=True, description="folder of a web client, served at /; none for none; default: the bundled one, if built"
    )
    persona: str = Field("", description="persona of callers that send none")
    voice: str = Field("", description="voice prompt of callers that ask for none; empty: the checkpoint's own")
    queue_seconds: float = Field(0.0, ge=0, le=3600, description="how long a caller may wait for a slot; 0 refuses at once")
    max_call_seconds: float = Field(14_400.0, ge=1, le=7 * 86_400, description="longest call")
    idle_seconds: float = Field(60.0, gt=0, le=86_400, description="a call ends after so long without audio from its caller")
    drain_seconds: float = Field(8.0, ge=0, le=3600, description="after SIGTERM: how long the present calls may go on")
    coalesce_ms: float = Field(5.0, ge=0, le=80, description="how long a step waits for the frames of further callers")
    inbox_frames: int = Field(12, ge=1, le=1000, description="frames of a caller that may wait for the model; then the oldest is dropped")
    outbox_frames: int = Field(12, ge=1, le=1000, description="frames that may wait for a caller; then the oldest is dropped")
    kv_cache_dtype: Literal["auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2"] = Field(
        "auto", description="type of the KV cache; auto is the model's own"
    )
    gpu_memory_utilization: float = Field(0.9, gt=0, le=1, description="share of the GPU's memory that may be used")
    opus_complexity: int = Field(5, ge=0, le=10, description="effort of the Opus encoder")
    opus_threads: int = Field(2, ge=1, le=64, description="threads that encode and decode Opus")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe log line that is written")
    check: bool = Field(False, description="check the configuration and the checkpoint, load the model, say how many slots fit, and stop")

    @pydantic.field_validator("ssl")
    @classmethod
    def _has_certificate(cls, folder: Path | None) -> Path | None:
        for name in ("cert.pem", "key.pem"):
            if folder is not None and not (folder / name).is_file():
                raise ValueError(f"{folder / name} is missing")
        return folder

    @pydantic.field_validator("static", mode="before")
    @classmethod
    def _find_static(cls, value: object) -> object:
        if value is None:
            return BUNDLED_STATIC if (BUNDLED_STATIC / "index.html").is_file() else None
        if str(value) == "none":
            return None
        if not (Path(str(value)) / "index.html").is_file():
            raise ValueError(f"{value} has no index.html")
        return value

    @property
    def is_wide_open(self) -> bool:
        """Whether other machines can reach the port."""
        return self.host not in ("localhost", "::1") and not self.host.startswith("127.")

    def describe(self) -> str:
        """Every setting on one line, for the log. The persona may be private: only its length is told."""
        shown = {**self.model_dump(), "persona": f"({len(self.persona)} characters)"}
        return " ".join(f"{name}={value}" for name, value in shown.items())


def load_config(argv: Sequence[str], environ: Mapping[str, str] | None = None) -> Config:
    """Resolve the configuration; `environ` is the process's own unless given.

    Raises:
        ConfigError: an unknown flag or variable, or a value that is not legal (named as the caller wrote it).
        SystemExit: `--help`, after printing.
    """
    flags = {name: value for name, value in vars(_parser().parse_args(argv)).items() if value is not None}
    variables = _from_environ(os.environ if environ is None else environ)
    try:
        return Config.model_validate({**variables, **flags})
    except pydantic.ValidationError as exc:
        error = exc.errors(include_url=False)[0]
        name = str(error["loc"][0])
        source = _flag(name) if name in flags else _variable(name)
        reason = str(error["ctx"]["error"]) if error["type"] == "value_error" else f"{error['msg']}, not {error['input']!r}"
        raise ConfigError(f"{source}: {reason}") from None


def configuration_table() -> str:
    """README's table of settings, in Markdown."""
    rows = ["| flag | environment | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Config.model_fields.items():
        default = "" if field.default in ("", None) else str(field.default).lower()
        legal = _range(name)
        meaning = f"{field.description}{f' ({legal})' if legal else ''}"
        rows.append(f"| `{_flag(name)}` | `{_variable(name)}` | {f'`{default}`' if default else ''} | {meaning} |")
    return "\n".join(rows)


# -- Private -------------------------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    """Flags only: values stay strings for pydantic, so that a flag and a variable are judged alike."""
    parser = _Parser(
        prog="python -m gateway",
        description="Serve a full-duplex speech model to many callers.",
        epilog=f"Every flag is also an environment variable: --batch-size is {_variable('batch_size')}.",
        allow_abbrev=False,
    )
    for name, field in Config.model_fields.items():
        text = f"{field.description} (default: {field.default})".replace("%", "%%")
        if field.annotation is bool:
            parser.add_argument(_flag(name), dest=name, action=argparse.BooleanOptionalAction, default=None, help=text)
        else:
            parser.add_argument(_flag(name), dest=name, metavar=_metavar(name), help=text)
    return parser


def _from_environ(environ: Mapping[str, str]) -> dict[str, str]:
    values = {}
    for variable, value in environ.items():
        if variable.startswith(ENV_PREFIX):
            name = variable.removeprefix(ENV_PREFIX).lower()
            if name not in Config.model_fields or variable != _variable(name):
                raise ConfigError(f"{variable}: there is no such setting")
            values[name] = value
    return values


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENV_PREFIX + name.upper()


def _metavar(name: str) -> str:
    annotation = Config.model_fields[name].annotation
    if annotation in (int, float):
        return {"seconds": "SECONDS", "ms": "MS"}.get(name.rsplit("_")[-1], "N")
    return "DIR" if annotation == Path | None else name.upper()


def _range(name: str) -> str:
    """The legal values of a setting, in words; empty where there is nothing to say."""
    schema: dict[str, Any] = Config.model_json_schema()["properties"][name]
    if "enum" in schema:
        return ", ".join(schema["enum"])
    low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
    high = schema.get("maximum", math.inf)
    if math.isinf(low):
        return ""
    return f"{'above ' if 'exclusiveMinimum' in schema else ''}{low:g} to {high:g}"


if __name__ == "__main__":
    print(configuration_table())
