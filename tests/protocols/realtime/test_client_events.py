from __future__ import annotations

from typing import Any

import pytest

from protocols.realtime.client_events import InputAudioAppend, ItemTruncate, PlaybackAck, SessionClose, session_of
from protocols.realtime.fault import EventError
from protocols.realtime.formats import AudioFormat

PCM = AudioFormat("pcm")
PCM16K = AudioFormat("pcm", 16_000)
ULAW = AudioFormat("pcmu", 8000)


@pytest.mark.parametrize(
    ("session_format", "fields", "fmt"),
    [
        (PCM, {}, PCM),
        (ULAW, {}, ULAW),
        (PCM, {"sample_rate_hz": 16_000}, PCM16K),
        (PCM, {"format": "g711_ulaw"}, ULAW),
        (PCM16K, {"format": "pcm16"}, PCM16K),  # "audio.input.sample_rate_hz > format.rate > 24000"
        (PCM16K, {"format": "pcm_f32le"}, AudioFormat("pcm", 16_000, "f32")),
        (PCM16K, {"format": "pcm16", "sample_rate_hz": 44_100}, AudioFormat("pcm", 44_100)),
        (ULAW, {"format": "pcm16"}, PCM),
        (AudioFormat("pcm", 24_000, "f32"), {"sample_rate_hz": 48_000}, AudioFormat("pcm", 48_000, "f32")),
    ],
)
def test_an_append_may_state_its_own_format(session_format: AudioFormat, fields: dict[str, Any], fmt: AudioFormat) -> None:
    assert InputAudioAppend(audio="", **fields).format_of(session_format) == fmt


@pytest.mark.parametrize(
    ("session_format", "fields", "param"),
    [
        (PCM, {"format": "opus"}, "format"),
        (PCM, {"sample_rate_hz": 4000}, "sample_rate_hz"),
        (ULAW, {"sample_rate_hz": 16_000}, "sample_rate_hz"),
    ],
)
def test_an_impossible_format_is_refused(session_format: AudioFormat, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(EventError) as caught:
        InputAudioAppend(audio="", **fields).format_of(session_format)
    assert (caught.value.code, caught.value.param) == ("invalid_value", param)


@pytest.mark.parametrize(
    ("body", "session"),
    [
        ({"session": {"voice": "a"}, "voice": "b"}, {"voice": "a"}),
        ({"session": None}, None),
        ({"session": 3}, 3),
        ({"type": "session.update", "event_id": "e", "voice": "b", "model": "m"}, {"voice": "b", "model": "m"}),
        ({"type": "session.update", "model": "m", "language": "en"}, {"model": "m"}),
        ({"type": "session.update", "model": 3}, None),
        ({"type": "session.update", "language": "en"}, None),
    ],
)
def test_a_session_object_may_be_the_event_itself(body: dict[str, Any], session: object) -> None:
    assert session_of(body) == session


@pytest.mark.parametrize(("reason", "read"), [("bye", "bye"), (7, None), (None, None)])
def test_nothing_keeps_a_client_from_leaving(reason: object, read: str | None) -> None:
    assert SessionClose.model_validate({"reason": reason}).reason == read


@pytest.mark.parametrize(("given", "asked_ms"), [(7, 7), (7.9, 7), (0, 0), (1e6, 1_000_000)])
def test_milliseconds_are_whole(given: float, asked_ms: int) -> None:
    event = ItemTruncate.model_validate({"item_id": "i", "audio_end_ms": given})
    assert (event.audio_end_ms, type(event.audio_end_ms)) == (asked_ms, int)


@pytest.mark.parametrize(("given", "played_ms"), [(7.9, 7), (-0.5, 0), (-3, 0)])
def test_no_report_of_a_player_is_an_error(given: float, played_ms: int) -> None:
    assert PlaybackAck.model_validate({"played_ms": given}).played_ms == played_ms
