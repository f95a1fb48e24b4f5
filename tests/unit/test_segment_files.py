"""Names of segments and partitions, the listing of a directory, and the walk over a segment file."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import _segment, segment_files
from fastlog.segment_files import Entry, SegmentFile
from tests import reference
from tests.harness import raw_format
from tests.strategies import damaged_sets


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("00000000000000000000.kafka", 0),
        ("00000000000000000108.kafka", 108),
        ("0.kafka", 0),
        ("00000000000.kafka", 0),
        ("00000000216.kafka", 216),
        ("09223372036854775807.kafka", 2**63 - 1),
        ("0000000000000000000000000000000012.kafka", 12),
        ("9223372036854775808.kafka", None),
        ("99999999999999999999.kafka", None),
        ("1" * 5000 + ".kafka", None),
        ("-1.kafka", None),
        ("+1.kafka", None),
        ("1_0.kafka", None),
        ("٣.kafka", None),
        ("1.kafka\n", None),
        (".kafka", None),
        ("x.kafka", None),
        ("1.KAFKA", None),
        ("1.kafka.1600000000000.truncated", None),
        ("1.kafka.tmp", None),
        ("1", None),
    ],
)
def test_segment_names(name: str, base: int | None) -> None:
    """S2: any number of digits is read."""
    assert segment_files.parse_segment_name(name) == base


@given(st.integers(0, 2**63 - 1))
def test_written_names_have_20_digits(base: int) -> None:
    """S2: 20 digits are written, and their order as text is that of the offsets."""
    name = segment_files.segment_name(base)
    assert len(name) == 26
    assert segment_files.parse_segment_name(name) == base
    assert base == 2**63 - 1 or name < segment_files.segment_name(base + 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("test-topic-0", ("test-topic", 0)),
        ("my_topic-12", ("my_topic", 12)),
        ("-0-0", ("-0", 0)),
        ("a--7", ("a-", 7)),
        ("t-2147483647", ("t", 2**31 - 1)),
        ("t-2147483648", None),
        ("t-00", None),
        ("t-01", None),
        ("t-+1", None),
        ("t- 1", None),
        ("t-٣", None),
        ("t-1\n", None),
        ("my_topic_0", None),
        ("lost+found", None),
        ("t-", None),
        ("-0", None),
        ("..-0", None),
        (".-0", None),
        ("a/b-0", None),
        ("a\x00-0", None),
        ("\udcff-0", None),
        ("t-" + "9" * 5000, None),
        ("", None),
    ],
)
def test_partition_directory_names(name: str, expected: tuple[str, int] | None) -> None:
    """S1, Z-7: the last dash divides topic and partition; what does not follow the rule is no partition."""
    assert segment_files.split_directory_name(name) == expected
    if expected is not None:
        assert segment_files.partition_directory_name(*expected) == name


def test_listing_is_in_order_of_offsets_and_holds_regular_files_only(tmp_path: Path) -> None:
    """A listing does not depend on digits, and takes nothing for a segment that is none."""
    for name in ("100.kafka", "00000000000000000020.kafka", "3.kafka", "3.kafka.1.truncated", "fastlog.json"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "5.kafka").mkdir()
    (tmp_path / "6.kafka").symlink_to("3.kafka")
    os.mkfifo(tmp_path / "7.kafka")
    assert segment_files.list_segments(tmp_path) == [
        SegmentFile(3, tmp_path / "3.kafka", 7),
        SegmentFile(20, tmp_path / "00000000000000000020.kafka", 26),
        SegmentFile(100, tmp_path / "100.kafka", 9),
    ]


def walked(fd: int, start: int, end: int, window_bytes: int, **options: int) -> tuple[list[tuple[int, ...]], int, int]:
    """All entries of ``windows``, where they end, and the last status."""
    found, position, status = [], start, _segment.SCAN_OK
    for window in segment_files.windows(fd, start, end, window_bytes=window_bytes, **options):
        assert status == _segment.SCAN_OK, "a status that ends the walk stands in the last window only"
        entries = _segment.entries(window.entries, window.position)
        assert window.count == len(entries)
        assert window.wrappers == sum(1 for entry in entries if entry[3])
        found += entries
        position, status = window.position + len(window.entries), window.status
    return found, position, status


@settings(max_examples=200)
@given(damaged_sets(), st.integers(1, 200))
def test_windows_see_what_one_scan_of_the_whole_sees(data: bytes, window_bytes: int) -> None:
    """However small the window, the walk ends where the reference ends it, and for the same reason."""
    fd = os.memfd_create("segment")
    try:
        os.write(fd, data)
        found, position, status = walked(fd, 0, len(data), window_bytes)
    finally:
        os.close(fd)
    expected, expected_status = reference.walk(data)
    assert [Entry(*fields) for fields in found] == [
        (entry.offset, entry.next_offset, entry.magic, entry.attributes, entry.payload) for entry in expected
    ]
    assert position == (expected[-1].next_offset if expected else 0)
    # a length that reaches behind the end may be believed to be a cut before its magic is looked at, and the other way
    assert (status == _segment.SCAN_OK) == (expected_status == reference.OK)


def test_a_walk_may_begin_and_end_anywhere_and_the_file_may_shrink(tmp_path: Path) -> None:
    """Positions are those of the file; an end behind the end of the file is the end of the file."""
    entries = [raw_format.entry(b"message %d" % n) for n in range(50)]
    path = tmp_path / "0.kafka"
    path.write_bytes(b"".join(entries))
    size = len(entries[0])
    with path.open("rb") as segment:
        found, position, status = walked(segment.fileno(), 2 * size, 7 * size + 3, 64)
        assert [entry[4] for entry in found] == [b"message %d" % n for n in range(2, 7)]
        assert (position, status) == (7 * size, _segment.SCAN_TAIL)
        found, position, status = walked(segment.fileno(), 0, 10**9, 64)
        assert (len(found), position, status) == (50, path.stat().st_size, _segment.SCAN_OK)


def test_entries_larger_than_the_window(tmp_path: Path) -> None:
    """A large message makes the window larger for itself alone; above the limit the walk stops and says so."""
    payloads = [b"small", b"L" * 100_000, b"small again", b"M" * 5000]
    path = tmp_path / "0.kafka"
    path.write_bytes(b"".join(map(raw_format.entry, payloads)))
    size = path.stat().st_size
    with path.open("rb") as segment:
        found, position, status = walked(segment.fileno(), 0, size, 1024)
        assert ([entry[4] for entry in found], position, status) == (payloads, size, _segment.SCAN_OK)
        sizes = [len(w.entries.obj) for w in segment_files.windows(segment.fileno(), 0, size, window_bytes=1024)]
        assert sizes == [1024, 100_010, 1024, 5010]
        found, position, status = walked(segment.fileno(), 0, size, 1024, max_entry_bytes=50_000)
        assert (len(found), position, status) == (1, 15, _segment.SCAN_TOO_LARGE)


def test_a_hostile_length_costs_no_memory(tmp_path: Path) -> None:
    """A length that reaches behind the end of the file is never believed."""
    path = tmp_path / "0.kafka"
    path.write_bytes(raw_format.entry(b"good") + b"\x7f\xff\xff\xff" + bytes(10_000))
    with path.open("rb") as segment:
        windows = list(segment_files.windows(segment.fileno(), 0, path.stat().st_size, window_bytes=1024))
    assert [(window.count, window.status) for window in windows] == [(1, _segment.SCAN_OK), (0, _segment.SCAN_TAIL)]
    assert max(len(window.entries.obj) for window in windows) == 1024


def test_walk_gives_offsets_of_the_stream(tmp_path: Path) -> None:
    """Offsets are base plus position; wrappers stay closed; the walk ends before a cut message."""
    source = random.Random(5)
    data = b"".join(
        raw_format.message_set([source.randbytes(20)] * 3, magic, codec) for magic in (0, 1) for codec in (0, 1, 2)
    )
    path = tmp_path / segment_files.segment_name(7000)
    path.write_bytes(data + raw_format.entry(b"cut")[:-1])
    assert list(segment_files.walk(path, 7000)) == [tuple(entry) for entry in raw_format.entries(data, 7000)]
    first = raw_format.entries(data)[0].next_offset
    assert next(segment_files.walk(path, 7000, start=first)).offset == 7000 + first
    assert len(list(segment_files.walk(path, 7000, end=first + 1))) == 1


@settings(max_examples=50)
@given(st.lists(st.integers(1, 7), max_size=5))
def test_read_fully_goes_on_after_short_reads(sizes: list[int]) -> None:
    """Short reads are no end; a read of nothing is."""
    data = bytes(range(40))
    pending = list(sizes)

    def read(fd: int, view: memoryview, position: int) -> int:
        count = min(pending.pop(0) if pending else len(view), len(view), len(data) - position)
        view[:count] = data[position : position + count]
        return count

    view = memoryview(bytearray(30))
    assert segment_files.read_fully(-1, view, 20, read) == 20
    assert view[:20] == data[20:]
