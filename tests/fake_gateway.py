"""`python -m gateway` with a FakeEngine in place of the real one: `python tests/fake_gateway.py '{"step_seconds": 0.01}' --port 9000`."""

import json
import sys

from gateway import __main__ as entry
from gateway.config import Config
from gateway.engine.base import Engine
from gateway.engine.fake import FakeEngine


def make_engine(config: Config) -> Engine:
    return FakeEngine(config.batch_size, **json.loads(sys.argv[1]))


if __name__ == "__main__":
    entry.make_engine = make_engine
    entry._leave(entry.main(sys.argv[2:]))
