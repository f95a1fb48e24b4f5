"""``fastlog.scan``: what polars, DuckDB and Arrow get of a topic, and of its files, is what was sent."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import fastlog
from fastlog import testing
from fastlog.errors import (
    ArgumentError,
    ConfigError,
    CorruptLogError,
    MissingDependencyError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.scanning import broker
from fastlog.scanning.broker_records import BrokerRecords
from fastlog.segment_files import list_segments

SIZE = 14  # of a message with 4 bytes of payload
COUNT = 3_000


@pytest.fixture(scope="module")
def topic(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker with a topic of two partitions and small segments, as address and log directory."""
    directory = tmp_path_factory.mktemp("broker")
    with testing.broker(directory=directory, partitions=2, segment_bytes=16_384) as running:
        with fastlog.Producer(running.address) as producer:
            for partition in (0, 1):
                for begin in range(0, COUNT, 100):
                    values = [b"%04d" % number for number in range(begin, begin + 100)]
                    producer.send("logs", values, partition=partition)
        with fastlog.SimpleConsumer(running.address) as consumer:
            for partition in (0, 1):
                assert sum(1 for _ in consumer.payloads("logs", partition)) == COUNT  # so all of it is flushed
        yield running.address, directory / "data"


def payloads(scan: fastlog.scanning.Scan) -> list[int]:
    return [int(value) for value in scan.to_arrow()["payload"].to_pylist()]


@pytest.fixture(params=["broker", "files"])
def place(request: pytest.FixtureRequest, topic: tuple[str, Path]) -> dict[str, str]:
    """What to scan: the topic at its broker, or the directories of its partitions."""
    address, folder = topic
    return {"source": "logs", "broker": address} if request.param == "broker" else {"source": f"{folder}/logs-*"}


def test_a_table_has_all_of_it(place: dict[str, str]) -> None:
    table = fastlog.scan(**place).to_arrow()
    assert table.column_names == ["topic", "partition", "offset", "next_offset", "payload"]
    assert table.schema.field("payload").type == pa.binary()
    assert table["topic"].to_pylist() == ["logs"] * (2 * COUNT)
    assert table["partition"].to_pylist() == [0] * COUNT + [1] * COUNT
    assert table["payload"].to_pylist() == [b"%04d" % number for number in range(COUNT)] * 2
    offsets = [SIZE * number for number in range(COUNT)] * 2
    assert table["offset"].to_pylist() == offsets
    assert table["next_offset"].to_pylist() == [offset + SIZE for offset in offsets]


def test_polars_and_duckdb_read_it(place: dict[str, str]) -> None:
    found = fastlog.scan(**place)
    frame = found.to_polars()
    assert frame.equals(polars.DataFrame(found))
    assert frame["offset"].sum() == 2 * sum(SIZE * number for number in range(COUNT))
    asked = duckdb.sql('select partition, count(*), min(payload), max("offset") from found group by 1 order by 1')
    assert asked.fetchall() == [(number, COUNT, b"0000", SIZE * (COUNT - 1)) for number in (0, 1)]
    assert duckdb.sql("select count(*) from found").fetchall() == [(2 * COUNT,)]  # it can be read again


def test_a_lazy_frame_reads_what_it_needs(place: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = fastlog.scan(**place, batch_bytes=SIZE * 100)
    asked: list[tuple[str, ...]] = []
    batches = found._source.batches

    def watched(parts: object, columns: tuple[str, ...], topics: object) -> Iterator[tuple[int, object]]:
        for item in batches(parts, columns, topics):  # type: ignore[arg-type]
            asked.append(tuple(columns))
            yield item

    monkeypatch.setattr(found._source, "batches", watched)
    lazy = found.lazy()
    assert lazy.collect_schema().names() == ["topic", "partition", "offset", "next_offset", "payload"]
    assert not asked
    frame = lazy.filter(polars.col("offset") < 3 * SIZE).select("offset", "payload").collect()
    assert frame["payload"].to_list() == [b"0000", b"0001", b"0002"] * 2
    assert set(asked) == {("offset", "payload")}
    asked.clear()
    assert len(lazy.select("payload").head(150).collect()) == 150
    assert len(asked) <= 3


@pytest.mark.parametrize(
    ("start", "end", "first", "last"),
    [
        (None, None, 0, COUNT),
        (0, SIZE, 0, 1),
        (SIZE * 10, SIZE * 20, 10, 20),
        (SIZE * 10 + 1, SIZE * 20 + 1, 11, 21),  # within messages
        (SIZE * 1169, None, 1169, COUNT),
        (SIZE * 1175, SIZE * 1180, 1175, 1180),
        (None, 0, 0, 0),
        (SIZE * COUNT, None, 0, 0),
        (SIZE * COUNT * 2, SIZE * COUNT * 3, 0, 0),
        (SIZE * 30, SIZE * 30, 0, 0),
    ],
)
def test_offsets_prune(start: int | None, end: int | None, first: int, last: int, place: dict[str, str]) -> None:
    found = fastlog.scan(**place, partitions=[1], start=start, end=end)
    assert payloads(found) == list(range(first, last))
    assert found.log_bytes <= SIZE * (last - first + 1)
    assert not found.parts or {part.partition for part in found.parts} == {1}


def test_offsets_of_each_partition(place: dict[str, str]) -> None:
    found = fastlog.scan(**place, start={0: SIZE * 2990}, end={1: SIZE * 3})
    assert payloads(found) == [*range(2990, COUNT), 0, 1, 2]


def test_a_stretch_is_read_alone(place: dict[str, str]) -> None:
    """Not the log before it, and not what is behind it."""
    found = fastlog.scan(**place, partitions=[0], start=SIZE * 2000, end=SIZE * 2010, batch_bytes=1024)
    (batch,) = list(found)
    assert len(batch) == 10


def test_times_leave_out_whole_segments(topic: tuple[str, Path]) -> None:
    address, folder = topic
    copy = folder.parent / "copies" / "logs-0"
    shutil.copytree(folder / "logs-0", copy)
    segments = list_segments(copy)
    assert len(segments) >= 3
    for hour, segment in enumerate(segments):
        os.utime(segment.path, (1e9 + 3600 * hour, 1e9 + 3600 * hour))

    def bases(**bounds: datetime | int) -> list[int]:
        return [part.start for part in fastlog.scan(copy, **bounds).parts]  # type: ignore[arg-type]

    every = [segment.base for segment in segments]
    second = datetime.fromtimestamp(1e9 + 3600, UTC)
    assert bases() == bases(since=0) == bases(until=2**40) == every
    assert bases(since=second) == every[1:]
    assert bases(since=int(second.timestamp() * 1000) + 1) == every[2:]
    assert bases(until=second) == every[:3]  # the third may have begun in that very ms
    assert bases(until=int(second.timestamp() * 1000) - 1) == every[:2]
    assert bases(since=second, until=int(second.timestamp() * 1000) - 1) == every[1:2]
    assert bases(until=0) == every[:1]
    assert bases(since=2**42) == []
    now = int(datetime.now(UTC).timestamp() * 1000)
    assert payloads(fastlog.scan("logs", broker=address, since=now + 10**7)) == []
    assert len(payloads(fastlog.scan("logs", broker=address, since=0, until=now + 10**7))) == 2 * COUNT
    one = fastlog.scan("logs", broker=address, until=0)
    assert 0 < len(payloads(one)) < 2 * COUNT and {part.start for part in one.parts} == {0}


def test_columns_that_are_not_wanted_are_not_made(place: dict[str, str]) -> None:
    found = fastlog.scan(**place, columns=["payload", "partition"])
    assert found.schema.names == found.to_arrow().column_names == ["payload", "partition"]
    assert found.select("offset").to_arrow().column_names == ["offset"]
    for columns in ([], ["offset", "offset"], ["key"]):
        with pytest.raises(ArgumentError, match="columns"):
            fastlog.scan(**place, columns=columns)


def test_what_comes_later_is_not_in_it() -> None:
    with testing.broker() as running, fastlog.Producer(running.address, acks="flushed") as producer:
        producer.send("a", [b"1", b"2"])
        found = fastlog.scan("a", broker=running.address)
        producer.send("a", b"3")
        assert payloads(found) == payloads(found) == [1, 2]
        assert payloads(fastlog.scan("a", broker=running.address)) == [1, 2, 3]


@pytest.mark.parametrize("batch_bytes", [64, 4096, 2**22])
def test_compressed_sets_are_opened(batch_bytes: int, tmp_path: Path) -> None:
    with testing.broker(directory=tmp_path) as running:
        with fastlog.Producer(running.address, compression="gzip", acks="flushed") as producer:
            for begin in range(0, 300, 100):
                producer.send("a", [b"%d" % number for number in range(begin, begin + 100)])
        folder = tmp_path / "data"
        for found in (
            fastlog.scan("a", broker=running.address, batch_bytes=batch_bytes),
            fastlog.scan(folder / "a-0", batch_bytes=batch_bytes),
        ):
            assert payloads(found) == list(range(300))
            assert len(set(found.select("offset").to_arrow()["offset"].to_pylist())) == 3


def test_damage_is_named_and_what_is_before_it_comes_first(topic: tuple[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "logs-0"
    shutil.copytree(topic[1] / "logs-0", folder)
    segment = list_segments(folder)[1]
    content = bytearray(segment.path.read_bytes())
    content[SIZE * 7 + 12] ^= 1
    segment.path.write_bytes(content)
    found = []
    with pytest.raises(CorruptLogError, match=f"{segment.path.name}.* position {SIZE * 7}"):
        for batch in fastlog.scan(folder):
            found += batch["payload"].to_pylist()
    assert found == [b"%04d" % number for number in range(segment.base // SIZE + 7)]


def test_a_torn_end_ends_the_newest_segment_alone(topic: tuple[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "logs-0"
    shutil.copytree(topic[1] / "logs-0", folder)
    segments = list_segments(folder)
    os.truncate(segments[-1].path, segments[-1].size - 3)
    assert payloads(fastlog.scan(folder)) == list(range(COUNT - 1))
    os.truncate(segments[0].path, segments[0].size - 3)
    with pytest.raises(CorruptLogError, match=segments[0].path.name):
        payloads(fastlog.scan(folder))


def test_a_progress_bar_counts_the_bytes(place: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    found = fastlog.scan(**place, start=SIZE * 5, batch_bytes=1000)
    came = sum(count for count, _ in found._source.batches(found.parts, ("offset",), ["logs"]))
    assert came == found.log_bytes == 2 * SIZE * (COUNT - 5)
    assert len(found.to_arrow(progress=True)) == 2 * (COUNT - 5)


def test_what_cannot_be_scanned_says_why(
    topic: tuple[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address, folder = topic
    with pytest.raises(WrongPartitionError, match="no topic 'other'"):
        fastlog.scan("other", broker=address)
    with pytest.raises(TransportError):
        fastlog.scan("logs", broker="127.0.0.1:1", timeout=1)
    for path in (tmp_path, tmp_path / "missing-0", folder, str(tmp_path / "*")):
        with pytest.raises(ArgumentError, match="names no directory"):
            fastlog.scan(path)
    for time in ("yesterday", -1, True):
        with pytest.raises(ArgumentError, match="since"):
            fastlog.scan("logs", broker=address, since=time)  # type: ignore[arg-type]
    assert repr(fastlog.scan("logs", broker=address)) == f"<Scan of topic 'logs' of {address}: 2 parts, 84,000 bytes>"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match="pyarrow is not installed: pip install"):
        fastlog.scan("logs", broker=address)


def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make brokers be of Kafka 0.7: they tell neither where messages begin nor what there is."""

    def refuse(*_: object) -> None:
        raise UnsupportedFeatureError("not here")

    monkeypatch.setattr(fastlog.SimpleConsumer, "cut_points", refuse)
    monkeypatch.setattr(fastlog.SimpleConsumer, "metadata", lambda *_: None)
    monkeypatch.setattr(BrokerRecords, "exists", lambda *_: None)


def test_a_plain_broker_is_read_from_the_borders_of_its_segments(
    topic: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but what is wanted comes, from the first segment and from another, whose border is met or not."""
    address, folder = topic
    border = list_segments(folder / "logs-1")[1].base // SIZE
    plain(monkeypatch)
    monkeypatch.setattr(fastlog.SimpleConsumer, "partition_count", lambda *_: 2)
    for first in (0, 1, border - 1, border, border + 1):
        found = fastlog.scan("logs", broker=address, start={0: 2**40, 1: SIZE * first}, end=SIZE * (first + 5))
        assert payloads(found) == list(range(first, first + 5))
        begun = []
        arrays = fastlog.SimpleConsumer.numpy_batches

        def watched(consumer: fastlog.SimpleConsumer, name: str, partition: int, offset: int) -> Any:
            begun.append(offset)  # noqa: B023
            return arrays(consumer, name, partition, offset)  # noqa: B023

        with monkeypatch.context() as patched:
            patched.setattr(fastlog.SimpleConsumer, "numpy_batches", watched)
            assert payloads(found) == list(range(first, first + 5))
        assert begun == [0 if first < border else SIZE * border]
    whole = fastlog.scan("logs", broker=address)
    assert [(part.start, part.end) for part in whole.parts] == [(0, SIZE * COUNT)] * 2


def test_what_retention_has_removed_meanwhile_is_not_passed_over(
    topic: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan that cannot have all that it said is refused by the broker, which is asked for what was there."""
    address, _ = topic
    found = fastlog.scan("logs", broker=address, partitions=[0], start=SIZE)
    plain(monkeypatch)
    monkeypatch.setattr(broker, "segment_borders", lambda *_: [SIZE * 10])
    begun = []
    monkeypatch.setattr(
        fastlog.SimpleConsumer, "numpy_batches", lambda _, name, partition, offset: begun.append(offset) or iter(())
    )
    assert payloads(found) == []
    assert begun == [SIZE]


def test_how_much_is_read_at_once_has_bounds(topic: tuple[str, Path]) -> None:
    for size in (0, 2**31, 1.5):
        with pytest.raises((ArgumentError, ConfigError), match="batch_bytes"):
            fastlog.scan(topic[1] / "logs-0", batch_bytes=size)  # type: ignore[arg-type]


@pytest.mark.parametrize("library", ["tqdm", "rich", "none"])
def test_a_bar_is_moved_and_ended(
    library: str, topic: tuple[str, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the library that is there; it is ended also where the reader stops before."""
    calls: list[str] = []
    if library != "tqdm":
        monkeypatch.setitem(sys.modules, "tqdm.auto", None)
        if library == "none":
            monkeypatch.setitem(sys.modules, "rich.progress", None)
        else:
            import rich.progress

            for name in ("start", "stop", "advance"):
                monkeypatch.setattr(rich.progress.Progress, name, lambda *_, name=name: calls.append(name))
    else:
        import tqdm.auto

        for name, told in {"update": "advance", "close": "stop"}.items():
            monkeypatch.setattr(tqdm.auto.tqdm, name, lambda *_, told=told: calls.append(told))
    found = fastlog.scan(topic[1] / "logs-0")
    assert len(found.to_arrow(progress=True)) == COUNT
    expected: list[str] = {"tqdm": [], "rich": ["start"], "none": []}[library]
    if library != "none":
        expected += ["advance"] * len(found.parts) + ["stop"]
    assert calls[: len(expected)] == expected
    assert set(calls[len(expected) :]) <= {"stop"}  # one that is collected may say it again
