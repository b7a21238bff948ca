"""The configuration: who beats whom, what is refused and how it is named."""

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway import config
from gateway.config import Config, configuration_table, load_config, realtime_table
from gateway.errors import ConfigError
from gateway.metrics import metrics_table

ROOT = Path(__file__).parent.parent

REFUSED = [
    (["--bogus"], {}, "--bogus"),
    (["--batch-siz", "4"], {}, "--batch-siz"),  # no guessing of abbreviations
    (["--port"], {}, "--port"),
    (["--port", "70000"], {}, "--port"),
    (["--port", "0"], {}, "--port"),
    (["--batch-size", "0"], {}, "--batch-size"),
    (["--batch-size", "4.5"], {}, "--batch-size"),
    (["--queue-seconds", "nan"], {}, "--queue-seconds"),
    (["--gpu-memory-utilization", "1.1"], {}, "--gpu-memory-utilization"),
    (["--kv-cache-dtype", "int3"], {}, "--kv-cache-dtype"),
    (["--log-level", "loud"], {}, "--log-level"),
    (["--opus-complexity", "11"], {}, "--opus-complexity"),
    (["--model", ""], {}, "--model"),
    (["--host", ""], {}, "--host"),
    (["--overflow", "queue"], {}, "--overflow"),
    (["--vad", "none"], {}, "--vad"),
    (["--max-sessions-per-key", "-1"], {}, "--max-sessions-per-key"),
    (["--handshakes-per-minute-per-key", "often"], {}, "--handshakes-per-minute-per-key"),
    (["--allowed-origins", "app.example.com"], {}, "--allowed-origins: app.example.com is no origin"),
    (["--api-keys-file", "/nowhere/keys"], {}, "--api-keys-file: /nowhere/keys cannot be read"),
    ([], {"GATEWAY_API_KEYS": "sk one"}, "GATEWAY_API_KEYS: line 1"),
    (["--realtime", "nudge"], {}, "--realtime: not JSON"),
    (["--realtime", "[]"], {}, "--realtime: not a JSON object"),
    (["--realtime", '{"nugde": true}'], {}, "--realtime: nugde:"),
    (["--realtime", '{"close_silence_ms": 1}'], {}, "--realtime: close_silence_ms:"),
    (["--realtime", '{"close_rms_db": -30}'], {}, "--realtime: close_rms_db .* must not be above"),
    (["--realtime", "@/nowhere/options"], {}, "--realtime: /nowhere/options cannot be read"),
    ([], {"GATEWAY_REALTIME": "{"}, "GATEWAY_REALTIME: not JSON"),
    ([], {"GATEWAY_PROT": "1"}, "GATEWAY_PROT"),
    ([], {"GATEWAY_port": "1"}, "GATEWAY_port"),
    ([], {"GATEWAY_PORT": "x"}, "GATEWAY_PORT"),
    ([], {"GATEWAY_CHECK": "perhaps"}, "GATEWAY_CHECK"),
]


def test_argv_beats_the_environment_beats_the_default() -> None:
    environ = {"GATEWAY_PORT": "1111", "GATEWAY_BATCH_SIZE": "7", "PATH": "/bin"}
    resolved = load_config(["--port", "2222"], environ)
    assert (resolved.port, resolved.batch_size, resolved.idle_seconds) == (2222, 7, 60.0)


@pytest.mark.parametrize(("argv", "environ", "named"), REFUSED)
def test_what_cannot_be_is_refused_under_the_name_that_was_used(argv: list[str], environ: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        load_config(argv, environ)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("field", [name for name, field in Config.model_fields.items() if field.annotation is bool])
def test_every_boolean_works_both_ways(field: str) -> None:
    flag, variable = field.replace("_", "-"), f"GATEWAY_{field.upper()}"
    assert getattr(load_config([f"--{flag}"], {}), field) is True
    assert getattr(load_config([f"--no-{flag}"], {variable: "true"}), field) is False
    assert getattr(load_config([f"--{flag}"], {variable: "0"}), field) is True
    assert getattr(load_config([], {variable: "1"}), field) is True


def test_it_listens_on_loopback_unless_told_otherwise() -> None:
    assert not load_config([], {}).is_wide_open
    assert not load_config(["--host", "localhost"], {}).is_wide_open
    assert load_config(["--host", "0.0.0.0"], {}).is_wide_open
    assert load_config(["--host", "::"], {}).is_wide_open


def test_ssl_wants_both_files(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").touch()
    with pytest.raises(ConfigError, match=r"--ssl: .*key\.pem is missing"):
        load_config(["--ssl", str(tmp_path)], {})
    (tmp_path / "key.pem").touch()
    assert load_config(["--ssl", str(tmp_path)], {}).ssl == tmp_path


def test_static_is_the_bundle_a_folder_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "BUNDLED_STATIC", tmp_path)
    assert load_config([], {}).static is None
    with pytest.raises(ConfigError, match="--static"):
        load_config(["--static", str(tmp_path)], {})
    (tmp_path / "index.html").touch()
    assert load_config([], {}).static == tmp_path
    assert load_config(["--static", "none"], {}).static is None
    assert load_config(["--static", str(tmp_path)], {}).static == tmp_path


def test_the_log_line_has_every_setting_but_not_the_persona() -> None:
    line = load_config(["--persona", "the secret agent"], {}).describe()
    assert all(f"{name}=" in line for name in Config.model_fields)
    assert "secret" not in line


def test_the_resolved_configuration_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_config([], {}).port = 1  # type: ignore[misc]


def test_help_names_every_flag(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        load_config(["--help"], {})
    assert left.value.code == 0
    text = capsys.readouterr().out
    assert all("--" + name.replace("_", "-") in text for name in Config.model_fields if name != "api_keys")
    assert "GATEWAY_API_KEYS" in text
    assert "--api-keys " not in text


# -- Keys and origins ----------------------------------------------------------------------------------------------------------------


def test_keys_come_from_the_environment_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# of the house\nsk-two\nsk-three\n", encoding="utf-8-sig")  # as some editors write it
    assert load_config([], {}).keys == ()
    assert load_config([], {"GATEWAY_API_KEYS": "sk-one, sk-two"}).keys == ("sk-one", "sk-two")
    both = load_config(["--api-keys-file", str(file)], {"GATEWAY_API_KEYS": "sk-one,sk-two"})
    assert both.keys == ("sk-one", "sk-two", "sk-three")
    assert load_config([], {"GATEWAY_API_KEYS_FILE": str(file)}).keys == ("sk-two", "sk-three")


def test_a_key_is_no_flag_for_everybody_could_read_it() -> None:
    with pytest.raises(ConfigError, match=r"--api-keys: everybody can read the flags") as refused:
        load_config(["--api-keys", "sk-good"], {})
    assert "sk-good" not in str(refused.value)


def test_no_key_is_ever_shown(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("sk-two\n")
    resolved = load_config(["--api-keys-file", str(tmp_path / "keys")], {"GATEWAY_API_KEYS": "sk-one"})
    assert "sk-" not in resolved.describe() + repr(resolved) + str(resolved)
    assert "api_keys=(1 keys)" in resolved.describe()
    assert f"api_keys_file={tmp_path / 'keys'}" in resolved.describe()
    (tmp_path / "keys").write_text("sk two\n")
    with pytest.raises(ConfigError, match="--api-keys-file: line 1") as refused:
        load_config(["--api-keys-file", str(tmp_path / "keys")], {})
    assert "sk two" not in str(refused.value)


def test_a_file_without_keys_does_not_leave_the_door_open(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("# sk-old\n")
    with pytest.raises(ConfigError, match=r"--api-keys-file: .* has no key"):
        load_config(["--api-keys-file", str(tmp_path / "keys")], {})


def test_origins_are_a_list() -> None:
    assert load_config(["--allowed-origins", "https://a.example,http://localhost:5173/"], {}).allowed_origins == (
        "https://a.example",
        "http://localhost:5173",
    )


# -- Realtime ------------------------------------------------------------------------------------------------------------------------


def test_the_options_of_realtime_are_json_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text('{"close_silence_ms": 500, "model_aliases": ["gpt-realtime"]}')
    given = load_config(["--realtime", '{"nudge": false}'], {}).realtime
    assert given == config.REALTIME_DEFAULTS.model_copy(update={"nudge": False})
    read = load_config([], {"GATEWAY_REALTIME": f"@{tmp_path / 'options.json'}"}).realtime
    assert (read.close_silence_ms, read.model_aliases, read.nudge) == (500, ("gpt-realtime",), True)


def test_the_log_line_has_the_options_of_realtime_that_differ() -> None:
    assert "realtime={} " in load_config([], {}).describe()
    assert 'realtime={"nudge": false} ' in load_config(["--realtime", '{"nudge": false, "trim_leading_space": true}'], {}).describe()


@pytest.mark.parametrize(
    ("name", "table"), [("configuration", configuration_table), ("realtime", realtime_table), ("metrics", metrics_table)]
)
def test_readme_has_the_generated_table(name: str, table: Callable[[], str]) -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip() == table()
