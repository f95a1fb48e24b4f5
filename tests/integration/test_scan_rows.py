"""``tail`` and ``sample`` of a scan, for notebooks: the last messages, or some at random, without reading all of it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pytest

import fastlog
from fastlog import record_batches, testing
from fastlog.client.addresses import Address
from fastlog.client.records import RecordBroker
from fastlog.errors import ArgumentError, ConfigError, MissingDependencyError
from fastlog.record_batches import Record
from fastlog.scanning import Scan, picking
from fastlog.scanning.rows import Rows, cell, html_table

COUNT = 3_000
PLACES = ["messages", "message files", "records", "record files"]


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A broker with a topic of each kind, of two partitions and several segments; the numbers of both go on."""
    directory = tmp_path_factory.mktemp("broker")
    with testing.broker(directory=directory, partitions=2, segment_bytes=16_384) as running:
        with fastlog.Producer(running.address, acks="flushed") as producer:
            for partition in (0, 1):
                for begin in range(0, COUNT, 100):
                    producer.send("messages", values(partition, begin, 100), partition=partition)
        with RecordBroker([Address(running.host, running.port)], timeout=30) as records:
            records.create("records", 2, {"segment.bytes": "16384"})
            for begin in range(0, COUNT, 100):
                batches = {
                    ("records", partition): record_batches.build(
                        [Record(b"k", value, 10**12) for value in values(partition, begin, 100)]
                    )
                    for partition in (0, 1)
                }
                records.append(batches, is_flushed=True)
        yield running.address, directory / "data"


def values(partition: int, begin: int, count: int) -> list[bytes]:
    return [b"%04d" % (partition * COUNT + number) for number in range(begin, begin + count)]


@pytest.fixture(params=PLACES)
def scan(request: pytest.FixtureRequest, brokers: tuple[str, Path]) -> Scan:
    address, folder = brokers
    kind, _, files = request.param.partition(" ")
    kind = kind if not files else f"{kind}s"
    return fastlog.scan(folder / f"{kind}-*") if files else fastlog.scan(kind, broker=address)


def numbers(rows: Any) -> list[int]:
    return [int(value) for value in pa.table(rows)["payload"].to_pylist()]


# --- tail ---


@pytest.mark.parametrize("count", [0, 1, 10, 1000, COUNT, COUNT + 5])
def test_the_last_messages_of_each_partition(scan: Scan, count: int) -> None:
    first = max(0, COUNT - count)
    assert numbers(scan.tail(count)) == [*range(first, COUNT), *range(COUNT + first, 2 * COUNT)]


def test_a_tail_reads_little(scan: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    batches = scan._source.batches

    def watched(parts: Any, *rest: Any, **named: Any) -> Any:
        read.extend(parts)
        return batches(parts, *rest, **named)

    monkeypatch.setattr(scan._source, "batches", watched)
    monkeypatch.setattr(picking, "_LEAST_TAIL_BYTES", 14)
    monkeypatch.setattr(picking, "_GUESSED_BYTES", 1)
    assert numbers(scan.tail(20)) == [*range(COUNT - 20, COUNT), *range(2 * COUNT - 20, 2 * COUNT)]
    spans = [part.end - part.start for part in read]
    assert spans == ([20, 20] if scan._source.unit == "records" else [20, 80, 320, 20, 80, 320])


def test_the_tail_of_what_is_asked_for(brokers: tuple[str, Path]) -> None:
    """Bounds and columns of the scan hold."""
    found = fastlog.scan("records", broker=brokers[0], partitions=[1], start=7, end=20, columns=["payload"])
    assert numbers(found.tail(3)) == [COUNT + 17, COUNT + 18, COUNT + 19]
    assert found.tail(3).to_arrow().column_names == ["payload"]
    nothing = fastlog.scan("records", broker=brokers[0], start=COUNT)
    assert (len(nothing.tail()), len(nothing.sample())) == (0, 0)
    assert nothing.tail().to_arrow().schema == nothing.schema


def test_the_tail_of_compressed_sets(tmp_path: Path) -> None:
    """Messages are counted, not sets; the last ones may be inside of one."""
    with testing.broker(directory=tmp_path) as running:
        with fastlog.Producer(running.address, compression="gzip", acks="flushed") as producer:
            for begin in range(0, 300, 100):
                producer.send("a", values(0, begin, 100))
        assert numbers(fastlog.scan("a", broker=running.address).tail(120)) == list(range(180, 300))


# --- sample ---


def test_a_sample_is_some_of_it_in_order(scan: Scan) -> None:
    found = numbers(scan.sample(100, seed=1))
    assert len(set(found)) == 100
    assert found == sorted(found)
    assert numbers(scan.sample(100, seed=1)) == found
    assert numbers(scan.sample(100, seed=2)) != found
    assert numbers(scan.sample(100)) != numbers(scan.sample(100))
    assert numbers(scan.sample(10**6)) == list(range(2 * COUNT))
    assert numbers(scan.sample(0)) == []


def is_even(counts: Counter[int], draws: int) -> bool:
    """Whether sixths of the messages came about as often as one another: within five standard deviations."""
    share = draws / 6
    return all(abs(counts[part] - share) < 5 * (share * 5 / 6) ** 0.5 for part in range(6))


def test_each_message_has_the_same_chance(scan: Scan) -> None:
    """Of more than two thirds of all, so that those that drew small numbers first do not stay whatever comes."""
    counts: Counter[int] = Counter()
    for seed in range(5):
        counts.update(number // 1000 for number in numbers(scan.sample(600, seed=seed)))
    assert is_even(counts, 3000)


def test_a_sample_that_is_thinned_out_many_times_is_even(scan: Scan) -> None:
    """More come by than twice what is wanted, again and again."""
    small = fastlog.scanning.Scan(scan._source, scan.parts, ["payload"])
    counts: Counter[int] = Counter()
    for seed in range(60):
        found = numbers(small.sample(10, seed=seed))
        assert len(found) == 10
        counts.update(number // 1000 for number in found)
    assert is_even(counts, 600)


def test_of_much_only_the_places_are_read(scan: Scan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "_READ_WHOLE", {"bytes": 0, "records": 0})
    windows = []
    batches = scan._source.batches

    def watched(parts: Any, *rest: Any, window_bytes: int | None = None) -> Any:
        windows.append(window_bytes)
        return batches(parts, *rest, window_bytes=window_bytes)

    monkeypatch.setattr(scan._source, "batches", watched)
    found = numbers(scan.sample(60, seed=3))
    assert len(set(found)) == 60
    assert found == sorted(found)
    assert numbers(scan.sample(60, seed=3)) == found
    assert 60 <= len(windows) / 2 < 80
    assert set(windows) == {16 * 1024}
    assert is_even(Counter(number // 1000 for number in found), 60)


def test_a_sample_of_places_has_the_columns_that_are_wanted(
    brokers: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(picking, "_READ_WHOLE", {"bytes": 0, "records": 0})
    for kind in ("records", "messages"):
        found = fastlog.scan(kind, broker=brokers[0], columns=["payload", "partition"]).sample(5).to_arrow()
        assert found.column_names == ["payload", "partition"]
        assert found.num_rows == 5


def test_a_place_in_a_compressed_set_finds_any_of_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "_READ_WHOLE", {"bytes": 0})
    with testing.broker(directory=tmp_path) as running:
        with fastlog.Producer(running.address, compression="gzip", acks="flushed") as producer:
            producer.send("a", values(0, 0, 1000))
        found = numbers(fastlog.scan("a", broker=running.address).sample(50, seed=1))
    assert len(set(found)) == 50
    assert found == sorted(found)
    assert min(found) < 200 and max(found) > 800


def test_records_that_are_missing_are_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two records at the ends of a long gap: it does not look for more than there are."""
    monkeypatch.setattr(picking, "_READ_WHOLE", {"records": 0})
    folder = tmp_path / "logs-0"
    folder.mkdir()
    batches = [record_batches.build([Record(None, b"%d" % at, 0)], base_offset=at) for at in (0, 1000)]
    (folder / f"{0:020}.log").write_bytes(b"".join(batches))
    assert numbers(fastlog.scan(folder).sample(5, seed=1)) in ([1000], [0, 1000])
    assert numbers(fastlog.scan(folder, start=1, end=999).sample(5, seed=1)) == []


@pytest.mark.parametrize("count", [-1, 1.5, "10", True])
def test_counts_that_are_none(brokers: tuple[str, Path], count: Any) -> None:
    found = fastlog.scan("records", broker=brokers[0])
    for call in (found.tail, found.sample):
        with pytest.raises((ArgumentError, ConfigError), match="count"):
            call(count)


def test_bars_are_drawn_where_they_are_wanted(
    scan: Scan, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(scan.tail(5)) == 10
    assert len(scan.sample(5)) == 5
    assert capsys.readouterr().err == ""
    scan.tail(5, progress=True)
    assert "2/2" in capsys.readouterr().err.replace("2.00/2.00", "2/2")
    scan.sample(5, progress=True)
    assert "100%" in capsys.readouterr().err
    monkeypatch.setattr(picking, "_READ_WHOLE", {"bytes": 0, "records": 0})
    scan.sample(5, progress=True)
    assert "5.00/5.00" in capsys.readouterr().err


# --- what it looks like, and where it goes ---


def test_rows_go_where_arrow_goes(brokers: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fastlog.scan("records", broker=brokers[0]).tail(2)
    assert len(rows) == 4
    assert rows.to_polars().equals(polars.DataFrame(rows))
    assert pa.table(rows).equals(rows.to_arrow())
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(MissingDependencyError, match="pip install polars"):
        rows.to_polars()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingDependencyError, match="pip install pandas"):
        rows.to_pandas()


def test_rows_as_pandas(brokers: tuple[str, Path]) -> None:
    pandas = pytest.importorskip("pandas")
    scan = fastlog.scan("records", broker=brokers[0], partitions=[0])
    frame = scan.tail(2).to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["payload"]) == [b"2998", b"2999"]
    assert scan.to_pandas()["offset"].sum() == sum(range(COUNT))


def test_rows_show_themselves() -> None:
    table = pa.table({"offset": [1, 22], "payload": [b"<b>", None], "headers": [[], [{"key": "a", "value": b"1"}]]})
    rows = Rows(table)
    assert repr(rows) == "offset  payload  headers\n1       <b>\n22               a=1"
    assert rows._repr_html_() == (
        "<table><thead><tr><th>offset</th><th>payload</th><th>headers</th></tr></thead>"
        "<tbody><tr><td>1</td><td>&lt;b&gt;</td><td></td></tr><tr><td>22</td><td></td><td>a=1</td></tr></tbody></table>"
    )
    many = Rows(pa.table({"offset": range(1021)}))
    assert repr(many).splitlines()[-2:] == ["19", "… and 1,001 more"]
    assert many._repr_html_().endswith("<td>19</td></tr></tbody></table><p>… and 1,001 more</p>")
    assert "more" not in repr(Rows(pa.table({"offset": range(20)})))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"text", "text"),
        (b"two\nlines", r"'two\nlines'"),
        (b"\xff\0", r"b'\xff\x00'"),
        ("ü".encode(), "ü"),
        (None, ""),
        (7, "7"),
        (datetime(2026, 1, 2, 3, 4, 5, 678000, UTC), "2026-01-02T03:04:05.678Z"),
        ([{"key": "a", "value": None}, {"key": "b", "value": b"x"}], "a=, b=x"),
        (b"x" * 60, "x" * 60),
        (b"x" * 61, "x" * 59 + "…"),
    ],
)
def test_a_cell_is_one_line(value: object, text: str) -> None:
    assert cell(value) == text


def test_a_scan_shows_its_parts(brokers: tuple[str, Path]) -> None:
    scan = fastlog.scan("records", broker=brokers[0], start=1000)
    head = ["topic", "partition", "start", "end", "records"]
    rows = [["records", "0", "1,000", "3,000", "2,000"], ["records", "1", "1,000", "3,000", "2,000"]]
    told = repr(scan).replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;")
    assert scan._repr_html_() == f"<p>{told}</p>{html_table(head, rows)}"
