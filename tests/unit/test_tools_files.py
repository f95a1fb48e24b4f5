"""Files that commands write and read: as a whole, on the disk, and refused when anything of them is not as it was."""

from __future__ import annotations

import io
import json
import os
import struct
import zlib
from pathlib import Path

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer.partitions import TopicPartition
from fastlog.record_batches import Record, build
from fastlog.tools import dump_file, offset_files
from fastlog.tools.append_dump import assigned
from fastlog.tools.dump_file import DumpedPartition, DumpPiece, DumpReader, DumpWriter, TopicHead
from fastlog.tools.offset_files import Kept
from fastlog.tools.placing import placed
from fastlog.tools.report import EXIT_DAMAGED, EXIT_USAGE, CommandError
from fastlog.tools.topic_places import Site
from fastlog.zkpaths import PartitionId
from tests.harness.descriptors import count_descriptors

# -- in place ----------------------------------------------------------------------------------------------------------


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_is_behind_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[str, str]] = []
    fsync, replace = os.fsync, Path.replace

    def noted_sync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        calls.append(("sync", path.name if path != tmp_path else "directory"))
        if path != tmp_path:
            assert path.read_bytes() == b"all of it"
        fsync(descriptor)

    def noted_replace(self: Path, target: Path) -> Path:
        calls.append(("move", self.name))
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", noted_sync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    descriptors = count_descriptors(tmp_path)
    with placed(tmp_path / "out") as file:
        file.write(b"all of it")
        assert not (tmp_path / "out").exists()
    part = calls[0][1]
    assert calls == [("sync", part), ("move", part), ("sync", "directory")]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert count_descriptors(tmp_path) == descriptors


@pytest.mark.parametrize("step", ["write", "fsync", "replace"])
def test_what_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """And no part of another one."""
    (tmp_path / "out").write_bytes(b"before")

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    if step == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="No space"), placed(tmp_path / "out") as file:
        file.write(b"behind")
        if step == "write":
            fail()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert (tmp_path / "out").read_bytes() == b"before"


def test_a_device_or_a_pipe_stays_what_it_is(tmp_path: Path) -> None:
    """Nothing is put in its place."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with placed(pipe) as file:
            file.write(b"through it")
        assert os.read(reader, 100) == b"through it"
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "file"
    target.write_bytes(b"before")
    (tmp_path / "link").symlink_to(target)
    with placed(tmp_path / "link") as file:
        file.write(b"behind")
    assert (tmp_path / "link").is_symlink()
    assert target.read_bytes() == b"behind"


# -- offsets -----------------------------------------------------------------------------------------------------------

PLACE = TopicPartition("t", PartitionId(0, 1))


def test_a_file_of_offsets_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = [Kept("g", PLACE, 5), Kept("g", TopicPartition("u", PartitionId(2, 0)), 2**63 - 1), Kept("h", PLACE, -1)]
    offset_files.write(tmp_path / "offsets", offset_files.encode(kept))
    data = (tmp_path / "offsets").read_bytes()
    assert data.splitlines()[0] == b"/consumers/g/offsets/t/0-1:5"
    assert offset_files.parse("offsets", data) == (kept, [])
    assert offset_files.parse("offsets", data + b"\n" + data) == (kept, [])
    lines = [json.loads(line) for line in offset_files.encode_json(kept).splitlines()]
    assert lines[0] == {"group": "g", "topic": "t", "broker": 0, "partition": 1, "offset": 5}


@pytest.mark.parametrize(
    "line",
    [
        "/consumers/g/offsets/t/0-1",
        "/consumers/g/offsets/t/0-1:",
        "/consumers/g/offsets/t/0-1:x",
        "/consumers/g/offsets/t/0-1:-2",
        f"/consumers/g/offsets/t/0-1:{2**63}",
        "/consumers/g/offsets/t/01:5",
        "/consumers/g/offsets//0-1:5",
        "/consumers//offsets/t/0-1:5",
        "/consumers/g/owners/t/0-1:5",
        "/consumers/g/offsets/t/0-1/x:5",
        "/brokers/g/offsets/t/0-1:5",
        "consumers/g/offsets/t/0-1:5",
        ":5",
    ],
)
def test_a_line_that_is_no_offset(line: str) -> None:
    """It is named by its number; nothing of the file is taken."""
    with pytest.raises(CommandError, match="line 3 is no offset") as caught:
        offset_files.parse("offsets", f"/consumers/g/offsets/t/0-0:1\n\n{line}\n".encode())
    assert caught.value.exit_code == EXIT_USAGE


def test_lines_that_contradict_each_other_and_nodes_that_vanished() -> None:
    """0.7 exports ``null`` of a node that is gone; with blanks around it a line is the same line."""
    text = b"  /consumers/g/offsets/t/0-1:5 \r\n/consumers/g/offsets/t/0-2:null\n"
    assert offset_files.parse("offsets", text) == ([Kept("g", PLACE, 5)], ["/consumers/g/offsets/t/0-2"])
    with pytest.raises(CommandError, match="line 2 says 6 of /consumers/g/offsets/t/0-1"):
        offset_files.parse("offsets", b"/consumers/g/offsets/t/0-1:5\n/consumers/g/offsets/t/0-1:6\n")


# -- dumps -------------------------------------------------------------------------------------------------------------

ONE, TWO, EMPTY = PartitionId(0, 0), PartitionId(1, 3), PartitionId(2, 0)
HEAD = TopicHead(
    "logs",
    1_700_000_000_000,
    (DumpedPartition(ONE, 100, 110), DumpedPartition(TWO, 0, 4), DumpedPartition(EMPTY, 7, 7)),
)
PIECES = [DumpPiece(ONE, 100, b"0123"), DumpPiece(TWO, 0, b"abcd"), DumpPiece(ONE, 104, b"456789")]


def batch(offset: int, *values: bytes) -> bytes:
    return build([Record(None, value, 5) for value in values], base_offset=offset)


SETTINGS = {"retention.ms": "-1"}
RECORDS = TopicHead(
    "orders", 1_700_000_000_001, (DumpedPartition(ONE, 3, 8, 4), DumpedPartition(TWO, 9, 9, 9)), SETTINGS
)
BATCHES = [DumpPiece(ONE, 3, batch(3, b"a", b"b") + batch(5, b"c")), DumpPiece(ONE, 6, batch(6, b"d", b""))]


def dumped(head: TopicHead = HEAD, pieces: list[DumpPiece] = PIECES) -> bytes:
    return dumped_all([(head, pieces)])


def dumped_all(topics: list[tuple[TopicHead, list[DumpPiece]]]) -> bytes:
    out = io.BytesIO()
    writer = DumpWriter(out)
    for head, pieces in topics:
        writer.begin(head)
        for piece in pieces:
            writer.piece(piece.partition, piece.data)
        writer.finish()
    return out.getvalue()


def read(data: bytes) -> tuple[TopicHead, list[DumpPiece]]:
    (found,) = read_all(data)
    return found


def read_all(data: bytes) -> list[tuple[TopicHead, list[DumpPiece]]]:
    reader = DumpReader("file", io.BytesIO(data))
    found = [(reader.head, list(reader.pieces()))]
    while reader.goes_on():
        found.append((reader.head, list(reader.pieces())))
    return found


def damage_of(data: bytes) -> str:
    """What is said of a file that is not whole."""
    with pytest.raises(CommandError) as caught:
        read_all(data)
    assert caught.value.exit_code == EXIT_DAMAGED
    return str(caught.value)


def test_what_was_written_comes_back() -> None:
    assert read(dumped()) == (HEAD, PIECES)
    assert HEAD.size == 14
    empty = TopicHead("t", 0, ())
    assert read(dumped(empty, [])) == (empty, [])


MIXED = [
    (RECORDS._replace(following=2), BATCHES),
    (HEAD._replace(following=1), PIECES),
    (RECORDS._replace(settings={}), BATCHES),
]


def test_topics_of_both_kinds_come_back_from_one_file() -> None:
    assert read(dumped(RECORDS, BATCHES)) == (RECORDS, BATCHES)
    assert read_all(dumped_all(MIXED)) == MIXED
    assert [held.first for held in RECORDS.partitions + HEAD.partitions] == [4, 9, 100, 0, 7]
    assert RECORDS.size == 5 and RECORDS.is_of_records and not HEAD.is_of_records


def test_a_file_of_several_topics_that_is_cut_anywhere_is_damaged() -> None:
    """Also where one topic ends and the next one would begin."""
    data = dumped_all(MIXED)
    for cut in range(len(data)):
        assert f"position {cut}\nit ends there" in damage_of(data[:cut])
    assert f"position {len(data)}" in damage_of(data + b"\0")
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 4
        damage_of(bytes(changed))


def test_topics_that_are_not_as_many_as_was_said() -> None:
    topics = [(head._replace(following=left), pieces) for (head, pieces), left in zip(MIXED, (2, 2, 0), strict=True)]
    assert "2 topics follow, instead of 1" in damage_of(dumped_all(topics))


def test_batches_that_do_not_follow_each_other() -> None:
    """They are neither written nor read."""
    out = DumpWriter(io.BytesIO())
    out.begin(RECORDS)
    for wrong in (batch(4, b"a"), batch(3, b"a")[:-1], b""):
        with pytest.raises(ValueError, match="no whole batches from offset 3 on"):
            out.piece(ONE, wrong)
    data = dumped(RECORDS, [])
    (length,) = struct.unpack_from(">I", data, 9)
    head = data[: 17 + length]
    for records, said in (
        ([part(ONE, 3, batch(4, b"a"))], "no whole batches from offset 3 on"),
        ([part(ONE, 3, batch(3, b"a") + b"\0")], "no whole batches from offset 3 on"),
        ([part(ONE, 4, batch(4, b"a"))], "not the one that follows"),
        ([part(ONE, 3, batch(3, *[b""] * 6))], "not the one that follows"),
        ([part(ONE, 3, batch(3, *[b""] * 5))], "too early"),
    ):
        assert said in damage_of(head + b"".join(records))


def test_the_layout_is_that_of_the_table() -> None:
    data = dumped()
    assert data[:8] == b"fastlogD"
    kind, length, checksum = struct.unpack_from(">BII", data, 8)
    body = data[17 : 17 + length]
    assert (kind, checksum) == (1, zlib.crc32(data[8:13] + body))
    assert json.loads(body) == {
        "version": 1,
        "topic": "logs",
        "time_ms": 1_700_000_000_000,
        "partitions": [
            {"broker": 0, "partition": 0, "start": 100, "end": 110},
            {"broker": 1, "partition": 3, "start": 0, "end": 4},
            {"broker": 2, "partition": 0, "start": 7, "end": 7},
        ],
    }
    at = 17 + length
    kind, length, _ = struct.unpack_from(">BII", data, at)
    assert (kind, length) == (2, 20)
    assert struct.unpack_from(">iiq", data, at + 9) == (0, 0, 100)


def test_a_file_that_is_cut_anywhere_is_damaged() -> None:
    data = dumped()
    for cut in range(len(data)):
        said = damage_of(data[:cut])
        assert "too early" in said
        assert f"position {cut}" in said


def test_a_file_with_one_bit_changed_anywhere_is_damaged() -> None:
    data = dumped()
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1
        damage_of(bytes(changed))


def test_something_behind_the_end() -> None:
    data = dumped()
    assert f"position {len(data)}" in damage_of(data + b"\0")


def record(kind: int, body: bytes) -> bytes:
    return struct.pack(">BII", kind, len(body), zlib.crc32(struct.pack(">BI", kind, len(body)) + body)) + body


def part(partition: PartitionId, offset: int, data: bytes) -> bytes:
    return record(2, struct.pack(">iiq", *partition, offset) + data)


@pytest.mark.parametrize(
    ("records", "said"),
    [
        ([part(ONE, 99, b"0")], "not the one that follows"),
        ([part(ONE, 101, b"0")], "not the one that follows"),
        ([part(ONE, 100, b"0" * 10)], ""),
        ([part(ONE, 100, b"0" * 11)], "not the one that follows"),
        ([part(ONE, 100, b"0"), part(ONE, 100, b"0")], "not the one that follows"),
        ([part(PartitionId(9, 9), 0, b"0")], "not the one that follows"),
        ([record(2, b"0" * 15)], "does not belong there"),
        ([record(1, b"{}")], "does not belong there"),
        ([record(4, b"{}")], "does not belong there"),
        ([record(3, b"{}")], "its end is malformed"),
        ([record(3, b"[]")], "its end is malformed"),
        ([record(3, b'{"partitions": [{"broker": 0}]}')], "its end is malformed"),
        ([record(3, b'{"partitions": []}')], "not what it says at its end"),
    ],
)
def test_records_that_do_not_follow_each_other(records: list[bytes], said: str) -> None:
    """Each with the right checksum."""
    data = dumped()
    (length,) = struct.unpack_from(">I", data, 9)
    head = data[: 17 + length]
    found = damage_of(head + b"".join(records))
    assert said in found
    if not said:  # the file ends behind a piece that is right
        assert "too early" in found


def test_an_end_that_says_something_else() -> None:
    """Another sum, or one partition less; the pieces are whole."""
    data = dumped()
    end = data.rindex(b'{"partitions"')
    fields = json.loads(data[end:])
    for change in ("crc32", "end"):
        told = json.loads(json.dumps(fields))
        told["partitions"][1][change] += 1
        assert "at its end" in damage_of(data[: end - 9] + record(3, json.dumps(told).encode()))
    del fields["partitions"][2]
    assert "at its end" in damage_of(data[: end - 9] + record(3, json.dumps(fields).encode()))


def test_an_end_that_promises_what_did_not_come() -> None:
    """Its sums are those of the pieces that are there, its ends those of the head."""
    data = dumped()
    (length,) = struct.unpack_from(">I", data, 9)
    told = [
        {"broker": held.partition.broker, "partition": held.partition.partition, "end": held.end, "crc32": crc}
        for held, crc in zip(HEAD.partitions, (zlib.crc32(b"0123"), 0, 0), strict=True)
    ]
    end = record(3, json.dumps({"partitions": told}).encode())
    assert "at its end" in damage_of(data[: 17 + length] + part(ONE, 100, b"0123") + end)


@pytest.mark.parametrize("size", [dump_file._MOST_BODY_BYTES, dump_file._MOST_BODY_BYTES + 1])
def test_a_length_that_cannot_be(size: int) -> None:
    """One that can is read until the file ends, piece by piece."""
    data = dumped()
    (length,) = struct.unpack_from(">I", data, 9)
    said = damage_of(data[: 17 + length] + struct.pack(">BII", 2, size, 0))
    assert ("claims" in said) is (size > dump_file._MOST_BODY_BYTES)


def test_another_version_and_heads_without_sense() -> None:
    with pytest.raises(CommandError, match="version 3"):
        read(b"fastlogD" + record(1, b'{"version": 3}'))
    of_records = b'{"version": 2, "topic": "t", "time_ms": 0, "partitions": [], "settings": '
    no_partitions = b'{"version": 1, "topic": "t", "time_ms": 0, "partitions": [5]}'
    for body in (b"", b"[]", b"{}", of_records + b"[]}", of_records + b'{"a": 1}}', no_partitions):
        assert "is malformed" in damage_of(b"fastlogD" + record(1, body))
    assert "head is missing" in damage_of(b"fastlogD" + record(2, b"{}"))
    assert "does not begin" in damage_of(b"fastlogE" + record(1, b"{}"))


# -- where a dump goes -------------------------------------------------------------------------------------------------

P00, P01, P10 = PartitionId(0, 0), PartitionId(0, 1), PartitionId(1, 0)


def sites(*brokers: int) -> list[Site]:
    return [Site(broker, Address("h", 1000 + broker), False, 0, ()) for broker in brokers]


@pytest.mark.parametrize(
    ("there", "goes_to"),
    [
        ((0, 1), [P00, P01, P10]),
        ((2, 1, 0), [P00, P01, P10]),
        ((8, 5), [PartitionId(5, 0), PartitionId(5, 1), PartitionId(8, 0)]),
        ((1, 2), [PartitionId(1, 0), PartitionId(1, 1), PartitionId(2, 0)]),
        ((7,), [PartitionId(7, 0), PartitionId(7, 1), PartitionId(7, 2)]),
        ((0,), [PartitionId(0, 0), PartitionId(0, 1), PartitionId(0, 2)]),
    ],
)
def test_partitions_go_to_the_same_brokers_to_as_many_or_to_one(
    there: tuple[int, ...], goes_to: list[PartitionId]
) -> None:
    """In any order of the file; no two to the same place."""
    sources = [P10, P00, P01]
    found = assigned(sources, sites(*there))
    assert [found[item] for item in (P00, P01, P10)] == goes_to
    assert len(set(found.values())) == 3


def test_partitions_that_fit_nowhere() -> None:
    with pytest.raises(CommandError, match="of 2 brokers, and there are 3") as caught:
        assigned([P00, P10], sites(1, 2, 3))
    assert caught.value.exit_code == EXIT_USAGE
    with pytest.raises(CommandError, match="there are 0"):
        assigned([P00], [])
    assert assigned([], []) == {}


# IMPORT
