from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from gateway.logs import SessionAdapter, setup_logging


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield root
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.mark.usefixtures("root")
def test_a_session_s_line_names_it_and_other_lines_are_plain(capsys: pytest.CaptureFixture[str]) -> None:
    setup_logging("info")
    adapter = SessionAdapter(logging.getLogger("gateway.test"), "5e55", "moshi")
    adapter.slot_idx = 3
    adapter.info("open: %s", "live")
    logging.getLogger("gateway.test").info("ready")
    logging.getLogger("gateway.test").debug("too much")
    session_line, plain_line = capsys.readouterr().err.splitlines()
    assert session_line.endswith("gateway.test [5e55 slot=3 moshi] open: live")
    assert plain_line.endswith("INFO    gateway.test ready")


def test_setting_up_twice_does_not_double_the_lines(root: logging.Logger) -> None:
    setup_logging("INFO")
    setup_logging("warning")
    assert len(root.handlers) == 1
    assert root.level == logging.WARNING


@pytest.mark.usefixtures("root")
def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(ValueError, match="LOUD"):
        setup_logging("loud")


def test_the_call_s_own_fields_stay_on_the_record(caplog: pytest.LogCaptureFixture) -> None:
    adapter = SessionAdapter(logging.getLogger("gateway.test"), "5e55", "moshi")
    with caplog.at_level(logging.INFO):
        adapter.info("x", extra={"pii": "words"})
    (record,) = caplog.records
    assert (record.__dict__["pii"], record.__dict__["session_id"]) == ("words", "5e55")
