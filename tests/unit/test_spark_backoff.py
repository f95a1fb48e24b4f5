"""How long Spark's side is patient with a broker or a ZooKeeper that does not answer, on a clock of the test's own."""

from __future__ import annotations

from typing import Any

import pytest

from fastlog.consumer.partitions import TopicPartition
from fastlog.coordination import outage
from fastlog.errors import CoordinationError, TransportError
from fastlog.spark import cluster, discovery
from fastlog.spark.addresses import NamedAddress
from fastlog.spark.cluster import PartitionBounds
from fastlog.spark.discovery import Coordination, ListedBrokers, RegisteredBrokers, RetryBackoff
from fastlog.spark.offsets import log_number
from tests.harness.timing import patch_time


class Clock:
    """Time passes by pauses alone, and by ``later``."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.pauses: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    for module in (discovery, outage):
        patch_time(monkeypatch, module, monotonic=made.monotonic)
    monkeypatch.setattr(discovery, "pause", made.pause)
    return made


def until_it_raises(backoff: RetryBackoff, most: int = 100) -> int:
    """How often it let a call fail."""
    error = TransportError("away\nwith more")
    for number in range(most):
        try:
            backoff.failed(error)
        except TransportError as found:
            assert found is error
            return number
    raise AssertionError("it is patient for ever")


@pytest.mark.parametrize("retries", [0, 1, 3, 9])
def test_a_call_may_fail_so_often(clock: Clock, retries: int, caplog: pytest.LogCaptureFixture) -> None:
    """With pauses that double up to ten seconds; after a success the next failure is a first one."""
    backoff = RetryBackoff(retries, 0.5)
    expected = [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0][:retries]
    assert until_it_raises(backoff) == retries
    assert clock.pauses == expected
    assert [record.getMessage() for record in caplog.records] == [
        f"away: trying again, {number} of {retries}" for number in range(1, retries + 1)
    ]
    backoff.worked()
    assert until_it_raises(backoff) == retries
    assert clock.pauses == expected * 2


def test_a_call_may_fail_for_so_long(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    """However often that is, with pauses that end when the time does; then as often as it may."""
    backoff = RetryBackoff(2, 1.5, 7.0)
    assert until_it_raises(backoff) == 4
    assert clock.pauses == [1.5, 2.0, 2.0, 1.5]
    left = [record.getMessage().partition("for it, ")[2] for record in caplog.records]
    assert left == ["7 s more at most", "6 s more at most", "4 s more at most", "2 s more at most"]
    backoff.worked()
    clock.now += 100.0
    assert until_it_raises(backoff) == 4, "its time begins with its first failure"


def test_failures_within_the_time_count_as_well(clock: Clock) -> None:
    """Behind it so many are left as were not had by then."""
    assert until_it_raises(RetryBackoff(5, 2.0, 3.0)) == 5
    assert clock.pauses == [2.0, 1.0, 8.0, 10.0, 10.0]


def test_the_pause_of_a_thousand_failures_is_ten_seconds(clock: Clock) -> None:
    assert until_it_raises(RetryBackoff(1000, 1e-6), 2000) == 1000
    assert clock.pauses[-1] == 10.0


# -- ZooKeeper ---------------------------------------------------------------------------------------------------------


class Session:
    """One with ZooKeeper, as far as it is asked."""

    timeout = 6.0

    def __init__(self) -> None:
        self.is_lost = False
        self.is_connected = True
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


def coordination_of(sessions: list[Session]) -> Coordination:
    def open_session() -> Any:
        sessions.append(Session())
        return sessions[-1]

    return Coordination("zk:1", 6.0, open_session)


def test_a_session_is_opened_again_when_it_is_over(clock: Clock) -> None:
    """When it says so, or has been away for two of its times: one whose server lost its data never says it."""
    sessions: list[Session] = []
    coordination = coordination_of(sessions)
    assert coordination.session() is coordination.session() is sessions[0]
    sessions[0].is_lost = True
    assert coordination.session() is sessions[1]
    assert (sessions[0].closed, len(sessions)) == (1, 2)
    sessions[1].is_connected = False
    for seconds in (0.0, 11.9, 0.05):
        clock.now += seconds
        assert coordination.session() is sessions[1]
    sessions[1].is_connected = True
    assert coordination.session() is sessions[1]
    sessions[1].is_connected = False
    clock.now += 12.1
    assert coordination.session() is sessions[1], "it was there meanwhile"
    clock.now += 12.0
    assert coordination.session() is sessions[2]
    assert sessions[1].closed == 1
    coordination.close()
    coordination.close()
    assert sessions[2].closed == 1
    assert coordination.session() is sessions[3]


def test_who_can_do_without_does_not_wait_for_it_again(clock: Clock) -> None:
    """For five seconds after it could not be opened; not where there is one."""
    fails = [True]

    def open_session() -> Any:
        if fails[0]:
            raise CoordinationError("nobody answers")
        return Session()

    coordination = Coordination("zk:1", 6.0, open_session)
    assert not coordination.is_resting()
    with pytest.raises(CoordinationError, match="nobody answers"):
        coordination.session()
    for seconds, rests in ((0.0, True), (4.9, True), (0.2, False)):
        clock.now += seconds
        assert coordination.is_resting() == rests
    with pytest.raises(CoordinationError):
        coordination.session()
    fails[0] = False
    assert coordination.is_resting()
    coordination.session()
    assert not coordination.is_resting()


def test_no_broker_was_ever_there(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is waited for as often as for a call; the error of ZooKeeper is told where there is one."""
    for error, said in ((None, "no broker is registered in ZooKeeper zk:1: /brokers/ids is empty"), ("away", "away")):

        def read(session: object, garbage: object, error: str | None = error) -> dict[int, object]:
            if error is not None:
                raise CoordinationError(error)
            return {}

        monkeypatch.setattr(discovery, "read_addresses", read)
        clock.pauses.clear()
        registered = RegisteredBrokers(coordination_of([]), 2, 0.5)
        with pytest.raises((TransportError, CoordinationError), match=said):
            registered.look()
        assert clock.pauses == [0.5, 1.0]


def test_brokers_of_a_list_are_where_they_were() -> None:
    """Nothing is known of those that do not answer."""
    named = (NamedAddress(cluster.Address("a", 1), 3), NamedAddress(cluster.Address("b", 1)))
    brokers = ListedBrokers(named)
    assert (brokers.follows, brokers.look()) == (False, list(named))
    assert brokers.look_again(named[1]) is named[1]
    assert (brokers.partitions(3), brokers.absent(lambda topic: True)) == (None, {})


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_bounds_as_if_nothing_had_come() -> None:
    bounds = PartitionBounds(10, 50, 60, 7)
    for end, expected in ((70, bounds), (60, bounds), (55, PartitionBounds(10, 50, 55, 7)),
                          (50, PartitionBounds(10, 50, 50, 7)), (40, PartitionBounds(10, 40, 40, 7))):  # fmt: skip
        assert bounds.until(end) == expected


@pytest.mark.parametrize(
    ("known", "now", "other"), [(0, 0, False), (0, 5, False), (5, 0, False), (5, 5, False), (5, 6, True)]
)
def test_a_log_is_another_one_where_both_sides_know(known: int, now: int, other: bool) -> None:
    assert PartitionBounds(0, 1, 1, now).is_of_another_log(known) is other


def test_what_is_appended_and_not_visible() -> None:
    """Only what had been appended at first is waited for."""
    for visible, end, appended, hidden in ((5, 9, 9, True), (8, 9, 9, True), (9, 9, 9, False), (5, 9, 5, False),
                                           (5, 9, 6, True), (5, 5, 9, False)):  # fmt: skip
        now, then = PartitionBounds(0, visible, end), PartitionBounds(0, 0, appended)
        assert cluster._is_hidden(now, then) is hidden


def test_a_partition_of_records_is_known_by_its_log() -> None:
    assert PartitionBounds(0, 1, 1, log_number(b"0123456789abcdef")).is_of_records
    assert not PartitionBounds(0, 1, 1, 1_700_000_000_000).is_of_records
    assert TopicPartition("t", cluster.PartitionId(0, 1)).topic == "t"
