"""What fsck and dump-log find inside of stored batches: their records, and batches that do not hold what they say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fastlog.batch_codecs import CODEC_NAMES, compress
from fastlog.log.files import FileOps
from fastlog.log.formats import DeepFindings, DumpedEntry
from fastlog.log.formats import record_batches as stored
from fastlog.log.formats.record_batches import RecordBatches
from fastlog.message import DeepLimits
from fastlog.record_batches import Record, build
from fastlog.segment_files import SegmentFile
from tests.harness import raw_batches, raw_records

FORMAT = RecordBatches()
ITEMS = [
    Record(b"key", b"value", 1000),
    Record(None, b"", 900, ((b"h", None), (b"i", b"x"))),
    Record(b"gone", None, 1100),
    *(Record(b"%d" % i, b"v" * i, 1000 + i) for i in range(200)),
]


@contextmanager
def opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


def looked(path: Path, deep: DeepFindings) -> DeepFindings:
    """What a deep scan of the whole file finds, which is valid as far as a scan can tell."""
    size = path.stat().st_size
    with opened(path) as fd:
        found = FORMAT.scan(FileOps(), fd, 0, size, deep)
    assert found.end == size
    assert found.count == deep.messages
    return deep


def dumped(path: Path, deep: DeepFindings | None) -> list[DumpedEntry]:
    with opened(path) as fd:
        return list(FORMAT.dump(FileOps(), fd, SegmentFile(0, path, path.stat().st_size), deep))


def lying(codec: int, base_offset: int) -> bytes:
    """A batch whose checksum is right and whose records are one fewer than it says."""
    plain = raw_records.encode([raw_records.Record()] * 4)
    return raw_batches.Batch(
        base_offset=base_offset, leader_epoch=0, attributes=codec, record_count=5, last_offset_delta=4,
        payload=compress(codec, plain),
    ).encode()  # fmt: skip


def test_each_codec_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(build(ITEMS, codec=codec, base_offset=codec * len(ITEMS)) for codec in CODEC_NAMES))
    assert looked(path, DeepFindings()) == DeepFindings(messages=len(CODEC_NAMES) * len(ITEMS))
    entries = dumped(path, DeepFindings())
    batches = [entry for entry in entries if not entry.inside]
    inside = [entry for entry in entries if entry.inside]
    assert [batch.offset for batch in batches] == [codec * len(ITEMS) for codec in CODEC_NAMES]
    assert [entry.offset for entry in inside] == list(range(len(CODEC_NAMES) * len(ITEMS)))
    assert all(entry.next_offset == entry.offset + 1 and entry.valid for entry in inside)
    assert [entry.payload for entry in inside] == [item.value or b"" for item in ITEMS] * len(CODEC_NAMES)
    assert entries.index(batches[1]) == len(ITEMS) + 1, "a batch stands before its records"
    assert {entry.end for entry in inside[: len(ITEMS)]} == {batches[0].end}
    assert inside[2].fields == {"timestamp": 1100, "key_size": 4, "value_size": -1, "headers": 0}
    assert inside[1].text == "timestamp: 900 key_size: -1 value_size: 0 headers: 2"
    assert dumped(path, None) == batches


@pytest.mark.parametrize("codec", list(CODEC_NAMES))
def test_a_batch_that_does_not_hold_its_records_is_named(tmp_path: Path, codec: int) -> None:
    """Its position, and what is wrong; the others are counted and shown all the same."""
    first, last = build(ITEMS), build(ITEMS, base_offset=len(ITEMS) + 5)
    path = tmp_path / "log"
    path.write_bytes(first + lying(codec, len(ITEMS)) + last)
    found = looked(path, DeepFindings())
    ((position, why),) = found.damaged_wrappers
    assert position == len(first)
    assert "record 4" in why
    shown = DeepFindings()
    entries = dumped(path, shown)
    assert [entry.offset for entry in entries if not entry.inside] == [0, len(ITEMS), len(ITEMS) + 5]
    assert len([entry for entry in entries if entry.inside]) == 2 * len(ITEMS)
    assert shown.damaged_wrappers == found.damaged_wrappers


def test_limits_of_a_look(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(build(ITEMS, codec=4))
    found = looked(path, DeepFindings(DeepLimits(1000)))
    assert [position for position, _ in found.damaged_wrappers] == [0]
    assert "more than a limit of 1000 bytes" in found.damaged_wrappers[0][1]


def test_gaps_of_compaction_are_no_damage(tmp_path: Path) -> None:
    """Offsets that are not dense come from compaction alone: what was appended was looked at then."""
    kept = [raw_records.sized(raw_records.encode_fields(raw_records.Record(), delta)) for delta in (0, 3, 7)]
    batch = raw_batches.Batch(leader_epoch=0, record_count=3, last_offset_delta=9, payload=b"".join(kept))
    path = tmp_path / "log"
    path.write_bytes(batch.encode())
    assert looked(path, DeepFindings()) == DeepFindings(messages=3)
    shown = DeepFindings()
    (entry,) = dumped(path, shown)
    assert (entry.offset, entry.next_offset, shown.damaged_wrappers) == (0, 10, [])


def test_a_batch_that_is_larger_than_a_window_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "WINDOW_BYTES", 2000)
    path, made = tmp_path / "log", b""
    for data in (build(ITEMS), lying(0, 203), build(ITEMS[:3], base_offset=208), build(ITEMS, base_offset=211)):
        made += data
    path.write_bytes(made)
    found = looked(path, DeepFindings())
    assert found.messages == 203 + 5 + 3 + 203
    assert [position for position, _ in found.damaged_wrappers] == [len(build(ITEMS))]
