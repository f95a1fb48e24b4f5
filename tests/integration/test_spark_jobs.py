"""Windows and joins of topics: what is over is in the table once, what is late is not, and no batch is doubled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pytest

from fastlog import Producer
from fastlog.envelope import Envelope, wrap
from fastlog.errors import ConfigError
from fastlog.message import encode_set
from fastlog.spark.lake import Lake, TableChange
from tests.harness.broker import Broker
from tests.harness.lake import rows_of, run_job
from tests.harness.raw_format import entries

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.java, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]

START = datetime(2026, 5, 17, 8, tzinfo=UTC)
TIME = ("--time", f"timestamp_seconds({int(START.timestamp())} + cast(split(cast(value AS string), ' ')[1] AS int))")
KEY = "split(cast(value AS string), ' ')[0]"


def produce(broker: Broker, topic: str, *messages: tuple[str, int]) -> None:
    """Messages with a key and the seconds since the start."""
    with broker.connect() as client:
        client.produce_ack(topic, 0, encode_set([b"%s %d" % (key.encode(), at) for key, at in messages]), acks=2)


def at(seconds: int) -> datetime:
    return START + timedelta(seconds=seconds)


def windows_in(table: Path) -> list[tuple[Any, ...]]:
    return sorted((row["window_start"], row["window_end"], row["who"], row["n"]) for row in rows_of(table))


def test_windows_that_are_over(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """Each comes once, when it is over; what comes later than that is counted as late; a batch is not done twice."""
    given = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, "--table", tmp_path / "table", "--no-progress")
    given = (*given, *TIME, "--window", "60s", "--late", "30s", "--by", f"who={KEY}")
    produce(broker, topic, ("a", 0), ("b", 10), ("a", 59), ("a", 60), ("a", 100))
    summary = run_job("counts", *given)
    assert (summary["read_rows"], summary["late"]) == (5, 0)
    assert windows_in(tmp_path / "table") == [(at(0), at(60), "a", 2), (at(0), at(60), "b", 1)]
    produce(broker, topic, ("a", 20), ("a", 95), ("c", 200))
    real = Lake.commit

    def unanswered(self: Lake, change: TableChange) -> None:
        patch.undo()
        real(self, change)
        raise OSError("made up, behind a transaction that is in the table")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lake, "commit", unanswered)
        summary = run_job("counts", *given)
    assert summary["passed_over"] == 1
    assert summary["late"] == 1
    assert windows_in(tmp_path / "table") == [
        (at(0), at(60), "a", 2),
        (at(0), at(60), "b", 1),
        (at(60), at(120), "a", 3),
    ]
    (tmp_path / "table" / "_fastlog" / "checkpoint" / "metadata").unlink()
    with pytest.raises(ConfigError, match="of a query whose state is lost"):
        run_job("counts", *given)


def test_windows_of_all(spark: SparkSession, broker: Broker, topic: str) -> None:
    """Tumbling, sliding and session windows of what there is, as lines; the reference counts them one by one."""
    times = [0, 5, 29, 30, 31, 70, 300, 301]
    produce(broker, topic, *(("a", second) for second in times))

    def counted(*more: str) -> list[tuple[datetime, datetime, int]]:
        summary = run_job("counts", "--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, *TIME, *more)
        assert summary["rows"] == len(summary["lines"])
        return [
            (
                datetime.fromisoformat(line["window_start"]),
                datetime.fromisoformat(line["window_end"]),
                line["n"],
            )
            for line in summary["lines"]
        ]

    def expected(length: int, slide: int) -> list[tuple[datetime, datetime, int]]:
        begins = range(-length, 600, slide)
        spans = [(begin, sum(begin <= second < begin + length for second in times)) for begin in begins]
        return [(at(begin), at(begin + length), count) for begin, count in spans if count]

    assert counted("--window", "30s") == expected(30, 30)
    assert counted("--window", "60s", "--slide", "20s") == expected(60, 20)
    assert counted("--session", "30s") == [(at(0), at(61), 5), (at(70), at(100), 1), (at(300), at(331), 2)]


def test_messages_without_a_time(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    """They are counted and told of; a stream, which has windows alone, says how many it leaves out."""
    produce(broker, topic, ("a", 0), ("a", 5), ("b", 200))
    given: Sequence[object] = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", topic)
    some = ("--time", f"if({KEY} = 'b', NULL, {TIME[1]})")
    for windows in (("--window", "30s"), ("--window", "60s", "--slide", "20s"), ("--session", "30s")):
        summary = run_job("counts", *given, *windows)
        assert (summary["counted"], summary["without_time"]) == (3, 3)
        assert [(line["window_start"], line["n"]) for line in summary["lines"]] == [(None, 3)]
    summary = run_job("counts", *given, *some, "--window", "30s")
    assert (summary["counted"], summary["without_time"]) == (3, 1)
    assert [(line["window_start"] is None, line["n"]) for line in summary["lines"]] == [(False, 2), (True, 1)]
    table = ("--table", tmp_path / "table", "--no-progress")
    summary = run_job("counts", *given, *some, "--window", "30s", *table)
    assert (summary["read_rows"], summary["without_time"]) == (3, 1)


def test_messages_with_messages(
    spark: SparkSession, broker: Broker, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Pairs within a span of time, each once; and what has no partner, once none can come any more."""
    views, clicks = new_topic(), new_topic()
    given: Sequence[object] = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", views, "--with", clicks, "--on", KEY)
    given = (*given, *TIME, "--within", "60s", "--late", "10s", "--keep-unmatched", "--table", tmp_path / "table")
    produce(broker, views, ("a", 0), ("b", 0), ("c", 5), ("d", 400), ("z", 1000))
    produce(broker, clicks, ("a", 30), ("b", 61), ("a", 60), ("x", 5), ("d", 399), ("d", 420), ("z", 1000), ("z", 2000))
    run_job("join", *given, "--no-progress")
    pairs = {(row["on"], row["left_time"], row["right_time"]) for row in rows_of(tmp_path / "table")}
    assert {pair for pair in pairs if pair[2] is not None} == {
        ("a", at(0), at(30)),
        ("a", at(0), at(60)),
        ("d", at(400), at(420)),
        ("z", at(1000), at(1000)),
    }
    assert {pair[0] for pair in pairs if pair[2] is None} == {"b", "c"}
    assert len(pairs) == len(rows_of(tmp_path / "table"))


def test_messages_with_a_table(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    people = tmp_path / "people.csv"
    people.write_text("id,name\na,Ada\nb,Bob\n")
    produce(broker, topic, ("a", 0), ("b", 10), ("c", 20), ("a", 30))
    given = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", topic, "--with-table", people, "--on", KEY, *TIME)
    summary = run_job("join", *given, "--other-on", "id", "--table", tmp_path / "table", "--no-progress")
    assert summary["rows"] == 3
    rows = rows_of(tmp_path / "table")
    assert sorted((row["on"], row["right_name"], row["left_time"]) for row in rows) == [
        ("a", "Ada", at(0)),
        ("a", "Ada", at(30)),
        ("b", "Bob", at(10)),
    ]


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("counts", ("--topic", "t")),
        ("counts", ("--topic", "t", "--window", "1s", "--session", "1s")),
        ("counts", ("--topic", "t", "--window", "1s", "--slide", "2s")),
        ("counts", ("--topic", "t", "--window", "1s", "--every", "1s")),
        ("join", ("--topic", "t", "--table", "x", "--on", "key")),
        ("join", ("--topic", "t", "--table", "x", "--on", "key", "--with", "u")),
    ],
)
def test_usage(name: str, given: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        run_job(name, *given)


def event(topic: str, seq: int, minute: int, count: int) -> bytes:
    """A monitoring event of one producer."""
    told = {"server": "web-1", "server_id": 7, "window_ms": 60_000, "producer_id": 5, "seq": seq, "n": count}
    window_start = int(START.timestamp() * 1000) + 60_000 * minute
    return json.dumps({**told, "topic": topic, "window_start": window_start}).encode()


def test_what_was_told_and_what_arrived(
    spark: SparkSession, broker: Broker, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Window by window, at once with a table that was loaded, and as a stream; events that come twice count once."""
    topic, told = new_topic(), new_topic()
    produce(broker, topic, *(("a", 60 * minute + second) for minute in range(6) for second in range(10)))
    events = [
        event(topic, seq, minute, count)
        for seq, (minute, count) in enumerate([(0, 4), (1, 11), (2, 8), (0, 6), (5, 11)])
    ]
    with broker.connect() as client:
        client.produce_ack(told, 0, encode_set([*events, events[0], b"no event", event("other", 9, 0, 3)]), acks=2)
    where = ("--brokers", f"127.0.0.1:{broker.port}", "--topic", topic)
    run_job("load", *where, *TIME, "--table", tmp_path / "loaded", "--no-progress")
    given = (*where, *TIME, "--events", told, "--late", "30s")
    expected = {at(60): "MISSING", at(120): "EXTRA", at(180): "UNREPORTED"}

    found = run_job("audit", *given, "--loaded", tmp_path / "loaded")
    assert found["code"] == 1
    assert found["windows"] == {"OK": 1, "MISSING": 2, "EXTRA": 1, "UNREPORTED": 1, "OPEN": 1}
    lines = {datetime.fromisoformat(line["window_start"]): line for line in found["lines"]}
    assert {start: line["state"] for start, line in lines.items()} == {**expected, at(300): "MISSING"}
    numbers = {name: lines[at(60)][name] for name in ("sent", "arrived", "loaded", "events")}
    assert numbers == {"sent": 11, "arrived": 10, "loaded": 10, "events": 1}

    found = run_job("audit", *given, "--table", tmp_path / "table", "--no-progress")
    assert (found["code"], found["windows"]) == (1, {"OK": 1, "MISSING": 1, "EXTRA": 1, "UNREPORTED": 1})
    states = {row["window_start"]: row["state"] for row in rows_of(tmp_path / "table")}
    assert states == {at(0): "OK", **expected}


def test_windows_that_may_grow_when_the_clocks_go_back(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever of the two hours of one name the newest window is in; no window at all is no error."""
    from fastlog.spark.jobs.audit import still_open

    rows = (
        "SELECT timestamp_seconds(s) AS window_start, s AS second, a AS arrived, 2 AS sent, 'OK' AS state FROM VALUES"
    )
    second_hour = int(datetime(2026, 10, 25, 1, 30, tzinfo=UTC).timestamp())
    try:
        monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
        time.tzset()
        for newest in (second_hour - 3600, second_hour):
            windows = spark.sql(
                f"{rows} ({newest - 601}, 2), ({newest - 600}, 1), ({newest - 599}, 3), ({newest}, 1) v(s, a)"
            )
            found = {row.second - newest: row.state for row in still_open(windows, 540, 60_000).collect()}
            assert found == {-601: "OK", -600: "OK", -599: "OPEN", 0: "MISSING"}
    finally:
        monkeypatch.undo()
        time.tzset()
    assert still_open(windows.where("second < 0"), 540, 60_000).collect() == []


def test_what_a_producer_tells_of_itself(
    spark: SparkSession, broker: Broker, new_topic: Callable[[], str], tmp_path: Path
) -> None:
    """Its messages and reports fit, also where some messages are there twice; and the load tells how long they took."""
    topic, told = new_topic(), new_topic()
    address = f"127.0.0.1:{broker.port}"
    with Producer(address, server="web-1", audit_topic=told, acks="flushed") as producer:
        for start in range(0, 300, 50):
            producer.send(topic, [b"%d" % number for number in range(start, start + 50)], partition=0)
    much_later = wrap(b"later", Envelope(time.time_ns() // 10**6 + 3_600_000, 7))
    with broker.connect() as client:
        copies = client.read_all(topic, 0)
        client.produce_ack(topic, 1, copies[: entries(copies)[9].next_offset] + encode_set([much_later]), acks=2)
    given = ("--brokers", address, "--topic", topic, "-o", "envelope=true", "-o", "includeEnvelope=true")
    ids = ("--column", "deduplicationId=deduplicationId", "--table", tmp_path / "loaded", "--no-progress")
    summary = run_job("load", *given, *ids)
    assert summary["rows"] == 311
    assert 0 < summary["latency_ms"]["p50"] <= summary["latency_ms"]["p95"]
    found = run_job("audit", *given, "--events", told, "--loaded", tmp_path / "loaded", "--late", "0s")
    assert (found["code"], found["lines"]) == (0, [])
    assert found["windows"].pop("OPEN") == 1
    assert set(found["windows"]) == {"OK"}
    assert found["windows"]["OK"] >= 1
