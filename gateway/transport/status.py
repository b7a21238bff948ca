"""What the page and operators ask the gateway about itself: `/api/config` and `/api/status`.

No audio and no text of a call is ever told here, and no secret. `config` is for whoever may call; with the unguessable name of a call, that
its own caller is told, also the numbers of that one. `status` is for operators: with a key where there are keys, otherwise from this
machine alone. The one rule: everything is read anew for each answer, so no number here can contradict admission. Thread: loop.
"""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import time
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from gateway.calls import CallInfo
from gateway.errors import SessionGone
from gateway.manager import Health, SessionManager
from gateway.metrics import Direction
from gateway.slots import SlotState, SlotTable
from gateway.ticker import Ticker, TickerState
from gateway.transport.http import STATUS_WORDS
from protocols.params import MAX_PERSONA_CHARS

_FORWARDED = ("Forwarded", "X-Forwarded-For", "X-Real-IP")  # a proxy on this machine speaks for somebody else


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What this server was configured to, as far as callers may know."""

    voice: str  # of callers that ask for none; "" is the checkpoint's own
    persona: str  # of callers that send none; "" is the checkpoint's own
    tells_persona: bool  # whether the configured persona may be shown
    max_call_s: float
    idle_s: float
    queue_s: float
    overflow: str  # how a full server refuses a WebSocket
    version: str


class StatusPages:
    """The handlers, bound to one gateway."""

    def __init__(
        self,
        manager: SessionManager,
        ticker: Ticker,
        slots: SlotTable,
        offer: Offer,
        *,
        has_keys: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`has_keys`: requests that pass the guard have a key."""
        self._manager = manager
        self._ticker = ticker
        self._slots = slots
        self._offer = offer
        self._has_keys = has_keys
        self._clock = clock
        self._started_s = clock()

    def routes(self) -> list[web.RouteDef]:
        """The routes."""
        return [
            web.get("/api/config", self.config),
            web.get("/api/status", self.status),
        ]

    async def config(self, request: web.Request) -> web.Response:
        """Tell voices, defaults, limits and load: what a page needs before a call; with `?call=ID` also how that call is going."""
        offer = self._offer
        body = self._identity() | {
            "voices": None,
            "defaults": None,
            "limits": {
                "max_call_s": offer.max_call_s,
                "idle_s": offer.idle_s,
                "queue_s": offer.queue_s,
                "persona_chars": MAX_PERSONA_CHARS,
            },
            "overflow": offer.overflow,
            "load": self._load(),
        }
        if self._is_loaded:
            info = self._ticker.engine.info
            body["voices"] = list(info.voices)
            body["defaults"] = {
                "voice": offer.voice or info.default_voice,
                "persona": self._persona(info.default_persona),
                "sampling": _known(dataclasses.asdict(info.sampling)),
            }
            body["limits"]["max_call_s"] = min(offer.max_call_s, info.max_frames * self._ticker.frame_s)
            body |= {"sample_rate": info.sample_rate, "frame_samples": info.frame_samples}
        if "call" in request.query:
            body["call"] = self._call(request.query["call"])
        return _json(body)

    async def status(self, request: web.Request) -> web.Response:
        """Tell operators who is on the line and how the server is."""
        refusal = self.refusal(request)
        if refusal is not None:
            raise web.HTTPForbidden(text=refusal)
        with self._slots.cond:
            states = [slot.state.value for slot in self._slots.slots]
        body = self._identity() | {
            "load": self._load(),
            "slots": states,
            "calls": [_describe(call) for call in self._manager.calls()],
            "uptime_s": round(self._clock() - self._started_s, 1),
        }
        if self._manager.health is Health.FAILED:
            body["reason"] = str(self._ticker.failure or "the engine has failed")
        return _json(body)

    def refusal(self, request: web.Request) -> str | None:
        """Say why a request may not see the status; None where it may. With keys the guard has asked for one, or the page will."""
        if self._has_keys or _is_local(request):
            return None
        return "the status is shown on this machine only; configure keys (GATEWAY_API_KEYS) to see it from elsewhere"

    # -- Private ---------------------------------------------------------------------------------------------------------------------

    @property
    def _is_loaded(self) -> bool:
        return self._ticker.state is TickerState.RUNNING

    def _call(self, session_id: str) -> dict[str, Any] | None:
        """Describe one call to whoever knows its name; None when it has ended."""
        with contextlib.suppress(SessionGone):
            return _describe(self._manager.call(session_id))
        return None

    def _identity(self) -> dict[str, Any]:
        health = self._manager.health
        body: dict[str, Any] = {"status": STATUS_WORDS.get(health, health.value), "version": self._offer.version}
        if health is Health.LOADING:
            body["progress"] = self._ticker.progress
        if self._is_loaded:
            body |= {"model": self._ticker.engine.info.model, "device": self._ticker.engine.info.device}
        return body

    def _load(self) -> dict[str, Any]:
        """How full and how busy the server is, and whether it would take another call now."""
        refusal = self._manager.refusal()
        load: dict[str, Any] = {
            "accepts": refusal is None,
            "queued": self._manager.num_queued,
            "slots": None,
            "p95_step_ms": round(self._ticker.p95_step_s * 1000, 1),
            "frame_ms": round(self._ticker.frame_s * 1000, 1) if self._is_loaded else None,
        }
        if refusal is not None:
            load["why"] = str(refusal)
        if self._is_loaded:
            load["slots"] = {"total": self._slots.num_slots, "used": self._slots.num_slots - self._slots.count(SlotState.IDLE)}
        return load

    def _persona(self, checkpoints_own: str) -> str | None:
        """The persona of a caller who sends none; None where the operator's may not be shown."""
        if not self._offer.persona:
            return checkpoints_own
        return self._offer.persona if self._offer.tells_persona else None


# -- Private -------------------------------------------------------------------------------------------------------------------------


def _describe(call: CallInfo) -> dict[str, Any]:
    dropped: dict[str, dict[str, int]] = {way.value: {} for way in Direction}
    for (way, reason), count in call.dropped.items():
        dropped[way.value][reason.value] = count
    return {
        "id": call.session_id,
        "protocol": call.protocol,
        "state": call.state.value,
        "age_s": round(call.age_s, 1),
        "epoch": call.epoch,
        "backlog_frames": call.backlog_frames,
        "ticks_late": call.ticks_late,
        "frames_in": call.frames_in,
        "frames_out": call.frames_out,
        "dropped": dropped,
    }


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _is_local(request: web.Request) -> bool:
    """Whether a person on this machine asks: no proxy for somebody else, and no name that a stranger's page made to point here."""
    if any(name in request.headers for name in _FORWARDED):
        return False
    return _is_loopback(request.remote or "") and _is_loopback(request.url.host or "")


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _json(body: Mapping[str, Any]) -> web.Response:
    return web.json_response(body, headers={"Cache-Control": "no-store"})
