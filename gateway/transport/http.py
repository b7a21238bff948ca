"""What is answered with one reply: health, metrics, voices, a text for a server without a web client, and the JSON of every HTTP error.

No session is opened here. Every request of every route passes `guard`, which asks for origin and key before anything else is done; a
WebSocket is refused before its upgrade. Open to strangers are the static files with `/`, for a browser cannot send a key for a page, and
`/health`, for load balancers; it tells them its status and nothing else. The one rule: a status is for machines and a sentence for people,
and both say the same. Thread: loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.auth import Caller, KeyLimits, KeyRing, check_origin
from gateway.errors import NoFreeSlot
from gateway.manager import Health, SessionManager
from gateway.metrics import Metrics
from gateway.slots import SlotState, SlotTable
from gateway.ticker import Ticker, TickerState
from protocols.errors import ErrorKind
from protocols.realtime.handshake import Refused, offered_protocols, read_query

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# "keeping {"status":"ok"} when ready" (specs/moshi-protocol.md section 11). A degraded server serves its callers: nobody should restart it.
STATUS_WORDS = {Health.READY: "ok"}
_SERVING = (Health.READY, Health.DEGRADED)
_RETRY_AFTER_S = "10"

# "Same handler" (specs/realtime.md 1.1)
REALTIME_PATHS = ("/v1/realtime", "/v1/realtime/", "/realtime", "/realtime/", "/openai/realtime", "/openai/v1/realtime")
_OPENAI_PATHS = ("/v1/realtime", "/realtime", "/openai/", "/v1/models")  # beginnings of paths whose errors OpenAI's clients read
_OPEN_PATHS = ("/", "/health")

# Codes as in an `error` event of the Realtime wire; a fault or a start is never told as a lack of room.
_NO_SLOT_CODES = {
    ErrorKind.CAPACITY: "capacity_exceeded",
    ErrorKind.LOADING: "model_loading",
    ErrorKind.OVERLOADED: "capacity_exceeded",
    ErrorKind.SHUTDOWN: "server_draining",
}
_FULL = "All realtime slots are in use."  # the words of V38
_FULL_RETRY_S = 2  # "Retry-After: <estimate, at least 2>" (1.6)
_STATUS_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    426: "websocket_upgrade_required",
    503: "service_unavailable",
}

_CALLER = web.RequestKey("caller", Caller)  # absent for a stranger on an open path

_PAGE = """duplex-gateway {version}: a server for full-duplex speech models.

No web client is installed here. What there is:

  /api/chat            WebSocket: Moshi and PersonaPlex clients (Ogg-Opus)
  /v1/audio/duplex     WebSocket: scripts (float32 PCM and JSON)
  /v1/realtime         WebSocket: clients of OpenAI's Realtime API (JSON)
  /v1/voices           voices of this server
  /api/config          voices, defaults, limits and load, for pages
  /api/status          who is on the line, for operators
  /health              ready, loading, degraded, draining or failed
  /metrics             for Prometheus
"""


class Pages:
    """The handlers, bound to one gateway."""

    def __init__(
        self, manager: SessionManager, ticker: Ticker, slots: SlotTable, metrics: Metrics, *, defaults: Mapping[str, str], version: str
    ) -> None:
        """`defaults` are the operator's persona and voice, for callers that send none; "" is the checkpoint's own."""
        self._manager = manager
        self._ticker = ticker
        self._slots = slots
        self._metrics = metrics
        self._defaults = defaults
        self._version = version

    async def health(self, request: web.Request) -> web.Response:
        """Say whether a caller would be served: 200 or 503, and why; a stranger only hears whether."""
        health = self._manager.health
        body: dict[str, object] = {"status": STATUS_WORDS.get(health, health.value)}
        if caller_of(request) is not None:
            body |= self._details(health)
        if health in _SERVING:
            return web.json_response(body)
        return web.json_response(body, status=503, headers={"Retry-After": _RETRY_AFTER_S})

    def _details(self, health: Health) -> dict[str, object]:
        body: dict[str, object] = {}
        if health is Health.LOADING:
            body["progress"] = self._ticker.progress
        if health is Health.FAILED:
            body["reason"] = "the engine has failed" if self._ticker.failure is None else f"the engine has failed: {self._ticker.failure}"
        if self._is_loaded:
            num_used = self._slots.num_slots - self._slots.count(SlotState.IDLE)
            body["model"] = self._ticker.engine.info.model
            body["device"] = self._ticker.engine.info.device
            body["slots"] = {"total": self._slots.num_slots, "used": num_used}
            body["p95_step_ms"] = round(self._ticker.p95_step_s * 1000, 1)
        return body

    async def metrics(self, request: web.Request) -> web.Response:
        """Expose every instrument in Prometheus's text format."""
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def voices(self, request: web.Request) -> web.Response:
        """List the voices that a caller may ask for.

        "The server's default persona is not disclosed" (specs/realtime.md 2.2): what an operator has configured is null here, the
        checkpoint's own is told; `/api/config` shows the other, too, where the operator allows that.
        """
        if not self._is_loaded:
            raise web.HTTPServiceUnavailable(text="the model is not loaded", headers={"Retry-After": _RETRY_AFTER_S})
        info = self._ticker.engine.info
        return web.json_response(
            {
                "voices": list(info.voices),
                "default": self._defaults["voice"] or info.default_voice,
                "persona": None if self._defaults["persona"] else info.default_persona,
            }
        )

    async def about(self, request: web.Request) -> web.Response:
        """Say what this server is, where it has no web client."""
        return web.Response(text=_PAGE.format(version=self._version))

    @property
    def _is_loaded(self) -> bool:
        return self._ticker.state is TickerState.RUNNING


@dataclasses.dataclass(frozen=True, slots=True)
class Gate:
    """What `guard` asks a request for."""

    ring: KeyRing
    limits: KeyLimits
    allowed_origins: tuple[str, ...]
    manager: SessionManager


GATE = web.AppKey("gate", Gate)


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let every request of every route pass through one place: check who sends it, and turn HTTP errors into JSON."""
    try:
        _identify(request)
        return await handler(request)
    except Refused as refused:
        return _answer(request, refused)
    except NoFreeSlot as full:
        return _answer(request, _refused_slot(request, full))
    except web.HTTPError as error:
        text = error.text or error.reason
        code = _STATUS_CODES.get(error.status, "error")
        error.text = json.dumps(Refused(error.status, code, text).body if speaks_openai(request) else {"error": text})
        error.content_type = "application/json"
        raise


def caller_of(request: web.Request) -> Caller | None:
    """Who sends a request that has passed `guard`; None is a stranger, on a path that is open to them."""
    caller: Caller | None = request.get(_CALLER)
    return caller


@contextlib.contextmanager
def holding(request: web.Request) -> Iterator[Caller]:
    """Count a WebSocket request against the limits of its key, from its handshake to its end.

    Raises:
        Refused: 429.
    """
    caller = caller_of(request)
    assert caller is not None  # no WebSocket is on an open path
    with request.app[GATE].limits.hold(caller, time.monotonic()):
        yield caller


def refuse_plain_get(request: web.Request) -> None:
    """Refuse a request to a WebSocket route that does not ask for the upgrade.

    Raises:
        HTTPUpgradeRequired: no upgrade was asked for, or a proxy took it away.
    """
    if request.headers.get("Upgrade", "").strip().lower() != "websocket":
        text = "this is a WebSocket endpoint: an upgrade is needed (a proxy in between must pass on the headers Upgrade and Connection)"
        raise web.HTTPUpgradeRequired(text=text, headers={"Upgrade": "websocket"})


# -- Private -------------------------------------------------------------------------------------------------------------------------


def _identify(request: web.Request) -> None:
    """Note who sends a request, in the order of specs/realtime.md 1.6: draining, origin, key.

    Raises:
        Refused: 503, 403 or 401.
    """
    gate, headers = request.app[GATE], request.headers
    is_realtime = request.path in REALTIME_PATHS
    if is_realtime and gate.manager.is_draining:
        raise Refused(503, "server_draining", "the server is shutting down", headers={"Retry-After": "5"})
    is_open = request.path in _OPEN_PATHS or isinstance(request.match_info.route.resource, web.StaticResource)
    try:
        check_origin(headers.get("Origin"), headers.get("Host"), gate.allowed_origins)
        query = read_query(request.query.items())
        request[_CALLER] = gate.ring.check(headers, query, offered_protocols(headers), time.time(), takes_secrets=is_realtime)
    except Refused:
        if not is_open:
            raise


def _refused_slot(request: web.Request, full: NoFreeSlot) -> Refused:
    code = _NO_SLOT_CODES.get(full.kind, "server_error")
    message, retry_s = str(full), full.retry_after_s
    if full.kind is ErrorKind.CAPACITY and speaks_openai(request):
        message, retry_s = _FULL, _FULL_RETRY_S
    return Refused(503, code, message, headers={"Retry-After": str(retry_s)})


def _answer(request: web.Request, refused: Refused) -> web.Response:
    """Word a refusal for the clients of its route."""
    body = refused.body if speaks_openai(request) else {"error": refused.message}
    return web.json_response(body, status=refused.status, headers=refused.headers)


def speaks_openai(request: web.Request) -> bool:
    return request.path.startswith(_OPENAI_PATHS)
