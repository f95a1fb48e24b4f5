"""What a mirror says of itself: numbers, to programs and to people."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import StorageError, TransportError
from fastlog.mirror import report as report_module
from fastlog.mirror.report import MirrorReport
from fastlog.mirror.source import Counts, Totals
from fastlog.zkpaths import PartitionId
from tests.harness.timing import patch_time

T0, T1, U0 = (TopicPartition(topic, PartitionId(0, number)) for topic, number in (("t", 0), ("t", 1), ("u", 0)))


class Clock:
    """Moves when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        patch_time(monkeypatch, report_module, monotonic=lambda: self.now)


def source(name: str = "one", **fields: Any) -> SimpleNamespace:
    """A source that runs, as far as it is asked."""
    lag = fields.pop("lag", {})
    values = {"name": name, "totals": Totals(), "waiting": {}, "consumer": object(), "is_checked": True, "error": None}
    return SimpleNamespace(**{**values, **fields}, lag=lambda seconds: dict(lag))


def mirror(*sources: SimpleNamespace, errors: tuple[str, ...] = (), acknowledged: bool = True) -> Any:
    return SimpleNamespace(sources=list(sources), target_errors=list(errors), is_acknowledged=acknowledged)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_rates_are_those_since_the_last_report(clock: Clock) -> None:
    """Of each source by itself; the first one counts from the beginning."""
    one, two = source(), source("two", totals=Totals(10, 1000))
    report = MirrorReport(mirror(one, two))
    clock.now += 4
    one.totals = Totals(20, 2000, by_topic={})
    first = list(report.objects())
    assert [(found["entries_per_second"], found["bytes_per_second"]) for found in first] == [(5.0, 500.0), (2.5, 250.0)]
    clock.now += 2
    one.totals = Totals(21, 2100)
    second = list(report.objects())
    assert [(found["entries"], found["bytes"]) for found in second] == [(21, 2100), (10, 1000)]
    assert [(found["entries_per_second"], found["bytes_per_second"]) for found in second] == [(0.5, 50.0), (0.0, 0.0)]


def test_an_object_says_all_of_a_source(clock: Clock) -> None:
    totals = Totals(12, 340, 5, 6, 7, {"u": Counts(2, 40, 1), "t": Counts(10, 300, 4), "v": Counts(1, 2, 3)})
    given = source(totals=totals, lag={T0: 10, T1: 7, U0: None}, waiting={T1: StorageError("disk\n full"), T0: None})
    report = MirrorReport(mirror(given, acknowledged=False))
    clock.now += 1
    assert list(report.objects()) == [
        {
            "source": "one",
            "entries": 12,
            "bytes": 340,
            "acknowledged": False,
            "entries_per_second": 12.0,
            "bytes_per_second": 340.0,
            "partitions": 3,
            "lag_bytes": 17,
            "lag_unknown": 1,
            "repeated": 6,
            "possibly_repeated": 7,
            "left_out": 5,
            "topics": {
                "t": {"entries": 10, "bytes": 300, "left_out": 4, "lag_bytes": 17},
                "u": {"entries": 2, "bytes": 40, "left_out": 1, "lag_bytes": None},
                "v": {"entries": 1, "bytes": 2, "left_out": 3, "lag_bytes": None},
            },
            "waiting": {"t/0-0": "None", "t/0-1": "disk full"},
            "state": "",
        }
    ]
    (found,) = report.objects(asks=False)
    assert (found["lag_bytes"], found["partitions"], found["lag_unknown"]) == (None, 0, 0)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"consumer": None}, "begins"),
        ({"consumer": None, "error": TransportError("a\nb")}, "has not begun: a b"),
        ({"is_checked": False}, "waits until the brokers of both sides are known"),
        ({"error": TransportError("x")}, ""),
    ],
)
def test_the_state_of_a_source(clock: Clock, fields: dict[str, Any], state: str) -> None:
    report = MirrorReport(mirror(source(**fields)))
    (found,) = report.objects()
    assert found["state"] == state
    (line,) = report.lines()
    assert line == f"one: {state}" if state else line.startswith("one: 0 entries")


def test_a_line_for_people(clock: Clock) -> None:
    totals = Totals(1200, 34_500_000, 3, 1, 2)
    report = MirrorReport(
        mirror(source(totals=totals, lag={T0: 999, T1: 1, U0: None}), errors=("broker 1 at h:1: away",))
    )
    clock.now += 100
    assert list(report.lines()) == [
        "one: 1.2 kentries, 34.5 MB; now 12/s, 345.0 kB/s; lag 1.0 kB in 3 partitions, 1 partitions do not tell;"
        " 1 sent twice; up to 2 more stored twice; 3 left out".replace("1.2 kentries", "1200 entries"),
        "target broker 1 at h:1: away",
    ]
    quiet = MirrorReport(mirror(source(), acknowledged=False))
    assert list(quiet.lines()) == ["one: sent, not acknowledged: 0 entries, 0B; now 0/s, 0B/s; lag 0B in 0 partitions"]


@pytest.mark.parametrize(("count", "more"), [(1, ""), (3, ""), (4, "; 1 more wait"), (9, "; 6 more wait")])
def test_not_more_than_some_that_wait_are_named(clock: Clock, count: int, more: str) -> None:
    waiting = {TopicPartition("t", PartitionId(0, number)): StorageError(f"e{number}") for number in range(count)}
    (line,) = MirrorReport(mirror(source(waiting=waiting))).lines()
    named = "".join(f"; t/0-{number} waits: e{number}" for number in range(min(count, 3)))
    assert line.endswith(f"partitions{named}{more}")


def test_the_summary_is_of_all_that_was_done(clock: Clock) -> None:
    one = source(totals=Totals(10, 5000, 0, 0, 4))
    report = MirrorReport(mirror(one, source("two")))
    list(report.objects())
    clock.now += 2
    assert list(report.summary()) == [
        "one: mirrored 10 entries, 5000 bytes in 2.0 s (2.5 kB/s); up to 4 more stored twice",
        "two: mirrored 0 entries, 0 bytes in 2.0 s (0B/s)",
    ]
    (silent,) = MirrorReport(mirror(one, acknowledged=False)).summary()
    assert silent.startswith("one: sent, not acknowledged: 10 entries, 5000 bytes in 0.0 s")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1.0 k"),
        (999_949, "999.9 k"),
        (10**6, "1.0 M"),
        (10**15, "1.0 P"),
        (10**19, "10000.0 P"),
    ],
)
def test_thousands(value: int, text: str) -> None:
    assert report_module.short(value) == text
