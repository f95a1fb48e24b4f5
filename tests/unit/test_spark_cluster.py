"""What the driver learns from brokers: those of fastlog, and those of Kafka 0.7 that tell less."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.errors import (
    ConfigError,
    ConsumerTimeout,
    InvalidMessageError,
    NotAuthorizedError,
    PartitionOfflineError,
    TransportError,
)
from fastlog.spark.cluster import PartitionBounds, QueryCluster
from fastlog.spark.offsets import OffsetRange
from fastlog.spark.options import parse_options
from fastlog.spark.plans import BatchPlan
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import PAYLOADS, with_log
from tests.harness.fake_broker import FakeBroker, cut_points
from tests.harness.spark import partition_of

LOG = pack(PAYLOADS)
ENTRY = len(LOG) // len(PAYLOADS)
T00 = partition_of("t/0-0")
QUICK = {"fetch.numRetries": "1", "fetch.retryIntervalMs": "1", "fetch.timeout.ms": "5000"}


def cluster_of(brokers: str, **given: str) -> QueryCluster:
    chosen = given or {"subscribe": "t"}
    return QueryCluster(parse_options({"brokers": brokers, **QUICK, **chosen}, streaming=False))


def answer_of(request: rq.MetadataRequest, *partitions: rs.PartitionMetadata, broker_id: int = 0) -> bytes:
    topics = (rs.TopicMetadata("t", 0, len(partitions), partitions),)
    answer = rs.MetadataAnswer(
        request.correlation_id, 0, broker_id, "h", 1, 1000, 10**6, 1000, rq.LOWEST_OWN, rq.HIGHEST_OWN, topics
    )
    return rs.encode_metadata(answer)


@pytest.fixture(params=[True, False], ids=["fastlog", "plain 0.7"])
def both(request: pytest.FixtureRequest) -> Any:
    """A broker with a log, and what a query names it by."""
    with with_log(LOG, own=request.param) as fake:
        cluster = cluster_of(f"0@{fake.address}", assign='{"t": ["0-0"]}', **{"fetch.size": "300"})
        assert cluster.bounds() == {T00: PartitionBounds(0, len(LOG), len(LOG))}
        yield cluster
        cluster.close()


@pytest.mark.parametrize("step", [1, ENTRY, ENTRY + 1, 5 * ENTRY, len(LOG), 10**9])
def test_boundaries(both: QueryCluster, step: int) -> None:
    """Real ones, ascending, from the start on and at least a step apart but for the last."""
    end = 150 * ENTRY
    points = both.between(T00, OffsetRange(2 * ENTRY, end), step)
    assert points[0] == 2 * ENTRY
    assert all(point % ENTRY == 0 for point in points)
    assert all(later - earlier >= step for earlier, later in itertools.pairwise(points[:-1]))
    assert points == sorted(set(points))
    assert points[-1] <= end
    if step <= 5 * ENTRY:
        assert points[-1] > end - step - ENTRY


def test_boundaries_before_a_place_inside_a_message(both: QueryCluster) -> None:
    points = both.between(T00, OffsetRange(0, 3 * ENTRY - 1), 1)
    assert points == [0, ENTRY, 2 * ENTRY]
    assert both.between(T00, OffsetRange(0, ENTRY - 1), 1) == [0]


@pytest.mark.parametrize("walked", [1, ENTRY, 7 * ENTRY, 50 * ENTRY])
@pytest.mark.parametrize("step", [1, 3 * ENTRY, 20 * ENTRY])
def test_a_broker_walks_a_part_at_a_time(walked: int, step: int) -> None:
    """It names the end of the range behind what it has walked; what lies between is cut as finely as the rest."""

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.CutPointsRequest):
            return None
        part = request._replace(end=min(request.end, request.start + max(walked, request.step_bytes + ENTRY)))
        points = tuple(point for point in cut_points(LOG, part) if point <= part.end)
        points += (request.end,) if points[-1] < request.end else ()
        return rs.encode_cut_points(rs.CutPointsAnswer(request.correlation_id, 0, points))

    with with_log(LOG, hook=hook) as fake:
        cluster = cluster_of(fake.address)
        cluster.bounds()
        points = cluster.between(T00, OffsetRange(0, len(LOG)), step)
        cluster.close()
    assert (points[0], points[-1]) == (0, len(LOG))
    assert all(point % ENTRY == 0 for point in points)
    assert max(later - earlier for earlier, later in itertools.pairwise(points)) <= step + ENTRY


@pytest.mark.parametrize("size", [300, 5 * ENTRY])
def test_a_walk_asks_for_no_more_than_the_size_of_a_fetch(size: int) -> None:
    """However far away the place is."""
    sizes: list[int] = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.FetchRequest):
            sizes.append(request.max_bytes)
        return None

    with with_log(LOG, own=False, hook=hook) as fake:
        cluster = cluster_of(f"0@{fake.address}", assign='{"t": ["0-0"]}', **{"fetch.size": str(size)})
        bounds = cluster.bounds()[T00]
        assert cluster.next_boundary(T00, len(LOG) - 1, bounds) == len(LOG)
        assert cluster.between(T00, OffsetRange(0, len(LOG)), 50 * ENTRY)[0] == 0
        cluster.close()
    assert sizes and set(sizes) == {size}


def test_the_message_behind(both: QueryCluster) -> None:
    assert both.after(T00, OffsetRange(5 * ENTRY, len(LOG))) == 6 * ENTRY
    assert both.after(T00, OffsetRange(len(LOG) - ENTRY, len(LOG))) == len(LOG)


@pytest.mark.parametrize(
    ("offset", "expected"), [(0, 0), (1, ENTRY), (ENTRY, ENTRY), (len(LOG) - 1, len(LOG)), (len(LOG), len(LOG))]
)
def test_the_next_boundary(both: QueryCluster, offset: int, expected: int) -> None:
    assert both.next_boundary(T00, offset, PartitionBounds(0, len(LOG), len(LOG))) == expected


def test_a_batch_of_a_plain_broker() -> None:
    """Cut into tasks without a request that it does not know."""
    with with_log(LOG, own=False) as fake:
        options = parse_options(
            {"brokers": f"7@{fake.address}", "assign": '{"t": ["7-0"]}', "maxBytesPerPartition": "1000", **QUICK},
            streaming=False,
        )
        tasks = BatchPlan(options, QueryCluster(options)).tasks()
        assert [tasks[0].start, tasks[-1].end] == [0, len(LOG)]
        assert all(a.end == b.start and a.end % ENTRY == 0 for a, b in itertools.pairwise(tasks))
        assert len(tasks) == 5
        assert {(task.broker, task.port) for task in tasks} == {(7, fake.port)}


@pytest.mark.parametrize(
    ("name", "given", "what"),
    [
        ("{}", {"assign": '{"t": ["0-0"]}'}, "does not tell its id: write id@host:port"),
        ("0@{}", {"subscribe": "t"}, "does not tell its partitions: use assign"),
    ],
)
def test_what_a_plain_broker_does_not_tell(name: str, given: dict[str, str], what: str) -> None:
    with with_log(LOG, own=False) as fake, pytest.raises(ConfigError, match=what):
        cluster_of(name.format(fake.address), **given).bounds()


def test_partitions_of_several_brokers() -> None:
    """Each broker's partitions are its own; others are left out."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest):
            return answer_of(request, rs.PartitionMetadata(0, rs.STATE_OK, 5, 10, 20), broker_id=9)
        return None

    with with_log(LOG) as fake, FakeBroker(hook=hook) as other:
        fake.logs["u", 0] = LOG
        cluster = cluster_of(f"{fake.address},9@{other.address}", subscribePattern="t|v")
        assert cluster.bounds() == {
            T00: PartitionBounds(0, len(LOG), len(LOG)),
            partition_of("t/9-0"): PartitionBounds(5, 10, 20),
        }
        assert (cluster.address(0).port, cluster.address(9).port) == (fake.port, other.port)


def test_brokers_that_are_not_what_they_are_called() -> None:
    with with_log(LOG) as fake, with_log(LOG) as other:
        with pytest.raises(ConfigError, match=f"{fake.address} is broker 0, not 3"):
            cluster_of(f"3@{fake.address}").bounds()
        with pytest.raises(ConfigError, match=f"{fake.address} and {other.address} are both broker 0"):
            cluster_of(f"{fake.address},{other.address}").bounds()


def test_a_partition_that_is_offline() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest):
            return answer_of(request, rs.PartitionMetadata(0, rs.STATE_OFFLINE, 0, 0, 0))
        return None

    with FakeBroker(hook=hook) as fake, pytest.raises(PartitionOfflineError, match="t/0-0"):
        cluster_of(fake.address).bounds()


def test_a_topic_that_may_not_be_seen() -> None:
    with with_log(LOG) as fake, pytest.raises(NotAuthorizedError, match="topic t, "):
        fake.refused = {"t": NotAuthorizedError.code}
        cluster_of(fake.address).bounds()


def test_a_broker_that_is_away_for_a_moment() -> None:
    """Asked again; and when it stays away, the error names it."""
    left = 3

    def hook(request: rq.Request) -> bytes | None:
        nonlocal left
        if isinstance(request, rq.CutPointsRequest) and left:
            left -= 1
            raise ConnectionError
        return None

    with with_log(LOG, hook=hook) as fake:
        cluster = cluster_of(fake.address)
        cluster.bounds()
        assert cluster.after(T00, OffsetRange(0, len(LOG))) == ENTRY
        assert left == 0
    with pytest.raises(TransportError, match=fake.address):
        cluster.bounds()


class Hiding:
    """A broker that shows what was appended once somebody waits for it, or never."""

    def __init__(self, shows: bool) -> None:
        self.end = 5 * ENTRY
        self.shows = shows

    def __call__(self, request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest):
            return answer_of(request, rs.PartitionMetadata(0, rs.STATE_OK, 0, self.end, len(LOG)))
        if isinstance(request, wire07.HeldFetchRequest):
            assert request.offset == 5 * ENTRY
            if not self.shows:
                return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, self.end, 0))
            self.end = len(LOG)
        return None


def test_a_batch_waits_for_what_was_appended() -> None:
    with with_log(LOG, hook=Hiding(True)) as fake:
        assert cluster_of(fake.address).visible_bounds() == {T00: PartitionBounds(0, len(LOG), len(LOG))}


def test_a_broker_that_never_flushes() -> None:
    with (
        with_log(LOG, hook=Hiding(False)) as fake,
        pytest.raises(ConsumerTimeout, match=f"t/0-0: {195 * ENTRY} bytes were appended and are not visible"),
    ):
        cluster_of(fake.address, subscribe="t", **{"fetch.timeout.ms": "100"}).visible_bounds()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ({"before": [0], "borders": [0, 100, 200]}, 100),
        ({"before": [100], "borders": [0, 100, 200]}, None),
        ({"before": [200], "borders": [0, 100, 200]}, None),
        ({"before": [], "borders": [40, 100, 200]}, 40),
        ({"before": [], "borders": [0]}, None),
        ({"before": [0], "borders": [0, 100, 200, 300]}, 100),
    ],
)
def test_the_offset_at_a_time(answers: dict[str, list[int]], expected: int | None) -> None:
    """Behind the last segment that is older; None where nothing was appended since."""

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.OffsetsRequest):
            return None
        if request.time == 1233:
            return rs.encode_offsets(0, answers["before"])
        found = answers["borders"] if request.time == rq.TIME_EARLIEST else answers["borders"][::-1]
        return rs.encode_offsets(0, found[: request.max_count])

    with with_log(LOG, hook=hook) as fake:
        cluster = cluster_of(fake.address)
        cluster.bounds()
        assert cluster.offset_at(T00, 1234) == expected


def test_boundaries_from_a_place_that_is_none() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.CutPointsRequest):
            return rs.encode_cut_points(rs.CutPointsAnswer(request.correlation_id, 0, (ENTRY,)))
        return None

    with with_log(LOG, hook=hook) as fake:
        cluster = cluster_of(fake.address)
        cluster.bounds()
        with pytest.raises(InvalidMessageError, match="no message begins at offset 1"):
            cluster.between(T00, OffsetRange(1, len(LOG)), 1)
        with pytest.raises(InvalidMessageError, match="no message begins at offset 1"):
            cluster.after(T00, OffsetRange(1, len(LOG)))
