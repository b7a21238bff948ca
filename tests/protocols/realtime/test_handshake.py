"""The upgrade request: every way in which clients write it, and what is refused by name."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from protocols.realtime.dialect import Dialect
from protocols.realtime.handshake import Handshake, Refused, error_body, offered_protocols, read_handshake, read_query, request_id, shown


def read(query: str, headers: dict[str, str] | None = None, **options: tuple[str, ...]) -> Handshake:
    return read_handshake(parse_qsl(query, keep_blank_values=True), headers or {}, **options)


def refusal(query: str, **options: tuple[str, ...]) -> Refused:
    with pytest.raises(Refused) as refused:
        read(query, **options)
    return refused.value


CLIENTS = [  # what unmodified clients send (specs/realtime.md 5.1) -> model, client_duplex
    ("", None, False),
    ("model=gpt-realtime-2.1", "gpt-realtime-2.1", False),
    ("model=m&duplex=1", "m", True),
    ("duplex=1?model=gpt-realtime-2.1", "gpt-realtime-2.1", True),  # Pipecat with a base URL that has a query
    ("duplex=1%3Fmodel%3Dgpt-realtime-2.1", "gpt-realtime-2.1", True),
    ("voice=NATF1&duplex=true?model=x&temperature=1", "x", True),
    ("autostart=0?model=x", "x", False),
    ("model=mine?model=x", "mine", False),
    ("duplex=1?model=x&model=mine", "mine", True),
    ("model=first&model=second", "first", False),
    ("deployment=d&api-version=2024-10-01-preview", "d", False),  # Azure
    ("deployment=d&model=m", "m", False),
    ("model=&deployment=d", "d", False),
    ("model=m&intent=conversation&session_id=x&resume_token=y&unknown", "m", False),
]


@pytest.mark.parametrize(("query", "model", "client_duplex"), CLIENTS)
def test_queries_of_known_clients(query: str, model: str | None, client_duplex: bool) -> None:
    handshake = read(query)
    assert (handshake.model, handshake.client_duplex) == (model, client_duplex)
    assert handshake.autostart is False
    assert handshake.dialect is handshake.capacity is None


@pytest.mark.parametrize("value", ["1", "true", "TRUE", "on", "Yes", "1x", "yes?model=m"])
def test_duplex_is_true_by_its_beginning(value: str) -> None:
    assert read(f"duplex={value}").client_duplex


@pytest.mark.parametrize("value", ["", "0", "false", "off", "no", "2", " 1", "x1"])
def test_duplex_is_a_declaration_and_is_never_refused(value: str) -> None:
    assert not read(f"duplex={value}").client_duplex


def test_what_changes_the_call_is_read() -> None:
    handshake = read("autostart=1&dialect=beta&capacity=HTTP&voice=NATF1?model=m")
    assert handshake == Handshake(
        model="m", autostart=True, dialect=Dialect.BETA, capacity="http", voice="NATF1", request_id=handshake.request_id
    )
    assert read("dialect=GA").dialect is Dialect.GA
    assert read("capacity=event").capacity == "event"
    empty = read("autostart=&dialect=&capacity=&voice=")
    assert empty == Handshake(request_id=empty.request_id)


REFUSED = [
    ("intent=transcription", 400, "unsupported_intent", "intent"),
    ("call_id=rtc_1", 400, "unsupported_parameter", "call_id"),
    ("call_id=", 400, "unsupported_parameter", "call_id"),
    ("dialect=alpha", 400, "invalid_value", "dialect"),
    ("capacity=503", 400, "invalid_value", "capacity"),
    ("autostart=maybe", 400, "invalid_value", "autostart"),
]


@pytest.mark.parametrize(("query", "status", "code", "param"), REFUSED)
def test_what_cannot_be_is_refused_by_name(query: str, status: int, code: str, param: str) -> None:
    refused = refusal(query)
    assert (refused.status, refused.code, refused.param) == (status, code, param)
    assert param in refused.message
    assert refused.body == error_body(refused.message, "invalid_request_error", code, param)


def test_a_refusal_repeats_little_of_what_it_was_sent() -> None:
    refused = refusal("dialect=" + "x" * 5000)
    assert "x" * 80 in refused.message
    assert "x" * 81 not in refused.message


def test_a_strict_server_knows_its_names_and_others_take_any() -> None:
    known = ("personaplex-7b", "gpt-realtime")
    assert read("model=gpt-realtime", known_models=known).model == "gpt-realtime"
    assert read("", known_models=known).model is None
    assert read("duplex=1?model=gpt-realtime", known_models=known).model == "gpt-realtime"
    for query in ("model=gpt-4o", "deployment=gpt-4o", "duplex=1?model=gpt-4o"):
        refused = refusal(query, known_models=known)
        assert (refused.status, refused.code, refused.param) == (404, "model_not_found", "model")
        assert "personaplex-7b" in refused.message
        assert read(query).model == "gpt-4o"


BETA = [
    {"OpenAI-Beta": "realtime=v1"},
    {"openai-beta": "assistants=v2, Realtime=V1"},
    {"Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key.sk-good,openai-beta.realtime-v1"},
]


@pytest.mark.parametrize("headers", BETA)
def test_old_clients_hint_at_the_beta_names(headers: dict[str, str]) -> None:
    handshake = read("", headers)
    assert handshake.is_beta_hinted
    assert handshake.dialect is None  # a hint forces nothing


def test_others_do_not() -> None:
    assert not read("", {"OpenAI-Beta": "assistants=v2", "Sec-WebSocket-Protocol": "realtime"}).is_beta_hinted


def test_protocols_are_a_list() -> None:
    assert offered_protocols({"sec-websocket-protocol": " realtime ,, a.b,"}) == ("realtime", "a.b")
    assert offered_protocols({"Other": "realtime"}) == ()


def test_the_first_of_a_repeated_key_wins() -> None:
    assert read_query([("a", "1"), ("a", "2"), ("b", "x?model=y"), ("c", "z?model=w")]) == {"a": "1", "b": "x", "c": "z", "model": "y"}


def test_a_usable_request_id_is_told_back_and_another_is_replaced() -> None:
    assert request_id({"x-request-id": "abc-123_/="}) == "abc-123_/="
    for bad in ("", "x" * 129, "two words", "tab\there", "ümlaut", "line\r\nInjected: 1"):
        made = request_id({"X-Request-Id": bad})
        assert made.startswith("req_")
        assert made.isascii()
    assert request_id({}) != request_id({})
    assert read("", {"X-REQUEST-ID": "mine"}).request_id == "mine"


def test_the_user_agent_is_one_printable_line() -> None:
    assert read("", {"User-Agent": "OpenAI/JS 7.59.0\x1b[31m\n" + "x" * 500}).user_agent == ("OpenAI/JS 7.59.0 [31m " + "x" * 500)[:200]


def test_what_is_shown_is_short_and_printable() -> None:
    assert shown("a\nb\u202e") == '"a b "'
    assert shown("y" * 100) == '"' + "y" * 80 + '..."'


@pytest.mark.parametrize(
    ("status", "type"),
    [
        (400, "invalid_request_error"),
        (401, "invalid_request_error"),
        (429, "rate_limit_error"),
        (500, "server_error"),
        (501, "invalid_request_error"),
        (503, "server_error"),
    ],
)
def test_a_body_blames_who_can_mend_it(status: int, type: str) -> None:
    refused = Refused(status, "code", "What was wrong.", headers={"Retry-After": "2"})
    assert refused.body == {"error": {"message": "What was wrong.", "type": type, "code": "code", "param": None}}
    assert refused.headers == {"Retry-After": "2"}
