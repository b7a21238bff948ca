"""Let a client's own parser read the server events of a capture; print one line for each that it rejects, then how many it read.

Arguments: `agents` (openai-agents, Python) or `pipecat`, and the capture. Runs in that client's environment.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


def agents() -> Callable[[dict[str, Any]], object]:
    """The strict adapter that openai-agents reads everything with."""
    from agents.realtime.openai_realtime import get_server_event_type_adapter

    return get_server_event_type_adapter().validate_python


def pipecat() -> Callable[[dict[str, Any]], object]:
    """The parser whose exception ends Pipecat's call."""
    from pipecat.services.openai.realtime.events import parse_server_event

    return lambda event: parse_server_event(json.dumps(event))


def main(kind: str, path: str) -> None:
    parse = {"agents": agents, "pipecat": pipecat}[kind]()
    num_read = 0
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["is_client"] or record.get("event") is None:
            continue
        try:
            parse(record["event"])
            num_read += 1
        except Exception as error:
            print(f"{record['event']['type']}: {' '.join(str(error).split())[:400]}")
    print(num_read)


if __name__ == "__main__":
    main(*sys.argv[1:])
