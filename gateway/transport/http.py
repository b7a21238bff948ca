"""What is answered with one reply: health, metrics, voices, a page for a server without a web client, and the JSON of every HTTP error.

No session is opened here. The one rule: a status is for machines and a sentence for people, and both say the same. Thread: loop.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping

from aiohttp import web
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from gateway.manager import Health, SessionManager
from gateway.metrics import Metrics
from gateway.slots import SlotState, SlotTable
from gateway.ticker import Ticker, TickerState

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# "keeping {"status":"ok"} when ready" (specs/moshi-protocol.md section 11). A degraded server serves its callers: nobody should restart it.
_STATUS_WORDS = {Health.READY: "ok"}
_SERVING = (Health.READY, Health.DEGRADED)
_RETRY_AFTER_S = "10"

_PAGE = """duplex-gateway {version}: a server for full-duplex speech models.

No web client is installed here. What there is:

  /api/chat            WebSocket: Moshi and PersonaPlex clients (Ogg-Opus)
  /v1/audio/duplex     WebSocket: scripts (float32 PCM and JSON)
  /v1/voices           voices of this server
  /health              ready, loading, degraded, draining or failed
  /metrics             for Prometheus
"""


class Pages:
    """The handlers, bound to one gateway."""

    def __init__(
        self, manager: SessionManager, ticker: Ticker, slots: SlotTable, metrics: Metrics, *, defaults: Mapping[str, str], version: str
    ) -> None:
        """`defaults` are the server's own persona and voice, for callers that send none."""
        self._manager = manager
        self._ticker = ticker
        self._slots = slots
        self._metrics = metrics
        self._defaults = defaults
        self._version = version

    async def health(self, request: web.Request) -> web.Response:
        """Say whether a caller would be served: 200 or 503, and why."""
        health = self._manager.health
        body: dict[str, object] = {"status": _STATUS_WORDS.get(health, health.value)}
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
        if health in _SERVING:
            return web.json_response(body)
        return web.json_response(body, status=503, headers={"Retry-After": _RETRY_AFTER_S})

    async def metrics(self, request: web.Request) -> web.Response:
        """Expose every instrument in Prometheus's text format."""
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def voices(self, request: web.Request) -> web.Response:
        """List the voices that a caller may ask for."""
        if not self._is_loaded:
            raise web.HTTPServiceUnavailable(text="the model is not loaded", headers={"Retry-After": _RETRY_AFTER_S})
        info = self._ticker.engine.info
        return web.json_response(
            {
                "voices": list(info.voices),
                "default": self._defaults["voice"] or info.default_voice,
                "persona": self._defaults["persona"] or info.default_persona,
            }
        )

    async def about(self, request: web.Request) -> web.Response:
        """Say what this server is, where it has no web client."""
        return web.Response(text=_PAGE.format(version=self._version))

    @property
    def _is_loaded(self) -> bool:
        return self._ticker.state is TickerState.RUNNING


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let every request of every route pass through one place; turn its HTTP errors into JSON. (Authentication will be asked for here.)"""
    try:
        return await handler(request)
    except web.HTTPError as error:
        error.text = json.dumps({"error": error.text or error.reason})
        error.content_type = "application/json"
        raise


def refuse_plain_get(request: web.Request) -> None:
    """Refuse a request to a WebSocket route that does not ask for the upgrade.

    Raises:
        HTTPUpgradeRequired: no upgrade was asked for, or a proxy took it away.
    """
    if request.headers.get("Upgrade", "").strip().lower() != "websocket":
        text = "this is a WebSocket endpoint: an upgrade is needed (a proxy in between must pass on the headers Upgrade and Connection)"
        raise web.HTTPUpgradeRequired(text=text, headers={"Upgrade": "websocket"})
