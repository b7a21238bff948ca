from __future__ import annotations

import numpy as np
import opuslib
import pytest
import sphn
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols import opus
from protocols.ogg import BOS, CONTINUED, EOS
from protocols.opus import OggOpusReader, OggOpusWriter
from tests.helpers import FRAME, RATE, capture, make_page, opus_head, parse_ogg, pieces, rms, tone

HEAD, TAGS, AUDIO = (capture(name)[1:] for name in ("web_opus_head", "web_opus_tags", "web_audio_40ms"))


def raw_packets(pcm: np.ndarray, samples: int, *, channels: int = 1) -> list[bytes]:
    """Opus packets of `samples` samples, by opuslib's own encoder."""
    encoder = opuslib.Encoder(RATE, channels, "audio")
    interleaved = np.repeat(pcm, channels).astype(np.float32)
    step = samples * channels
    return [encoder.encode_float(interleaved[at : at + step].tobytes(), samples) for at in range(0, interleaved.size, step)]


def decoded(*chunks: bytes, reader: OggOpusReader | None = None) -> np.ndarray:
    reader = reader or OggOpusReader(RATE)
    return np.concatenate([np.empty(0, np.float32), *(reader.feed(chunk, 0.0) for chunk in chunks)])


# -- Writing -------------------------------------------------------------------------------------------------------------------------


def test_first_frame_carries_the_headers_and_every_frame_two_whole_40_ms_pages() -> None:
    writer = OggOpusWriter(RATE, serial=77)
    messages = [writer.encode(tone(FRAME)) for _ in range(5)]
    pages = [parse_ogg(message) for message in messages]
    assert [len(found) for found in pages] == [4, 2, 2, 2, 2]
    stream = [page for found in pages for page in found]
    assert [page.sequence for page in stream] == list(range(12))
    assert {page.serial for page in stream} == {77}
    assert [page.flags for page in stream] == [BOS] + [0] * 11
    assert [page.granule for page in stream] == [0, 0] + [1920 * count for count in range(1, 11)]  # 48 kHz units
    assert all(page.lacing[-1] < 255 and page.lacing[:-1].strip(b"\xff") == b"" for page in stream)  # one whole packet each
    assert all(len(page.body) <= 4000 for page in stream)


def test_v13_opus_head_of_a_server_stream() -> None:
    head, tags, *_ = parse_ogg(OggOpusWriter(RATE).encode(tone(FRAME)))
    assert head.body == bytes.fromhex("4f707573486561640101000f80bb0000000000")
    assert tags.body.startswith(b"OpusTags")
    assert tags.body.endswith(b"duplex-gateway\0\0\0\0")


def test_every_connection_has_its_own_serial() -> None:
    serials = {parse_ogg(OggOpusWriter(RATE).encode(tone(FRAME)))[0].serial for _ in range(3)}
    assert len(serials) == 3


def test_no_sample_is_lost_when_chunks_are_no_packets() -> None:
    pcm = tone(FRAME * 3)
    whole, cut = OggOpusWriter(RATE, serial=1), OggOpusWriter(RATE, serial=1)
    assert cut.encode(pcm[:959]) == b""
    at, stream = 959, [b""]
    for size in (1, 1000, 1, 2000, 5000):
        stream.append(cut.encode(pcm[at : at + size]))
        at += size
    assert b"".join(stream) == whole.encode(pcm)


def test_out_of_range_and_not_finite_samples_are_clipped_and_silenced() -> None:
    wild = np.concatenate([tone(FRAME, level=5.0), np.array([np.nan, np.inf, -np.inf] * 640, np.float32)])
    tame = np.nan_to_num(np.clip(np.where(np.isfinite(wild), wild, 0.0), -1, 1)).astype(np.float32)
    assert OggOpusWriter(RATE, serial=1).encode(wild) == OggOpusWriter(RATE, serial=1).encode(tame)


def test_the_input_is_not_written_to() -> None:
    pcm = tone(FRAME, level=3.0)
    pcm.flags.writeable = False
    assert OggOpusWriter(RATE).encode(pcm)


def test_complexity_and_bitrate_reach_libopus() -> None:
    pcm = tone(RATE) + np.random.default_rng(0).normal(0, 0.1, RATE).astype(np.float32)
    low, high = (len(OggOpusWriter(RATE, bitrate=bitrate).encode(pcm)) for bitrate in (12_000, 64_000))
    assert low * 3 < high
    assert OggOpusWriter(RATE, complexity=0, serial=1).encode(pcm) != OggOpusWriter(RATE, complexity=10, serial=1).encode(pcm)
    with pytest.raises(opuslib.OpusError):
        OggOpusWriter(RATE, complexity=11)


@pytest.mark.parametrize("rate", opus.RATES)
def test_every_rate_of_libopus_round_trips(rate: int) -> None:
    pcm = (0.3 * np.sin(2 * np.pi * 300 * np.arange(rate) / rate)).astype(np.float32)
    back = OggOpusReader(rate).feed(OggOpusWriter(rate).encode(pcm), 0.0)
    assert back.size == pcm.size
    assert rms(back[rate // 2 :]) == pytest.approx(rms(pcm), rel=0.05)


def test_sphn_hears_exactly_what_our_reader_hears() -> None:
    writer, peer, reader = OggOpusWriter(RATE), sphn.OpusStreamReader(RATE), OggOpusReader(RATE)
    for at in range(0, FRAME * 10, FRAME):
        message = writer.encode(tone(FRAME * 10)[at : at + FRAME])
        theirs = peer.append_bytes(message)
        assert theirs.size == FRAME
        np.testing.assert_array_equal(theirs, reader.feed(message, 0.0))


def test_speech_survives_with_only_the_codec_s_delay() -> None:
    pcm = np.random.default_rng(1).normal(0, 1, FRAME * 20).astype(np.float32)
    pcm = np.convolve(pcm, np.ones(40) / 40, "same").astype(np.float32)  # low band, so that lossy coding keeps its shape
    back = decoded(OggOpusWriter(RATE, complexity=10, bitrate=128_000).encode(pcm))
    lag = int(np.argmax([np.dot(pcm[: FRAME * 15], back[shift : shift + FRAME * 15]) for shift in range(400)]))
    assert lag == pytest.approx(156, abs=2)  # 6.5 ms; spec 4.5 measured 155
    assert np.corrcoef(pcm[: FRAME * 15], back[lag : lag + FRAME * 15])[0, 1] > 0.95


# -- Reading -------------------------------------------------------------------------------------------------------------------------


def test_v2_v3_v4_web_client_messages_give_0_0_960_samples() -> None:
    reader = OggOpusReader(RATE)
    sizes = [reader.feed(page, 0.0) for page in (HEAD, TAGS, AUDIO)]
    assert [pcm.size for pcm in sizes] == [0, 0, 960]
    assert rms(sizes[-1]) == pytest.approx(0.189, abs=0.0005)
    assert sizes[-1].dtype == np.float32


def test_v5_eos_page_without_segments_gives_nothing_and_no_error() -> None:
    reader = OggOpusReader(RATE)
    assert decoded(HEAD, TAGS, AUDIO, capture("web_eos_zero_segments")[1:], reader=reader).size == 960
    assert (reader.errors, reader.discarded_bytes) == (0, 0)


def test_v6_sphn_server_stream_gives_a_frame() -> None:
    pcm = decoded(capture("sphn021_server_first_80ms_silence")[1:])
    assert pcm.size == FRAME
    assert rms(pcm) < 1e-3


def test_v7_old_sphn_headers_are_taken() -> None:
    reader = OggOpusReader(RATE)
    assert decoded(capture("sphn0112_opus_head")[1:], capture("sphn0112_opus_tags")[1:], AUDIO, reader=reader).size == 960
    assert reader.errors == 0


def test_v8_zero_length_packet_gives_nothing() -> None:
    """sphn makes five seconds of sound of these 28 bytes."""
    reader = OggOpusReader(RATE)
    assert reader.feed(capture("hostile_zero_length_packet")[1:], 0.0).size == 0
    assert reader.errors == 1


def test_v9_one_byte_dtx_packet_gives_20_ms() -> None:
    reader = OggOpusReader(RATE)
    assert reader.feed(capture("dtx_one_byte_packet")[1:], 0.0).size == 480
    assert reader.errors == 0


def test_scenario_a_random_bytes_between_pages() -> None:
    noise = np.random.default_rng(3).bytes(100)
    assert decoded(HEAD, TAGS, AUDIO + noise + AUDIO).size == 1920


def test_scenario_b_page_cut_at_byte_60_then_whole_pages() -> None:
    assert decoded(HEAD, TAGS, AUDIO[:60], AUDIO, AUDIO, AUDIO).size == 960 * 3


def test_scenario_c_flipped_byte_drops_that_page_only() -> None:
    bad = bytearray(AUDIO)
    bad[100] ^= 0xFF
    reader = OggOpusReader(RATE)
    assert [reader.feed(page, 0.0).size for page in (HEAD, TAGS, AUDIO, bytes(bad), AUDIO)] == [0, 0, 960, 0, 960]
    assert reader.errors == 1


def test_scenario_d_lost_page() -> None:
    packets = raw_packets(tone(FRAME * 2), 960)
    stream = [make_page([packet], sequence=2 + index) for index, packet in enumerate(packets)]
    del stream[1]
    reader = OggOpusReader(RATE)
    assert decoded(*stream, reader=reader).size == 960 * 3
    assert reader.errors == 0


def test_scenario_e_second_stream_with_a_new_serial_starts_afresh() -> None:
    first, second = (OggOpusWriter(RATE, serial=serial).encode(tone(FRAME)) for serial in (1, 2))
    reader = OggOpusReader(RATE)
    once = reader.feed(first, 0.0)
    again = reader.feed(second, 0.0)
    np.testing.assert_array_equal(once, again)  # nothing of the first stream is left in the decoder
    assert reader.errors == 0


@pytest.mark.parametrize(
    "start",
    [make_page([], flags=BOS, sequence=0, serial=9), make_page([opus_head()], sequence=0), make_page([opus_head()], flags=BOS, sequence=0)],
    ids=["BOS alone", "OpusHead alone", "both"],
)
def test_a_new_stream_resets_the_decoder(start: bytes) -> None:
    fresh = decoded(AUDIO)
    reader = OggOpusReader(RATE)
    assert not np.array_equal(decoded(AUDIO, AUDIO, reader=reader)[960:], fresh)
    np.testing.assert_array_equal(decoded(start, AUDIO, reader=reader), fresh)


def test_scenario_f_audio_without_headers() -> None:
    assert decoded(AUDIO).size == 960


def test_scenario_g_undecodable_packet_is_dropped() -> None:
    reader = OggOpusReader(RATE)
    assert decoded(HEAD, TAGS, make_page([b"\xff" * 200]), AUDIO, reader=reader).size == 960
    assert reader.errors == 1


def test_scenario_h_missing_tags() -> None:
    assert decoded(HEAD, AUDIO).size == 960


def test_scenario_i_end_of_stream_then_more_pages() -> None:
    packet = raw_packets(tone(960), 960)[0]
    assert decoded(make_page([packet], flags=EOS), make_page([packet], sequence=3)).size == 1920


def test_scenario_j_page_in_two_messages() -> None:
    reader = OggOpusReader(RATE)
    for cut in range(1, len(AUDIO)):
        assert [reader.feed(part, 0.0).size for part in (AUDIO[:cut], AUDIO[cut:])] == [0, 960]
    assert reader.errors == 0


def test_scenario_k_a_megabyte_of_zeros() -> None:
    reader = OggOpusReader(RATE)
    assert decoded(HEAD, TAGS, bytes(1_000_000), AUDIO, reader=reader).size == 960
    assert reader.discarded_bytes == 1_000_000


def test_scenario_l_four_packets_in_one_page() -> None:
    assert decoded(make_page(raw_packets(tone(960 * 4), 960))).size == 3840


@pytest.mark.parametrize("samples", [60, 120, 240, 480, 960, 1440, 1920, 2400, 2880])
@pytest.mark.parametrize("channels", [1, 2])
def test_packets_of_2_5_to_120_ms_mono_and_stereo(samples: int, channels: int) -> None:
    packets = raw_packets(tone(samples * 3), samples, channels=channels)
    stream = [make_page([opus_head(channels=channels)], flags=BOS, sequence=0)]
    stream += [make_page([packet], sequence=2 + index) for index, packet in enumerate(packets)]
    assert decoded(*stream).size == samples * 3


@pytest.mark.parametrize("rate", [0, 8000, 44_100, 48_000, 96_000, 2**32 - 1])
def test_the_input_rate_field_is_the_peer_s_business(rate: int) -> None:
    assert decoded(make_page([opus_head(rate=rate)], flags=BOS, sequence=0), AUDIO).size == 960


def test_a_packet_longer_than_120_ms_is_dropped() -> None:
    seven_times_20_ms = bytes([0b10011011, 7]) + bytes(70)
    reader = OggOpusReader(RATE)
    assert reader.feed(make_page([seven_times_20_ms]), 0.0).size == 0
    assert reader.errors == 1


def test_a_packet_continued_over_pages_is_whole() -> None:
    writer = OggOpusWriter(RATE, bitrate=128_000)
    packet = parse_ogg(writer.encode(np.random.default_rng(0).normal(0, 0.2, 960).astype(np.float32)))[2].body
    assert len(packet) > 255
    first = make_page([packet[:255]], sequence=2, is_open=True)
    assert decoded(first, make_page([packet[255:]], flags=CONTINUED, sequence=3)).size == 960
    reader = OggOpusReader(RATE)
    assert decoded(first, make_page([packet[255:]], flags=CONTINUED, sequence=9), reader=reader).size == 0
    assert reader.errors == 1


@pytest.mark.parametrize("size", [1, 7, 60, 1000])
def test_any_chunking_gives_the_same_pcm(size: int) -> None:
    stream = OggOpusWriter(RATE).encode(tone(FRAME * 3))
    np.testing.assert_array_equal(decoded(*pieces(stream, size)), decoded(stream))


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=1, max_size=10))
def test_any_random_chunking_gives_the_same_pcm(sizes: list[int]) -> None:
    stream = HEAD + TAGS + AUDIO + AUDIO
    chunks, at = [], 0
    for size in sizes:
        chunks.append(stream[at : at + size])
        at += size
    np.testing.assert_array_equal(decoded(*chunks, stream[at:]), decoded(stream))


def test_our_reader_hears_what_sphn_s_writer_says() -> None:
    peer, theirs = sphn.OpusStreamWriter(RATE), sphn.OpusStreamReader(RATE)
    reader = OggOpusReader(RATE)
    for at in range(0, FRAME * 10, FRAME):
        message = peer.append_pcm(tone(FRAME * 10)[at : at + FRAME])
        pcm = reader.feed(message, 0.0)
        assert pcm.size == FRAME
        np.testing.assert_array_equal(pcm, theirs.append_bytes(message))
    assert reader.errors == 0


def test_decoded_sound_stays_within_full_scale() -> None:
    square = np.sign(tone(FRAME * 4)).astype(np.float32)
    stream = sphn.OpusStreamWriter(RATE).append_pcm(square)
    assert np.abs(sphn.OpusStreamReader(RATE).append_bytes(stream)).max() > 1.0  # so there is something to bound
    assert np.abs(decoded(stream)).max() == 1.0


def test_not_finite_samples_become_zero() -> None:
    wild = np.array([np.nan, np.inf, -np.inf, 2.0, -2.0, 0.5], np.float32)
    assert opus._bounded(wild).tolist() == [0, 0, 0, 1, -1, 0.5]
    assert opus._bounded(np.empty(0, np.float32)).size == 0
