"""What fsck and dump-log find inside of stored batches: their records, and batches that do not hold what they say."""

from __future__ import annotations

import dataclasses
import json
import os
import struct
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
from fastlog.record_batches import BatchHeader, Record, build
from fastlog.segment_files import SegmentFile
from fastlog.tools.dump_log import dump_log_command
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
    assert [(entry.key, entry.payload) for entry in inside] == [item[:2] for item in ITEMS] * len(CODEC_NAMES)
    assert {batch.payload for batch in batches} == {None}
    assert entries.index(batches[1]) == len(ITEMS) + 1, "a batch stands before its records"
    assert {entry.end for entry in inside[: len(ITEMS)]} == {batches[0].end}
    assert inside[2].fields == {"timestamp": 1100, "key_size": 4, "value_size": -1, "sequence": -1, "headers": 0}
    assert inside[1].text == "| offset: 1 CreateTime: 900 keySize: -1 valueSize: 0 sequence: -1 headerKeys: [h,i]"
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


def test_a_scan_takes_no_more_memory_than_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a batch that is larger, too: its checksum is made piece by piece."""
    monkeypatch.setattr(stored, "WINDOW_BYTES", 2000)
    asked: list[int] = []

    class Watching(FileOps):
        def read_into(self, fd: int, view: memoryview, position: int) -> int:
            asked.append(len(view))
            return super().read_into(fd, view, position)

    path = tmp_path / "log"
    path.write_bytes(build(ITEMS))
    with opened(path) as fd:
        found = FORMAT.scan(Watching(), fd, 0, path.stat().st_size)
    assert (found.end, found.count) == (path.stat().st_size, len(ITEMS))
    assert max(asked) == 2000


def test_the_lines_of_todays_dump_tool(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Source: Apache Kafka 4.2 (DumpLogSegments): these words in this order; a batch has no payload of its own."""
    last = 2**31 - 2
    records = [
        Record(b"k\xff", b"v", 70, ((b"a", None), (b"\xc3\xb6", b"x"))),
        Record(None, None, 60),
        Record(b"", b"\xfe", 50),
    ]
    made = [
        build(records, producer_id=9, producer_epoch=3, base_sequence=last, base_offset=5, codec=1),
        marked(
            raw_batches.Batch(base_offset=8, attributes=0x38, max_timestamp=80, producer_id=9, producer_epoch=3), 1, 4
        ),
        marked(raw_batches.Batch(base_offset=9, attributes=0x70, base_timestamp=99), 0, 5),
        marked(raw_batches.Batch(base_offset=10, attributes=0x20), 3, 0),
    ]
    path = tmp_path / "00000000000000000005.log"
    path.write_bytes(b"".join(made))
    headers = [BatchHeader.parse(data) for data in made]
    positions = [sum(map(len, made[:number])) for number in range(len(made))]
    ends = [
        f"size: {len(data)} magic: 2 compresscodec: {codec} crc: {header.crc} isvalid: true"
        for data, header, codec in zip(made, headers, ["gzip", "none", "none", "none"], strict=True)
    ]
    batches = [
        f"baseOffset: 5 lastOffset: 7 count: 3 baseSequence: {last} lastSequence: 0 producerId: 9 producerEpoch: 3"
        f" partitionLeaderEpoch: -1 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty"
        f" position: 0 CreateTime: 70 {ends[0]}",
        f"baseOffset: 8 lastOffset: 8 count: 1 baseSequence: -1 lastSequence: -1 producerId: 9 producerEpoch: 3"
        f" partitionLeaderEpoch: {headers[1].leader_epoch} isTransactional: true isControl: true"
        f" deleteHorizonMs: OptionalLong.empty position: {positions[1]} LogAppendTime: 80 {ends[1]}",
        f"baseOffset: 9 lastOffset: 9 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1"
        f" partitionLeaderEpoch: {headers[2].leader_epoch} isTransactional: true isControl: true"
        f" deleteHorizonMs: OptionalLong[99] position: {positions[2]} CreateTime: {headers[2].max_timestamp} {ends[2]}",
        f"baseOffset: 10 lastOffset: 10 count: 1 baseSequence: -1 lastSequence: -1 producerId: -1 producerEpoch: -1"
        f" partitionLeaderEpoch: {headers[3].leader_epoch} isTransactional: false isControl: true"
        f" deleteHorizonMs: OptionalLong.empty position: {positions[3]} CreateTime: {headers[3].max_timestamp}"
        f" {ends[3]}",
    ]
    head, tail = [f"Dumping {path}", "Log starting offset: 5"], ["tail of the log is at offset: 11"]
    assert dump_log_command.main([str(path)], standalone_mode=False) == 0
    assert capsys.readouterr().out.splitlines() == [*head, *batches, *tail]
    assert dump_log_command.main(["--deep", str(path)], standalone_mode=False) == 0
    out = capsys.readouterr().out.splitlines()
    inside = [line for line in out if line.startswith("|")]
    assert [line for line in out if not line.startswith("|")] == [*head, *batches, *tail]
    assert inside[:3] == [
        f"| offset: 5 CreateTime: 70 keySize: 2 valueSize: 1 sequence: {last} headerKeys: [a,\u00f6]"
        " key: k\ufffd payload: v",
        f"| offset: 6 CreateTime: 60 keySize: -1 valueSize: -1 sequence: {last + 1} headerKeys: []",
        "| offset: 7 CreateTime: 50 keySize: 0 valueSize: 1 sequence: 0 headerKeys: [] key:  payload: \ufffd",
    ]
    ways = ["endTxnMarker: COMMIT coordinatorEpoch: 4", "endTxnMarker: ABORT coordinatorEpoch: 5", "controlType: 3"]
    assert [line.partition("headerKeys: [] ")[2] for line in inside[3:]] == ways
    assert dump_log_command.main(["--deep", "--no-print", str(path)], standalone_mode=False) == 0
    assert "payload" not in capsys.readouterr().out
    assert dump_log_command.main(["--deep", "--json", str(path)], standalone_mode=False) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row.get("payload") for row in rows if row["inside"]] == ["v", None, "/g==", None, None, None]
    assert [row.get("key") for row in rows if row["inside"]] == ["a/8=", None, "", None, None, None]
    assert [(row["last_offset"], row["size"], row["crc"]) for row in rows if not row["inside"]] == [
        (header.base_offset + header.last_offset_delta, len(data), header.crc)
        for data, header in zip(made, headers, strict=True)
    ]


def marked(batch: raw_batches.Batch, kind: int, epoch: int) -> bytes:
    """A control batch with the record that ends a transaction so."""
    record = raw_records.Record(batch.base_timestamp, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, epoch))
    payload = raw_records.encode([record], batch.base_timestamp)
    return dataclasses.replace(batch, record_count=1, last_offset_delta=0, payload=payload).encode()
