"""What is found out about logs by asking brokers: how far they go, boundaries, times, damage, the last messages."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.client.addresses import Address
from fastlog.codecs import GZIP, compress
from fastlog.consumer import broker_logs
from fastlog.consumer import tail as tail_module
from fastlog.consumer.broker_logs import Boundaries, BrokerLogs, Extent, offset_at_time
from fastlog.consumer.lag import PartitionLag, measure
from fastlog.consumer.skipping import Skip, find_end_of_damage
from fastlog.consumer.tail import Tail, find_last
from fastlog.errors import (
    ArgumentError,
    BrokerError,
    InvalidMessageError,
    NotAuthorizedError,
    OffsetOutOfRangeError,
    TransportError,
    error_for,
)
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import consumer_of, with_log
from tests.harness.fake_broker import FakeBroker
from tests.harness.reading import source_of, wait_until

SIZES = [1, 5, 30, 2, 2, 60, 9, 1]
MESSAGES = [bytes([65 + number]) * size for number, size in enumerate(SIZES)]
LOG = pack(MESSAGES)
STARTS = list(itertools.accumulate((len(pack([message])) for message in MESSAGES), initial=0))
ONLY = source_of()


@pytest.fixture
def fake(own: bool) -> Iterator[FakeBroker]:
    with with_log(LOG, own=own) as made:
        made.logs["t", 1] = b""
        yield made


def logs_of(fake: FakeBroker, timeout: float = 30.0) -> BrokerLogs:
    """As tools ask it: broker 0, and one that nobody reaches."""
    return BrokerLogs({0: Address("127.0.0.1", fake.port), 1: Address("127.0.0.1", 1)}, timeout)


# -- how far ---------------------------------------------------------------------------------------------------------


def test_extents_of_what_is_and_of_what_is_not(fake: FakeBroker) -> None:
    """A broker that is away costs its own partitions alone; who was away is asked again."""
    with logs_of(fake) as logs:
        wanted = [ONLY, source_of(1), source_of(0, "u"), source_of(broker=1), source_of(broker=9)]
        found = logs.extents(wanted)
        assert found[ONLY] == Extent(0, len(LOG)) and found[source_of(1)] == Extent(0, 0)
        assert found[source_of(0, "u")] == Extent(0, 0)
        assert "Connection refused" in str(found[source_of(broker=1)])
        assert "broker 9 does not live" in str(found[source_of(broker=9)])
        assert logs.extent(ONLY) == Extent(0, len(LOG))
        for away in (source_of(broker=1), source_of(broker=9)):
            with pytest.raises(TransportError):
                logs.extent(away)
        fake.cut()
        assert logs.extent(ONLY) == Extent(0, len(LOG))
    assert logs._consumers == {}
    wait_until(lambda: not fake._sockets)
    logs.close()


def test_a_topic_that_may_not_be_seen_is_an_error_of_its_own_partitions() -> None:
    with with_log(LOG) as fake, logs_of(fake) as logs:
        fake.logs["u", 0] = LOG
        fake.refused = {"u": NotAuthorizedError.code}
        found = logs.extents([ONLY, source_of(0, "u")])
        assert found[ONLY] == Extent(0, len(LOG))
        assert isinstance(found[source_of(0, "u")], NotAuthorizedError) and "topic u, " in str(found[source_of(0, "u")])


def test_a_partition_that_a_plain_broker_refuses_is_its_own_error(own: bool) -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest):
            if request.partition == 1:
                return rs.encode_offsets(3)
            return rs.encode_offsets(0, [7] if request.time == rq.TIME_EARLIEST else [90])
        return None

    with with_log(LOG, own=False, hook=hook) as fake, logs_of(fake) as logs:
        found = logs.extents([ONLY, source_of(1)])
        assert found[ONLY] == Extent(7, 90)
        assert isinstance(found[source_of(1)], BrokerError)


def test_boundaries_around_each_offset(fake: FakeBroker) -> None:
    """By what the broker tells, and by walking where it tells nothing; an offset that is one has itself."""
    with logs_of(fake) as logs:
        extent = Extent(0, len(LOG))
        for offset in range(len(LOG) + 1):
            before = max(start for start in STARTS if start <= offset)
            after = min(start for start in STARTS if start >= offset)
            assert logs.boundaries(ONLY, offset, extent) == Boundaries(before, after), offset


def test_a_boundary_far_behind_the_last_one_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies before is asked for in a window; without one in it, it is not known."""
    monkeypatch.setattr(broker_logs, "_SAMPLE_BYTES", 20)
    with with_log(LOG) as fake, logs_of(fake) as logs:
        extent = Extent(0, len(LOG))
        long = STARTS[5]
        assert logs.boundaries(ONLY, long + 20, extent) == Boundaries(long, STARTS[6])
        assert logs.boundaries(ONLY, long + 21, extent) == Boundaries(None, STARTS[6])


def test_messages_are_counted_where_there_are_few_and_estimated_where_there_are_many(
    own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = [b"0123456789"] * 40
    entry = len(pack(same[:1]))
    with with_log(pack(same), own=own) as fake, logs_of(fake) as logs:
        for first, last in ((0, 40), (0, 1), (39, 40), (7, 9)):
            assert logs.estimated_messages(ONLY, first * entry, last * entry) == last - first
        assert fake.seen["CutPointsRequest"] == 0, "all was read: there is no end to be sampled"
        monkeypatch.setattr(broker_logs, "_SAMPLE_BYTES", 5 * entry)
        fake.seen.clear()
        for first, last in ((0, 40), (3, 40), (0, 5), (0, 6), (0, 10), (0, 11)):
            assert logs.estimated_messages(ONLY, first * entry, last * entry) == last - first
        with pytest.raises(BrokerError):
            logs.estimated_messages(ONLY, 1, 40 * entry)
        with pytest.raises(InvalidMessageError, match=f"no message at offset {40 * entry}"):
            logs.estimated_messages(ONLY, 40 * entry, 41 * entry)
    # samples of both ends count by their bytes
    mixed = [b"a"] * 10 + [b"b" * 100] * 30
    data = pack(mixed)
    with with_log(data, own=own) as fake, logs_of(fake) as logs:
        monkeypatch.setattr(broker_logs, "_SAMPLE_BYTES", 110)
        small, large = 110 // 11, 1
        expected = round((small + large) * len(data) / (small * 11 + 110)) if own else round(small * len(data) / 110)
        assert logs.estimated_messages(ONLY, 0, len(data)) == expected


def test_the_place_of_a_time(own: bool) -> None:
    """The first segment whose last append is not before it; all of the log for what is older, its end for later."""
    segments = [(0, 1000), (50, 2000), (120, 3000)]  # begin, last append
    end = 200
    asked: list[int] = []

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest):
            if request.time == rq.TIME_LATEST:
                return rs.encode_offsets(0, [end, 120, 50, 0][: request.max_count])
            asked.append(request.time)
            older = [begin for begin, last in segments if last <= request.time]
            return rs.encode_offsets(0, older[::-1][: request.max_count])
        return None

    with with_log(LOG, own=own, hook=hook) as fake, logs_of(fake) as logs:
        for time_ms, expected in (
            (0, 0), (1, 0), (1000, 0), (1001, 50), (2000, 50), (2001, 120), (3000, 120), (3001, 200), (10**12, 200),
        ):  # fmt: skip
            assert logs.at_time(ONLY, time_ms) == expected, time_ms
            assert asked.pop() == max(0, time_ms - 1)
    with with_log(b"", own=own) as fake, consumer_of(fake) as consumer:
        assert offset_at_time(consumer, "t", 0, 5) == 0


def test_lag_is_what_can_be_read_and_was_not() -> None:
    def lag(offset: int | None, size: int | None) -> int | None:
        return PartitionLag(ONLY, None, offset, 0, size, None, "", False).lag

    assert [lag(3, 10), lag(10, 10), lag(11, 10), lag(0, 0), lag(None, 5), lag(5, None)] == [7, 0, 0, 0, None, None]


@pytest.mark.parametrize(("committed", "extent"), [(10, Extent(0, 10)), (12, Extent(0, 10)), (0, Extent(0, 0))])
def test_nobody_is_asked_how_many_messages_are_left_where_none_is(committed: int, extent: Extent) -> None:
    view: Any = SimpleNamespace(
        all_partitions=lambda topics: [ONLY],
        owners={},
        committed={ONLY: SimpleNamespace(offset=committed)},
    )
    logs: Any = SimpleNamespace(extents=lambda partitions: dict.fromkeys(partitions, extent))
    (found,) = measure(view, logs)
    assert (found.messages, found.is_failure) == (0, False)


# -- damage ----------------------------------------------------------------------------------------------------------


def damaged(*numbers: int) -> bytes:
    """The log with wrong checksums at these messages."""
    data = bytearray(LOG)
    for number in numbers:
        data[STARTS[number] + 9] ^= 1
    return bytes(data)


@pytest.mark.parametrize(
    ("numbers", "at", "end", "entries"),
    [((2,), 2, 3, 1), ((2, 3), 2, 4, 2), ((0,), 0, 1, 1), ((7,), 7, 8, 1), ((6, 7), 6, 8, 2), ((2, 4), 2, 3, 1),
     (tuple(range(8)), 0, 8, 8)],
)  # fmt: skip
def test_damage_ends_where_a_whole_message_begins_or_the_log_ends(
    own: bool, numbers: tuple[int, ...], at: int, end: int, entries: int
) -> None:
    with with_log(damaged(*numbers), own=own) as fake, consumer_of(fake, local="off") as consumer:
        assert find_end_of_damage(consumer, "t", 0, STARTS[at]) == Skip(STARTS[at], STARTS[end], entries)


@pytest.mark.parametrize("length", [-1, 0, 4, 2**31 - 1, 2**30, 2**30 + 1])
def test_a_length_that_leads_nowhere_costs_the_segment(own: bool, length: int) -> None:
    """Up to the next one that the broker knows of, or to the end of the log."""
    data = LOG[: STARTS[2]] + length.to_bytes(4, "big", signed=True) + LOG[STARTS[2] + 4 :]
    for borders, end in (([len(LOG), 0], len(LOG)), ([len(LOG), STARTS[5], STARTS[2], 0], STARTS[5])):

        def hook(request: rq.Request, borders: list[int] = borders) -> bytes | None:
            return rs.encode_offsets(0, borders) if isinstance(request, rq.OffsetsRequest) else None

        with with_log(data, own=own, hook=hook) as fake, consumer_of(fake, local="off") as consumer:
            assert find_end_of_damage(consumer, "t", 0, STARTS[2]) == Skip(STARTS[2], end, None)


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_length_may_reach_to_the_end_and_not_behind(own: bool, more: int) -> None:
    """The last message, damaged and with a length of its own."""
    last = STARTS[7]
    length = len(LOG) - last - 4 + more
    data = LOG[:last] + length.to_bytes(4, "big") + b"\xff" * (len(LOG) - last - 4)
    with with_log(data, own=own) as fake, consumer_of(fake, local="off") as consumer:
        found = find_end_of_damage(consumer, "t", 0, last)
        assert found == Skip(last, len(LOG), 1 if more == 0 else None)


def test_the_shortest_entry_is_one_with_an_old_header() -> None:
    """A length of five is a damaged message of nothing; one of four is none."""
    tail = pack([b"whole"])
    for length, entries in ((5, 1), (4, None)):
        data = length.to_bytes(4, "big") + b"\xff" * length + tail
        with with_log(data) as fake, consumer_of(fake, local="off") as consumer:
            found = find_end_of_damage(consumer, "t", 0, 0)
            assert found == Skip(0, 4 + length if entries else len(data), entries)


def test_damage_in_an_empty_log_and_refusals_on_the_way() -> None:
    with with_log(b"") as fake, consumer_of(fake) as consumer:
        assert find_end_of_damage(consumer, "t", 0, 0) == Skip(0, 0, 0)
        assert find_end_of_damage(consumer, "t", 0, 7) == Skip(7, 7, 0)

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, code, 0, 0))
        return None

    for code in (1, 3, -1):
        with (
            with_log(damaged(2), hook=hook) as fake,
            consumer_of(fake, local="off") as consumer,
            pytest.raises(type(error_for(code))),
        ):
            find_end_of_damage(consumer, "t", 0, STARTS[2])


# -- the last messages -----------------------------------------------------------------------------------------------

SET = pack([compress(GZIP, pack(MESSAGES[3:6]))], GZIP)
WITH_SET = pack(MESSAGES[:3]) + SET + pack(MESSAGES[6:])
PLACES = [
    *((start, 0) for start in STARTS[:3]),
    *((STARTS[3], skip) for skip in range(3)),
    (STARTS[3] + len(SET), 0),
    (STARTS[3] + len(SET) + len(pack(MESSAGES[6:7])), 0),
]


@pytest.mark.parametrize("step", [1, 20, 10**6])
def test_each_count_of_last_messages(own: bool, step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is the end; as many as there are and more is the start; a set is begun inside."""
    monkeypatch.setattr(tail_module, "_STEP_BYTES", step)
    with with_log(WITH_SET, own=own) as fake, consumer_of(fake, local="off") as consumer:
        for count in range(12):
            place = PLACES[max(0, 8 - count)] if count else (len(WITH_SET), 0)
            assert find_last(consumer, "t", 0, count) == Tail(*place), count
        for end, held in ((STARTS[2], 2), (STARTS[3] + len(SET), 6), (0, 0)):
            for count in range(8):
                place = PLACES[max(0, held - count)] if count else (end, 0)
                assert find_last(consumer, "t", 0, count, end) == Tail(*(place if held else (0, 0))), (end, count)
        with pytest.raises(ArgumentError):
            find_last(consumer, "t", 0, -1)
    with with_log(b"", own=own) as fake, consumer_of(fake) as consumer:
        assert find_last(consumer, "t", 0, 3) == Tail(0, 0)


@pytest.mark.parametrize(("failures", "works"), [(0, True), (2, True), (3, False)])
def test_retention_on_the_way_is_followed_twice(failures: int, works: bool) -> None:
    left = failures

    def hook(request: rq.Request) -> bytes | None:
        nonlocal left
        if isinstance(request, wire07.HeldFetchRequest) and left:
            left -= 1
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, 0, 0))
        return None

    with with_log(LOG, hook=hook) as fake, consumer_of(fake, local="off") as consumer:
        if works:
            assert find_last(consumer, "t", 0, 2) == Tail(STARTS[6], 0)
        else:
            with pytest.raises(OffsetOutOfRangeError):
                find_last(consumer, "t", 0, 2)
        assert left == 0


def test_a_log_that_ends_before_it_should_is_an_error() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest):
            return rs.encode_offsets(0, [len(LOG) + 20, 0])
        return None

    with (
        with_log(LOG, own=False, hook=hook) as fake,
        consumer_of(fake) as consumer,
        pytest.raises(InvalidMessageError, match=f"the log ends at {len(LOG)}, before offset {len(LOG) + 20}"),
    ):
        find_last(consumer, "t", 0, 2)
