from __future__ import annotations

from typing import get_args

from protocols.realtime import server_events, wire
from protocols.realtime.client_events import ClientMessage
from protocols.realtime.server_events import WireEvent


def test_every_name_exists_once() -> None:
    assert len(set(wire.__all__)) == len(wire.__all__)
    assert all(hasattr(wire, name) for name in wire.__all__)


def test_every_event_is_there() -> None:
    sent = {name for name, model in vars(server_events).items() if isinstance(model, type) and issubclass(model, WireEvent)}
    sent -= {"WireEvent", "PartEvent", "ServerMessage"}
    received = {model.__name__ for model in get_args(ClientMessage)}
    assert sent | received <= set(wire.__all__)
