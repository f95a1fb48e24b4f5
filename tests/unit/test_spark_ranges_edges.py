"""The edges of a task's range: ends, retention, tries, and the look at the log behind it, at one less, equal, more."""

from __future__ import annotations

from typing import Any

import pytest

from fastlog.codecs import GZIP
from fastlog.errors import DataLossError, RangeIncompleteError
from fastlog.message import encode_set
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import PAYLOADS, with_log
from tests.harness.fake_broker import FakeBroker
from tests.unit.test_spark_ranges import ENTRY, LOG, read, task_of


def values(rows: list[Any]) -> list[bytes]:
    return [value for _, value in rows]


@pytest.mark.parametrize(("less", "count"), [(0, 4), (1, None), (-1, None)])
def test_a_range_ends_where_a_message_does(less: int, count: int | None) -> None:
    """One byte less, or more, is an error that names where the last whole one ended."""
    with with_log(LOG) as fake:
        task = task_of(fake, ENTRY, 5 * ENTRY - less)
        if count is not None:
            assert values(read(task)) == PAYLOADS[1:5]
            return
        with pytest.raises(RangeIncompleteError, match=f"beyond {(4 if less > 0 else 5) * ENTRY}: "):
            read(task)


@pytest.mark.parametrize("less", [0, 1])
def test_a_compressed_set_is_in_a_range_or_not(less: int) -> None:
    """One that begins in it and ends behind it is an error, and nothing of it comes."""
    wrapper = encode_set(PAYLOADS[:50], GZIP)
    log = LOG[: 3 * ENTRY] + wrapper + LOG
    with with_log(log) as fake:
        task = task_of(fake, 0, 3 * ENTRY + len(wrapper) - less)
        if less:
            with pytest.raises(RangeIncompleteError, match=f"beyond {3 * ENTRY}: the message there ends at"):
                read(task)
        else:
            assert values(read(task)) == PAYLOADS[:3] + PAYLOADS[:50]


def test_an_empty_range_asks_nobody() -> None:
    with with_log(LOG) as fake:
        assert read(task_of(fake, 3 * ENTRY, 3 * ENTRY)) == []
        assert fake.seen.total() == 0


# -- tries -------------------------------------------------------------------------------------------------------------


class Breaking:
    """Breaks the connection so many times in a row before each fetch that it lets pass."""

    def __init__(self, times: int, kind: type = wire07.HeldFetchRequest) -> None:
        self.times = times
        self.kind = kind
        self.left = times
        self.broken = 0

    def __call__(self, request: rq.Request) -> bytes | None:
        if isinstance(request, self.kind):
            if self.left:
                self.left -= 1
                self.broken += 1
                raise ConnectionError
            self.left = self.times
        return None


@pytest.mark.parametrize(("times", "fails"), [(5, False), (6, True)])
def test_so_many_failures_in_a_row_are_let_pass(times: int, fails: bool) -> None:
    """``fetch.numRetries`` of them, each of which is a connection that broke and another one; what was read in between
    begins the count anew."""
    hook = Breaking(times)
    with with_log(LOG, hook=hook) as fake:
        task = task_of(fake, 0, 40 * ENTRY)
        if fails:
            with pytest.raises(RangeIncompleteError, match="beyond 0: "):
                read(task, fetch__size=str(10 * ENTRY))
            assert hook.broken == 6
        else:
            assert values(read(task, fetch__size=str(10 * ENTRY))) == PAYLOADS[:40]
            assert hook.broken == 5 * 4


def test_an_error_of_the_broker_ends_it_at_once() -> None:
    asked = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            asked.append(request)
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 3, 0, 0))
        return None

    with with_log(LOG, hook=hook) as fake, pytest.raises(RangeIncompleteError, match="beyond 0: "):
        read(task_of(fake))
    assert len(asked) == 1


# -- retention ---------------------------------------------------------------------------------------------------------


def gone(begins: list[int], error: int = 0) -> Any:
    """The broker has nothing at the fifth message, and says that its log begins there."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest) and request.offset == 5 * ENTRY:
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, len(LOG), 0))
        if isinstance(request, rq.OffsetsRequest):
            return rs.encode_offsets(error, begins)
        return None

    return hook


@pytest.mark.parametrize("begins", [[], [0], [5 * ENTRY - 1], [5 * ENTRY]])
@pytest.mark.parametrize("fail", ["true", "false"])
def test_an_offset_that_is_not_there_although_the_log_does_not_begin_behind_it(begins: list[int], fail: str) -> None:
    """Nothing was removed: it is an error in any case, and not tried in a circle."""
    with (
        with_log(LOG, hook=gone(begins)) as fake,
        pytest.raises(RangeIncompleteError, match=f"could not be read beyond {5 * ENTRY}: "),
    ):
        read(task_of(fake, 0, 9 * ENTRY), fetch__size=str(5 * ENTRY), failOnDataLoss=fail)


def test_a_broker_that_does_not_say_where_its_log_begins() -> None:
    with (
        with_log(LOG, hook=gone([], error=-1)) as fake,
        pytest.raises(RangeIncompleteError, match=f"could not be read beyond {5 * ENTRY}: "),
    ):
        read(task_of(fake, 0, 9 * ENTRY), fetch__size=str(5 * ENTRY), failOnDataLoss="false")


@pytest.mark.parametrize("entries", [6, 8, 9, 10])
def test_what_is_lost_ends_with_the_range(entries: int) -> None:
    """Where the log begins at its end, or behind it, all the rest is lost and nothing behind the range is read."""
    begin = entries * ENTRY
    lost = f"bytes {5 * ENTRY} to {min(entries, 9) * ENTRY} cannot be read any more: the log begins at {begin}"
    with with_log(LOG, hook=gone([begin])) as fake, pytest.raises(DataLossError, match=lost):
        read(task_of(fake, 0, 9 * ENTRY), fetch__size=str(5 * ENTRY))
    with with_log(LOG, hook=gone([begin])) as fake:
        found = read(task_of(fake, 0, 9 * ENTRY), fetch__size=str(5 * ENTRY), failOnDataLoss="false")
        assert values(found) == PAYLOADS[:5] + PAYLOADS[entries:9]


# -- the log behind it -------------------------------------------------------------------------------------------------


def telling(*partitions: tuple[int, int], topic: str = "t", breaks: int = 0, error: int = 0, well: int = 0) -> Any:
    """A broker that says when the logs of these partitions were made; breaks the connection so often before.

    ``well``: so many are answered first as they should be.
    """
    left, rest = [breaks], [well]

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest) or not request.topics:
            return None
        rest[0] -= 1
        if left[0] and rest[0] < 0:
            left[0] -= 1
            raise ConnectionError
        found = tuple(rs.PartitionMetadata(number, 0, 0, len(LOG), len(LOG), made) for number, made in partitions)
        limits = 10**6, 10**6, 1000, rq.LOWEST_OWN, rq.HIGHEST_OWN
        topics = (rs.TopicMetadata(topic, 0, 1, found),)
        answered = 0 if rest[0] >= 0 else error
        return rs.encode_metadata(rs.MetadataAnswer(request.correlation_id, answered, 0, "h", 1, *limits, topics))

    return hook


@pytest.mark.parametrize(
    ("partitions", "fails"),
    [
        ([(0, 7)], False),
        ([(0, 8)], True),
        ([(0, 6)], True),
        ([(0, 0)], False),
        ([(1, 8), (0, 7)], False),
        ([(1, 7), (0, 8)], True),
        ([], False),
    ],
)
def test_the_log_is_that_of_this_partition(partitions: list[tuple[int, int]], fails: bool) -> None:
    with with_log(LOG, hook=telling(*partitions)) as fake:
        task = task_of(fake, 0, 5 * ENTRY)._replace(created_ms=7)
        if fails:
            with pytest.raises(RangeIncompleteError, match="made anew while it was read"):
                read(task)
        else:
            assert values(read(task)) == PAYLOADS[:5]


def test_it_is_asked_behind_the_last_byte() -> None:
    """What was read before the look is of that log; a look before it would say nothing of what comes."""
    order: list[str] = []
    tells = telling((0, 7))

    def hook(request: rq.Request) -> bytes | None:
        found: bytes | None = tells(request)
        if found is not None or isinstance(request, wire07.HeldFetchRequest):
            order.append(type(request).__name__)
        return found

    with with_log(LOG, hook=hook) as fake:
        read(task_of(fake, 0, 9 * ENTRY)._replace(created_ms=7), fetch__size=str(3 * ENTRY))
    assert order[-1] == "MetadataRequest"
    assert order.count("HeldFetchRequest") == 3


@pytest.mark.parametrize("breaks", [0, 1, 2])
def test_a_broker_that_breaks_at_the_look_is_asked_again(breaks: int) -> None:
    with with_log(LOG, hook=telling((0, 7), breaks=breaks)) as fake:
        assert values(read(task_of(fake, 0, 5 * ENTRY)._replace(created_ms=7))) == PAYLOADS[:5]


def test_a_broker_that_stays_away_or_refuses_at_the_look() -> None:
    """All of it was read, and nobody knows of which log: the task fails."""
    for hook in (telling((0, 7), breaks=1000, well=1), telling((0, 7), error=-1, well=1)):
        with with_log(LOG, hook=hook) as fake, pytest.raises(RangeIncompleteError, match=f"beyond {5 * ENTRY}: "):
            read(task_of(fake, 0, 5 * ENTRY)._replace(created_ms=7))


def test_a_plain_broker_is_not_asked() -> None:
    with FakeBroker(own=False) as fake:
        fake.logs["t", 0] = LOG
        assert values(read(task_of(fake, 0, 5 * ENTRY))) == PAYLOADS[:5]
