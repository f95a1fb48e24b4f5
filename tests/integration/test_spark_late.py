"""Messages that are late: in a table of their own, each once, and nowhere else; all others are in a row."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from fastlog.errors import ConfigError
from fastlog.message import encode_set
from fastlog.spark.lake import Lake, TableChange
from tests.harness.broker import Broker
from tests.harness.lake import rows_of, run_job

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

START = datetime(1970, 1, 1, tzinfo=UTC)
TIME = ("--time", "timestamp_seconds(cast(split(cast(value AS string), ' ')[1] AS int))")
KEY = "split(cast(value AS string), ' ')[0]"
TICK = 10_000
BATCH_BYTES = 200


def times(chance: random.Random) -> list[int]:
    """Of messages, in seconds, that go on with leaps back; the last one ends all windows before it."""
    made = [at * 10 - chance.choice((0, 0, 0, 5, 40, 200, 400)) for at in range(50)]
    return [-100, 0, *made, TICK]


def produce(broker: Broker, topic: str, seconds: list[int], keys: str) -> None:
    """A message each, of which a batch takes about ten."""
    with broker.connect() as client:
        for number, at in enumerate(seconds):
            value = b"%s %d %d" % (keys[number % len(keys)].encode(), at, number)
            client.produce_ack(topic, 0, encode_set([value]), acks=2)


@contextmanager
def killed_between(table: Path) -> Iterator[list[int]]:
    """The third transaction of a table does not come the first time: what is late is in the other one then."""
    real = Lake.commit
    count = [0]

    def commit(self: Lake, change: TableChange) -> None:
        if self.location.text == str(table):
            count[0] += 1
            if count[0] == 3:
                raise OSError("made up, before a transaction")
        real(self, change)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "commit", commit)
        yield count


def seconds_of(row: dict[str, Any], name: str) -> int:
    return round((row[name] - START).total_seconds())


def number_of(value: bytes) -> int:
    return int(value.split()[2])


@pytest.mark.parametrize(
    ("length", "slide", "given"),
    [(60, 20, ("--window", "60s", "--slide", "20s")), (0, 0, ("--session", "30s"))],
    ids=["sliding", "sessions"],
)
def test_each_message_is_counted_or_late(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path, length: int, slide: int, given: tuple[str, ...]
) -> None:
    """Window by window, also where a batch was cut off between the two tables, and runs again."""
    seconds = times(random.Random(3))
    produce(broker, topic, seconds, "ab")
    where = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, *TIME, "--max-bytes", BATCH_BYTES, *given)
    tables = ("--table", tmp_path / "table", "--late-table", tmp_path / "late", "--late", "50s", "--no-progress")
    with killed_between(tmp_path / "table") as commits:
        summary = run_job("counts", *where, *tables)
    assert commits[0] > 3
    assert summary["failures"] == 1
    late, rows = rows_of(tmp_path / "late"), rows_of(tmp_path / "table")
    assert summary["late_table"] == {"table": str(tmp_path / "late"), "rows": len(late)}
    assert summary["late"] > 1
    values = {row["offset"]: int(row["value"].split()[1]) for row in late}
    assert all(seconds_of(row, "time") == values[row["offset"]] for row in late)
    assert -100 in values.values()  # before 1970, where every watermark begins
    if not slide:
        assert len(late) == len(values)
        assert sum(row["n"] for row in rows) + len(late) == len(seconds) - 1
        return
    found: Counter[int] = Counter()
    for row in late:
        assert seconds_of(row, "window_end") <= seconds_of(row, "watermark")
        assert row["window_end"] - row["window_start"] == timedelta(seconds=length)
        found[seconds_of(row, "window_start")] += 1
    assert len({(row["offset"], row["window_start"]) for row in late}) == len(late)
    for row in rows:
        found[seconds_of(row, "window_start")] += row["n"]
    over = range(-600, TICK - 50 - length, slide)
    expected = {begin: sum(begin <= at < begin + length for at in seconds) for begin in over}
    assert found == {begin: count for begin, count in expected.items() if count}


def test_each_message_finds_its_partners_or_is_late(
    spark: SparkSession, broker: Broker, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Both sides; Spark's own number of what it has dropped is that of the table. Keys that are null are counted."""
    views, clicks = new_topic(), new_topic()
    both = [times(random.Random(seed)) for seed in (5, 6)]
    for topic, seconds in zip((views, clicks), both, strict=True):
        produce(broker, topic, seconds, "abc")
    where = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", views, "--with", clicks, "--max-bytes", BATCH_BYTES)
    key = f"if({KEY} = 'c', NULL, {KEY})"
    tables = ("--table", tmp_path / "table", "--late-table", tmp_path / "late", "--no-progress")
    summary = run_job("join", *where, *TIME, "--on", key, "--within", "60s", "--late", "50s", *tables)
    late = rows_of(tmp_path / "late")
    assert summary["late"] == summary["late_table"]["rows"] == len(late) > 2
    assert summary["without_key"] == sum(len(seconds) // 3 for seconds in both)
    assert {row["reason"].partition(":")[0] for row in late} == {"left", "right"}
    gone = {(row["topic"], number_of(row["value"])) for row in late}
    kept = [
        [(number, at) for number, at in enumerate(seconds) if number % 3 < 2 and (topic, number) not in gone]
        for topic, seconds in zip((views, clicks), both, strict=True)
    ]
    expected = {(a, b) for a, at in kept[0] for b, then in kept[1] if a % 3 == b % 3 and at <= then <= at + 60}
    rows = rows_of(tmp_path / "table")
    pairs = [(number_of(row["left_value"]), number_of(row["right_value"])) for row in rows]
    assert sorted(pairs) == sorted(expected)


def test_a_table_for_both_is_refused(broker: Broker, tmp_path: Path) -> None:
    given = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", "t", "--window", "1s", "--table", tmp_path)
    with pytest.raises(ConfigError, match="is the table that is filled"):
        run_job("counts", *given, "--late-table", tmp_path)
