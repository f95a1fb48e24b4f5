"""What queries read, asked in Spark's order: every message once, over restarts, for each place to begin at."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.errors import BrokerMissingError, ConfigError, DataLossError, OffsetOutOfRangeError
from fastlog.spark.options import parse_options
from fastlog.spark.plans import BatchPlan, StreamPlan
from tests.harness.spark import Killed, MadeUpCluster, MadeUpSpark, partition_of


def stream_of(cluster: MadeUpCluster, **given: str) -> StreamPlan:
    options = parse_options({"brokers": "h", "subscribePattern": ".*", **given}, streaming=True)
    return StreamPlan(options, cluster)  # type: ignore[arg-type]


def spark_of(cluster: MadeUpCluster, **given: str) -> MadeUpSpark:
    return MadeUpSpark(cluster, lambda: stream_of(cluster, **given))


def ranges_of(cluster: MadeUpCluster, **given: str) -> list[tuple[str, int, int]]:
    """What a batch read reads."""
    options = parse_options({"brokers": "h", "subscribePattern": ".*", **given}, streaming=False)
    tasks = BatchPlan(options, cluster).tasks()  # type: ignore[arg-type]
    return [(f"{task.topic}/{task.broker}-{task.partition}", task.start, task.end) for task in tasks]


def all_rows(cluster: MadeUpCluster) -> list[Any]:
    return sorted((item, at) for item, borders in cluster.borders.items() for at in borders[:-1])


# -- streams -----------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 3), st.lists(st.integers(10, 200), min_size=1, max_size=6)),
        st.tuples(st.just("run"), st.sampled_from([None, "planned", "read", "written"]), st.integers(0, 3)),
    ),
    max_size=20,
)


@pytest.mark.slow
@settings(deadline=None)
@given(STEPS, st.sampled_from([None, 1, 100, 1000]), st.sampled_from(["earliest", "latest"]), st.booleans())
def test_every_message_once_over_kills(
    steps: list[Any], max_bytes: int | None, begin: str, available_now: bool
) -> None:
    """Kills at each point of a batch, in new processes each time, with appends and new partitions in between. With
    ``latest``: everything behind what was there when the first batch was planned.
    """
    cluster = MadeUpCluster(t_0_0=[50, 50])
    spark = spark_of(cluster, startingOffsets=begin)
    skipped: list[Any] | None = [] if begin == "earliest" else None
    for what, first, second in [*steps, ("run", None, 0)]:
        if what == "append":
            cluster.append(f"t/{first % 2}-{first}", *second)
            continue
        if skipped is None:
            skipped = all_rows(cluster)
        killed_at = len(spark.ends) + second

        def kill(point: str, batch: int, wanted: Any = first, number: int = killed_at) -> bool:
            return point == wanted and batch == number

        try:
            spark.run(max_bytes, available_now=available_now, kill=kill)
        except Killed:
            assert first is not None
    assert skipped is not None
    assert sorted(spark.all_rows) == [row for row in all_rows(cluster) if row not in skipped]


def test_a_first_batch_that_was_killed_is_not_skipped() -> None:
    """Spark wrote down the end of batch 0 only, and asks for its beginning anew: by then latest is somewhere else."""
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    spark = spark_of(cluster)
    spark.run()
    assert spark.rows == {0: []}
    cluster.append("t/0-0", 10, 10)
    with pytest.raises(Killed):
        spark.run(kill=lambda point, batch: point == "planned")
    cluster.append("t/0-0", *[10] * 100)
    spark.run()
    assert [at for _, at in spark.all_rows] == list(range(50, 50 + 1020, 10))
    assert len(spark.rows[1]) == 2


def test_a_kill_before_the_first_end_was_written() -> None:
    """Nothing was promised yet: the query begins where ``latest`` is when it is started again."""
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    plan = stream_of(cluster)
    assert plan.initial() == {"v": 1, "initial": "latest"}
    cluster.append("t/0-0", 10)
    assert stream_of(cluster).latest(plan.initial(), None) == {"v": 1, "topics": {"t": {"0-0": [60, 60]}}}


def test_nothing_new_is_the_same_offset() -> None:
    """The very object that Spark gave, whatever its order of keys: else it would run empty batches for ever."""
    cluster = MadeUpCluster(t_0_0=[10], t_0_1=[20])
    start = {"topics": {"t": {"0-1": [0, 20], "0-0": [0, 10]}}, "v": 1}
    assert stream_of(cluster).latest(start, None) is start
    cluster.append("t/0-1", 5)
    found = stream_of(cluster).latest(start, None)
    assert json.dumps(found) == '{"v": 1, "topics": {"t": {"0-0": [10, 10], "0-1": [20, 25]}}}'


def test_available_now_ends_where_it_began() -> None:
    """What is appended meanwhile, also to a new partition, is for the next run."""
    cluster = MadeUpCluster(t_0_0=[10] * 10)
    plan = stream_of(cluster, startingOffsets="earliest")
    plan.prepare()
    cluster.append("t/0-0", 10)
    cluster.append("t/0-1", 10)
    end = plan.latest(plan.initial(), None)
    assert end["topics"] == {"t": {"0-0": [0, 100]}}
    assert plan.latest(end, None) is end
    assert stream_of(cluster).latest(end, None)["topics"] == {"t": {"0-0": [100, 110], "0-1": [0, 10]}}


def test_latest_with_available_now_is_what_was_there_when_it_was_prepared() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 10)
    plan = stream_of(cluster)
    plan.prepare()
    cluster.append("t/0-0", 10)
    end = plan.latest(plan.initial(), None)
    assert end["topics"] == {"t": {"0-0": [100, 100]}}


def test_a_limit_below_one_message_moves_on() -> None:
    cluster = MadeUpCluster(t_0_0=[500, 400, 300])
    spark = spark_of(cluster, startingOffsets="earliest")
    spark.run(1)
    assert [len(rows) for rows in spark.rows.values()] == [1, 1, 1]


def test_a_topic_that_comes_later_is_read_from_its_beginning() -> None:
    cluster = MadeUpCluster()
    spark = spark_of(cluster)
    spark.run()
    cluster.append("t/0-0", 10, 20)
    spark.run()
    assert spark.all_rows == all_rows(cluster)


def test_tasks_of_a_batch() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 10, u_2_0=[10])
    plan = stream_of(cluster, startingOffsets="earliest", maxBytesPerPartition="40")
    tasks = plan.tasks(plan.latest(plan.initial(), None))
    assert [tuple(task)[:8] for task in tasks] == [
        ("t", 0, 0, "host0", 9092, 0, 40, 0),
        ("t", 0, 0, "host0", 9092, 40, 80, 0),
        ("t", 0, 0, "host0", 9092, 80, 100, 0),
        ("u", 2, 0, "host2", 9092, 0, 10, 0),
    ]
    assert plan.tasks({"v": 1, "initial": "latest"}) == []
    assert plan.report() == {"v": 1, "topics": {"t": {"0-0": [100, 100]}, "u": {"2-0": [10, 10]}}}
    assert stream_of(cluster).report() is None


# -- losses ------------------------------------------------------------------------------------------------------------


def lost_end(cluster: MadeUpCluster) -> dict[str, Any]:
    """An end at 50, of a log that is then changed."""
    end: dict[str, Any] = stream_of(cluster, startingOffsets="earliest").latest(stream_of(cluster).initial(), None)
    assert end["topics"]["t"]["0-0"][1] == 50
    cluster.append("t/0-0", *[10] * 5)
    return end


def test_retention_that_was_faster() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    end = lost_end(cluster)
    cluster.retain("t/0-0", 70)
    with pytest.raises(DataLossError, match="t/0-0: bytes 50 to 70 cannot be read any more: the log begins at 70"):
        stream_of(cluster).latest(end, None)
    found = stream_of(cluster, failOnDataLoss="false").latest(end, None)
    assert found["topics"] == {"t": {"0-0": [70, 100]}}


def test_retention_between_a_kill_and_the_replay() -> None:
    """The batch that was promised is not quietly a smaller one."""
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    end = stream_of(cluster, startingOffsets="earliest").latest({"v": 1, "initial": "earliest"}, None)
    cluster.retain("t/0-0", 30)
    with pytest.raises(DataLossError, match="bytes 0 to 30 cannot be read"):
        stream_of(cluster).tasks(end)
    (task,) = stream_of(cluster, failOnDataLoss="false").tasks(end)
    assert (task.start, task.end) == (30, 50)
    cluster.append("t/0-0", 10, 10)
    cluster.retain("t/0-0", 60)
    with pytest.raises(DataLossError, match="bytes 0 to 50 cannot be read"):
        stream_of(cluster).tasks(end)
    assert stream_of(cluster, failOnDataLoss="false").tasks(end) == []


@pytest.mark.parametrize("fails", ["true", "false"])
def test_retention_while_a_batch_is_planned(fails: str) -> None:
    """What is removed between two questions to the broker is named, or left out, as if it had gone before."""
    cluster = MadeUpCluster(t_0_0=[10] * 100)
    plan = stream_of(cluster, startingOffsets="earliest", maxBytesPerPartition="100", failOnDataLoss=fails)
    end = plan.latest(plan.initial(), None)
    check = cluster._check

    def removed_meanwhile(*arguments: Any) -> None:
        cluster._check = check  # type: ignore[method-assign]
        cluster.retain("t/0-0", 900)
        raise OffsetOutOfRangeError("gone")

    cluster._check = removed_meanwhile  # type: ignore[method-assign]
    if fails == "true":
        with pytest.raises(DataLossError, match="t/0-0: bytes 0 to 900 cannot be read"):
            plan.tasks(end)
    else:
        assert [(task.start, task.end) for task in plan.tasks(end)] == [(900, 1000)]


def test_what_is_lost_is_told_once_though_it_was_planned_again() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 100)
    plan = stream_of(cluster, startingOffsets="earliest", maxBytesPerPartition="100")
    end = plan.latest(plan.initial(), None)
    cluster.retain("t/0-0", 500)
    check = cluster._check

    def removed_meanwhile(*arguments: Any) -> None:
        cluster._check = check  # type: ignore[method-assign]
        cluster.retain("t/0-0", 900)
        raise OffsetOutOfRangeError("gone")

    cluster._check = removed_meanwhile  # type: ignore[method-assign]
    with pytest.raises(DataLossError) as caught:
        plan.tasks(end)
    assert str(caught.value).count("cannot be read") == 1
    assert "bytes 0 to 900" in str(caught.value)


def test_a_log_that_lost_its_tail() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    end = lost_end(cluster)
    cluster.cut("t/0-0", 40)
    with pytest.raises(DataLossError, match="bytes 40 to 50 cannot be read any more: the log ends at 40"):
        stream_of(cluster).latest(end, None)
    assert stream_of(cluster, failOnDataLoss="false").latest(end, None)["topics"] == {"t": {"0-0": [40, 40]}}


def test_a_log_that_lost_its_tail_between_a_kill_and_the_replay() -> None:
    """What is lost is what was promised behind the end, wherever the batch began."""
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    end = stream_of(cluster, startingOffsets="earliest").latest({"v": 1, "initial": "earliest"}, None)
    cluster.cut("t/0-0", 40)
    with pytest.raises(DataLossError, match="bytes 40 to 50 cannot be read any more: the log ends at 40"):
        stream_of(cluster).tasks(end)
    (task,) = stream_of(cluster, failOnDataLoss="false").tasks(end)
    assert (task.start, task.end) == (0, 40)


def test_a_log_that_was_made_anew_and_grew_past_the_old_end() -> None:
    """Its offsets are those of other messages. Who goes on begins at its start, once."""
    cluster = MadeUpCluster()
    cluster.make_anew("t/0-0", 1_000, *[10] * 5)
    plan = stream_of(cluster, startingOffsets="earliest")
    end = json.loads(json.dumps(plan.latest(plan.initial(), None)))
    assert end == {"v": 1, "topics": {"t": {"0-0": [0, 50]}}, "created": {"t": {"0-0": 1_000}}}
    assert [task.created_ms for task in plan.tasks(end)] == [1_000]
    assert plan.latest(end, None) is end
    cluster.make_anew("t/0-0", 2_000, *[10] * 9)
    gone = (
        r"t/0-0: the log was deleted and made anew at 1970-01-01T00:00:02.000\+00:00: offset {} is of the one that was"
        r" made at 1970-01-01T00:00:01.000\+00:00, .*; failOnDataLoss=false goes on"
    )
    with pytest.raises(DataLossError, match=gone.format(50)):
        stream_of(cluster).latest(end, None)
    with pytest.raises(DataLossError, match=gone.format(0)):
        stream_of(cluster).tasks(end)
    assert stream_of(cluster, failOnDataLoss="false").tasks(end) == []
    anew = stream_of(cluster, failOnDataLoss="false").latest(end, None)
    assert anew == {"v": 1, "topics": {"t": {"0-0": [0, 90]}}, "created": {"t": {"0-0": 2_000}}}
    assert stream_of(cluster).latest(anew, None) is anew
    assert [(task.start, task.end) for task in stream_of(cluster).tasks(anew)] == [(0, 90)]


@pytest.mark.parametrize(("before", "after"), [(0, 2_000), (1_000, 0)])
def test_a_log_of_which_one_side_does_not_know_when_it_was_made(before: int, after: int) -> None:
    """A checkpoint of an earlier version, a broker of one, a side file that was lost: the query goes on."""
    cluster = MadeUpCluster()
    cluster.make_anew("t/0-0", before, *[10] * 5)
    plan = stream_of(cluster, startingOffsets="earliest")
    end = plan.latest(plan.initial(), None)
    assert ("created" in end) == bool(before)
    cluster.created[partition_of("t/0-0")] = after
    assert stream_of(cluster).latest(end, None) is end
    cluster.append("t/0-0", 10)
    found = stream_of(cluster).latest(end, None)
    assert found == {"v": 1, "topics": {"t": {"0-0": [50, 60]}}, "created": {"t": {"0-0": before or after}}}
    assert [(task.start, task.end) for task in stream_of(cluster).tasks(found)] == [(50, 60)]


def test_a_loss_names_every_partition() -> None:
    cluster = MadeUpCluster(**{f"t_0_{number}": [10] * 5 for number in range(8)})
    end = stream_of(cluster, startingOffsets="earliest").latest({"v": 1, "initial": "earliest"}, None)
    for number in range(7):
        cluster.append(f"t/0-{number}", *[10] * 5)
        cluster.retain(f"t/0-{number}", 70)
    named = "".join(rf"t/0-{number}: bytes 50 to 70 [^;]*; " for number in range(5))
    with pytest.raises(DataLossError, match=f"^{named}and 2 more partitions; failOnDataLoss=false goes on"):
        stream_of(cluster).latest(end, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"subscribe": "t,tt"}, "no broker has 'tt': read from the beginning as soon as it is there"),
        ({"assign": '{"t": ["0-0", "0-7"]}'}, "no broker has t/0-7: read"),
        ({"subscribePattern": "x.*"}, "no broker has a topic whose name is 'x.*': read"),
        ({"subscribe": "t"}, ""),
    ],
)
def test_a_stream_of_what_is_not_there(given: dict[str, str], said: str, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on, since a topic may come later; a name that was misspelt is told of once."""
    cluster = MadeUpCluster(t_0_0=[10])
    options = parse_options({"brokers": "h", **given}, streaming=True)
    cluster.wants = options.wants
    plan = StreamPlan(options, cluster)  # type: ignore[arg-type]
    for _ in range(2):
        plan.latest(plan.initial(), None)
    assert [record.getMessage()[: len(said)] for record in caplog.records] == ([said] if said else [])


def test_a_batch_read_while_a_broker_is_missing(caplog: pytest.LogCaptureFixture) -> None:
    """Half of the rows are an error that says what to do, or a warning; a stream reads them later."""
    cluster = MadeUpCluster(t_0_0=[10], t_1_0=[10], t_1_1=[10])
    cluster.away = {1}
    with pytest.raises(BrokerMissingError, match=r"broker 1 \(t/1-0, t/1-1\): .*failOnDataLoss=false.*forget-broker 1"):
        ranges_of(cluster)
    assert ranges_of(cluster, failOnDataLoss="false") == [("t/0-0", 0, 10)]
    plan = stream_of(cluster, startingOffsets="earliest")
    for _ in range(3):
        end = plan.latest(plan.initial(), None)
    assert end["topics"] == {"t": {"0-0": [0, 10]}}
    assert caplog.text.count("broker 1 (t/1-0, t/1-1): what is there is read") == 2
    cluster.away = set()
    assert stream_of(cluster).latest(end, None)["topics"]["t"]["1-1"] == [0, 10]


def test_a_partition_that_is_gone_stays_in_the_offset() -> None:
    cluster = MadeUpCluster(t_0_0=[10], t_1_0=[10])
    end = stream_of(cluster, startingOffsets="earliest").latest({"v": 1, "initial": "earliest"}, None)
    del cluster.borders[partition_of("t/1-0")]
    with pytest.raises(DataLossError, match=r"t/1-0: .* does not have the partition any more"):
        stream_of(cluster).latest(end, None)
    cluster.append("t/0-0", 10)
    found = stream_of(cluster, failOnDataLoss="false").latest(end, None)
    assert found["topics"] == {"t": {"0-0": [10, 20], "1-0": [10, 10]}}


def test_a_topic_that_was_taken_out_of_the_options() -> None:
    """It is left where it was, and goes on there when it comes back; a batch that was promised still needs it."""
    cluster = MadeUpCluster(t_0_0=[10], u_0_0=[10])
    begun = stream_of(cluster, startingOffsets="earliest").latest({"v": 1, "initial": "earliest"}, None)
    cluster.append("t/0-0", 10)
    cluster.append("u/0-0", 10)

    def without_u() -> StreamPlan:
        options = parse_options({"brokers": "h", "subscribe": "t"}, streaming=True)
        cluster.wants = options.wants
        return StreamPlan(options, cluster)  # type: ignore[arg-type]

    with pytest.raises(DataLossError, match=r"u/0-0: bytes 0 to 10 .* the query does not read the topic"):
        without_u().tasks(begun)
    end = without_u().latest(begun, None)
    assert end["topics"] == {"t": {"0-0": [10, 20]}, "u": {"0-0": [10, 10]}}
    cluster.wants = lambda partition: True
    assert stream_of(cluster).latest(end, None)["topics"]["u"] == {"0-0": [10, 20]}


# -- places ------------------------------------------------------------------------------------------------------------


def test_a_batch_read_is_everything_by_default() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 5, t_0_1=[], u_0_0=[7])
    cluster.retain("t/0-0", 20)
    assert ranges_of(cluster) == [("t/0-0", 20, 50), ("u/0-0", 0, 7)]


def test_offsets_for_each_partition() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 5, t_0_1=[10] * 5)
    assert ranges_of(
        cluster,
        startingOffsets='{"t": {"0-0": 20, "0-1": -2}}',
        endingOffsets='{"t": {"0-0": -1, "0-1": 30}}',
    ) == [("t/0-0", 20, 50), ("t/0-1", 0, 30)]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"startingOffsets": '{"t": {"0-0": 25}}'}, "no message of t/0-0 begins at 25; the next one begins at 30"),
        ({"endingOffsets": '{"t": {"0-0": 25}}'}, "endingOffsets: no message of t/0-0 begins at 25"),
        ({"startingOffsets": '{"t": {"0-1": 0}}'}, "^startingOffsets: t/0-0 is to be read, and not named"),
        (
            {"startingOffsets": '{"t": {"0-0": 0, "0-1": 0}}'},
            "^startingOffsets: t/0-1 is named, and there is no such partition",
        ),
        (
            {"endingOffsetsByTimestamp": '{"t": {"0-1": 0}}'},
            "^endingOffsetsByTimestamp: t/0-0 is to be read, and not named",
        ),
        ({"endingOffsets": '{"t": {"0-0": 60}}'}, "endingOffsets: t/0-0 ends at 50, before 60"),
        (
            {"startingOffsets": '{"t": {"0-0": 30}}', "endingOffsets": '{"t": {"0-0": 20}}'},
            "t/0-0 would begin at 30 and end at 20",
        ),
    ],
)
def test_offsets_that_do_not_fit(given: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        ranges_of(MadeUpCluster(t_0_0=[10] * 5), **given)


def test_a_stream_that_is_to_begin_inside_a_message() -> None:
    plan = stream_of(MadeUpCluster(t_0_0=[10] * 5), startingOffsets='{"t": {"0-0": 25}}')
    with pytest.raises(ConfigError, match="begins at 25; the next one begins at 30"):
        plan.latest(plan.initial(), None)


def test_a_start_before_the_log_is_a_loss() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    cluster.retain("t/0-0", 20)
    with pytest.raises(DataLossError, match="bytes 10 to 20"):
        ranges_of(cluster, startingOffsets='{"t": {"0-0": 10}}')
    assert ranges_of(cluster, startingOffsets='{"t": {"0-0": 10}}', failOnDataLoss="false") == [("t/0-0", 20, 50)]


def test_times() -> None:
    cluster = MadeUpCluster(t_0_0=[10] * 5)
    cluster.times[partition_of("t/0-0")] = {100: 20, 200: 40, 300: None}
    assert ranges_of(cluster, startingTimestamp="100", endingTimestamp="200") == [("t/0-0", 20, 40)]
    assert ranges_of(cluster, startingTimestamp="100", endingTimestamp="300") == [("t/0-0", 20, 50)]
    assert ranges_of(cluster, startingOffsetsByTimestamp='{"t": {"0-0": 200}}') == [("t/0-0", 40, 50)]
    with pytest.raises(ConfigError, match="nothing was appended to t/0-0 at or after 300"):
        ranges_of(cluster, startingTimestamp="300")
    assert ranges_of(cluster, startingTimestamp="300", startingOffsetsByTimestampStrategy="latest") == []


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"subscribe": "t,u"}, "no broker has the topic 'u'"),
        ({"assign": '{"t": ["0-0", "1-0"]}'}, "assign: there is no t/1-0"),
    ],
)
def test_a_batch_read_of_what_is_not_there(given: dict[str, str], what: str) -> None:
    options = parse_options({"brokers": "h", **given}, streaming=False)
    with pytest.raises(ConfigError, match=what):
        BatchPlan(options, MadeUpCluster(t_0_0=[1])).tasks()  # type: ignore[arg-type]
