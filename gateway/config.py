"""Every setting of the gateway: its type, range, default, unit and help, in one frozen model.

argv beats `GATEWAY_*` beats the default; a flag or variable that nobody knows is an error, and so is a value out of range. This module is
the only reader of `os.environ`. The one rule: a setting is one field here; the flag, the variable, `--help` and README's tables follow from
it; a secret is a variable only, for everybody can read the flags of a process. `python -m gateway.config` prints the tables. Whether
folders exist is looked at here, what is in them is not; a file that is the value of a setting is read here. Thread: any.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn

import pydantic
from pydantic import Field

from gateway.auth import parse_keys, parse_origins
from gateway.errors import ConfigError
from protocols.realtime.options import RealtimeOptions

ENV_PREFIX = "GATEWAY_"
_SECRET = "is_secret"  # mark of a field that is never shown and has no flag
BUNDLED_STATIC = Path(__file__).parent.parent / "static"  # the web client of a checkout; a wheel has none
REALTIME_DEFAULTS = RealtimeOptions.model_validate({})


@dataclasses.dataclass(frozen=True, slots=True)
class KeyFile:
    """A file of keys, as it was read."""

    path: Path
    keys: tuple[str, ...] = dataclasses.field(repr=False)

    def __str__(self) -> str:
        return str(self.path)


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
    overflow: Literal["ws", "http"] = Field(
        "ws",
        description="how a full server refuses a WebSocket: ws accepts it, says why and closes with 1013; http answers 503 at the upgrade",
    )
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
    realtime: RealtimeOptions = Field(
        REALTIME_DEFAULTS, description="how /v1/realtime behaves: a JSON object with keys of the table below, or @FILE with one"
    )
    vad: Literal["silero", "energy"] = Field(
        "silero", description="what tells speech of Realtime callers: silero is a small model, energy the level (no further packages)"
    )
    api_keys: tuple[str, ...] = Field(
        (), repr=False, json_schema_extra={_SECRET: True}, description="keys, one of which every request must have; separated by commas"
    )
    api_keys_file: KeyFile | None = Field(None, description="file of such keys, one a line; # begins a comment")
    allow_query_key: bool = Field(False, description="take a key from ?api_key= of the URL as well, which proxies write to their logs")
    allowed_origins: tuple[str, ...] = Field(
        (), description="pages that may use this server, beside its own: scheme://host[:port], separated by commas; * or none for all"
    )
    max_sessions_per_key: int = Field(0, ge=0, le=4096, description="calls that one key may hold; 0 for no limit")
    handshakes_per_minute_per_key: int = Field(
        120, ge=0, le=100_000, description="WebSockets that one key may ask for within a minute; 0 for no limit"
    )
    ephemeral_single_use: bool = Field(False, description="an ephemeral key of /v1/realtime/client_secrets opens one connection only")
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

    @pydantic.field_validator("api_keys", mode="before")
    @classmethod
    def _split_keys(cls, value: object) -> object:
        return parse_keys(value) if isinstance(value, str) else value

    @pydantic.field_validator("api_keys_file", mode="before")
    @classmethod
    def _read_keys(cls, value: object) -> object:
        if value is None or isinstance(value, KeyFile):
            return value
        keys = parse_keys(_read(Path(str(value))))
        if not keys:
            raise ValueError(f"{value} has no key")
        return KeyFile(Path(str(value)), keys)

    @pydantic.field_validator("allowed_origins", mode="before")
    @classmethod
    def _split_origins(cls, value: object) -> object:
        return parse_origins(value) if isinstance(value, str) else value

    @pydantic.field_validator("realtime", mode="before")
    @classmethod
    def _read_options(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        try:
            options = json.loads(_read(Path(value[1:])) if value.startswith("@") else value)
        except json.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if not isinstance(options, dict):
            raise ValueError("not a JSON object")
        return options

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key, of the variable and of the file."""
        return tuple(dict.fromkeys((*self.api_keys, *(() if self.api_keys_file is None else self.api_keys_file.keys))))

    @property
    def page(self) -> Path | None:
        """Folder of this repository's own web client; None where there is none, and with `--static none`."""
        return BUNDLED_STATIC if self.static is not None and (BUNDLED_STATIC / "index.html").is_file() else None

    @property
    def is_wide_open(self) -> bool:
        """Whether other machines can reach the port."""
        return self.host not in ("localhost", "::1") and not self.host.startswith("127.")

    def describe(self) -> str:
        """Every setting on one line, for the log. The persona may be private: only its length is told; of keys, only how many there are."""
        shown: dict[str, object] = {name: getattr(self, name) for name in Config.model_fields}
        shown["persona"] = f"({len(self.persona)} characters)"
        shown["api_keys"] = f"({len(self.api_keys)} keys)"
        shown["allowed_origins"] = ",".join(self.allowed_origins)
        shown["realtime"] = json.dumps(self.realtime.model_dump(mode="json", exclude_defaults=True))
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
        place = "".join(f" {part}:" for part in error["loc"][1:])
        if error["type"] == "value_error":
            reason = str(error["ctx"]["error"])
        else:
            reason = error["msg"] if _is_secret(name) else f"{error['msg']}, not {error['input']!r}"
        raise ConfigError(f"{source}:{place} {reason}") from None


def configuration_table() -> str:
    """README's table of settings, in Markdown."""
    rows = ["| flag | environment | default | meaning |", "| --- | --- | --- | --- |"]
    for name, field in Config.model_fields.items():
        flag = "" if _is_secret(name) else f"`{_flag(name)}`"
        rows.append(f"| {flag} | `{_variable(name)}` | {_default(field.default)} | {_meaning(Config, name)} |")
    return "\n".join(rows)


def realtime_table() -> str:
    """README's table of the keys of `--realtime`, in Markdown."""
    rows = ["| key | default | meaning |", "| --- | --- | --- |"]
    for name, field in RealtimeOptions.model_fields.items():
        rows.append(f"| `{name}` | {_default(field.get_default(call_default_factory=True))} | {_meaning(RealtimeOptions, name)} |")
    return "\n".join(rows)


# -- Private -------------------------------------------------------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def _parser() -> argparse.ArgumentParser:
    """Flags only: values stay strings for pydantic, so that a flag and a variable are judged alike."""
    secrets = ", ".join(_variable(name) for name in Config.model_fields if _is_secret(name))
    parser = _Parser(
        prog="python -m gateway",
        description="Serve a full-duplex speech model to many callers.",
        epilog=f"Every flag is also an environment variable: --batch-size is {_variable('batch_size')}. Without a flag: {secrets}.",
        allow_abbrev=False,
    )
    for name, field in Config.model_fields.items():
        default = _default(field.default).strip("`")
        text = f"{field.description}{f' (default: {default})' if default else ''}".replace("%", "%%")
        if _is_secret(name):
            parser.add_argument(_flag(name), dest=name, type=_no_flag, help=argparse.SUPPRESS)
        elif field.annotation is bool:
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
    if annotation == KeyFile | None:
        return "FILE"
    if annotation is RealtimeOptions:
        return "JSON"
    return "DIR" if annotation == Path | None else name.upper()


def _no_flag(value: str) -> NoReturn:
    raise argparse.ArgumentTypeError("everybody can read the flags of a process: use the environment variable or a file")


def _is_secret(name: str) -> bool:
    extra = Config.model_fields[name].json_schema_extra
    return isinstance(extra, dict) and bool(extra.get(_SECRET))


def _read(path: Path) -> str:
    """Read a file that is the value of a setting.

    Raises:
        ValueError: it cannot be read.
    """
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _default(value: object) -> str:
    """A default value as a user would write it; empty where there is nothing to say."""
    if value in ("", None, (), REALTIME_DEFAULTS):
        return ""
    return f"`{json.dumps(value) if isinstance(value, bool | Mapping) else value}`"


def _meaning(model: type[pydantic.BaseModel], name: str) -> str:
    """Description of a setting and, in words, its legal values."""
    schema: dict[str, Any] = model.model_json_schema()["properties"][name]
    legal = ""
    if "enum" in schema:
        legal = ", ".join(schema["enum"])
    else:
        low = schema.get("minimum", schema.get("exclusiveMinimum", -math.inf))
        if not math.isinf(low):
            legal = f"{'above ' if 'exclusiveMinimum' in schema else ''}{low:.12g} to {schema.get('maximum', math.inf):.12g}"
    return f"{model.model_fields[name].description}{f' ({legal})' if legal else ''}"


if __name__ == "__main__":
    print(configuration_table(), realtime_table(), sep="\n\n")
