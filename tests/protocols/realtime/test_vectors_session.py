"""Test vectors about connecting, settings, items and bad input (specs/realtime.md section 6): V01-V09, V16, V17, V19, V22-V30, V37, V39,
V40."""

from __future__ import annotations

import base64
import json

import pytest

from protocols.errors import CloseCode
from protocols.events import AudioIn, HangUp, Reserve
from tests.protocols.realtime.rig import CAPACITY, Rig
from tests.protocols.realtime.vectors import Player


def greeted(query: str = "", **fields: object) -> Rig:
    rig = Rig(query, **fields)  # type: ignore[arg-type]
    assert rig.types()[0] == "session.created"
    rig.take()
    return rig


def test_v01_connect() -> None:
    rig = Rig("model=anything")
    Player(rig, "V01").play()
    assert rig.sent == []


def test_v02_connect_with_the_beta_header() -> None:
    rig = Rig(headers={"OpenAI-Beta": "realtime=v1"})
    Player(rig, "V02").play()
    assert rig.sent == []


@pytest.mark.parametrize("vector", ["V03", "V04", "V05", "V07", "V08", "V09", "V16", "V17", "V19", "V22", "V23", "V24", "V25", "V27"])
def test_vector_on_a_fresh_connection(vector: str) -> None:
    rig = greeted()
    Player(rig, vector).play()
    assert rig.sent == [] or vector == "V17"


def test_v06_flat_omni_configuration() -> None:
    rig = greeted("duplex=1&autostart=0")
    Player(rig, "V06").play()
    assert rig.sent == []


def test_v26_malformed_json() -> None:
    rig = greeted()
    rig.client('{"type":')
    Player(rig, "V26").play()


def test_v28_base64() -> None:
    rig = greeted()
    Player(rig, "V28").play()
    assert rig.sent == []


def test_v29_odd_bytes_reach_the_model_as_whole_samples() -> None:
    rig = greeted()
    Player(rig, "V29").play()
    assert rig.sent == []
    rig.run(1.0)
    assert rig.pushed == [Reserve()], "three samples are no reason to start"
    rig.client({"type": "input_audio_buffer.append", "audio": base64.b64encode(bytes(3840)).decode()})
    rig.until_live()
    samples = [round(value * 32768) for event in rig.pushed if isinstance(event, AudioIn) for value in event.pcm]
    assert samples[:3] == [0x0201, 0x0403, 0x0605]


def test_v30_huge_messages() -> None:
    rig = greeted()
    rig.client({"type": "input_audio_buffer.append", "audio": "A" * (16 * 2**20 // 3 * 4)})
    rig.client(json.dumps({"type": "session.update", "session": {"type": "realtime", "instructions": "x" * (2 * 2**20)}}))
    Player(rig, "V30").play()


def test_v37_omni_close() -> None:
    rig = greeted()
    Player(rig, "V37").play()
    assert HangUp() in rig.pushed
    assert rig.closed is not None
    assert (rig.closed.code, rig.closed.reason) == (CloseCode.NORMAL, "closed")


def test_v39_capacity_as_an_event() -> None:
    rig = Rig("capacity=event", is_full=True)
    rig.end(CAPACITY)
    Player(rig, "V39").play()
    assert rig.sent == []
    assert rig.closed is not None
    assert (rig.closed.code, rig.closed.reason) == (CloseCode.TRY_AGAIN_LATER, "capacity_exceeded")


def test_v40_mangled_query() -> None:
    rig = Rig("duplex=1?model=gpt-realtime-2.1")
    (created,) = rig.take()
    assert created["session"]["model"] == "gpt-realtime-2.1"
    assert created["session"]["x_duplex"]["client_duplex"] is True
