"""`python -m gateway`: argv -> Config -> engine -> run. The only place that chooses an engine, and the only one that sets an exit status.

0: stopped by SIGTERM or SIGINT after draining, or a `--check` that found nothing wrong. 1: the engine failed; a supervisor should start the
process again. 2: the configuration, the checkpoint or the machine will not do, told in one line; starting again would not help. The one
rule: what is cheap to find wrong is found before the model is loaded. Thread: main, which becomes the loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import signal
import socket
import ssl
import sys
from collections.abc import Sequence
from typing import NoReturn

from gateway.app import listen, make_app, run_app, tls_context
from gateway.config import Config, load_config
from gateway.engine.base import Engine
from gateway.errors import ConfigError, EngineError
from gateway.logs import setup_logging
from protocols import FRAME_SAMPLES, SAMPLE_RATE, OpusMissing, load_libopus

logger = logging.getLogger("gateway")

PERSONAPLEX_BYTES = 24 * 2**30  # free GPU memory: 16.7 GB of weights, and four calls of 3000 frames, 512 KiB each

# How long one thread may keep the interpreter from another that waits for it. A step is a thousand short calls into torch, each of which
# gives the interpreter away; with Python's 5 ms the event loop kept it for a whole batch of messages every time, and with sixteen callers
# on two cores a step took 1.6 frames where it now takes about one (tests.bench.bench_callers).
SWITCH_S = 1e-4

EXIT_OK, EXIT_FAILED, EXIT_CONFIG = 0, 1, 2


def main(argv: Sequence[str]) -> int:
    """Run the gateway; return the exit status."""
    sys.setswitchinterval(SWITCH_S)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # read when torch is imported; its start-up notes are not for our users
    try:
        config = load_config(argv)
        setup_logging(config.log_level)
        logger.info("configuration: %s", config.describe())
        load_libopus()
        tls = tls_context(config)
        if config.check:
            _check(config)
            return EXIT_OK
        _warn_when_open(config)
        with listen(config) as listener:
            asyncio.run(_serve(config, make_engine(config), listener, tls))
    except (ConfigError, OpusMissing) as error:
        print(f"gateway: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except EngineError as error:
        logger.critical("stopped: %s", error)  # its traceback is in the log already
        return EXIT_FAILED
    except Exception:
        logger.critical("stopped by a fault", exc_info=True)
        return EXIT_FAILED
    return EXIT_OK


def make_engine(config: Config) -> Engine:
    """Choose the checkpoint and make its engine; nothing is loaded yet. Imports torch and vLLM, which takes seconds."""
    from gateway.engine.moshi import MoshiEngine

    return MoshiEngine(
        choose_model(config.model),
        num_slots=config.batch_size,
        max_call_frames=math.ceil(config.max_call_seconds * SAMPLE_RATE / FRAME_SAMPLES),
        kv_cache_dtype=config.kv_cache_dtype,
        gpu_memory_utilization=config.gpu_memory_utilization,
    )


def choose_model(model: str) -> str:
    """Resolve `auto`: PersonaPlex where there is a CUDA GPU with room for it, tiny elsewhere."""
    if model != "auto":
        return model
    import torch

    from gateway.engine.checkpoint import PERSONAPLEX

    has_room = torch.cuda.is_available() and torch.cuda.mem_get_info()[0] >= PERSONAPLEX_BYTES
    chosen = PERSONAPLEX if has_room else "tiny"
    logger.info("--model auto: %s, %s", chosen, "a GPU has room for it" if has_room else "there is no CUDA GPU with room for PersonaPlex")
    return chosen


# -- Private -------------------------------------------------------------------------------------------------------------------------


async def _serve(config: Config, engine: Engine, listener: socket.socket, tls: ssl.SSLContext | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):  # the second one ends the process at once
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await run_app(make_app(config, engine), listener, stop, tls=tls)


def _check(config: Config) -> None:
    """Load the engine as a server would, say what fits, and let it go.

    Raises:
        ConfigError: something will not do.
    """
    engine = make_engine(config)
    engine.load(lambda line: logger.info("%s", line))
    try:
        engine.prepare(config.voice or None, config.persona or None)
        info = engine.info
        fitting = "" if info.slots_that_fit is None else f" of {info.slots_that_fit} that fit"
        print(f"ok: {info.model} on {info.device}, {info.num_slots} slots{fitting}")
    finally:
        engine.shutdown()


def _warn_when_open(config: Config) -> None:
    if config.is_wide_open and not config.keys:
        logger.warning(
            "ANYBODY who can reach %s port %d can talk to this model and fill its slots: there are no keys. "
            "Set GATEWAY_API_KEYS or --api-keys-file, or listen on 127.0.0.1",
            config.host,
            config.port,
        )


def _leave(status: int) -> NoReturn:
    """End the process at once: everything of ours is stopped and closed by now, or hangs in the device and never will be.

    The interpreter's own farewell would crash on such an engine, bury our last line under its libraries' complaints about leaks, or, at the
    best, walk over the objects of torch and vLLM for two more seconds of the supervisor's grace.
    """
    logging.shutdown()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    _leave(main(sys.argv[1:]))
