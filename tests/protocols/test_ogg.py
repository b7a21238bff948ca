from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocols.ogg import BOS, CONTINUED, MAX_PACKET_BYTES, MAX_PAGE_PACKET_BYTES, OggReader, Page, checksum, write_page
from tests.helpers import bitwise_checksum, make_page, parse_ogg, pieces, two_way_splits


def read(*chunks: bytes) -> list[Page | None]:
    reader = OggReader()
    return [page for chunk in chunks for page in reader.pages(chunk)]


def packets(*chunks: bytes) -> list[bytes]:
    return [packet for page in read(*chunks) if page for packet in page.packets]


CASES = {  # pages of one stream -> the packets in them
    "one packet": ([make_page([b"abc"])], [b"abc"]),
    "three packets, one empty": ([make_page([b"abc", b"", b"d"])], [b"abc", b"", b"d"]),
    "no segment": ([make_page([])], []),
    "255 bytes need a lacing value of 0": ([make_page([b"x" * 255])], [b"x" * 255]),
    "packet over two pages": (
        [make_page([b"a", b"x" * 255], sequence=2, is_open=True), make_page([b"yz", b"b"], flags=CONTINUED, sequence=3)],
        [b"a", b"x" * 255 + b"yz", b"b"],
    ),
    "packet over three pages": (
        [
            make_page([b"x" * 510], sequence=2, is_open=True),
            make_page([b"y" * 255], flags=CONTINUED, sequence=3, is_open=True),
            make_page([b""], flags=CONTINUED, sequence=4),
        ],
        [b"x" * 510 + b"y" * 255],
    ),
    "sequence number wraps": (
        [make_page([b"x" * 255], sequence=2**32 - 1, is_open=True), make_page([b"y"], flags=CONTINUED, sequence=0)],
        [b"x" * 255 + b"y"],
    ),
}


@pytest.mark.parametrize(("stream", "expected"), CASES.values(), ids=CASES)
class TestReadingEachCase:
    def test_whole(self, stream: list[bytes], expected: list[bytes]) -> None:
        found = read(*stream)
        assert all(page is not None and not page.is_torn for page in found)
        assert packets(*stream) == expected

    def test_glued(self, stream: list[bytes], expected: list[bytes]) -> None:
        assert packets(b"".join(stream)) == expected

    def test_byte_by_byte(self, stream: list[bytes], expected: list[bytes]) -> None:
        assert packets(*pieces(b"".join(stream), 1)) == expected

    def test_cut_at_every_byte(self, stream: list[bytes], expected: list[bytes]) -> None:
        for head, tail in two_way_splits(b"".join(stream)):
            assert packets(head, tail) == expected

    def test_truncated_gives_only_what_is_whole(self, stream: list[bytes], expected: list[bytes]) -> None:
        data = b"".join(stream)
        for head, _ in two_way_splits(data):
            found = packets(head)
            assert found == expected[: len(found)]
        assert len(packets(data[:-1])) < max(1, len(expected))

    def test_followed_by_garbage(self, stream: list[bytes], expected: list[bytes]) -> None:
        assert packets(b"".join(stream) + b"OggS\x01garbage OggSOgg") == expected


def test_a_wrong_version_is_seen_before_the_page_is_complete() -> None:
    assert read(b"OggS\x01") == [None]


@pytest.mark.parametrize("at", [5, 14, 22, 25, 26, 27, 28, 40])
def test_one_flipped_bit_drops_the_page_and_the_next_is_found(at: int) -> None:
    page = bytearray(make_page([b"a" * 40]))
    page[at] ^= 1
    found = read(bytes(page) + make_page([b"next"]) * 2)
    assert None in found
    assert found[-1] is not None
    assert found[-1].packets == [b"next"]


def test_a_page_inside_a_broken_page_is_found() -> None:
    good = make_page([b"good"])
    broken = bytearray(make_page([good]))
    broken[22] ^= 1
    assert packets(bytes(broken)) == [b"good"]


def test_discarded_bytes_are_counted() -> None:
    reader = OggReader()
    assert [page is None for page in reader.pages(b"xxOggS\x01yy" + make_page([]) + b"zzzOg")] == [True, False]
    assert reader.discarded_bytes == 2 + 7 + 3
    assert list(reader.pages(b"x")) == []
    assert reader.discarded_bytes == 2 + 7 + 3 + 3


def test_a_cut_capture_pattern_is_kept() -> None:
    page = make_page([b"a"])
    for cut in range(1, 4):
        assert packets(b"noise" + page[:cut], page[cut:]) == [b"a"]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (make_page([b"y", b"b"], flags=CONTINUED, sequence=4), [b"b"]),  # a page between them is lost
        (make_page([b"y", b"b"], flags=CONTINUED, sequence=3, serial=8), [b"b"]),  # another stream
        (make_page([b"b"], sequence=3), [b"b"]),  # the rest never came
        (make_page([b"y" * 255], flags=CONTINUED, sequence=4, is_open=True), []),
    ],
)
def test_a_torn_packet_is_dropped_and_told(second: bytes, expected: list[bytes]) -> None:
    pages = read(make_page([b"x" * 255], sequence=2, is_open=True), second)
    assert [page.is_torn for page in pages if page] == [False, True]
    assert [packet for page in pages if page for packet in page.packets] == expected


def test_the_tail_of_a_lost_packet_is_skipped_over_pages() -> None:
    middle = make_page([b"y" * 255], flags=CONTINUED, sequence=4, is_open=True)
    end = make_page([b"z", b"b"], flags=CONTINUED, sequence=5)
    assert packets(middle, end) == [b"b"]


def test_a_packet_without_end_does_not_grow_without_bound() -> None:
    piece = b"x" * 255 * 200
    stream = [make_page([piece], sequence=2, is_open=True)]
    stream += [make_page([piece], flags=CONTINUED, sequence=sequence, is_open=True) for sequence in range(3, 8)]
    (packet,) = packets(*stream, make_page([b"end"], flags=CONTINUED, sequence=8))
    assert MAX_PACKET_BYTES <= len(packet) <= MAX_PACKET_BYTES + 3


def test_a_reader_stopped_early_throws_the_message_away_and_goes_on() -> None:
    reader = OggReader()
    for _ in reader.pages(make_page([b"a"]) + make_page([b"b"])[:-1]):
        break
    assert [page and page.packets for page in reader.pages(make_page([b"c"]))] == [[b"c"]]


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    assert packets(data) == [] or b"OggS" in data


@given(st.lists(st.binary(max_size=600), max_size=5), st.lists(st.integers(1, 300), min_size=1, max_size=30))
def test_any_chunking_gives_the_same_packets(bodies: list[bytes], sizes: list[int]) -> None:
    data = b"".join(make_page([body], sequence=2 + index) for index, body in enumerate(bodies))
    chunks, at = [], 0
    for size in sizes * (len(data) // sum(sizes) + 1):
        chunks.append(data[at : at + size])
        at += size
    assert packets(*chunks, data[at:]) == bodies


@given(st.binary(max_size=400))
def test_the_checksum_is_ogg_s(data: bytes) -> None:
    assert int.from_bytes(checksum(data), "little") == bitwise_checksum(data)


@pytest.mark.parametrize("size", [0, 1, 254, 255, 256, 510, 4000, MAX_PAGE_PACKET_BYTES])
def test_a_written_page_is_a_strict_reader_s_page(size: int) -> None:
    packet = os.urandom(size)
    page = write_page(packet, flags=BOS, granule=2**40, serial=2**32 - 1, sequence=5)
    (parsed,) = parse_ogg(page)
    assert (parsed.flags, parsed.granule, parsed.serial, parsed.sequence) == (BOS, 2**40, 2**32 - 1, 5)
    assert parsed.body == packet
    assert page == make_page([packet], flags=BOS, granule=2**40, serial=2**32 - 1, sequence=5)
    assert packets(page) == [packet]
