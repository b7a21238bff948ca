"""The upgrade request of `/v1/realtime`, and the words in which it is refused: query and headers in, one value out.

Whatever stands here is decided before the upgrade, so that a refusal has an HTTP status (specs/realtime.md 1.1 to 1.6); who may come in at
all is not decided here. The one rule: what a client declares about itself never changes what it gets, and a value that would change it and
cannot be read is refused by name. Thread: any.

    query           values                                 otherwise      meaning
    model           any name                               -              echoed; refused only where the server is strict
    deployment      any name                               -              the same, from Azure's clients
    duplex          begins with 1, true, on, yes           no             a declaration
    autostart       1, true, on, yes / 0, false, off, no   400            begin right after session.created
    dialect         ga, beta                               400            names of the events, see `dialect`
    capacity        http, event                            400            how a full server refuses this connection
    voice           any name                               -              as in session.update; judged by the codec
    intent          anything but transcription             400            -
    call_id         -                                      400            -

Dialects (who differs, what is accepted): Pipecat appends `?model=` to a base URL without a look at it, so `?duplex=1` arrives as
`duplex` = `1?model=x`. Any value may end so; what stands behind is a model's name unless the query has another. The first of a repeated
key wins.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Literal, TypeVar

from protocols.realtime import ids
from protocols.realtime.dialect import Dialect

T = TypeVar("T")

PROTOCOL = "realtime"  # the one subprotocol that may be selected; a browser fails a connection on which none is
KEY_PREFIX = "openai-insecure-api-key."  # subprotocol entry of those that cannot send headers; never selected, never logged
BETA_PROTOCOL = "openai-beta.realtime-v1"
BETA_HEADER = "realtime=v1"

_MANGLED = "?model="
_YES = ("1", "true", "on", "yes")
_SWITCH = {"1": True, "0": False, "true": True, "false": False, "on": True, "off": False, "yes": True, "no": False}
_DIALECTS = {"ga": Dialect.GA, "beta": Dialect.BETA}
_CAPACITIES: Mapping[str, Literal["http", "event"]] = {"http": "http", "event": "event"}
_MAX_ID = 128  # characters of a request id; longer ones are not echoed
_MAX_SHOWN = 80  # characters of what the client sent that are told back ("at most 80 characters of client input", 2.11)
_MAX_AGENT = 200  # characters of a User-Agent that are kept


class Refused(Exception):
    """A request that is answered without an upgrade.

    Attributes:
        status: of the HTTP answer.
        code, param: for programs, as in an `error` event (specs/realtime.md 2.11).
        message: one sentence for people.
        headers: of the answer, beside those of its body.
    """

    def __init__(
        self, status: int, code: str, message: str, *, param: str | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.param = param
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, object]:
        """The JSON body on OpenAI's routes."""
        return error_body(self.message, _error_type(self.status), self.code, self.param)


def error_body(message: str, type: str, code: str, param: str | None = None) -> dict[str, object]:
    """The JSON of an HTTP error as OpenAI's clients read it."""
    return {"error": {"message": message, "type": type, "code": code, "param": param}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """What one upgrade request says."""

    model: str | None = None  # the name that the client asked for, to be echoed; None is the served one's
    client_duplex: bool = False  # "I know that this is full duplex"
    autostart: bool = False
    dialect: Dialect | None = None  # forced; None lets the session decide
    is_beta_hinted: bool = False  # a beta header or subprotocol: provisional, people leave it in GA code
    capacity: Literal["http", "event"] | None = None  # None is the server's own way
    voice: str | None = None
    user_agent: str = ""  # printable, for the log
    request_id: str = ""  # the client's own where it has a usable one; told back and logged


def read_handshake(
    query: Iterable[tuple[str, str]], headers: Mapping[str, str], *, known_models: Collection[str] | None = None
) -> Handshake:
    """Read an upgrade request.

    Args:
        query: decoded pairs in the order of the URL.
        headers: names in any case; several values of one name joined by commas.
        known_models: the names that are served, where others are refused; None takes any name.

    Raises:
        Refused: 400 or 404.
    """
    values = read_query(query)
    if values.get("intent") == "transcription":
        raise Refused(400, "unsupported_intent", "there is no transcription mode here: connect without intent", param="intent")
    if "call_id" in values:
        raise Refused(400, "unsupported_parameter", "call_id needs WebRTC or SIP, which this server does not have", param="call_id")
    model = values.get("model") or values.get("deployment") or None
    if known_models is not None and model is not None and model not in known_models:
        raise Refused(404, "model_not_found", f"there is no model {shown(model)} here; {_names(known_models)}", param="model")
    lowered = {name.lower(): value for name, value in headers.items()}
    return Handshake(
        model=model,
        client_duplex=values.get("duplex", "").lower().startswith(_YES),
        autostart=_choice(values, "autostart", _SWITCH) or False,
        dialect=_choice(values, "dialect", _DIALECTS),
        is_beta_hinted=BETA_HEADER in lowered.get("openai-beta", "").lower() or BETA_PROTOCOL in offered_protocols(headers),
        capacity=_choice(values, "capacity", _CAPACITIES),
        voice=values.get("voice") or None,
        user_agent=_printable(lowered.get("user-agent", ""))[:_MAX_AGENT],
        request_id=request_id(headers),
    )


def read_query(query: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Take the first value of each key, and a model's name out of the end of another value."""
    values: dict[str, str] = {}
    appended = None
    for key, value in query:
        kept, mark, rest = value.partition(_MANGLED)
        if mark:
            appended = appended or rest
        values.setdefault(key, kept)
    if appended:
        values.setdefault("model", appended)
    return values


def offered_protocols(headers: Mapping[str, str]) -> tuple[str, ...]:
    """The entries of Sec-WebSocket-Protocol."""
    values = (value for name, value in headers.items() if name.lower() == "sec-websocket-protocol")
    entries = (entry.strip() for value in values for entry in value.split(","))
    return tuple(entry for entry in entries if entry)


def request_id(headers: Mapping[str, str]) -> str:
    """The client's X-Request-Id where it can be told back as it is, else a new one."""
    given = next((value for name, value in headers.items() if name.lower() == "x-request-id"), "")
    is_usable = 0 < len(given) <= _MAX_ID and given.isascii() and given.isprintable() and " " not in given
    return given if is_usable else ids.new("req")


def shown(text: str) -> str:
    """Quote what a client sent, short and printable."""
    clean = _printable(text)
    return f'"{clean[:_MAX_SHOWN]}{"..." if len(clean) > _MAX_SHOWN else ""}"'


# -- Private -------------------------------------------------------------------------------------------------------------------------


def _error_type(status: int) -> str:
    if status == 429:
        return "rate_limit_error"
    return "server_error" if status >= 500 and status != 501 else "invalid_request_error"


def _choice(values: Mapping[str, str], key: str, meanings: Mapping[str, T]) -> T | None:
    """What a value means; None where it is absent or empty."""
    value = values.get(key, "").lower()
    if not value:
        return None
    if value not in meanings:
        raise Refused(400, "invalid_value", f"{key} must be {' or '.join(meanings)}, not {shown(values[key])}", param=key)
    return meanings[value]


def _names(models: Collection[str]) -> str:
    return f"this server has {', '.join(sorted(models))}"


def _printable(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
