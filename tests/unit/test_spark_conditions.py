"""Which rows the conditions of the jobs take, at their limits: what is late, what finds a partner, what a batch
replaces, and in which windows a message is. Over rows that are dictionaries, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import ConfigError
from fastlog.spark.jobs import join, late, loader
from fastlog.spark.jobs.counts import Windows
from fastlog.spark.jobs.late import OVER, PLACES, REASON, TIME, LateRows, Side
from fastlog.spark.jobs.streams import watched
from fastlog.spark.offsets import OffsetRange
from fastlog.spark.storage import located
from tests.harness import made_up_frames
from tests.harness.made_up_frames import Frame, Row, col, lit, moment
from tests.harness.spark import partition_of
from tests.unit.test_spark_late import end, write


@pytest.fixture(autouse=True)
def functions(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up_frames.use(monkeypatch)


def message(offset: int, seconds: float | None, key: str | None = "k", topic: str = "t", **more: Any) -> Row:
    at = None if seconds is None else moment(seconds)
    place = {"topic": topic, "broker": 0, "partition": 0, "offset": offset, "idx": 0, "key": key, "value": b"12345"}
    return {**place, "timestamp": at, **more}


# -- late rows ---------------------------------------------------------------------------------------------------------


def test_a_message_is_late_once_the_watermark_has_come_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the millisecond; of each side in its order, and of what the batch reads alone. A batch read takes no group."""
    write(tmp_path, 0, 0, end(_1=[0, 10]), "-", end(_2=[0, 5]))
    write(tmp_path, 1, 5000, end(_1=[10, 20]), end(_1=[0, 1]), end(_2=[0, 5]))
    write(tmp_path, 2, 7000, end(_1=[10, 20]), end(_1=[0, 1]), end(_2=[0, 5]))
    asked: list[tuple[Any, dict[str, str], Mapping[TopicPartition, OffsetRange]]] = []

    def source_frame(session: Any, source: dict[str, str], ranges: Mapping[TopicPartition, OffsetRange]) -> Frame:
        asked.append((session, source, ranges))
        number = len(asked)
        return Frame([message(10 * number, 4.999), message(10 * number + 1, 5.0), message(10 * number + 2, 5.001)])

    monkeypatch.setattr(late, "source_frame", source_frame)

    def timed(frame: Any) -> Any:
        over = frame.withColumn(TIME, col("timestamp")).withColumn(OVER, col("timestamp"))
        return over.withColumn(REASON, lit("why")).withColumn("more", lit(1))

    sources = ({"Group": "g", "subscribe": "t", "GROUP": "h"}, {"subscribe": "u"}, {})
    sides = [Side(source, timed, ("more",)) for source in sources]
    session: Any = object()
    rows: Any = LateRows(sides)
    assert rows.of(session, tmp_path, 2) is None
    assert asked == []
    write(tmp_path, 2, 7000, end(_1=[20, 30]), end(_1=[1, 2]), end(_2=[0, 5]))
    found = rows.of(session, tmp_path, 2)
    assert found.columns == [*PLACES, TIME, "more", "watermark", REASON]
    assert [(row["offset"], row[TIME], row["watermark"], row[REASON]) for row in found.rows] == [
        (10, moment(4.999), moment(5), "why"), (11, moment(5), moment(5), "why"),
        (20, moment(4.999), moment(5), "why"), (21, moment(5), moment(5), "why"),
    ]  # fmt: skip
    one, two = partition_of("t/0-1"), {"subscribe": "u"}
    assert asked == [
        (session, {"subscribe": "t"}, {one: OffsetRange(20, 30)}), (session, two, {one: OffsetRange(1, 2)}),
    ]  # fmt: skip


# -- counts ------------------------------------------------------------------------------------------------------------


def test_a_message_is_in_each_window_that_has_its_time() -> None:
    """From its beginning to before its end; one without a time is in none."""
    windows = Windows("timestamp", 10.0, 5.0, None, {})
    assert windows.bounds == ("window_start", "window_end")
    found: Any = windows.timed(Frame([message(1, 9.999), message(2, 10), message(3, None)]))  # type: ignore[arg-type]
    assert [(row["offset"], row["window_start"], row["window_end"], row[OVER]) for row in found.rows] == [
        (1, moment(0), moment(10), moment(10)), (1, moment(5), moment(15), moment(15)),
        (2, moment(5), moment(15), moment(15)), (2, moment(10), moment(20), moment(20)),
    ]  # fmt: skip
    assert {row[REASON] for row in found.rows} == {"the window was over"}
    assert [row[TIME] for row in found.rows] == [moment(9.999)] * 2 + [moment(10)] * 2
    tumbling: Any = Windows("timestamp", 10.0, None, None, {}).timed(Frame([message(1, 10)]))  # type: ignore[arg-type]
    assert [(row["window_start"], row["window_end"]) for row in tumbling.rows] == [(moment(10), moment(20))]


def test_a_session_may_be_open_for_its_gap() -> None:
    """Whose bounds nobody knows yet."""
    sessions = Windows("timestamp", None, None, 2.5, {})
    assert sessions.bounds == ()
    found: Any = sessions.timed(Frame([message(1, 4), message(2, None)]))  # type: ignore[arg-type]
    assert [(row["offset"], row[TIME], row[OVER]) for row in found.rows] == [(1, moment(4), moment(6.5))]
    assert found.rows[0][REASON] == "no session is open from so long ago"


COUNTED = [message(1, -3), message(2, 1), message(3, 2, topic="u"), message(4, None), message(5, None), message(6, 0)]


@pytest.mark.parametrize("slide", [None, 5.0])
def test_at_once_messages_without_a_time_are_in_one_line(slide: float | None) -> None:
    """Of each group, without a window, however many windows 1970 begins in; those of 1970 are counted beside them."""
    windows = Windows("timestamp", 10.0, slide, None, {"topic": "topic"})
    found: Any = windows.counted(Frame(COUNTED), None)  # type: ignore[arg-type]
    assert found.columns == ["window_start", "window_end", "topic", "n", "bytes"]
    rows = {(row["window_start"], row["window_end"], row["topic"]): (row["n"], row["bytes"]) for row in found.rows}
    assert len(rows) == len(found.rows)
    expected = {
        (None, None, "t"): (2, 10),
        (moment(-10), moment(0), "t"): (1, 5),
        (moment(0), moment(10), "t"): (2, 10),
        (moment(0), moment(10), "u"): (1, 5),
    }
    if slide is not None:
        expected |= {(moment(-5), moment(5), "t"): (3, 15), (moment(-5), moment(5), "u"): (1, 5)}
    assert rows == expected


def test_a_stream_counts_no_message_without_a_time_and_says_how_many() -> None:
    windows = Windows("timestamp", 10.0, None, None, {"who": "key"})
    rows = [message(1, 1, "a"), message(2, None, "a"), message(3, 2, "b"), message(4, 3, "a")]
    seen: list[Frame] = []

    class Seen(Frame):
        def withWatermark(self, name: str, delay: str) -> Any:
            seen.append(super().withWatermark(name, delay))
            return seen[-1]

    found: Any = windows.counted(Seen(rows), 90.5)  # type: ignore[arg-type]
    assert [(row["who"], row["n"]) for row in found.rows] == [("a", 2), ("b", 1)]
    assert found.columns == ["window_start", "window_end", "who", "n", "bytes"]
    assert (seen[0].delays, seen[0].observed) == (
        {"_time": "90500 milliseconds"}, {"fastlog_time": {"without_time": 1}},
    )  # fmt: skip


def test_what_is_null_is_counted() -> None:
    frame: Any = Frame([{"a": None, "b": 1}, {"a": 1, "b": None}, {"a": 2, "b": None}])
    assert watched(frame, "a").observed == {"fastloga": {"without_time": 1}}  # type: ignore[attr-defined]
    assert watched(frame, "a", "b").observed == {"fastloga": {"without_time": 1, "without_key": 2}}  # type: ignore[attr-defined]
    assert watched(frame, "a").rows == frame.rows  # type: ignore[attr-defined]


# -- join --------------------------------------------------------------------------------------------------------------


class Streams:
    """A Spark whose sources have these rows, by their topic."""

    def __init__(self, **rows: list[Row]) -> None:
        self._rows = rows
        self.readStream = self
        self.given: list[dict[str, str]] = []

    def format(self, name: str) -> Streams:
        assert name == "fastlog"
        return self

    def options(self, **given: str) -> Streams:
        self.given.append(given)
        return self

    def load(self) -> Frame:
        return Frame(self._rows[self.given[-1]["subscribe"]])


def joined(left: list[Row], right: list[Row], within: float, before: float, how: str) -> Any:
    spark: Any = Streams(l=left, r=right)
    sides = [join._side(spark, {"subscribe": name[0]}, name, "key", "timestamp") for name in ("left", "right")]
    assert sides[0].observed.keys() == {"fastlogleft_time"}  # type: ignore[attr-defined]
    assert sides[1].observed.keys() == {"fastlogright_time"}  # type: ignore[attr-defined]
    return join._with_topic(sides[0], sides[1], within, before, how)


@pytest.mark.parametrize("how", ["inner", "left"])
def test_partners_come_from_so_much_earlier_to_so_much_later(how: str) -> None:
    """Both limits are in it; what is equal has to be, and null is equal to nothing."""
    left = [message(1, 100, "a"), message(2, 100, "b"), message(3, 100, None)]
    right = [message(at, 100 + seconds, "a") for at, seconds in enumerate((-2.001, -2, 0, 3, 3.001))]
    right += [message(9, 100, None), message(8, None, "a"), message(7, 100, "c")]
    found = joined(left, right, 3.0, 2.0, how)
    pairs = [(row["on"], row["left_offset"], row["right_offset"]) for row in found.rows]
    matched = [("a", 1, 1), ("a", 1, 2), ("a", 1, 3)]
    assert pairs == matched + ([("b", 2, None), (None, 3, None)] if how == "left" else [])
    places = ("topic", "broker", "partition", "offset", "idx", "value")
    expected = ["on", "left_time", *(f"left_{name}" for name in places), "right_time"]
    assert found.columns == [*expected, *(f"right_{name}" for name in places)]


@pytest.mark.parametrize(("how", "pairs"), [("inner", [("a", 5)]), ("left", [("a", 5), ("b", None), (None, None)])])
def test_rows_of_a_table_are_partners(how: str, pairs: list[tuple[Any, Any]]) -> None:
    spark: Any = Streams(l=[message(1, 1, "a"), message(2, 1, "b"), message(3, 1, None)])
    left = join._side(spark, {"subscribe": "l"}, "left", "key", "timestamp")
    table: Any = Frame([{"user": "a", "age": 5}, {"user": None, "age": 6}, {"user": "c", "age": 7}])
    found: Any = join._with_table(left, table, "user", how)
    assert [(row["on"], row["right_age"]) for row in found.rows] == pairs
    assert found.columns[-2:] == ["right_user", "right_age"]


@pytest.mark.parametrize(("on", "offsets"), [("key", [1]), (None, [1, 2])])
def test_a_message_of_a_join_is_late_by_its_own_time(on: str | None, offsets: list[int]) -> None:
    """One without a key would have found nobody: only who keeps those without a partner misses it."""
    found: Any = join._timed("left", on, "timestamp")(Frame([message(1, 7), message(2, 8, None)]))  # type: ignore[arg-type]
    assert [row["offset"] for row in found.rows] == offsets
    for row in found.rows:
        assert row[TIME] == row[OVER] == row["timestamp"]
        assert row[REASON] == "left: the time for its partners was over"


class Reader:
    """What reads files: how it was asked for them."""

    def __init__(self) -> None:
        self.read = self
        self.asked: list[str] = []

    def option(self, name: str, value: str) -> Reader:
        self.asked.append(f"{name}={value}")
        return self

    def format(self, name: str) -> Reader:
        self.asked.append(name)
        return self

    def load(self, path: str) -> list[str]:
        return [*self.asked, path]


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a.csv"], "csv"), (["x/a.csv", "x/_SUCCESS"], "csv"), (["x/a.json", "x/b.csv"], "csv"),
        (["x/a.parquet", "x/b.csv"], "parquet"), (["a.json"], "json"),
    ],
)  # fmt: skip
def test_a_table_is_what_its_files_are_by_their_names(tmp_path: Path, names: list[str], kind: str) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    place = tmp_path / names[0].partition("/")[0]
    spark: Any = Reader()
    assert join._static(spark, located(place)) == ["header=true", "inferSchema=true", kind, f"file://{place}"]


def test_a_table_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "a.txt").touch()
    spark: Any = Reader()
    for place in (tmp_path / "x", tmp_path / "x" / "a.txt"):
        with pytest.raises(ConfigError, match="neither a Delta table nor Parquet, CSV or JSON by its name"):
            join._static(spark, located(place))


def test_a_table_of_delta_is_read_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a directory, whatever else lies there, and at a URL."""
    (tmp_path / "_delta_log").mkdir()
    (tmp_path / "a.csv").touch()
    asked: list[object] = []
    monkeypatch.setattr(join, "read_table", lambda spark, place: asked.append(place))
    spark: Any = SimpleNamespace()
    join._static(spark, located(tmp_path))
    join._static(spark, located("s3://b/t"))
    assert asked == [tmp_path, located("s3://b/t")]


# -- what a batch replaces ---------------------------------------------------------------------------------------------


def test_rows_of_the_ranges_of_a_batch() -> None:
    """Of its partitions, from the first offset to before the last."""
    ranges = {partition_of("t/0-1"): OffsetRange(10, 20), partition_of("u/2-0"): OffsetRange(0, 5)}
    names = ("topic", "broker", "partition", "offset")
    inside = [("t", 0, 1, 10), ("t", 0, 1, 19), ("u", 2, 0, 0), ("u", 2, 0, 4)]
    outside = [
        ("t", 0, 1, 9), ("t", 0, 1, 20), ("u", 2, 0, 5), ("t", 0, 0, 10), ("t", 1, 1, 10), ("u", 0, 1, 10),
        ("t", 2, 0, 0), ("u", 2, 1, 0),
    ]  # fmt: skip
    frame = Frame(dict(zip(names, place, strict=True)) for place in inside + outside)
    batch: Any = SimpleNamespace(ranges=ranges)
    condition: Any = loader._inside(batch)
    assert [tuple(row.values()) for row in frame.where(condition).rows] == inside
    assert [tuple(row.values()) for row in frame.where(~condition).rows] == outside
    nothing: Any = SimpleNamespace(ranges={})
    assert frame.where(loader._inside(nothing)).count() == 0  # type: ignore[arg-type]


def test_windows_are_as_long_as_they_say() -> None:
    """Of the rows that stand for Spark's here."""
    (row,) = Frame([{"at": moment(-0.5)}]).select(made_up_frames.window("at", "1000 milliseconds", None)).rows
    assert (row["window"]["start"], row["window"]["end"]) == (moment(-1), moment(0))
    assert row["window"]["end"] - row["window"]["start"] == timedelta(seconds=1)
