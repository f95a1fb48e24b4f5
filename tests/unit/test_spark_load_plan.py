"""What a load reads next: from where the table stands, up to where it should, and what it says of what is lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fastlog.errors import (
    BrokerMissingError,
    ConfigError,
    DataLossError,
    MissingDependencyError,
    RangeIncompleteError,
    TransportError,
)
from fastlog.spark.jobs import command
from fastlog.spark.jobs.latency import MessageLatencies
from fastlog.spark.jobs.load import checked_columns, parse_place, starting_options
from fastlog.spark.jobs.load_plan import BATCHES, LoadPlan, encode_lost
from fastlog.spark.offsets import OffsetRange, OffsetSpec, log_number
from fastlog.spark.options import parse_options
from tests.harness.spark import MadeUpCluster, partition_of


class Table:
    """Remembers numbers; ``do`` checks and takes the steps of a transaction."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def number(self, name: str) -> int | None:
        return self.numbers.get(name)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.numbers if name.startswith(prefix)]

    def do(self, steps: Any) -> None:
        for name, (before, after) in steps.items():
            assert self.numbers.get(name) == before
            self.numbers[name] = after


def plan_of(
    cluster: MadeUpCluster, table: Table, max_bytes: int = 2**30, *, loss_option: str = "x", **given: str
) -> LoadPlan:
    """A plan for the topic ``t``."""
    options = parse_options({"brokers": "h:1", "subscribe": "t", **given}, streaming=None)
    options = replace(options, loss_option=loss_option)
    cluster.wants = options.wants
    return LoadPlan(options, cluster, table, max_bytes)  # type: ignore[arg-type]


def load(plan: LoadPlan, table: Table, **given: Any) -> list[dict[str, tuple[int, int]]]:
    """Run to the end; the ranges of each batch by partition."""
    found = []
    table.do(plan.beginnings())
    while batch := plan.next(plan.targets()):
        table.do(batch.steps)
        found.append({str(partition): tuple(interval) for partition, interval in batch.ranges.items()})
    return found


def test_batches_meet_and_reach_the_end() -> None:
    """Each begins where the table stands; a limit that is smaller than a message still brings one of each partition."""
    cluster, table = MadeUpCluster(t_0_0=[10] * 5, t_1_0=[30]), Table()
    plan = plan_of(cluster, table, max_bytes=40)
    first, second = load(plan, table)
    assert first == {"t/0-0": (0, 20), "t/1-0": (0, 30)}
    assert second == {"t/0-0": (20, 50)}
    assert table.numbers == {"fastlog:t/0-0": 50, "fastlog:t/1-0": 30, BATCHES: 1}
    cluster.append("t/0-0", 10, 10)
    assert load(plan_of(cluster, table, max_bytes=1), table) == [{"t/0-0": (50, 60)}, {"t/0-0": (60, 70)}]


def test_how_far_it_is_behind() -> None:
    """What is visible and in no batch yet: bytes of messages, and records of record batches."""
    cluster, table = MadeUpCluster(t_0_0=[10] * 5, t_1_0=[30]), Table()
    plan = plan_of(cluster, table, max_bytes=40)
    table.do(plan.beginnings())
    assert plan.left == (0, 0)
    targets = plan.targets()
    cluster.append("t/0-0", 7)
    for left in ((37, 0), (7, 0), (7, 0)):
        batch = plan.next(targets)
        assert plan.left == left
        if batch is not None:
            table.do(batch.steps)
    assert batch is None
    cluster.created[partition_of("t/0-0")] = log_number(b"0123456789abcdef")
    table.numbers["fastlog.created:t/0-0"] = cluster.created[partition_of("t/0-0")]
    assert plan.next(targets) is None and plan.left == (0, 7)
    assert plan.next(None) is not None and plan.left == (0, 0)


def test_a_beginning_is_written_down_once() -> None:
    """A topic begins at its end as it was at first; a partition that comes later is read from its first message."""
    cluster, table = MadeUpCluster(t_0_0=[10, 10]), Table()
    plan = plan_of(cluster, table, startingOffsets="latest")
    assert load(plan, table) == []
    cluster.append("t/0-0", 10)
    cluster.append("t/0-1", 10)
    assert load(plan_of(cluster, table, startingOffsets="latest"), table) == [{"t/0-0": (20, 30), "t/0-1": (0, 10)}]


@pytest.mark.parametrize(("start", "begins"), [(0, True), (15, False), (20, True)])
def test_a_beginning_is_where_a_message_begins(start: int, begins: bool) -> None:
    """Who names a place inside one is told where the next one begins, before anything is written down."""
    cluster, table = MadeUpCluster(t_0_0=[10] * 5), Table()
    plan = plan_of(cluster, table, startingOffsets=f'{{"t": {{"0-0": {start}}}}}')
    if begins:
        table.do(plan.beginnings())
        assert table.numbers["fastlog:t/0-0"] == start
    else:
        with pytest.raises(ConfigError, match="no message of t/0-0 begins at 15; the next one begins at 20"):
            plan.beginnings()
        assert table.numbers == {}


def test_targets_are_not_passed() -> None:
    cluster, table = MadeUpCluster(t_0_0=[10]), Table()
    plan = plan_of(cluster, table)
    table.do(plan.beginnings())
    targets = plan.targets()
    cluster.append("t/0-0", 10)
    cluster.append("t/0-1", 10)
    batch = plan.next(targets)
    assert batch is not None
    table.do(batch.steps)
    assert batch.ranges == {partition_of("t/0-0"): OffsetRange(0, 10)}
    assert plan.next(targets) is None
    table.do(plan.beginnings())
    batch = plan.next(None)
    assert batch is not None and sorted(map(str, batch.ranges)) == ["t/0-0", "t/0-1"]


def test_what_retention_took_is_an_error_or_written_down() -> None:
    cluster, table = MadeUpCluster(t_0_0=[10] * 6), Table()
    table.numbers = {"fastlog:t/0-0": 10, "fastlog.lost:t/0-0": 7}
    cluster.retain("t/0-0", 30)
    with pytest.raises(DataLossError, match="t/0-0: bytes 10 to 30 cannot be read any more: the log begins at 30"):
        plan_of(cluster, table).next(None)
    batch = plan_of(cluster, table, failOnDataLoss="false").next(None)
    assert batch is not None
    assert batch.ranges == {partition_of("t/0-0"): OffsetRange(30, 60)}
    assert (batch.lost_bytes, batch.size_bytes) == (20, 30)
    assert batch.notes()["lost"] == encode_lost(batch.lost) == {"t": {"0-0": [[10, 30]]}}
    table.do(batch.steps)
    assert table.numbers == {"fastlog:t/0-0": 60, "fastlog.lost:t/0-0": 27, BATCHES: 0}
    cluster.append("t/0-0", 10)
    cluster.retain("t/0-0", 70)
    batch = plan_of(cluster, table, failOnDataLoss="false").next(None)
    assert batch is not None and not batch.to_read and batch.lost_bytes == 10, "lost, and nothing to read"
    table.do(batch.steps)
    assert plan_of(cluster, table).next(None) is None


@pytest.mark.parametrize("skip", ["true", "false"])
def test_a_log_that_is_too_short_is_never_gone_on_from(skip: str) -> None:
    """Its offsets will be those of other messages."""
    cluster, table = MadeUpCluster(t_0_0=[10]), Table()
    table.numbers = {"fastlog:t/0-0": 20}
    with pytest.raises(RangeIncompleteError, match="t/0-0: the table has it up to 20, and the log ends at 10"):
        plan_of(cluster, table, failOnDataLoss=skip).next(None)


def test_a_log_that_was_made_anew_and_grew_past_what_the_table_has() -> None:
    """Who goes on has all of the new log, and the table says that there was another one."""
    cluster, table = MadeUpCluster(), Table()
    one = partition_of("t/0-0")
    cluster.make_anew("t/0-0", 1_000, *[10] * 5)
    load(plan_of(cluster, table), table)
    assert table.numbers == {"fastlog:t/0-0": 50, "fastlog.created:t/0-0": 1_000, BATCHES: 0}
    for size in (2, 9):  # shorter than what the table has of the old one, and longer
        cluster.make_anew("t/0-0", 2_000, *[10] * size)
        with pytest.raises(DataLossError, match="t/0-0: the log was deleted and made anew at"):
            plan_of(cluster, table).next(None)
    with pytest.raises(ConfigError, match="rows of a log of t/0-0 that was deleted and made anew"):
        plan_of(cluster, table).again(OffsetSpec("earliest"))
    plan = plan_of(cluster, table, failOnDataLoss="false")
    batch = plan.next(None)
    assert batch is not None
    assert (batch.ranges, batch.lost) == ({one: OffsetRange(0, 90)}, {one: [OffsetRange(50, 50)]})
    assert [task.created_ms for task in plan.tasks(batch)] == [2_000]
    table.do(batch.steps)
    assert plan_of(cluster, table).next(None) is None
    with pytest.raises(ConfigError, match="rows of a log of t/0-0 that was deleted and made anew"):
        plan_of(cluster, table).again(OffsetSpec("earliest"))
    cluster.make_anew("t/0-0", 3_000)
    batch = plan_of(cluster, table, failOnDataLoss="false").next(None)
    assert batch is not None and not batch.to_read
    table.do(batch.steps)
    assert plan_of(cluster, table).next(None) is None
    assert (table.numbers["fastlog:t/0-0"], table.numbers["fastlog.anew:t/0-0"]) == (0, 2)


def test_a_table_of_an_earlier_version_learns_of_which_log_it_is() -> None:
    cluster, table = MadeUpCluster(t_0_0=[10] * 5), Table()
    load(plan_of(cluster, table), table)
    assert "fastlog.created:t/0-0" not in table.numbers
    cluster.created[partition_of("t/0-0")] = 1_000
    assert load(plan_of(cluster, table), table) == []
    cluster.append("t/0-0", 10)
    assert load(plan_of(cluster, table), table) == [{"t/0-0": (50, 60)}]
    assert table.numbers["fastlog.created:t/0-0"] == 1_000


def test_again_from_a_place() -> None:
    """Up to where the table stands, which does not move; partitions that are not named are left alone."""
    cluster, table = MadeUpCluster(t_0_0=[10] * 5, t_0_1=[10] * 5), Table()
    table.numbers = {"fastlog:t/0-0": 40, "fastlog:t/0-1": 20, BATCHES: 3}
    plan = plan_of(cluster, table)
    one = partition_of("t/0-0")
    batch = plan.again(OffsetSpec("offsets", by_partition=((one, 20),)))
    assert batch is not None
    assert batch.ranges == {one: OffsetRange(20, 40)}
    assert batch.steps == {BATCHES: (3, 4), "fastlog:t/0-0": (40, 40)}
    cluster.times = {one: {5: 30}, partition_of("t/0-1"): {5: None}}
    batch = plan_of(cluster, table, startingOffsetsByTimestampStrategy="latest", startingTimestamp="0").again(
        OffsetSpec("time", time_ms=5)
    )
    assert batch is not None and batch.ranges == {one: OffsetRange(30, 40)}
    assert plan.again(OffsetSpec("offsets", by_partition=((one, 40),))) is None
    with pytest.raises(ConfigError, match="no message of t/0-0 begins at 15; the next one begins at 20"):
        plan.again(OffsetSpec("offsets", by_partition=((one, 15),)))
    cluster.retain("t/0-0", 30)
    with pytest.raises(DataLossError, match="bytes 0 to 30"):
        plan.again(OffsetSpec("offsets", by_partition=((one, 0),)))
    batch = plan_of(cluster, table, failOnDataLoss="false").again(OffsetSpec("offsets", by_partition=((one, 0),)))
    assert batch is not None
    assert (batch.ranges, batch.lost) == ({one: OffsetRange(30, 40)}, {}), (
        "what is not there any more stays in the table"
    )


def test_a_broker_that_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """Half of a topic is no load of it, unless what the broker has is read when it is back."""
    cluster, table = MadeUpCluster(t_0_0=[10], t_1_0=[10]), Table()
    cluster.away = {1}
    with pytest.raises(
        BrokerMissingError, match=r"broker 1 \(t/1-0\): start it again, or --skip-lost reads without it"
    ):
        plan_of(cluster, table, loss_option="--skip-lost").targets()
    assert plan_of(cluster, table).targets(complete=False).keys() == {partition_of("t/0-0")}
    assert plan_of(cluster, table, failOnDataLoss="false").targets().keys() == {partition_of("t/0-0")}
    assert caplog.text.count("broker 1 (t/1-0): what is there is read") == 2


def test_what_the_table_has_and_no_broker(caplog: pytest.LogCaptureFixture) -> None:
    """A partition is missing that is known to the table alone: its broker is away, or does not have it any more."""
    cluster, table = MadeUpCluster(t_0_0=[10]), Table()
    table.numbers = {"fastlog:t/0-0": 10, "fastlog:t/2-0": 10, "fastlog:u/3-0": 5, BATCHES: 0}
    with pytest.raises(DataLossError, match="the table has t/2-0, and the broker does not have that any more"):
        plan_of(cluster, table).targets()
    assert plan_of(cluster, table, failOnDataLoss="false").targets().keys() == {partition_of("t/0-0")}
    cluster.away = {2}
    with pytest.raises(BrokerMissingError, match=r"broker 2 \(t/2-0\)"):
        plan_of(cluster, table).targets()


def test_places_on_the_command_line() -> None:
    assert parse_place("Earliest") == OffsetSpec("earliest")
    assert parse_place("1431820800000") == parse_place("2015-05-17") == parse_place("2015-05-17T02:00:00+02:00")
    assert parse_place('{"t": {"0-0": 5}}').by_partition == ((partition_of("t/0-0"), 5),)
    assert starting_options("2015-05-17")["startingTimestamp"] == "1431820800000"
    assert starting_options("latest") == {"startingOffsets": "latest"}
    for text in ("yesterday", "{", '{"t": 1}', "-5"):
        with pytest.raises(ConfigError):
            parse_place(text)
    assert checked_columns({"size": "length(value)"}) == {"size": "length(value)"}
    with pytest.raises(ConfigError, match="the table has one of that name"):
        checked_columns({"Offset": "1"})


def test_latencies() -> None:
    """Within about one percent, whatever their size; clocks that differ give no negative ones."""
    found = MessageLatencies()
    assert found.to_json() is None
    found.add(np.arange(1, 100_001, dtype=np.int64) * 1000)
    found.add(np.array([-5_000_000], np.int64))
    assert found.percentile(0.5) == pytest.approx(50_000, rel=0.02)
    assert found.percentile(0.95) == pytest.approx(95_000, rel=0.02)
    assert found.percentile(0.0) == pytest.approx(1, rel=0.02)


def test_what_is_tried_again() -> None:
    """A broker or a worker that is gone may be back; a wrong expression, option or way to start Spark stays wrong."""
    spark_errors = pytest.importorskip("pyspark.errors")
    assert command.may_pass(TransportError("away"))
    assert command.may_pass(spark_errors.PySparkException("a task was lost"))
    assert not command.may_pass(spark_errors.AnalysisException("no such column"))
    assert not command.may_pass(ValueError("ours"))
    planned = "[PYTHON_DATA_SOURCE_ERROR] Failed to generate read partitions: Traceback\nfastlog.errors.{}: {}\n"
    assert command.may_pass(spark_errors.AnalysisException(planned.format("TransportError", "away")))
    for error in (
        spark_errors.PySparkRuntimeError("CANNOT_CONFIGURE_SPARK_CONNECT_MASTER"),
        spark_errors.PySparkRuntimeError("JAVA_GATEWAY_EXITED"),
        spark_errors.NumberFormatException("x"),
        spark_errors.AnalysisException(planned.format("ConfigError", "no such option")),
        ConfigError("no such option"),
        DataLossError("bytes 1 to 2"),
        MissingDependencyError("no Java"),
        PermissionError(13, "Permission denied"),
    ):
        assert not command.may_pass(error), error
    assert str(command.for_good(spark_errors.AnalysisException("no such column"))).startswith(
        "no such column\nSpark says"
    )
    assert isinstance(command.for_good(spark_errors.AnalysisException(planned.format("ConfigError", "x"))), ConfigError)
