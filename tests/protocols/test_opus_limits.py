"""Limits of the Ogg-Opus reader against hostile streams, and where libopus comes from."""

from __future__ import annotations

import ctypes.util
import gc
import importlib.util
import types
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import opus
from protocols.errors import ErrorKind, RemoteProtocolError
from protocols.ogg import BOS
from protocols.opus import OggOpusReader, OggOpusWriter
from tests.helpers import RATE, make_page, opus_head, tone
from tests.protocols.test_opus import AUDIO, HEAD, decoded, raw_packets

# -- Limits --------------------------------------------------------------------------------------------------------------------------


def test_one_message_yields_at_most_two_seconds_and_the_rest_is_counted() -> None:
    packets = raw_packets(tone(960), 960) * 60  # 2.4 s
    reader = OggOpusReader(RATE)
    assert reader.feed(make_page(packets[:30]) + make_page(packets[30:], sequence=3), 0.0).size == 2 * RATE
    assert (reader.dropped_packets, reader.errors) == (10, 0)
    assert reader.feed(make_page(packets[:1], sequence=4), 0.0).size == 960


def test_the_audio_limit_is_exact_whatever_the_packets() -> None:
    packets = raw_packets(tone(1440), 1440) * 40  # 60 ms each
    assert OggOpusReader(RATE).feed(make_page(packets), 0.0).size == 2 * RATE


def test_headers_count_even_after_the_audio_limit_of_a_message() -> None:
    flood = make_page(raw_packets(tone(960), 960) * 55)
    fresh = OggOpusReader(RATE).feed(AUDIO, 0.0)
    reader = OggOpusReader(RATE)
    reader.feed(flood + HEAD, 0.0)
    np.testing.assert_array_equal(reader.feed(AUDIO, 0.0), fresh)


def test_packets_of_one_message_are_bounded() -> None:
    reader = OggOpusReader(RATE)
    dtx = [b"\x08"] * 250  # 20 ms in one byte
    reader.feed(make_page(dtx) * 4, 0.0)
    assert (reader.errors, reader.dropped_packets) == (0, 900)
    reader.feed(make_page(dtx) * 4 + make_page(dtx) * 1000, 0.0)
    assert (reader.errors, reader.dropped_packets) == (1, 1800)
    assert reader.feed(AUDIO, 0.0).size == 960


def test_an_opus_head_counts_only_as_the_first_packet_of_a_page() -> None:
    """Each used to reset the decoder: 102,000 of them in one message took nine seconds of the pool."""
    fresh = OggOpusReader(RATE).feed(AUDIO, 0.0)
    packets = raw_packets(tone(960 * 3), 960)
    reader, undisturbed = OggOpusReader(RATE), OggOpusReader(RATE)
    heard = reader.feed(make_page([packets[0], opus_head(), packets[1]]), 0.0)
    np.testing.assert_array_equal(heard, undisturbed.feed(make_page(packets[:2]), 0.0))
    assert reader.errors == 1
    np.testing.assert_array_equal(reader.feed(make_page([opus_head()]) + AUDIO, 0.0), fresh)
    with pytest.raises(RemoteProtocolError):
        reader.feed(make_page([opus_head()] * 255) * 400, 0.0)


def test_a_decoder_that_has_decoded_nothing_is_not_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = OggOpusReader(RATE)
    num_resets = 0
    control = reader._control

    def counted(*args: object) -> int:
        nonlocal num_resets
        num_resets += 1
        return int(control(*args))

    monkeypatch.setattr(reader, "_control", counted)
    reader.feed(HEAD * 900, 0.0)
    assert num_resets == 0
    reader.feed(AUDIO + HEAD * 900, 0.0)
    assert num_resets == 1


def test_pages_of_one_message_are_bounded() -> None:
    reader = OggOpusReader(RATE)
    reader.feed(make_page([]) * (opus.MAX_MESSAGE_PAGES + 1) + AUDIO, 0.0)
    assert reader.errors == 1
    assert reader.feed(AUDIO, 0.0).size == 960


def test_more_than_50_errors_in_10_s_end_the_call() -> None:
    reader = OggOpusReader(RATE)
    bad = make_page([b""])
    for index in range(50):
        reader.feed(bad, index * 0.1)
    with pytest.raises(RemoteProtocolError) as caught:
        reader.feed(bad, 9.9)
    assert caught.value.kind is ErrorKind.BAD_AUDIO


def test_50_errors_in_every_10_s_are_lived_with() -> None:
    reader = OggOpusReader(RATE)
    for index in range(500):
        reader.feed(make_page([b""]), index * 0.201)
    assert reader.errors == 500


def test_one_message_of_nothing_but_broken_pages_ends_quickly() -> None:
    huge_claim = b"OggS" + bytes(22) + b"\xff" * 256  # claims 65 KB; each costs a checksum over them
    reader = OggOpusReader(RATE)
    with pytest.raises(RemoteProtocolError):
        reader.feed(huge_claim * 14_000, 0.0)
    assert reader.errors == opus.MAX_ERRORS + 1


def test_a_peer_that_never_sends_a_page_is_told() -> None:
    """Raw Opus packets instead of Ogg pages: the reference server says nothing and hears nothing."""
    reader = OggOpusReader(RATE)
    for index in range(opus.MAX_ERRORS):
        reader.feed(b"\x68" + bytes(100), index * 0.02)
    with pytest.raises(RemoteProtocolError):
        reader.feed(b"\x68" + bytes(100), 1.1)
    spoken_to = OggOpusReader(RATE)
    spoken_to.feed(HEAD, 0.0)
    for index in range(opus.MAX_ERRORS + 1):
        spoken_to.feed(b"\x68" + bytes(100), index * 0.02)
    assert spoken_to.errors == 0


def test_a_short_opus_head_is_an_error_and_resets_all_the_same() -> None:
    reader = OggOpusReader(RATE)
    assert decoded(make_page([b"OpusHead\x01"], flags=BOS, sequence=0), AUDIO, reader=reader).size == 960
    assert reader.errors == 1


def test_more_than_two_channels_are_refused_in_words() -> None:
    with pytest.raises(RemoteProtocolError, match="6 channels"):
        OggOpusReader(RATE).feed(make_page([opus_head(channels=6)], flags=BOS, sequence=0), 0.0)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.binary(max_size=80), st.binary(max_size=80).map(lambda packet: make_page([packet]))), max_size=8))
def test_arbitrary_bytes_raise_remote_protocol_error_or_nothing(chunks: list[bytes]) -> None:
    reader = OggOpusReader(RATE)
    for chunk in chunks:
        pcm = reader.feed(chunk, 0.0)
        assert pcm.dtype == np.float32
        assert np.isfinite(pcm).all()
        assert not pcm.size or np.abs(pcm).max() <= 1


# -- libopus -------------------------------------------------------------------------------------------------------------------------


def test_states_are_freed_with_their_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    freed: list[object] = []
    for module in (opus.load_libopus().api.decoder, opus.load_libopus().api.encoder):
        real = module.destroy
        monkeypatch.setattr(module, "destroy", lambda state, real=real: (freed.append(state), real(state)))
    reader, writer = OggOpusReader(RATE), OggOpusWriter(RATE)
    del reader, writer
    gc.collect()
    assert len(freed) == 2


def test_without_libopus_one_line_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(opus.OpusMissing) as caught:
        opus.load_libopus.__wrapped__()
    assert "apt-get install libopus0" in str(caught.value)
    assert "pip install av" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("where", ["av.libs/libopus-114e2b1a.so.0.11.1", "av/.dylibs/libopus.0.dylib"])
def test_the_libopus_of_the_av_wheel_is_found(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / where
    for path in (library, library.with_name("libopusfile.so.0"), tmp_path / "av" / "__init__.py"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    spec = types.SimpleNamespace(origin=str(tmp_path / "av" / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(ctypes.util, "find_library", lambda name: None)
    assert opus._bundled_libopus() == str(library)
    library.unlink()
    assert opus._bundled_libopus() is None


def test_the_finder_is_patched_only_while_opuslib_loads() -> None:
    before = ctypes.util.find_library
    opus.load_libopus.__wrapped__()
    assert ctypes.util.find_library is before
