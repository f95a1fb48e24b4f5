"""``fastlog.scan`` of record batches: from a broker and from its files polars, DuckDB and Arrow get what was sent."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import fastlog
from fastlog import record_batches, testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import ArgumentError, CorruptLogError, DecompressionLimitError, UnsupportedFeatureError
from fastlog.record_batches import Record
from fastlog.scanning import Scan, record_files
from fastlog.scanning.record_files import RecordFolders
from fastlog.segment_files import list_segments, read_fully, segment_name
from tests.harness import raw_batches
from tests.harness.broker import KEPT

COUNT = 2_000
FIRST = 1_700_000_000_000
"""The time of the first record; each is a second later than the one before."""


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker with a topic of record batches in two partitions, several segments and codecs; address and directory."""
    directory = tmp_path_factory.mktemp("broker")
    with testing.broker(directory=directory, processors=1, properties=KEPT) as running:
        address = Address(running.host, running.port)
        with RecordBroker([address], timeout=30) as records:
            records.create("logs", 2, {"segment.bytes": "16384"})
            for begin in range(0, COUNT, 50):
                batch = record_batches.build(
                    [record(number) for number in range(begin, begin + 50)], codec=begin // 50 % 5
                )
                records.append({("logs", 0): batch, ("logs", 1): batch}, is_flushed=True)
        yield running.address, directory / "data"


def record(number: int) -> Record:
    headers: tuple[tuple[bytes, bytes | None], ...] = ((b"n", b"%d" % number), (b"n", None))[: number % 3]
    return Record(
        key=None if number % 4 == 0 else b"key-%d" % (number % 7),
        value=None if number % 5 == 0 else b"%04d" % number,
        timestamp=FIRST + 1000 * number,
        headers=headers,
    )


@pytest.fixture(params=["broker", "files"])
def place(request: pytest.FixtureRequest, topic: tuple[str, Path]) -> dict[str, str]:
    address, folder = topic
    return {"source": "logs", "broker": address} if request.param == "broker" else {"source": f"{folder}/logs-*"}


def offsets(found: Scan) -> list[int]:
    return found.to_arrow()["offset"].to_pylist()  # type: ignore[no-any-return]


def test_a_table_has_all_of_a_record(place: dict[str, str]) -> None:
    table = fastlog.scan(**place).to_arrow()
    assert table.column_names == [
        "topic", "partition", "offset", "next_offset", "payload", "key", "timestamp", "headers",
    ]  # fmt: skip
    assert table.schema.field("timestamp").type == pa.timestamp("ms", tz="UTC")
    assert [field.nullable for field in table.schema] == [False] * 4 + [True, True, True, False]
    wanted = [record(number) for number in range(COUNT)] * 2
    assert table["topic"].to_pylist() == ["logs"] * (2 * COUNT)
    assert table["partition"].to_pylist() == [0] * COUNT + [1] * COUNT
    assert table["offset"].to_pylist() == [*range(COUNT)] * 2
    assert table["next_offset"].to_pylist() == [*range(1, COUNT + 1)] * 2
    assert table["payload"].to_pylist() == [one.value for one in wanted]
    assert table["key"].to_pylist() == [one.key for one in wanted]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [one.timestamp for one in wanted]
    assert table["headers"].to_pylist() == [
        [{"key": name.decode(), "value": value} for name, value in one.headers] for one in wanted
    ]


def test_polars_and_duckdb_read_it(place: dict[str, str]) -> None:
    found = fastlog.scan(**place)
    assert found.to_polars().equals(polars.DataFrame(found))
    query = 'select partition, count(*), count(payload), count(key), max("offset") from found group by 1 order by 1'
    values, keys = COUNT - COUNT // 5, COUNT - COUNT // 4
    assert duckdb.sql(query).fetchall() == [(number, COUNT, values, keys, COUNT - 1) for number in (0, 1)]
    lazy = found.lazy().filter(polars.col("timestamp") < datetime.fromtimestamp(FIRST / 1000 + 3, UTC))
    assert lazy.select("offset").collect()["offset"].to_list() == [0, 1, 2] * 2


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (None, None, 0, COUNT),
        (0, 1, 0, 1),
        (49, 51, 49, 51),  # over the border of two batches
        (60, 70, 60, 70),  # inside of one that is compressed
        (COUNT - 1, None, COUNT - 1, COUNT),
        (COUNT, None, 0, 0),
        (30, 30, 0, 0),
        (1234, COUNT + 100, 1234, COUNT),
    ],
)
def test_offsets_prune(start: int | None, end: int | None, first: int, last: int, place: dict[str, str]) -> None:
    found = fastlog.scan(**place, partitions=[1], start=start, end=end)
    assert offsets(found) == list(range(first, last))
    assert found.offset_count == last - first
    assert {part.partition for part in found.parts} <= {1}


@pytest.mark.parametrize(
    ("since", "until", "first", "last"),
    [
        (0, None, 0, COUNT),
        (FIRST + 700_000, None, 700, COUNT),
        (FIRST + 700_001, FIRST + 709_999, 701, 710),
        (FIRST + 700_000, FIRST + 710_000, 700, 711),  # both are in it
        (None, FIRST, 0, 1),
        (None, FIRST - 1, 0, 0),
        (FIRST + 1000 * COUNT, None, 0, 0),
        (None, 2**45, 0, COUNT),
    ],
)
def test_times_prune(since: int | None, until: int | None, first: int, last: int, place: dict[str, str]) -> None:
    """To the record, since records have times."""
    found = fastlog.scan(**place, partitions=[0], since=since, until=until)
    assert offsets(found) == list(range(first, last))
    assert found.offset_count == last - first


@pytest.mark.parametrize("batch_bytes", [1, 600, 4096])
def test_how_much_is_read_at_once_changes_nothing(batch_bytes: int, place: dict[str, str]) -> None:
    """Also where less is read than a header has, or a batch."""
    found = fastlog.scan(**place, start=30, end=400, batch_bytes=batch_bytes, columns=["offset"])
    assert offsets(found) == [*range(30, 400)] * 2


def test_no_more_is_read_at_once_than_was_asked_for(topic: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Except for a batch that is longer: so a file of many gigabytes takes no more memory than another."""
    sizes = []

    def watched(fd: int, target: memoryview, position: int) -> int:
        sizes.append(len(target))
        return read_fully(fd, target, position)

    found = fastlog.scan(topic[1] / "logs-0", batch_bytes=4096, columns=["offset"])
    monkeypatch.setattr(record_files, "_position_of", lambda *_: 0)
    monkeypatch.setattr(record_files, "read_fully", watched)
    assert offsets(found) == list(range(COUNT))
    assert set(sizes[:2]) == {4096}
    assert max(sizes) < 8192


def test_a_batch_that_ends_with_its_file_is_read_whatever_its_size(topic: tuple[str, Path]) -> None:
    """It is longer than what is read at once, and nothing is behind it."""
    found = fastlog.scan(topic[1] / "logs-0", batch_bytes=1, columns=["offset"])
    assert offsets(found) == list(range(COUNT))


def test_what_is_behind_the_end_is_not_fetched(topic: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = fastlog.SimpleConsumer.numpy_batches
    ends = []

    def watched(consumer: fastlog.SimpleConsumer, *place: Any) -> Iterator[Any]:
        for batch in arrays(consumer, *place):
            ends.append(batch.next_offset)
            yield batch

    monkeypatch.setattr(fastlog.SimpleConsumer, "numpy_batches", watched)
    found = fastlog.scan("logs", broker=topic[0], partitions=[0], end=60, batch_bytes=64)
    assert offsets(found) == list(range(60))
    assert ends == [50, 100]


def test_a_bar_counts_the_records(place: dict[str, str]) -> None:
    found = fastlog.scan(**place, start=5)
    came = sum(count for count, _ in found._source.batches(found.parts, ("offset",), ["logs"]))
    assert came == found.offset_count == 2 * (COUNT - 5)
    assert len(found.to_arrow(progress=True)) == 2 * (COUNT - 5)
    assert repr(found).endswith(f"{len(found.parts)} parts, 3,990 records>")
    with pytest.raises(UnsupportedFeatureError, match="offset_count"):
        assert found.log_bytes


# --- files ---


def written(folder: Path, batches: list[bytes]) -> Path:
    """A directory of one segment."""
    folder.mkdir()
    (folder / segment_name(0, ".log")).write_bytes(b"".join(batches))
    return folder


def batch_of(first: int, count: int, **fields: Any) -> bytes:
    made = [Record(b"k", b"%d" % number, FIRST + number) for number in range(first, first + count)]
    return record_batches.build(made, base_offset=first, **fields)


def test_a_torn_end_ends_the_newest_segment_alone(topic: tuple[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "logs-0"
    shutil.copytree(topic[1] / "logs-0", folder)
    segments = list_segments(folder, ".log")
    assert len(segments) >= 2
    os.truncate(segments[-1].path, segments[-1].size - 3)
    assert offsets(fastlog.scan(folder)) == list(range(COUNT - 50))
    os.truncate(segments[0].path, segments[0].size - 3)
    with pytest.raises(CorruptLogError, match=rf"{segments[0].path.name}.* position"):
        offsets(fastlog.scan(folder))


@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("at", [17, 61, 100])
def test_damage_is_named_and_what_is_before_it_comes_first(place: int, at: int, tmp_path: Path) -> None:
    """Also where it is in the last batch, or hides how far the file goes."""
    batches = [batch_of(number * 10, 10) for number in range(3)]
    position = sum(map(len, batches[:place]))
    batches[place] = batches[place][:at] + bytes([batches[place][at] ^ 1]) + batches[place][at + 1 :]
    folder = written(tmp_path / "logs-0", batches)
    found = []
    with pytest.raises(CorruptLogError, match=f"position {position}"):
        for batch in fastlog.scan(folder):
            found += batch["offset"].to_pylist()
    assert found == list(range(10 * place))


def test_damage_behind_a_right_checksum_is_named(tmp_path: Path) -> None:
    """Of a batch whose records are not what its header says."""
    batch = raw_batches.Batch(base_offset=10, record_count=2, last_offset_delta=1, payload=b"\x7f" * 20).encode()
    folder = written(tmp_path / "logs-0", [batch_of(0, 10), batch])
    found = []
    with pytest.raises(CorruptLogError, match=r"0\.log: .*record"):
        for one in fastlog.scan(folder):
            found += one["offset"].to_pylist()
    assert found == list(range(10))


def heads_in(data: bytes, size: int | None = None) -> list[tuple[int, int, int]]:
    """Position, first offset and size of each batch that a file has, as far as its headers tell."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        found = record_files._heads(file.fileno(), len(data) if size is None else size)
        return [(head.position, head.base, head.size) for head in found]


def test_headers_are_followed_as_far_as_they_can_be_ones() -> None:
    first, second = batch_of(0, 3), batch_of(3, 3)
    size = len(first)
    assert heads_in(first + second) == [(0, 0, size), (size, 3, len(second))]
    assert heads_in(first + second[:-1]) == heads_in(first + second[:60]) == heads_in(first) == [(0, 0, size)]
    for at, bad in ((16, b"\1"), (8, b"\xff\xff\xff\xff"), (8, (48).to_bytes(4, "big")), (0, b"\xff"), (23, b"\xff")):
        assert heads_in(first + second[:at] + bad + second[at + len(bad) :]) == [(0, 0, size)]
    assert heads_in(first + b"\0" * 200) == [(0, 0, size)]
    assert heads_in(b"") == []


def test_a_file_that_was_cut_since_it_was_listed_has_no_headers_behind_its_end() -> None:
    """What was read before, and still lies in memory, is none."""
    large = record_batches.build([Record(None, bytes(70_000), FIRST)])
    assert heads_in(large, 3 * len(large)) == [(0, 0, len(large))]


def test_a_length_that_goes_beyond_the_file_is_a_torn_end(tmp_path: Path) -> None:
    last = bytearray(batch_of(10, 10))
    last[8:12] = (2**30).to_bytes(4, "big")
    assert offsets(fastlog.scan(written(tmp_path / "logs-0", [batch_of(0, 10), bytes(last)]))) == list(range(10))


def test_a_magic_that_is_not_known_is_damage(tmp_path: Path) -> None:
    last = bytearray(batch_of(10, 10))
    last[16] = 1
    with pytest.raises(CorruptLogError, match="no whole and valid batch"):
        offsets(fastlog.scan(written(tmp_path / "logs-0", [batch_of(0, 10), bytes(last)])))


@pytest.mark.parametrize("left", [0, 3, 11, 60, 61])
def test_what_is_cut_off_after_the_look_is_not_there(tmp_path: Path, left: int) -> None:
    """Before the second batch, inside its header, and just behind it."""
    folder = written(tmp_path / "logs-0", [batch_of(0, 10), batch_of(10, 10)])
    found = fastlog.scan(folder)
    (segment,) = list_segments(folder, ".log")
    os.truncate(segment.path, len(batch_of(0, 10)) + left)
    assert offsets(found) == list(range(10))


def test_offsets_may_be_missing_and_batches_empty_of_records_for_users(tmp_path: Path) -> None:
    """Control batches are left out; what a compacted log has lost is."""
    control = record_batches.build([Record(b"\0\0\0\0", b"\0" * 6, FIRST)], base_offset=10, attributes=0x30)
    folder = written(tmp_path / "logs-0", [batch_of(0, 10), control, batch_of(40, 2), batch_of(90, 3)])
    assert offsets(fastlog.scan(folder)) == [*range(10), 40, 41, 90, 91, 92]
    for start, end, wanted in [(5, 41, [5, 6, 7, 8, 9, 40]), (10, 40, []), (42, 91, [90]), (92, None, [92])]:
        assert offsets(fastlog.scan(folder, start=start, end=end)) == wanted
    assert offsets(fastlog.scan(folder, since=FIRST + 10, until=FIRST + 90)) == [40, 41, 90]


def test_records_without_times(tmp_path: Path) -> None:
    batch = record_batches.build([Record(b"k", b"v", -1), Record(b"k", b"v", 5), Record(b"k", b"v", -1)])
    found = fastlog.scan(written(tmp_path / "logs-0", [batch]), columns=["timestamp", "headers"]).to_arrow()
    assert found["timestamp"].cast(pa.int64()).to_pylist() == [None, 5, None]
    assert found["headers"].to_pylist() == [[], [], []]


def test_names_of_headers_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    batch = record_batches.build([Record(None, None, 0, ((b"\xff", b"\xff"), ("ü".encode(), b"")))])
    found = fastlog.scan(written(tmp_path / "logs-0", [batch])).to_arrow()
    assert found["headers"].to_pylist() == [[{"key": "\ufffd", "value": b"\xff"}, {"key": "ü", "value": b""}]]


def test_an_index_that_lies_is_no_harm(topic: tuple[str, Path], tmp_path: Path) -> None:
    """It is a help to find a batch, and what it leads to is looked at."""
    folder = tmp_path / "logs-0"
    shutil.copytree(topic[1] / "logs-0", folder)
    bases = [segment.base for segment in list_segments(folder, ".log")]
    size = (folder / segment_name(bases[1], ".log")).stat().st_size
    for lie in (
        b"",
        b"\0" * 64,
        (1).to_bytes(4, "big") + (77).to_bytes(4, "big"),
        (9).to_bytes(4, "big") + size.to_bytes(4, "big"),
    ):
        for base in bases:
            (folder / segment_name(base, ".index")).write_bytes(lie)
        assert offsets(fastlog.scan(folder, start=bases[1] + 60, end=bases[1] + 70)) == [
            *range(bases[1] + 60, bases[1] + 70)
        ]
        assert fastlog.scan(folder).offset_count == COUNT
    for base in bases:
        (folder / segment_name(base, ".index")).unlink()
    assert offsets(fastlog.scan(folder)) == list(range(COUNT))


def test_an_index_saves_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers in front of where it leads to are not looked at."""
    batches = [batch_of(number * 10, 10) for number in range(100)]
    folder = written(tmp_path / "logs-0", batches)
    index = b"".join(
        (number * 10 + 9).to_bytes(4, "big") + sum(map(len, batches[:number])).to_bytes(4, "big")
        for number in range(20, 100, 20)
    )
    (folder / segment_name(0, ".index")).write_bytes(index + bytes(80))
    walked = []
    heads = record_files._heads

    def watched(fd: int, size: int, position: int = 0) -> Iterator[Any]:
        for head in heads(fd, size, position):
            walked.append(head.base)
            yield head

    monkeypatch.setattr(record_files, "_heads", watched)
    found = fastlog.scan(folder, start=655, end=700)
    assert min(walked) == 800
    walked.clear()
    assert offsets(found) == [*range(655, 700)]
    assert (min(walked), max(walked)) == (600, 650)


def test_two_kinds_are_not_one_table(tmp_path: Path) -> None:
    written(tmp_path / "logs-0", [batch_of(0, 1)])
    (tmp_path / "old-0").mkdir()
    (tmp_path / "old-0" / segment_name(0)).write_bytes(b"")
    with pytest.raises(ArgumentError, match=r"old-0, which is of messages of Kafka 0\.7, and logs-0"):
        fastlog.scan(tmp_path / "*")
    assert offsets(fastlog.scan(tmp_path / "logs-*")) == [0]


def test_two_directories_of_one_partition_are_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        written(tmp_path / name / "logs-0", [batch_of(0, 1)])
    with pytest.raises(ArgumentError, match="two directories logs-0"):
        fastlog.scan(tmp_path / "*" / "logs-0")


def test_a_bomb_is_not_opened(tmp_path: Path) -> None:
    """What the limits of reading say is told as such: nothing is damaged."""
    value = bytes(2**20)
    batch = record_batches.build([Record(None, value, 0)] * 300, codec=1)
    with pytest.raises(DecompressionLimitError):
        offsets(fastlog.scan(written(tmp_path / "logs-0", [batch])))


def test_folders_show_their_path(tmp_path: Path) -> None:
    assert repr(RecordFolders("a/b-*", [], window_bytes=1)) == "files of a/b-*"
