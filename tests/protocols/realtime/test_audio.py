from __future__ import annotations

import base64
import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.audio import FRAME_SAMPLES, SAMPLE_RATE, Pcm
from protocols.realtime.audio import InputConverter, OutputConverter, Resampler, decode_base64
from protocols.realtime.formats import AudioFormat

PCM = AudioFormat("pcm", SAMPLE_RATE, "s16")
FLOAT = AudioFormat("pcm", SAMPLE_RATE, "f32")
MULAW = AudioFormat("pcmu", 8000, "s16")
ALAW = AudioFormat("pcma", 8000, "s16")
G711 = pytest.mark.parametrize("fmt", [MULAW, ALAW], ids=["mulaw", "alaw"])


def sine(hz: float, seconds: float, rate: int, level: float = 0.25) -> Pcm:
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype(np.float32)


def s16(pcm: Pcm) -> bytes:
    return np.rint(pcm * 32767).astype("<i2").tobytes()


def split(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def convert(fmt: AudioFormat, chunks: list[bytes], rate: int = SAMPLE_RATE) -> Pcm:
    converter = InputConverter(fmt, rate)
    return np.concatenate([*(converter.push(chunk) for chunk in chunks), converter.flush()])


def fit(pcm: Pcm, hz: float, rate: int) -> tuple[float, float]:
    """Level of the best sine of this frequency, and the power ratio of it to the rest in dB."""
    phase = 2 * np.pi * hz * np.arange(pcm.size) / rate
    basis = np.stack([np.sin(phase), np.cos(phase)], axis=1)
    weights = np.linalg.lstsq(basis, pcm.astype(np.float64), rcond=None)[0]
    rest = pcm - basis @ weights
    return float(np.hypot(*weights)), float(10 * np.log10(((basis @ weights) ** 2).mean() / (rest**2).mean()))


# -- base64 --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("", b""),
        ("AAA", b"\0\0"),
        ("AA", b"\0"),
        ("AA=", b"\0"),
        ("AA==", b"\0"),
        ("AQID", b"\1\2\3"),
        ("+/+/", b"\xfb\xff\xbf"),
        (" A\tQ\r\nI\vD\f", b"\1\2\3"),
        ("AQ\nID\nBA\n", b"\1\2\3\4"),
    ],
)
def test_base64_with_gaps_or_without_padding_is_taken(text: str, data: bytes) -> None:
    assert decode_base64(text) == data


NO_BASE64 = ["@@@", "***", "AAAAA", "A", "=", "====", "A===", "AAAA=", "AA=A", "AA==AAAA", "-_-_", "AA\u00a0A", "äAAA", "A\0AA", "\ud800"]


@pytest.mark.parametrize("text", NO_BASE64)
def test_what_is_no_base64_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not base64"):
        decode_base64(text)


@given(st.binary(max_size=40), st.integers(0, 2), st.randoms())
def test_base64_comes_back(data: bytes, num_stripped: int, rng: random.Random) -> None:
    text = base64.b64encode(data).decode()
    for _ in range(num_stripped):
        text = text.removesuffix("=")
    for _ in range(3):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(" \t\r\n") + text[at:]
    assert decode_base64(text) == data


# -- G.711 ---------------------------------------------------------------------------------------------------------------------------


def levels(fmt: AudioFormat) -> list[int]:
    """The 16-bit values of the 256 codes, by the formulas of G.711 section 3."""
    values = []
    for wire in range(256):
        if fmt.kind == "pcmu":
            sign, segment, step = (wire ^ 0xFF) >> 7, (wire ^ 0xFF) >> 4 & 7, (wire ^ 0xFF) & 15
            value = 4 * ((2 * step + 33) * 2**segment - 33)
        else:
            sign, segment, step = 1 - ((wire ^ 0x55) >> 7), (wire ^ 0x55) >> 4 & 7, (wire ^ 0x55) & 15
            value = 8 * (2 * step + 1 if segment == 0 else (2 * step + 33) * 2 ** (segment - 1))
        values.append(-value if sign else value)
    return values


@G711
def test_every_code_decodes_to_its_level(fmt: AudioFormat) -> None:
    decoded = InputConverter(fmt, 8000).push(bytes(range(256)))
    assert (decoded * 32768).tolist() == levels(fmt)


@G711
def test_every_sample_gets_a_code_within_half_a_step(fmt: AudioFormat) -> None:
    samples = np.arange(-32768, 32768)
    codes = OutputConverter(fmt, 8000).push((samples / 32768).astype(np.float32))
    decoded = np.array(levels(fmt))[np.frombuffer(codes, np.uint8)]
    assert (np.diff(decoded) >= 0).all()
    largest = max(levels(fmt))
    # Steps are 2**segment * 8 wide in mu-law and 16 or 2**segment * 8 in A-law; a level lies in the middle of its step.
    if fmt.kind == "pcmu":
        step = 8 * 2 ** np.floor(np.log2((np.minimum(abs(samples), 32635) + 132) / 128))
    else:
        step = np.maximum(16, 8 * 2 ** np.floor(np.log2(np.maximum(np.where(samples < 0, ~samples, samples), 1) / 128)))
    inside = abs(samples) <= largest
    assert (abs(decoded - samples)[inside] <= step[inside] / 2).all()
    assert set(abs(decoded[~inside])) == {largest}
    assert set(codes) == set(range(256))


@G711
def test_decoding_and_coding_again_changes_nothing(fmt: AudioFormat) -> None:
    codes = bytes(code for code in range(256) if (fmt.kind, code) != ("pcmu", 0x7F))  # mu-law's second, negative zero
    assert OutputConverter(fmt, 8000).push(InputConverter(fmt, 8000).push(codes)) == codes


@pytest.mark.filterwarnings("ignore:'audioop' is deprecated:DeprecationWarning")
@G711
def test_codes_are_those_of_another_implementation(fmt: AudioFormat) -> None:
    audioop = pytest.importorskip("audioop")
    encode, decode = (audioop.lin2ulaw, audioop.ulaw2lin) if fmt.kind == "pcmu" else (audioop.lin2alaw, audioop.alaw2lin)
    ours = InputConverter(fmt, 8000).push(bytes(range(256))) * 32768
    assert ours.tolist() == np.frombuffer(decode(bytes(range(256)), 2), "<i2").tolist()
    # audioop rounds to 14 bits downwards before it looks at the sign, so negative values are compared where that changes nothing.
    samples = np.array([value for value in range(-32768, 32768) if value >= 0 or value % 4 == 0], "<i2")
    assert OutputConverter(fmt, 8000).push((samples / 32768).astype(np.float32)) == encode(samples.tobytes(), 2)


@pytest.mark.parametrize(("fmt", "silence"), [(MULAW, 0xFF), (ALAW, 0xD5)])
def test_silence_is_the_code_that_telephones_expect(fmt: AudioFormat, silence: int) -> None:
    assert OutputConverter(fmt, SAMPLE_RATE).push(np.zeros(FRAME_SAMPLES, np.float32)) == bytes([silence]) * 640


# -- input ---------------------------------------------------------------------------------------------------------------------------


def test_an_odd_byte_waits_for_its_other_half() -> None:
    converter = InputConverter(PCM, SAMPLE_RATE)
    first = converter.push(bytes([1, 2, 3]))
    assert converter.num_carried == 1
    second = converter.push(bytes([4, 5, 6]))
    assert converter.num_carried == 0
    assert (np.concatenate([first, second]) * 32768).tolist() == [0x0201, 0x0403, 0x0605]


@pytest.mark.parametrize("fmt", [PCM, FLOAT])
def test_a_dropped_partial_sample_does_not_shift_what_follows(fmt: AudioFormat) -> None:
    data = np.array([0.5, -0.25], np.float32).tobytes() if fmt is FLOAT else s16(np.array([0.5, -0.25], np.float32))
    clean = InputConverter(fmt, SAMPLE_RATE).push(data)
    for drop in (InputConverter.drop_partial, InputConverter.flush):
        for num_bytes in range(1, len(data) // 2):
            converter = InputConverter(fmt, SAMPLE_RATE)
            assert converter.push(b"\x11" * num_bytes).size == 0
            assert converter.num_carried == num_bytes
            drop(converter)
            assert converter.num_carried == 0
            np.testing.assert_array_equal(converter.push(data), clean)


def test_every_s16_sample_is_exact_and_comes_back() -> None:
    data = np.arange(-32768, 32768, dtype="<i2").tobytes()
    pcm = InputConverter(PCM, SAMPLE_RATE).push(data)
    assert (pcm.astype(np.float64) * 32768).tolist() == list(range(-32768, 32768))
    assert OutputConverter(PCM, SAMPLE_RATE).push(pcm) == data


def test_floats_are_clipped_and_what_is_no_number_is_silence() -> None:
    samples = np.array([0.25, 1.5, -2, np.nan, np.inf, -np.inf, 1, -1, 1e-40], "<f4")
    assert InputConverter(FLOAT, SAMPLE_RATE).push(samples.tobytes()).tolist() == [0.25, 1, -1, 0, 0, 0, 1, -1, np.float32(1e-40)]


FORMATS = [PCM, FLOAT, MULAW, ALAW, *(AudioFormat("pcm", rate, "s16") for rate in (8000, 11025, 16000, 22050, 44100, 48000, 96000))]


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: f"{fmt.kind}-{fmt.rate}-{fmt.encoding}")
@given(cuts=st.lists(st.integers(0, 2**20), max_size=12), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_where_the_stream_is_cut_does_not_matter(fmt: AudioFormat, cuts: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed)
    data = noise.uniform(-1, 1, 1500).astype("<f4").tobytes() if fmt.encoding == "f32" else noise.bytes(3001)
    np.testing.assert_array_equal(convert(fmt, split(data, cuts)), convert(fmt, [data]))


def test_one_byte_at_a_time_is_the_same_too() -> None:
    data = s16(sine(440, 0.05, 16000))
    fmt = AudioFormat("pcm", 16000, "s16")
    np.testing.assert_array_equal(convert(fmt, [bytes([byte]) for byte in data]), convert(fmt, [data]))


@pytest.mark.parametrize("rate", [8001, 23999, 95999])
def test_rates_without_a_simple_ratio_hardly_depend_on_the_cuts(rate: int) -> None:
    fmt, data = AudioFormat("pcm", rate, "s16"), s16(sine(440, 0.5, rate))
    pieces = convert(fmt, [data[at : at + 317] for at in range(0, len(data), 317)])
    np.testing.assert_allclose(pieces, convert(fmt, [data]), atol=1e-5)


@pytest.mark.parametrize("rate", [8000, 8001, 11025, 16000, 22050, 44100, 48000, 95999, 96000])
def test_a_tone_keeps_its_frequency_level_and_length(rate: int) -> None:
    seconds = 1.0
    pcm = convert(AudioFormat("pcm", rate, "s16"), [s16(sine(440, seconds, rate))])
    assert abs(pcm.size - SAMPLE_RATE * seconds) <= 1
    level, ratio_db = fit(pcm[2400:-2400], 440, SAMPLE_RATE)
    assert level == pytest.approx(0.25, rel=0.01)
    assert ratio_db > 60


@pytest.mark.parametrize(("rate", "owed_ms"), [(8000, 2.05), (16000, 1.05), (48000, 0.75), (44100, 0.75)])
def test_the_input_resampler_owes_the_same_few_samples_at_every_moment(rate: int, owed_ms: float) -> None:
    converter, packet = InputConverter(AudioFormat("pcm", rate, "s16"), SAMPLE_RATE), s16(sine(440, 0.02, rate))
    num_in = num_out = 0
    owed = set()
    for _ in range(50):
        num_out += converter.push(packet).size
        num_in += 480
        owed.add(num_in - num_out)
    assert max(owed) <= owed_ms * SAMPLE_RATE / 1000
    assert max(owed) - min(owed) <= 1


def test_a_new_format_begins_where_the_old_one_ended() -> None:
    converter = InputConverter(AudioFormat("pcm", 16000, "s16"), SAMPLE_RATE)
    first = np.concatenate([converter.push(s16(sine(440, 0.1, 16000))), converter.flush()])
    assert first.size == 2400
    assert converter.flush().size == 0
    again = np.concatenate([converter.push(s16(sine(440, 0.1, 16000))), converter.flush()])
    np.testing.assert_array_equal(first, again)


def test_full_scale_stays_in_range_after_the_filter() -> None:
    square = np.where(np.arange(8000) // 10 % 2, 32767, -32768).astype("<i2").tobytes()
    pcm = convert(AudioFormat("pcm", 8000, "s16"), [square])
    assert abs(pcm).max() == 1


def test_no_bytes_are_no_samples() -> None:
    for fmt in FORMATS:
        converter = InputConverter(fmt, SAMPLE_RATE)
        for pcm in (converter.push(b""), converter.flush()):
            assert (pcm.shape, pcm.dtype) == ((0,), np.float32)


# -- output --------------------------------------------------------------------------------------------------------------------------

OUTPUTS = [(MULAW, 640), (ALAW, 640), (AudioFormat("pcm", 8000, "s16"), 1280), (AudioFormat("pcm", 16000, "s16"), 2560)]
OUTPUTS += [(PCM, 3840), (AudioFormat("pcm", 48000, "s16"), 7680)]


@pytest.mark.parametrize(("fmt", "frame_bytes"), OUTPUTS, ids=lambda value: getattr(value, "kind", str(value)))
def test_every_frame_gives_its_bytes_from_the_first_on(fmt: AudioFormat, frame_bytes: int) -> None:
    converter = OutputConverter(fmt, SAMPLE_RATE)
    frames = sine(440, 3.2, SAMPLE_RATE).reshape(-1, FRAME_SAMPLES)
    for _ in range(2):  # two responses: the second starts as fresh as the first
        sent = [converter.push(frame) for frame in frames]
        assert {len(data) for data in sent} == {frame_bytes}
        tail = converter.flush()
        assert len(tail) <= frame_bytes / 40  # 2 ms
        assert converter.flush() == b""
        pcm = InputConverter(fmt, fmt.rate).push(b"".join(sent) + tail)
        late = pcm.size - frames.size * fmt.rate // SAMPLE_RATE  # samples of the tail: nothing was lost, the audio is late by as many
        resampler = Resampler(SAMPLE_RATE, fmt.rate)
        expected = np.concatenate([resampler.push(frames.reshape(-1)), resampler.finish()])[fmt.rate // 100 :]
        noise = pcm[late + fmt.rate // 100 :] - expected
        assert 10 * np.log10((expected**2).mean() / max((noise**2).mean(), 1e-12)) > 30


@G711
def test_a_call_over_a_telephone_is_clean_both_ways(fmt: AudioFormat) -> None:
    """T18: 24 kHz to the wire in frames, and back in packets of 20 ms."""
    sent = OutputConverter(fmt, SAMPLE_RATE)
    wire = b"".join(sent.push(frame) for frame in sine(440, 1.6, SAMPLE_RATE).reshape(-1, FRAME_SAMPLES))
    heard = convert(fmt, [wire[at : at + 160] for at in range(0, len(wire), 160)])[2400:-2400]
    level, ratio_db = fit(heard, 440, SAMPLE_RATE)
    assert level == pytest.approx(0.25, rel=0.01)
    assert ratio_db > 30
    loudest = np.abs(np.fft.rfft(heard * np.hanning(heard.size))).argmax() * SAMPLE_RATE / heard.size
    assert abs(loudest - 440) < 2


@pytest.mark.parametrize("fmt", [fmt for fmt, _ in OUTPUTS], ids=lambda fmt: f"{fmt.kind}-{fmt.rate}")
@given(cuts=st.lists(st.integers(0, 2**20), max_size=8))
@settings(max_examples=15, deadline=None)
def test_the_length_of_the_frames_does_not_matter_for_the_output(fmt: AudioFormat, cuts: list[int]) -> None:
    pcm = np.random.default_rng(1).uniform(-1, 1, 5000).astype(np.float32)
    edges = [0, *sorted(cut % 5001 for cut in cuts), 5000]
    whole, cut = OutputConverter(fmt, SAMPLE_RATE), OutputConverter(fmt, SAMPLE_RATE)
    expected = whole.push(pcm) + whole.flush()
    assert b"".join(cut.push(pcm[start:end]) for start, end in itertools.pairwise(edges)) + cut.flush() == expected


def test_what_lies_above_the_new_rate_does_not_come_back_as_another_tone() -> None:
    fmt = AudioFormat("pcm", 8000, "s16")
    converter = OutputConverter(fmt, SAMPLE_RATE)
    pcm = InputConverter(fmt, 8000).push(converter.push(sine(7000, 0.8, SAMPLE_RATE)))
    assert np.abs(pcm[800:]).max() < 1e-3  # 7 kHz without a filter: 0.25 at 1 kHz


def test_output_beyond_full_scale_is_clipped_and_no_number_is_silence() -> None:
    pcm = np.array([2, -2, 1, -1, np.nan, np.inf, 0.5 / 32768, 1.5 / 32768, -0.4 / 32768], np.float32)
    sent = np.frombuffer(OutputConverter(PCM, SAMPLE_RATE).push(pcm), "<i2")
    assert sent.tolist() == [32767, -32768, 32767, -32768, 0, 0, 0, 2, 0]


def test_a_resampler_starts_no_threads() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.exists():
        pytest.skip("counts the threads of the process in /proc")
    before = len(list(tasks.iterdir()))
    resamplers = [Resampler(8000, SAMPLE_RATE) for _ in range(8)]
    assert all(resampler.push(np.zeros(160, np.float32)).size for resampler in resamplers)
    assert len(list(tasks.iterdir())) <= before
