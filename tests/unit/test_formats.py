"""The object of the 0.7 log format: scanning files, finding messages behind damage, addressing, the registry."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog import _segment
from fastlog.errors import LogError
from fastlog.log.files import FileOps
from fastlog.log.formats import FORMATS, DeepFindings, SearchBudget, log_format, register_format
from fastlog.log.formats._table import numbers
from fastlog.log.formats.kafka07 import Kafka07
from fastlog.segment_files import WINDOW_BYTES, SegmentFile
from tests import reference, toy_format
from tests.harness import raw_format
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.shared_log import in_child
from tests.strategies import damaged_sets

KAFKA = log_format("kafka-0.7")
FILES = FileOps()
MIB = 1024 * 1024


@contextmanager
def file_of(data: bytes) -> Iterator[int]:
    fd = os.memfd_create("segment")
    try:
        os.write(fd, data)
        yield fd
    finally:
        os.close(fd)


def is_entry(data: bytes, position: int) -> bool:
    found, _ = reference.walk(data[position:])
    return bool(found)


def test_an_unknown_format_is_named() -> None:
    """The door for later formats: an object in the table; what is not there raises."""
    assert list(FORMATS) == ["kafka-0.7", "record-batches"]
    assert (KAFKA.name, KAFKA.suffix) == ("kafka-0.7", ".kafka")
    with pytest.raises(LogError, match="'kafka-2'"):
        log_format("kafka-2")


@pytest.mark.parametrize("name", ["kafka-0.7", "nobody's"])
def test_a_format_is_there_once_and_has_a_table(name: str) -> None:
    """One that compiled code does not know would be asked for what it cannot do."""
    added = Kafka07()
    added.name = name  # type: ignore[misc]
    with pytest.raises(LogError, match="cannot be registered"):
        register_format(added)
    assert list(FORMATS) == ["kafka-0.7", "record-batches"]


@settings(max_examples=100)
@given(damaged_sets(), st.data())
def test_scan_stops_where_the_reference_does(data: bytes, draw: st.DataObject) -> None:
    """S4: an entry that ends exactly at the end is whole; counts and the end are those of the slow twin."""
    end = draw.draw(st.integers(0, len(data)))
    valid_bytes, count, wrappers, suspicious, status = reference.scan(data[:end])
    with file_of(data) as fd:
        found = KAFKA.scan(FILES, fd, 0, end)
    assert found[:5] == (valid_bytes, count, wrappers, suspicious, status)


@settings(max_examples=150)
@given(damaged_sets(), st.binary(max_size=30), damaged_sets())
def test_the_search_behind_damage_finds_the_first_message(before: bytes, damage: bytes, after: bytes) -> None:
    """It finds what trying every position finds, unless the damaged length itself leads to a message."""
    data = before + damage + after
    start = reference.scan(data)[0]
    with file_of(data) as fd:
        found = KAFKA.find_entry(FILES, fd, start, len(data), SearchBudget())
    by_length = start + 4 + int.from_bytes(data[start : start + 4], "big", signed=True)
    if (
        len(data) - start >= 4
        and start + 4 < by_length <= len(data)
        and (by_length == len(data) or is_entry(data, by_length))
    ):
        assert found == (None if by_length == len(data) else by_length)
    else:
        assert found == next((p for p in range(start + 1, len(data)) if is_entry(data, p)), None)


@pytest.mark.parametrize("filler", [b"\0", b"\x01", b"\0\0\0\x30\x01\x01\x07\x07\x07", b"text without zeros "])
@pytest.mark.parametrize("shift", [-12, -9, -5, -1, 0, 3])
def test_the_search_crosses_the_borders_of_its_windows(filler: bytes, shift: int) -> None:
    """A message on either side of a window's border, or across it, is found at its exact place."""
    length = WINDOW_BYTES + shift
    garbage = (filler * (length // len(filler) + 1))[:length]
    entry = raw_format.entry(b"found it", magic=shift % 2)
    with file_of(garbage + entry) as fd:
        assert KAFKA.find_entry(FILES, fd, 0, length + len(entry), SearchBudget()) == length


def test_zeros_are_searched_quickly() -> None:
    """Reserved space that was never written is skipped, not tried byte by byte: 64 MiB do not take seconds."""
    entry = raw_format.entry(b"behind the zeros")
    fd = os.memfd_create("segment")
    files = FaultyFileOps()
    try:
        os.pwrite(fd, entry, 64 * MIB + 1)
        budget = SearchBudget(65 * MIB)
        assert KAFKA.find_entry(files, fd, 0, 64 * MIB + 1 + len(entry), budget) == 64 * MIB + 1
        assert not budget.exhausted
    finally:
        os.close(fd)


def test_what_looks_like_a_message_is_looked_at_once() -> None:
    """However far behind the damage it is: the budget is for hostile bytes, not for the search's own detours."""
    candidate = b"\0\0\0\x0a\0" + b"\xff" * 9
    data = b"\xff" * (5 << 16) + candidate + b"\xff" * 100
    budget = SearchBudget(len(data) - 1 + 512 + len(candidate))
    with file_of(data) as fd:
        assert KAFKA.find_entry(FILES, fd, 0, len(data), budget) is None
    assert (budget.bytes_left, budget.exhausted) == (0, False)


def test_the_search_for_messages_is_bounded() -> None:
    """Bytes that look like the start of a long message everywhere use up the budget, and that is said."""
    hostile = (b"\0\1\0\0\1\0" * 200_000)[: MIB + 5]
    budget = SearchBudget(4 * MIB)
    with file_of(hostile) as fd:
        assert KAFKA.count_entries(FILES, fd, 0, len(hostile), budget) == 0
    assert budget.exhausted


def test_messages_behind_several_damages_are_counted() -> None:
    """Z-4: what follows the damage is found again and counted, as often as it takes."""
    parts = [b"".join(raw_format.entry(b"part %d message %d" % (part, n)) for n in range(7)) for part in range(3)]
    data = b"\xff\xff".join(parts)
    with file_of(data) as fd:
        end = KAFKA.scan(FILES, fd, 0, len(data)).end
        assert end == len(parts[0])
        assert KAFKA.count_entries(FILES, fd, end, len(data), SearchBudget()) == 14
        assert KAFKA.count_entries(FILES, fd, 0, len(data), SearchBudget(), first_may_be_valid=True) == 21


@pytest.mark.parametrize("magic", [0, 1])
def test_a_message_too_large_for_one_buffer_is_checked_in_pieces(magic: int) -> None:
    """Memory stays bounded: 17 MiB are read in windows; one wrong byte in the middle is seen."""
    payload = random.Random(1).randbytes(MIB) * 17
    small = raw_format.entry(b"small")
    data = small + raw_format.entry(payload, magic) + small
    with file_of(data) as fd:
        assert KAFKA.scan(FILES, fd, 0, len(data))[:5] == (len(data), 3, 0, 0, _segment.SCAN_OK)
        os.pwrite(fd, b"?", 10 * MIB)
        found = KAFKA.scan(FILES, fd, 0, len(data))
        assert (found.end, found.status, found.found) == (len(small), _segment.SCAN_CRC, "a wrong checksum")
        assert KAFKA.find_entry(FILES, fd, len(small), len(data), SearchBudget()) == len(data) - len(small)
        os.pwrite(fd, b"\x09", len(small) + 4)
        assert KAFKA.scan(FILES, fd, 0, len(data)).status == _segment.SCAN_MAGIC


def test_a_deep_scan_opens_wrappers_and_goes_on_behind_damaged_ones() -> None:
    """Z-2: a payload that its codec cannot open, and a plain one that looks compressed, are named by position."""
    inner = raw_format.message_set([b"one", b"two", b"three"])
    wrapper = raw_format.wrapper(inner, raw_format.GZIP)
    lost_codec = bytearray(wrapper)
    lost_codec[5] = 0
    wrong_codec = bytearray(wrapper)
    wrong_codec[5] = 2
    cut_inside = raw_format.wrapper(inner[:-2], raw_format.SNAPPY)
    parts = [raw_format.entry(b"plain"), wrapper, bytes(lost_codec), bytes(wrong_codec), cut_inside, wrapper]
    data = b"".join(parts)
    starts = [sum(map(len, parts[:n])) for n in range(len(parts))]
    deep = DeepFindings()
    with file_of(data) as fd:
        found = KAFKA.scan(FILES, fd, 0, len(data), deep)
    assert found[:5] == (len(data), 6, 4, 1, _segment.SCAN_OK)
    assert [position for position, _ in deep.damaged_wrappers] == starts[3:5]
    assert deep.suspicious == [starts[2]]
    assert deep.messages == 1 + 3 + 1 + 3


def test_offsets_are_positions_in_the_stream() -> None:
    """A message is addressed by its place, whatever stands there."""
    segment = SegmentFile(108, Path("x"), 12)
    assert not KAFKA.is_dense
    assert (KAFKA.end_offset(segment), KAFKA.end_offset(segment._replace(size=0))) == (120, 108)
    assert [KAFKA.position(segment, offset) for offset in (100, 108, 115, 120)] == [-8, 0, 7, 12]


def test_there_is_room_for_so_many_formats_and_no_more(capfd: pytest.CaptureFixture[str]) -> None:
    """One of a name that is taken is refused, and one too many; those that there are stay what they are."""
    module = toy_format.build()

    def work() -> int:
        before = numbers()
        module.register()
        for add, reason in (
            (module.register, "there is a log format of this name"),
            (module.register_as_many_as_there_may_be, "no room for more than 8 log formats"),
        ):
            with pytest.raises(LogError, match=reason):
                add()
        assert len(numbers()) == 8
        assert numbers().items() >= before.items()
        return 0

    assert in_child(work) == 0, capfd.readouterr().err
