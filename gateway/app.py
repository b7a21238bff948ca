"""Put the gateway together and run it: routes, life cycle, listening, draining. Every layer may be imported here, no engine is.

`make_app` builds, `run_app` serves; who chooses the engine and the exit status is `__main__`. The one rule: routes that are ours come
before the static files, which take every other path. Thread: loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable
from concurrent.futures import Executor, ThreadPoolExecutor

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry

import gateway
from gateway.auth import KeyLimits, KeyRing
from gateway.config import Config
from gateway.engine.base import Engine
from gateway.errors import ConfigError
from gateway.limits import SessionSettings
from gateway.manager import AdmissionSettings, SessionManager
from gateway.metrics import Metrics
from gateway.slots import SlotTable
from gateway.ticker import Ticker, TickerState
from gateway.transport import ws
from gateway.transport.http import GATE, Gate, Pages, guard, holding, refuse_plain_get
from gateway.transport.openai import OpenAIRoutes
from gateway.transport.page import PageFiles, fence, index_of
from gateway.transport.status import Offer, StatusPages
from protocols import FRAME_SAMPLES, SAMPLE_RATE, moshi, rawpcm
from protocols.codec import Codec
from protocols.realtime.handshake import KEY_PREFIX, PROTOCOL

logger = logging.getLogger(__name__)

STOP_ENGINE_S = 5.0  # for the step that is under way; a load that is under way is left behind
FINISH_S = 5.0  # for the last words of every connection
SPARE_CONNECTIONS = 64  # WebSockets beyond those that have a slot or wait for one: not opened yet, being refused, saying goodbye

CONFIG = web.AppKey("config", Config)
MANAGER = web.AppKey("manager", SessionManager)
TICKER = web.AppKey("ticker", Ticker)
SLOTS = web.AppKey("slots", SlotTable)
METRICS = web.AppKey("metrics", Metrics)
OPUS_POOL = web.AppKey("opus_pool", ThreadPoolExecutor)
CONNECTIONS = web.AppKey("connections", ws.Connections)
OPENAI = web.AppKey("openai", OpenAIRoutes)


def make_app(config: Config, engine: Engine) -> web.Application:
    """Build the application around an engine that is not loaded yet: it is loaded when the application starts."""
    metrics = Metrics(CollectorRegistry())
    slots = SlotTable(config.batch_size, inbox_frames=config.inbox_frames, outbox_frames=config.outbox_frames)
    ticker = Ticker(engine, slots, metrics, coalesce_ms=config.coalesce_ms)
    admission = AdmissionSettings(queue_s=config.queue_seconds, default_persona=config.persona or None, default_voice=config.voice or None)
    session = SessionSettings(
        idle_s=config.idle_seconds,
        max_call_s=config.max_call_seconds,
        input_jitter_ms=config.realtime.input_jitter_ms,
        input_grace_ms=config.realtime.input_grace_ms,
        input_max_ms=config.realtime.input_max_ms,
    )
    app = web.Application(middlewares=[guard])
    app[CONFIG] = config
    app[METRICS] = metrics
    app[SLOTS] = slots
    app[TICKER] = ticker
    app[MANAGER] = SessionManager(ticker, slots, metrics, admission, session)
    app[CONNECTIONS] = ws.Connections(2 * config.batch_size + SPARE_CONNECTIONS)  # as many may wait as there are slots
    app[OPUS_POOL] = ThreadPoolExecutor(config.opus_threads, thread_name_prefix="opus")
    ring = KeyRing(config.keys, allow_query=config.allow_query_key, is_single_use=config.ephemeral_single_use)
    limits = KeyLimits(max_sessions=config.max_sessions_per_key, handshakes_per_minute=config.handshakes_per_minute_per_key)
    app[GATE] = Gate(ring, limits, config.allowed_origins, app[MANAGER])
    app[OPENAI] = OpenAIRoutes(
        config, app[MANAGER], ticker, app[CONNECTIONS], ring=ring, meter=metrics.realtime, pool=app[OPUS_POOL]
    )
    app.on_response_prepare.append(app[OPENAI].sign)
    app.on_response_prepare.append(fence)
    app.cleanup_ctx.append(_life_of_the_threads)
    _add_routes(app)
    return app


async def run_app(app: web.Application, listener: socket.socket, stop: asyncio.Event, *, tls: ssl.SSLContext | None = None) -> None:
    """Serve on `listener` until `stop` is set, then drain; `stop` may be set at any time, while the model loads as well.

    Raises:
        ConfigError: this machine or checkpoint cannot serve this configuration.
        EngineError: the engine has failed.
    """
    ticker = app[TICKER]
    runner = web.AppRunner(app, access_log=None, logger=_http_logger, shutdown_timeout=FINISH_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listener, ssl_context=tls).start()
        logger.info("listening on %s, the model is loading", describe_urls(listener, tls)[0])
        if await _unless(stop, _load(app)):
            logger.info("ready: %s", "  ".join(describe_urls(listener, tls)))
            await _unless(stop, ticker.failed.wait())
        if ticker.failure is None:
            logger.info("draining: %d calls have %g s", app[MANAGER].num_sessions, app[CONFIG].drain_seconds)
            await app[MANAGER].drain(app[CONFIG].drain_seconds)
    finally:
        await runner.cleanup()
    if ticker.failure is not None:
        raise ticker.failure


def listen(config: Config) -> socket.socket:
    """Take the port, before anything slow is done.

    Raises:
        ConfigError: somebody else has it, or it may not be had.
    """
    is_v6 = ":" in config.host
    try:
        return socket.create_server(
            (config.host, config.port),
            family=socket.AF_INET6 if is_v6 else socket.AF_INET,
            dualstack_ipv6=config.host == "::" and socket.has_dualstack_ipv6(),
            backlog=512,
        )
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"port {config.port} is in use on {config.host}: stop the other server or choose another --port") from None
        raise ConfigError(f"cannot listen on {config.host} port {config.port}: {error.strerror or error}") from None


def tls_context(config: Config) -> ssl.SSLContext | None:
    """Read the certificate of `--ssl`; None without.

    Raises:
        ConfigError: unreadable, or certificate and key do not belong together.
    """
    if config.ssl is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(config.ssl / "cert.pem", config.ssl / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"--ssl: {config.ssl} has no usable cert.pem and key.pem: {error.strerror or error}") from None
    return context


def describe_urls(listener: socket.socket, tls: ssl.SSLContext | None) -> list[str]:
    """URLs of the page, the wires and the health check."""
    host, port = listener.getsockname()[:2]
    host = "localhost" if host in ("0.0.0.0", "::", "127.0.0.1", "::1") else f"[{host}]" if ":" in host else host
    secure = "s" if tls else ""
    place = f"{host}:{port}"
    return [
        f"http{secure}://{place}/",
        f"ws{secure}://{place}/api/chat",
        f"ws{secure}://{place}/v1/audio/duplex",
        f"ws{secure}://{place}/v1/realtime",
        f"http{secure}://{place}/health",
    ]


# -- Private: life cycle -------------------------------------------------------------------------------------------------------------


async def _life_of_the_threads(app: web.Application) -> AsyncIterator[None]:
    app[TICKER].start()
    yield
    if not await app[TICKER].stop(STOP_ENGINE_S):
        logger.warning("the engine did not stop within %g s", STOP_ENGINE_S)
    app[OPENAI].stop()
    app[OPUS_POOL].shutdown(wait=False, cancel_futures=True)


async def _load(app: web.Application) -> None:
    """Wait for the engine, see that the server's own voice and persona can be served, and load what detects speech."""
    ticker, config = app[TICKER], app[CONFIG]
    await ticker.wait_loaded()
    try:
        await asyncio.to_thread(ticker.engine.prepare, config.voice or None, config.persona or None)
    except ConfigError as error:
        raise ConfigError(f"--voice, --persona: {error}") from None
    await app[OPENAI].load()


async def _unless(stop: asyncio.Event, work: Awaitable[object]) -> bool:
    """Do `work` to its end and return True, or drop it and return False as soon as `stop` is set."""
    working, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait((working, stopping), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        stopping.cancel()


class _NoPeerTracebacks(logging.Filter):
    """A stranger's broken request or vanished socket is one line, not a traceback of aiohttp's."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, HttpProcessingError | ConnectionError):
            record.msg, record.args = "refused a broken request: %s", (type(error).__name__,)
            record.levelno, record.levelname = logging.INFO, "INFO"
            record.exc_info = None
            return logger.isEnabledFor(logging.INFO)
        return True


_http_logger = logging.getLogger("gateway.http")
_http_logger.addFilter(_NoPeerTracebacks())


class _NoKeys(logging.Filter):
    """aiohttp warns of subprotocols that it does not know, and prints them: one may be a key."""

    def filter(self, record: logging.LogRecord) -> bool:
        return KEY_PREFIX not in record.getMessage()


logging.getLogger("aiohttp.websocket").addFilter(_NoKeys())


# -- Private: routes -----------------------------------------------------------------------------------------------------------------


def _add_routes(app: web.Application) -> None:
    config = app[CONFIG]
    defaults = {"persona": config.persona, "voice": config.voice}
    pages = Pages(app[MANAGER], app[TICKER], app[SLOTS], app[METRICS], defaults=defaults, version=gateway.__version__)
    app.router.add_get("/api/chat", _chat)
    app.router.add_get("/v1/audio/duplex", _duplex)
    app.router.add_get("/v1/voices", pages.voices)
    app.router.add_get("/health", pages.health)
    app.router.add_get("/metrics", pages.metrics)
    app.router.add_routes(app[OPENAI].routes())
    status = StatusPages(app[MANAGER], app[TICKER], app[SLOTS], _offer(config), has_keys=bool(config.keys))
    app.router.add_routes(status.routes())
    if config.page is not None:
        app.router.register_resource(PageFiles("/app", config.page))
        app.router.register_resource(PageFiles("/status", config.page, index="status.html", refusal=status.refusal))
    if config.static is None:
        app.router.add_get("/", pages.about)
        return
    app.router.add_get("/", _index)
    if config.static == config.page:
        app.router.register_resource(PageFiles("", config.page))
    else:
        app.router.add_static("/", config.static)


def _offer(config: Config) -> Offer:
    return Offer(
        voice=config.voice,
        persona=config.persona,
        tells_persona=config.realtime.disclose_default_persona,
        max_call_s=config.max_call_seconds,
        idle_s=config.idle_seconds,
        queue_s=config.queue_seconds,
        overflow=config.overflow,
        version=gateway.__version__,
    )


async def _index(request: web.Request) -> web.StreamResponse:
    config = request.app[CONFIG]
    assert config.static is not None  # or the route would not be there
    if config.static == config.page:
        return index_of(config.static)
    return web.FileResponse(config.static / "index.html", headers={"Cache-Control": "no-cache"})  # its files have names of their build


async def _chat(request: web.Request) -> web.StreamResponse:
    sample_rate, _ = _audio_format(request.app)
    codec = moshi.MoshiCodec(sample_rate=sample_rate, opus_complexity=request.app[CONFIG].opus_complexity)
    return await _serve(request, codec, moshi.MAX_MESSAGE_BYTES, request.app[OPUS_POOL])


async def _duplex(request: web.Request) -> web.StreamResponse:
    sample_rate, frame_samples = _audio_format(request.app)
    codec = rawpcm.RawPcmCodec(sample_rate=sample_rate, frame_samples=frame_samples)
    return await _serve(request, codec, rawpcm.MAX_MESSAGE_BYTES)


async def _serve(request: web.Request, codec: Codec, max_message_bytes: int, pool: Executor | None = None) -> web.StreamResponse:
    """Hold one connection of our own wires. A browser that sends its key as a subprotocol is selected another, or it would hang up."""
    refuse_plain_get(request)
    app = request.app
    with holding(request):
        return await ws.serve(
            request,
            codec,
            app[MANAGER],
            app[CONNECTIONS],
            max_message_bytes=max_message_bytes,
            pool=pool,
            protocols=(PROTOCOL,),
            is_overflow_http=app[CONFIG].overflow == "http",
        )


def _audio_format(app: web.Application) -> tuple[int, int]:
    """Sample rate and samples of a frame; while no engine is loaded (and every caller is refused) the usual ones."""
    if app[TICKER].state is not TickerState.RUNNING:
        return SAMPLE_RATE, FRAME_SAMPLES
    info = app[TICKER].engine.info
    return info.sample_rate, info.frame_samples
