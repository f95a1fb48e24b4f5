"""What is read of logs before they move: batches as they are stored, compaction, transactions, groups and offsets."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog import batch_codecs
from fastlog.errors import CorruptLogError, LogError
from fastlog.log.files import FileOps
from fastlog.moving import kafka_groups, stored_records
from fastlog.moving.log_survey import ABORT, COMMIT, Survey, marker_of, survey
from fastlog.moving.stored_records import OldFormatError, batches_of, records_of, segments_of
from fastlog.workers.coordinator.groups.members import Stored, StoredMember
from fastlog.workers.coordinator.groups.records import GroupState, Offset, OffsetKey
from tests.harness import kafka_house as house
from tests.harness.faulty_files import FaultyFileOps
from tests.harness.kafka_house import CONTROL, TRANSACTIONAL, compacted, data_batch, marker
from tests.harness.raw_batches import Batch

FILES = FileOps()


def segment(tmp_path: Path, *batches: Batch | bytes, base: int = 0) -> Path:
    path = tmp_path / f"{base:020}.log"
    path.write_bytes(b"".join(one if isinstance(one, bytes) else one.encode() for one in batches))
    return path


def read(tmp_path: Path, *, whole: bool = False, files: FileOps = FILES) -> list[tuple[int, int, bytes | None]]:
    """Position, base offset and bytes of each batch of the only segment."""
    (one,) = segments_of(tmp_path)
    return [
        (each.position, each.header.base_offset, None if each.data is None else bytes(each.data))
        for each in batches_of(one, files, whole=whole)
    ]


# -- batches -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [61, 100, 200, 1000, 1 << 20])
@pytest.mark.parametrize("whole", [False, True])
def test_batches_are_read_whatever_the_window_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, whole: bool
) -> None:
    """Also with short reads; one that is longer than the window has its bytes only for who wants them."""
    monkeypatch.setattr(stored_records, "WINDOW_BYTES", window)
    batches = [data_batch(at, b"x" * size) for at, size in enumerate((1, 500, 20, 60, 2000, 3))]
    segment(tmp_path, *batches)
    files = FaultyFileOps()
    files.shorten("read", 2)
    position = 0
    for found, one in zip(read(tmp_path, whole=whole, files=files), batches, strict=True):
        data = one.encode()
        kept = data if whole or len(data) <= window else None
        assert found == (position, one.base_offset, kept)
        position += len(data)


@pytest.mark.parametrize("window", [100, 1 << 20])
@pytest.mark.parametrize(
    ("damaged", "reason"),
    [
        (lambda data: data[:-1], "a batch that is cut short"),
        (lambda data: data[:40], "a batch that is cut short"),
        (lambda data: data[:16], "a batch that is cut short"),
        (lambda data: data[:-1] + b"\1", "a wrong checksum"),
        (lambda data: data[:16] + b"\x03" + data[17:], "an unknown magic byte, 3"),
        (lambda data: data[:8] + struct.pack(">i", 48) + data[12:], "an impossible length"),
        (lambda data: data[:8] + struct.pack(">i", -1) + data[12:], "a batch that is cut short"),
        (lambda data: struct.pack(">q", 6) + data[8:], "offsets that do not follow"),
        (lambda data: data + bytes(100), "messages of magic 0, from before Kafka 0.11"),
    ],
)
def test_damage_is_named_with_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, window: int, damaged: object, reason: str
) -> None:
    monkeypatch.setattr(stored_records, "WINDOW_BYTES", window)
    first = data_batch(7, b"first").encode()
    second = data_batch(8, b"y" * 200).encode()
    path = segment(tmp_path, first, damaged(second), base=7)  # type: ignore[operator]
    with pytest.raises(CorruptLogError, match=reason) as error:
        read(tmp_path)
    place = len(first) + (len(second) if reason.startswith("messages") else 0)
    assert str(error.value).endswith(f"path={path} position={place}")
    assert isinstance(error.value, OldFormatError) == reason.startswith("messages")


def test_every_flipped_bit_of_what_the_checksum_covers_is_found(tmp_path: Path) -> None:
    data = data_batch(0, b"abc").encode()
    for at in range(17, len(data)):
        segment(tmp_path, data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with pytest.raises(CorruptLogError):
            read(tmp_path)


def test_a_batch_without_offsets_is_none(tmp_path: Path) -> None:
    segment(tmp_path, replace(data_batch(0, b"a"), last_offset_delta=-1))
    with pytest.raises(CorruptLogError, match="offsets that do not follow"):
        read(tmp_path)


def test_a_file_that_becomes_shorter_meanwhile_ends_the_reading(tmp_path: Path) -> None:
    path = segment(tmp_path, data_batch(0, b"a"), data_batch(1, b"b"))
    (one,) = segments_of(tmp_path)
    path.write_bytes(data_batch(0, b"a").encode())
    with pytest.raises(CorruptLogError, match="cut short"):
        list(batches_of(one, FILES))


@pytest.mark.parametrize("codec", range(5))
def test_records_come_out_of_each_codec(tmp_path: Path, codec: int) -> None:
    values = [b"v" * size for size in (0, 1, 63, 64, 8191, 8192)]
    made = data_batch(0, *values)
    segment(tmp_path, replace(made, attributes=codec, payload=batch_codecs.compress(codec, made.payload)))
    (one,) = segments_of(tmp_path)
    (batch,) = batches_of(one, FILES, whole=True)
    assert [(each.key, each.value) for each in records_of(batch)] == [
        (b"k%d" % at, value) for at, value in enumerate(values)
    ]


def test_records_of_a_compacted_batch_and_nulls(tmp_path: Path) -> None:
    segment(tmp_path, compacted(3, 9, {4: (b"a", b"x"), 8: (b"b", b"y")}), house.batch_of([b"z"], 10), base=3)
    (one,) = segments_of(tmp_path)
    found = [[tuple(each) for each in records_of(batch)] for batch in batches_of(one, FILES, whole=True)]
    assert found == [[(b"a", b"x"), (b"b", b"y")], [(None, b"z")]]


@pytest.mark.parametrize("count", [0, 2, 10**6])
def test_records_that_are_not_there_are_damage(tmp_path: Path, count: int) -> None:
    made = data_batch(0, b"abc")
    segment(tmp_path, replace(made, record_count=2, payload=made.payload[: len(made.payload) - count % 7]))
    (one,) = segments_of(tmp_path)
    (batch,) = batches_of(one, FILES, whole=True)
    with pytest.raises(CorruptLogError, match="records that cannot be read"):
        list(records_of(batch))


def test_a_field_that_is_longer_than_its_record_is_damage(tmp_path: Path) -> None:
    """It would be cut short in silence."""
    made = data_batch(0, b"abc")
    payload = bytearray(made.payload)
    payload[4] = 2 * 60  # the length of the key
    segment(tmp_path, replace(made, payload=bytes(payload)))
    (one,) = segments_of(tmp_path)
    (batch,) = batches_of(one, FILES, whole=True)
    with pytest.raises(CorruptLogError, match="longer than its record"):
        list(records_of(batch))


# -- a whole log -------------------------------------------------------------------------------------------------------


def surveyed(tmp_path: Path, *segments: tuple[int, Sequence[Batch]], log_start: int = 0) -> Survey:
    for base, batches in segments:
        segment(tmp_path, *batches, base=base)
    return survey(segments_of(tmp_path), log_start, FILES)


def test_a_sound_log_is_counted(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    numbered = data_batch(7, b"c", producer_id=2000, producer_epoch=1, base_sequence=5)
    first, second = [data_batch(5, b"a", b"b")], [numbered, data_batch(8, b"d", producer_id=9, base_sequence=0)]
    for base, batches in ((5, first), (7, second), (9, [])):
        segment(tmp_path, *batches, base=base)
    found = survey(segments_of(tmp_path), 0, FILES, lambda *each: seen.append(each))
    sizes = [sum(len(each.encode()) for each in batches) for batches in (first, second)]
    assert found == Survey(9, records=4, size=sum(sizes), largest_producer=2000, is_numbered=True)
    assert found.is_numbered and not Survey(9).is_numbered
    assert seen == [(2, sizes[0]), (2, sizes[1]), (0, 0)]


@pytest.mark.parametrize(
    ("segments", "missing"),
    [
        ([(0, [data_batch(0, b"a"), data_batch(3, b"b"), data_batch(9, b"c")])], (1, 3)),
        ([(0, [data_batch(0, b"a")]), (4, [data_batch(4, b"b")])], (1, 4)),
        ([(2, [data_batch(5, b"a")])], (2, 5)),
        ([(0, [compacted(0, 6, {2: (b"a", b"b")})])], (0, 7)),
        ([(0, [data_batch(0, b"a")]), (4, [])], (1, 4)),
    ],
)
def test_what_compaction_left_out_is_found(
    tmp_path: Path, segments: Sequence[tuple[int, Sequence[Batch]]], missing: tuple[int, int]
) -> None:
    assert surveyed(tmp_path, *segments).missing == missing


def test_offsets_that_go_back_are_damage(tmp_path: Path) -> None:
    with pytest.raises(CorruptLogError, match=r"offsets that do not follow.*position=\d+ found=0 expected=1"):
        surveyed(tmp_path, (0, [data_batch(0, b"a"), data_batch(0, b"b")]))
    with pytest.raises(CorruptLogError, match=r"position=0 found=1 expected=2"):
        surveyed(tmp_path, (0, [data_batch(0, b"a", b"b")]), (1, [data_batch(2, b"b")]))


def sent(base: int, producer: int) -> Batch:
    return data_batch(base, b"x", producer_id=producer, producer_epoch=0, base_sequence=0, attributes=TRANSACTIONAL)


@pytest.mark.parametrize(
    ("batches", "log_start", "aborted", "still_open"),
    [
        ([sent(0, 1), marker(1, 1, commits=True)], 0, 0, 0),
        ([sent(0, 1), sent(1, 2), marker(2, 1, commits=False), marker(3, 2, commits=True)], 0, 1, 0),
        ([sent(0, 1), sent(1, 2), marker(2, 1, commits=True)], 0, 0, 1),
        ([marker(0, 1, commits=False)], 0, 0, 0),
        ([sent(0, 1), marker(1, 1, commits=False), sent(2, 1), marker(3, 1, commits=True)], 0, 1, 0),
        ([sent(0, 1), marker(1, 1, commits=False), data_batch(2, b"a")], 1, 0, 0),
        ([sent(0, 1), marker(1, 1, commits=False), data_batch(2, b"a")], 0, 1, 0),
    ],
)
def test_transactions_are_followed(
    tmp_path: Path, batches: Sequence[Batch], log_start: int, aborted: int, still_open: int
) -> None:
    """Those that were aborted count only where their records can be read."""
    found = surveyed(tmp_path, (0, batches), log_start=log_start)
    assert (found.aborted, found.open) == (aborted, still_open)


def test_a_control_batch_that_is_no_marker_ends_nothing_well(tmp_path: Path) -> None:
    other = replace(data_batch(1, b"x", keys=[b"\0"]), attributes=CONTROL | TRANSACTIONAL, producer_id=1)
    assert surveyed(tmp_path, (0, [sent(0, 1), other])).aborted == 1
    (one,) = segments_of(tmp_path)
    assert [marker_of(each) for each in batches_of(one, FILES)] == [-1, -1]
    segment(tmp_path, marker(0, 1, commits=True), marker(1, 1, commits=False))
    (one,) = segments_of(tmp_path)
    assert [marker_of(each) for each in batches_of(one, FILES)] == [COMMIT, ABORT]


# -- groups ------------------------------------------------------------------------------------------------------------

MEMBER = StoredMember("m-1", None, "c", "/127.0.0.1", 60_000, 45_000, b"meta", b"assigned")
GROUP = GroupState(Stored("consumer", 4, "range", "m-1", (MEMBER,)), 77)


def offset_row(group: str, topic: str, number: int, offset: int | None) -> tuple[bytes, bytes | None]:
    """A record as Kafka 4.2 writes it: version 1 of the key, 3 of the value."""
    key = struct.pack(">h", 1) + b"".join(struct.pack(">h", len(each)) + each.encode() for each in (group, topic))
    value = None if offset is None else struct.pack(">hqihq", 3, offset, 2, 0, 55)
    return key + struct.pack(">i", number), value


def rows_batch(base: int, rows: Sequence[tuple[bytes, bytes | None]], **fields: int) -> Batch:
    return data_batch(base, *(value for _, value in rows), keys=[key for key, _ in rows], **fields)  # type: ignore[arg-type]


def groups_of(tmp_path: Path, *partitions: Sequence[Batch]) -> kafka_groups.KeptGroups:
    directories = []
    for number, batches in enumerate(partitions):
        directory = tmp_path / f"__consumer_offsets-{number}"
        directory.mkdir()
        segment(directory, *batches)
        directories.append(directory)
    return kafka_groups.read_groups(directories, FILES)


def test_the_last_word_on_each_key_counts(tmp_path: Path) -> None:
    found = groups_of(
        tmp_path,
        [
            rows_batch(0, [offset_row("g", "t", 0, 5), offset_row("g", "t", 1, 6), offset_row("g", "u", 0, 7)]),
            rows_batch(3, [offset_row("g", "t", 0, 9), offset_row("g", "t", 1, None)]),
        ],
        [rows_batch(0, [offset_row("h", "t", 0, 1)]), rows_batch(1, [(b"snapshot", b""), (b"snapshot-end", b"")])],
    )
    assert found.offsets == {
        OffsetKey("g", "u", 0): Offset(7, 2, "", 55),
        OffsetKey("g", "t", 0): Offset(9, 2, "", 55),
        OffsetKey("h", "t", 0): Offset(1, 2, "", 55),
    }
    assert (found.names, found.topics(), found.others, found.open) == ({"g", "h"}, {"t", "u"}, set(), 0)
    fewer = found.without(["t"])
    assert (set(fewer.offsets), fewer.names) == ({OffsetKey("g", "u", 0)}, {"g"})


def test_offsets_of_a_transaction_count_when_it_is_committed(tmp_path: Path) -> None:
    def batch(base: int, producer: int, offset: int) -> Batch:
        return rows_batch(
            base, [offset_row(f"g{producer}", "t", 0, offset)], producer_id=producer, attributes=TRANSACTIONAL
        )

    found = groups_of(
        tmp_path,
        [
            *(batch(0, 1, 5), batch(1, 2, 6), batch(2, 3, 7), batch(3, 1, 8)),
            *(marker(4, 1, commits=True), marker(5, 2, commits=False), marker(6, 9, commits=True)),
        ],
    )
    assert {key.group: value.offset for key, value in found.offsets.items()} == {"g1": 8}
    assert found.open == 1


def test_groups_of_other_kinds_are_named_as_long_as_they_are_there(tmp_path: Path) -> None:
    def key(kind: int, group: str, more: bytes = b"") -> bytes:
        return struct.pack(">hh", kind, len(group)) + group.encode() + more

    found = groups_of(
        tmp_path,
        [
            rows_batch(0, [(key(3, "new"), b"x"), (key(5, "new", b"m"), b"x"), (key(11, "share"), b"x")]),
            rows_batch(3, [(key(5, "new", b"m"), None), (key(11, "share"), None), (key(3, "gone"), None)]),
        ],
    )
    assert (found.others, found.names) == ({"new"}, set())
    with pytest.raises(LogError, match="not UTF-8"):
        (tmp_path / "x").mkdir()
        _ = groups_of(tmp_path / "x", [rows_batch(0, [(struct.pack(">hh", 3, 1) + b"\xff", b"x")])]).others


def test_what_is_packed_is_what_is_read_again(tmp_path: Path) -> None:
    """In any number of partitions, each group in the one that Kafka looks for it in."""
    offsets = {OffsetKey(f"group-{n % 7}", "topic" * 9, n): Offset(n, n % 3, "m", 99) for n in range(9000)}
    kept = kafka_groups.KeptGroups(offsets, {"group-1": GROUP, "alone": GROUP})
    for count in (1, 50):
        places = kafka_groups.packed(kept, count, house.TIME_MS)
        assert len(places) == count
        directories = []
        for number, data in enumerate(places):
            directory = tmp_path / f"{count}-{number}"
            directory.mkdir()
            segment(directory, data)
            directories.append(directory)
            found = survey(segments_of(directory), 0, FILES)
            assert (found.end, found.missing) == (kafka_groups.end_of(data), None)
        again = kafka_groups.read_groups(directories, FILES)
        assert (again.offsets, again.groups) == (kept.offsets, kept.groups)
    assert sum(map(bool, places)) > 1
    (whole,) = kafka_groups.packed(kept, 1, house.TIME_MS)
    segment(tmp_path, whole)
    sizes = [len(data or b"") for _, _, data in read(tmp_path, whole=True)]
    assert len(sizes) > 2 and max(sizes) < 2 * kafka_groups.BATCH_BYTES
    assert kafka_groups.end_of(b"") == 0
