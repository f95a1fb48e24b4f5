"""Batches that are stored once each, at their offsets: whatever a broker answers, loses or shows late."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from fastlog import record_batches
from fastlog.client import connection
from fastlog.client.addresses import Address
from fastlog.client.kafka_fields import Place
from fastlog.client.records import LATEST, RecordsError
from fastlog.consumer.fetched import RecordSet
from fastlog.errors import TransportError
from fastlog.record_batches import CONTROL, TRANSACTIONAL, BatchHeader, Record, build
from fastlog.tools import options, record_appending
from fastlog.tools.appending import OtherBytesError
from fastlog.tools.record_appending import RecordAppender, StorableBatch, storable

PLACE = "t", 3
OUT_OF_PLACE, INVALID_RECORD = 45, 87
PASSING = (5, 6, 7, 9, 14, 15, 74)
SECONDS = 30.0
"""So long failures in a row, and what is not visible, are put up with."""


class Clock:
    """Time that passes only while somebody sleeps, or as a test has it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Log:
    """A broker with one partition, and what a consumer fetches of it."""

    def __init__(self) -> None:
        self.rows: list[bytes] = []
        self.start = self.end = 0
        self.calls: list[int] = []
        self.said: list[Any] = []
        """Of ``store``: codes in place of those that are right, or an error; what is callable is called before it."""
        self.ends: list[Any] = []
        """Of ``offsets``: where it is said to end, or an error."""
        self.fetches: list[tuple[int, float]] = []
        self.hidden = 0
        """So many fetches bring nothing."""
        self.closed: list[str] = []
        self.deleted: list[tuple[Place, int]] = []

    def store(self, place: Place, batches: Sequence[bytes]) -> list[int]:
        assert place == PLACE
        self.calls.append(len(batches))
        said = self.said.pop(0) if self.said else None
        if isinstance(said, TransportError):
            raise said
        if callable(said):
            said()
            said = None
        codes = []
        for number, data in enumerate(batches):
            header = BatchHeader.parse(bytes(data))
            code = said[number] if said is not None and number < len(said) else 0
            if not code and header.base_offset != self.end:
                code = OUT_OF_PLACE
            if not code:
                self.append(bytes(data))
            codes.append(code)
        return codes

    def append(self, data: bytes) -> None:
        self.rows.append(data)
        self.end = BatchHeader.parse(data).next_offset

    def offsets(self, places: list[Place], time: int) -> dict[Place, int]:
        assert (places, time) == ([PLACE], LATEST)
        said = self.ends.pop(0) if self.ends else self.end
        if isinstance(said, TransportError):
            raise said
        return {PLACE: said}

    def delete_records(self, place: Place, offset: int) -> None:
        self.deleted.append((place, offset))

    def fetch(self, topic: str, partition: int, offset: int, *, wait: float) -> RecordSet:
        assert (topic, partition) == PLACE
        assert self.start <= offset
        self.fetches.append((offset, wait))
        if self.hidden:
            self.hidden -= 1
            return RecordSet(topic, partition, offset, memoryview(b""))
        data = b"".join(row for row in self.rows if BatchHeader.parse(row).next_offset > offset)
        return RecordSet(topic, partition, offset, memoryview(data + data[:7]))

    def close(self) -> None:
        self.closed.append("broker")


class Consumer:
    """One of the log's consumers."""

    def __init__(self, log: Log) -> None:
        self.fetch = log.fetch
        self.close: Callable[[], None] = lambda: log.closed.append("consumer")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(record_appending, "time", made)
    monkeypatch.setattr(connection, "time", made)
    monkeypatch.setattr(connection, "sleep", made.sleep)
    return made


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Log:
    made = Log()
    opened: list[tuple[object, ...]] = []

    def consumer(host: str, port: int, *, timeout: float) -> Consumer:
        opened.append((host, port, timeout))
        assert opened == [("h", 7, 2.5)], "one is enough, and it is the broker's"
        return Consumer(made)

    monkeypatch.setattr(options, "broker_at", lambda *given, **named: (given, named))
    monkeypatch.setattr(record_appending, "records_at", lambda broker: made)
    monkeypatch.setattr(record_appending, "SimpleConsumer", consumer)
    return made


@pytest.fixture
def appender(log: Log) -> Iterator[RecordAppender]:
    with RecordAppender(*PLACE, Address("h", 7), 2.5, 0, 0) as made:
        yield made


def batch(offset: int, *values: bytes, **options: int) -> bytes:
    return build([Record(None, value, 5) for value in values], base_offset=offset, **options)


def batches(count: int) -> list[StorableBatch]:
    """Of one record each, from offset 0 on."""
    return list(storable(b"".join(batch(number, b"%d" % number) for number in range(count))))


def lost() -> TransportError:
    return TransportError("lost")


def test_who_made_a_batch_is_left_out_and_nothing_else() -> None:
    plain = batch(5, b"a", b"b")
    numbered = batch(7, b"c", b"d", b"e", producer_id=9, producer_epoch=2, base_sequence=4)
    mark = batch(10, b"x", producer_id=9, producer_epoch=2, attributes=TRANSACTIONAL | CONTROL)
    first, second, third = storable(plain + numbered + mark)
    assert (first.offset, first.next_offset, first.records, bytes(first.data)) == (5, 7, 2, plain)
    assert (second.offset, second.next_offset, second.records) == (7, 10, 3)
    assert (third.offset, third.next_offset, third.records) == (10, 11, 0)
    for one, before in ((second, numbered), (third, mark)):
        data = bytes(one.data)
        header = record_batches.check(data)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
        assert (data[:17], data[21:43], data[57:]) == (before[:17], before[21:43], before[57:])


def test_all_are_appended_in_order_some_at_a_time(log: Log, appender: RecordAppender) -> None:
    wanted = batches(2500)
    appender.append(iter(wanted))
    assert log.rows == [bytes(one.data) for one in wanted]
    assert log.calls == [1000, 1000, 500]
    assert appender.end == 2500
    appender.append([])
    assert len(log.calls) == 3


def test_nothing_is_stored_behind_one_that_is_refused(log: Log, appender: RecordAppender) -> None:
    log.said = [[0, 0, INVALID_RECORD, INVALID_RECORD]]
    with pytest.raises(RecordsError) as refused:
        appender.append(batches(4))
    assert refused.value.code == INVALID_RECORD
    assert appender.end == 2 and len(log.rows) == 2 and len(log.calls) == 1
    log.said = []
    appender.append(batches(4)[2:])
    assert appender.end == 4


@pytest.mark.parametrize("code", PASSING)
def test_what_passes_is_tried_again(log: Log, appender: RecordAppender, clock: Clock, code: int) -> None:
    log.said = [[code] * 3, lost(), [0, code, code]]
    appender.append(batches(3))
    assert appender.end == 3 and len(log.rows) == 3 and log.calls == [3, 3, 3, 2]
    assert len(clock.slept) == 3


def test_what_does_not_pass_in_half_a_minute_is_said(log: Log, appender: RecordAppender, clock: Clock) -> None:
    log.said = [lost() for _ in range(10_000)]
    began = clock.now
    with pytest.raises(TransportError, match="lost"):
        appender.append(batches(1))
    assert SECONDS - 2 < clock.now - began <= SECONDS
    assert log.rows == []


def test_failures_between_successes_are_never_too_many(log: Log, appender: RecordAppender, clock: Clock) -> None:
    """Each append stores one and loses the rest, for much longer than that."""

    def later() -> None:
        clock.now += SECONDS / 2

    for _ in range(10):
        log.said += [later, lost()]
    found = batches(30)
    for number in range(0, 30, 3):
        log.said.insert(0, [0, 6, 6])
        appender.append(found[number : number + 3])
    assert appender.end == 30 and len(log.rows) == 30
    assert clock.now > 1000 + 2 * SECONDS


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_an_answer_that_was_lost_is_looked_up(log: Log, appender: RecordAppender, behind: int) -> None:
    """Of those that were sent, so many are not there."""

    def stored() -> None:
        for one in found[: len(found) - behind]:
            log.append(bytes(one.data))
        raise lost()

    found = batches(5)
    log.said = [stored]
    log.ends = [0, lost()]  # what is there is not flushed yet, then nobody answers
    appender.append(found)
    assert log.rows == [bytes(one.data) for one in found] and appender.end == 5


def test_only_the_first_of_those_that_are_sent_is_there(log: Log, appender: RecordAppender) -> None:
    found = batches(3)
    log.append(bytes(found[0].data))
    appender.append(found)
    assert log.rows == [bytes(one.data) for one in found]


@pytest.mark.parametrize(
    "there",
    [batch(0, b"other"), batch(0, b"0", b"1"), batch(0, b"0") + batch(1, b"other")],
    ids=["another value", "ends inside", "second"],
)
def test_somebody_else_is_noticed(log: Log, appender: RecordAppender, there: bytes) -> None:
    """Also where the offsets fit."""
    for _, data in record_batches.batches(there):
        log.append(bytes(data))
    wanted = batches(1) + list(storable(batch(1, b"1", b"2")))
    with pytest.raises(OtherBytesError, match=r"ends at \d, where \d was expected: somebody else appends"):
        appender.append(wanted)
    assert b"".join(log.rows).startswith(there)


def test_only_a_leader_epoch_may_be_another_one(log: Log, appender: RecordAppender) -> None:
    (one,) = batches(1)
    for at in range(len(one.data)):
        changed = bytearray(one.data)
        changed[at] ^= 1
        is_same = record_appending._is_same(memoryview(changed), one.data)
        assert is_same is (12 <= at < 16), at


def test_what_is_behind_those_that_are_compared_does_not_count(log: Log, appender: RecordAppender) -> None:
    found = batches(4)
    for one in found:
        log.append(bytes(one.data))
    assert appender.holds(found[:2])
    assert appender.holds(found[3:])
    assert appender.holds([])
    assert not appender.holds([found[0]._replace(data=found[1].data)])
    assert [offset for offset, _ in log.fetches] == [0, 3, 0]
    assert {wait for _, wait in log.fetches} == {1.0}


def test_a_log_that_begins_inside_a_batch_is_read_from_there(log: Log) -> None:
    """Nobody may fetch what is before."""
    found = list(storable(batch(0, b"a", b"b", b"c") + batch(3, b"d")))
    for one in found:
        log.append(bytes(one.data))
    log.start = 2
    with RecordAppender(*PLACE, Address("h", 7), 2.5, 2, 4) as appender:
        assert appender.holds(found)
        assert appender.end == 4
        appender.begin_at(2)
        assert log.deleted == []
        appender.begin_at(3)
        assert log.deleted == [(PLACE, 3)]
        assert log.closed == []
    assert sorted(log.closed) == ["broker", "consumer"]
    appender.close()
    assert log.closed.count("consumer") == 1


def test_what_does_not_become_visible_is_said(log: Log, appender: RecordAppender, clock: Clock) -> None:
    def fetch(*given: Any, **options: Any) -> RecordSet:
        clock.now += SECONDS / 2
        return real(*given, **options)

    real, log.fetch = log.fetch, fetch  # type: ignore[method-assign]
    found = batches(2)
    for one in found:
        log.append(bytes(one.data))
    log.hidden = 2  # which is just as long as it may take
    assert appender.holds(found)
    log.hidden = 3
    with pytest.raises(TransportError, match="appended at offset 0 does not become visible"):
        appender.holds(found)
    assert log.hidden == 0


def test_the_disk_is_waited_for(log: Log, appender: RecordAppender, clock: Clock) -> None:
    appender.append(batches(3))
    log.ends = [0, 2, lost(), 2]
    appender.wait_flushed()
    assert log.ends == [] and appender.end == 3
    assert len(clock.slept) == 4
    log.ends = [4]
    with pytest.raises(OtherBytesError, match="ends at 4, where 3 was expected"):
        appender.wait_flushed()
    began = clock.now
    log.ends = [2] * 10_000
    with pytest.raises(TransportError, match="from offset 2 on does not become visible"):
        appender.wait_flushed()
    assert SECONDS < clock.now - began < SECONDS + 1
    log.ends = [lost() for _ in range(1000)]
    with pytest.raises(TransportError, match="lost"):
        appender.wait_flushed()
