"""OpenAI's routes: the upgrade of `/v1/realtime`, ephemeral keys, the list of models, and the 501 of what is not here.

`http.guard` has asked for origin and key before a handler runs; what remains of the handshake (specs/realtime.md 1.6) is here, in its
order: query, limits of the key, admission, upgrade. The one rule: nothing is held when a refusal has been answered, and a refusal of these
routes has the body that OpenAI's clients read. Thread: loop.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from aiohttp import web

from gateway.auth import DEFAULT_SECRET_S, MAX_SECRET_S, MIN_SECRET_S, KeyRing
from gateway.config import Config
from gateway.engine.base import Engine
from gateway.errors import ConfigError, NoFreeSlot
from gateway.manager import SessionManager
from gateway.metrics import RealtimeMeter
from gateway.ticker import Ticker, TickerState
from gateway.transport import ws
from gateway.transport.http import REALTIME_PATHS, caller_of, holding, refuse_plain_get, speaks_openai
from gateway.vad import VoiceActivity
from protocols.audio import FRAME_SAMPLES, SAMPLE_RATE
from protocols.codec import Close, Message
from protocols.errors import CloseCode, ErrorKind
from protocols.events import ClientEvent
from protocols.realtime import ids
from protocols.realtime.codec import MAX_MESSAGE_BYTES, RealtimeCodec
from protocols.realtime.detector import EnergyDetector, SpeechDetector
from protocols.realtime.dialect import Dialect
from protocols.realtime.fault import EventError
from protocols.realtime.handshake import PROTOCOL, Handshake, Refused, read_handshake, request_id
from protocols.realtime.parsing import read_object
from protocols.realtime.settings import Catalogue, apply_update, default_config, describe

logger = logging.getLogger(__name__)

POOL_BYTES = 256 * 1024  # "base64 > 256 KiB decoded in a worker thread" (1.7)
MAX_CACHED_PROMPTS = 256  # lengths of prompts that are remembered: clients send the same persona again and again
MAX_PROMPT_ROWS = 1024  # of any checkpoint (README, "Voices and personas"); one that takes fewer says so when it prepares a prompt

_REQUEST_ID = web.RequestKey("request_id", str)  # what X-Request-Id of the answer says
_NO_CATALOGUE = Catalogue(
    model="", voices=(), default_voice=None, default_persona="", prompt_rows=lambda voice, persona: 0, max_prompt_rows=0
)  # while the model loads, when every call is refused


class Detectors:
    """Makes the speech detector of each caller; what they share is loaded once, when the engine's rate is known."""

    def __init__(self, kind: str) -> None:
        self._is_silero = kind == "silero"
        self._loading = asyncio.Lock()
        self._activity: VoiceActivity | None = None

    async def load(self, sample_rate: int) -> None:
        """Load what is missing.

        Raises:
            ConfigError: something is not installed.
        """
        async with self._loading:
            if self._is_silero and self._activity is None:
                self._activity = await asyncio.to_thread(VoiceActivity, sample_rate)

    def make(self, wake: Callable[[], None]) -> SpeechDetector:
        """Return a detector, whose late results `wake` announces. Before `load` it is the simple one."""
        return EnergyDetector() if self._activity is None else self._activity.stream(wake)

    def stop(self) -> None:
        """Stop the shared worker."""
        if self._activity is not None:
            self._activity.stop()
            self._activity = None


class OpenAIRoutes:
    """The handlers, bound to one gateway."""

    def __init__(
        self,
        config: Config,
        manager: SessionManager,
        ticker: Ticker,
        connections: ws.Connections,
        *,
        ring: KeyRing,
        meter: RealtimeMeter,
        pool: Executor,
    ) -> None:
        """`pool` decodes large messages."""
        self._config = config
        self._manager = manager
        self._ticker = ticker
        self._connections = connections
        self._secrets = ring.secrets
        self._meter = meter
        self._pool = pool
        self._detectors = Detectors(config.vad)
        self._catalogue: Catalogue | None = None
        self._started_s = int(time.time())

    def routes(self) -> list[web.RouteDef]:
        """What to add to the router (1.1)."""
        absent = ("/v1/realtime/calls", "/v1/realtime/transcription_sessions", "/v1/realtime/translations", "/v1/realtime/{kind}/{rest:.*}")
        return [
            *(web.get(path, self.realtime) for path in REALTIME_PATHS),
            web.post("/v1/realtime/client_secrets", self.client_secrets),
            web.post("/v1/realtime/sessions", self.beta_sessions),
            web.get("/v1/models", self.models),
            *(web.post(path, self.absent) for path in absent),
        ]

    async def load(self) -> None:
        """Load what detects speech, once the engine is loaded.

        Raises:
            ConfigError: something is not installed.
        """
        try:
            await self._detectors.load(self._ticker.engine.info.sample_rate)
        except ConfigError as error:
            raise ConfigError(f"--vad: {error} (or choose --vad energy)") from None

    def stop(self) -> None:
        """Stop what detects speech."""
        self._detectors.stop()

    async def sign(self, request: web.Request, response: web.StreamResponse) -> None:
        """Name the request in each answer and count those to handshakes; for `Application.on_response_prepare`."""
        if speaks_openai(request):
            response.headers["X-Request-Id"] = request[_REQUEST_ID] if _REQUEST_ID in request else request_id(request.headers)
        if request.path in REALTIME_PATHS:
            self._meter.count_handshake(response.status)

    # Handlers

    async def realtime(self, request: web.Request) -> web.StreamResponse:
        """Hold one Realtime connection."""
        refuse_plain_get(request)
        handshake = read_handshake(request.query.items(), request.headers, known_models=self._known_models())
        request[_REQUEST_ID] = handshake.request_id
        with holding(request) as caller, self._secrets.spend(caller):
            wake = _Wake()
            if self._is_loaded:
                await self.load()
            detector = self._detectors.make(wake)
            try:
                codec = self._codec(handshake, detector, caller.session)
                logger.info("handshake %s: %s, %s", handshake.request_id, caller.key_id or "no key", handshake.user_agent or "no name")
                is_overflow_http = self._config.overflow == "http" if handshake.capacity is None else handshake.capacity == "http"
                response = await ws.serve(
                    request,
                    codec,
                    self._manager,
                    self._connections,
                    max_message_bytes=MAX_MESSAGE_BYTES,
                    pool=self._pool,
                    pool_bytes=POOL_BYTES,
                    protocols=(PROTOCOL,),
                    subscribe=wake.subscribe,
                    is_overflow_http=is_overflow_http,
                )
            finally:
                detector.close()
        if isinstance(response, web.WebSocketResponse) and response.prepared:
            self._meter.count_close(response.close_code if codec.said in (None, CloseCode.NORMAL) else codec.said)
        return response

    async def client_secrets(self, request: web.Request) -> web.Response:
        """Make an ephemeral key, with the session that it is bound to (1.5)."""
        body = await _read_object(request)
        session = body.get("session")
        if session is not None and not isinstance(session, dict):
            raise Refused(400, "invalid_type", "session must be an object", param="session")
        seconds = _read_seconds(body.get("expires_after"))
        shown = self._effective(session or {}, Dialect.GA)
        value, expires_s = self._issue(request, session, seconds)
        return web.json_response({"value": value, "expires_at": expires_s, "session": shown})

    async def beta_sessions(self, request: web.Request) -> web.Response:
        """The same in the shape of the beta: the body is the session."""
        session = await _read_object(request)
        shown = self._effective(session, Dialect.BETA)
        value, expires_s = self._issue(request, session or None, DEFAULT_SECRET_S)
        return web.json_response({**shown, "client_secret": {"value": value, "expires_at": expires_s}})

    async def models(self, request: web.Request) -> web.Response:
        """List the served model under each of its names."""
        names = [self._engine.info.model, *self._config.realtime.model_aliases]
        facts = {"object": "model", "created": self._started_s, "owned_by": "duplex-gateway"}
        return web.json_response({"object": "list", "data": [{"id": name, **facts} for name in dict.fromkeys(names)]})

    async def absent(self, request: web.Request) -> web.StreamResponse:
        """Answer for what OpenAI has and this server has not."""
        message = "there is no WebRTC, SIP, transcription or translation here: connect a WebSocket to /v1/realtime"
        raise Refused(501, "not_implemented", message)

    # Private

    @property
    def _is_loaded(self) -> bool:
        return self._ticker.state is TickerState.RUNNING

    @property
    def _engine(self) -> Engine:
        """The engine, once it is loaded.

        Raises:
            NoFreeSlot: it is not.
        """
        if not self._is_loaded:
            raise NoFreeSlot(ErrorKind.LOADING, "the model is not loaded", retry_after_s=10)
        return self._ticker.engine

    def _known_models(self) -> frozenset[str] | None:
        options = self._config.realtime
        if not options.strict_model or not self._is_loaded:  # while nothing is loaded everybody is refused anyway
            return None
        return frozenset((self._engine.info.model, *options.model_aliases))

    def _codec(self, handshake: Handshake, detector: SpeechDetector, session: Mapping[str, object] | None) -> _Codec:
        catalogue, sample_rate, frame_samples = _NO_CATALOGUE, SAMPLE_RATE, FRAME_SAMPLES
        max_call_s = self._config.max_call_seconds
        if self._is_loaded:
            info = self._engine.info
            catalogue, sample_rate, frame_samples = self._describe_engine(), info.sample_rate, info.frame_samples
            max_call_s = min(max_call_s, info.max_frames * frame_samples / sample_rate)
        return _Codec(
            handshake,
            catalogue,
            self._config.realtime,
            sample_rate=sample_rate,
            frame_samples=frame_samples,
            detector=detector,
            meter=self._meter,
            connected_s=asyncio.get_running_loop().time(),
            connected_unix_s=time.time(),
            max_call_s=max_call_s,
            initial=session,
        )

    def _describe_engine(self) -> Catalogue:
        """The catalogue of the loaded engine."""
        if self._catalogue is None:
            engine, config = self._engine, self._config

            @functools.lru_cache(MAX_CACHED_PROMPTS)
            def prompt_rows(voice: str | None, persona: str) -> int:
                try:
                    return engine.prepare(voice, persona).num_rows
                except ConfigError as error:
                    raise ValueError(str(error)) from None

            info = engine.info
            self._catalogue = Catalogue(
                model=info.model,
                voices=info.voices,
                default_voice=engine.prepare(config.voice or None, "").voice_prompt,  # without a suffix
                default_persona=config.persona or info.default_persona,
                prompt_rows=prompt_rows,
                max_prompt_rows=MAX_PROMPT_ROWS,
            )
        return self._catalogue

    def _effective(self, session: Mapping[str, Any], dialect: Dialect) -> dict[str, Any]:
        """The session object that a connection with this session would begin with.

        Raises:
            Refused: 400, something in it cannot be had.
        """
        catalogue, options = self._describe_engine(), self._config.realtime
        model = session.get("model")
        config = default_config(catalogue, options, model if isinstance(model, str) else None)
        try:
            update = apply_update(config, session, catalogue, options, dialect)
        except EventError as error:
            raise Refused(400, error.code, error.message, param=error.param) from None
        x_duplex = {"model": catalogue.model, "ignored": list(update.ignored)}
        return describe(update.config, dialect, session_id=ids.new("sess"), expires_at=0, x_duplex=x_duplex)  # no call, no end

    def _issue(self, request: web.Request, session: Mapping[str, Any] | None, seconds: int) -> tuple[str, int]:
        caller = caller_of(request)
        assert caller is not None  # the route is not open to strangers
        return self._secrets.issue(caller, session, seconds, time.time())


# -- Private -------------------------------------------------------------------------------------------------------------------------


class _Codec(RealtimeCodec):
    """Remembers the code of its close. aiohttp tells only what the peer answered to it, which need not be the same."""

    said: CloseCode | None = None

    def due(self, now: float) -> list[Message | ClientEvent]:
        messages = super().due(now)
        for message in messages:
            if isinstance(message, Close):
                self.said = message.code
        return messages


class _Wake:
    """Passes a detector's call on to the pump, which is made later than the detector."""

    def __init__(self) -> None:
        self._target: Callable[[], None] | None = None

    def subscribe(self, target: Callable[[], None]) -> None:
        self._target = target

    def __call__(self) -> None:
        if self._target is not None:
            self._target()


async def _read_object(request: web.Request) -> dict[str, Any]:
    """The JSON object of a body; an empty one is an empty object.

    Raises:
        Refused: 400.
        HTTPRequestEntityTooLarge: more than aiohttp's 1 MiB.
    """
    data = await request.read()
    try:
        return read_object(data) if data.strip() else {}
    except EventError as error:
        raise Refused(400, error.code, error.message) from None


def _read_seconds(expires_after: object) -> int:
    """Read how long a secret is to live."""
    if expires_after is None:
        return DEFAULT_SECRET_S
    if not isinstance(expires_after, dict):
        raise Refused(400, "invalid_type", "expires_after must be an object", param="expires_after")
    if expires_after.get("anchor", "created_at") != "created_at":
        raise Refused(400, "invalid_value", "expires_after.anchor must be created_at", param="expires_after.anchor")
    seconds = expires_after.get("seconds", DEFAULT_SECRET_S)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not math.isfinite(seconds) or seconds != int(seconds):
        raise Refused(400, "invalid_type", "expires_after.seconds must be a whole number", param="expires_after.seconds")
    if not MIN_SECRET_S <= seconds <= MAX_SECRET_S:
        message = f"expires_after.seconds must be {MIN_SECRET_S} to {MAX_SECRET_S}"
        raise Refused(400, "invalid_value", message, param="expires_after.seconds")
    return int(seconds)
