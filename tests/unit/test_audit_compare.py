"""Comparing reports with what was seen: each kind of difference is found, and nothing else is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.audit._tally import Tally
from fastlog.audit.compare import AuditReport, Row, Stage, aged, common_window, compare, reports_lost, stages_seen
from fastlog.audit.events import PAGE_BYTES, SeenDuplicates, SeenEvent, SeenPage, SentEvent, decode
from fastlog.errors import AuditError
from tests.unit.test_tally import payload

WINDOW_MS = 60_000
AGE_MS = 10_000


def event(first: int, last: int, *, window: int = 0, producer: int = 1, seq: int = 0, **fields: Any) -> SentEvent:
    failed = fields.pop("failed", [])
    count = last - first + 1 - sum(high - low + 1 for low, high in failed)
    values: dict[str, Any] = {
        "topic": "t",
        "server": "web-1",
        "server_id": 5,
        "window_start": window,
        "window_ms": WINDOW_MS,
        "n": count,
        "producer_id": producer,
        "seq": seq,
        "first": first,
        "last": last,
        "failed": failed,
        "time_ms": 0,
    }
    return SentEvent(**{**values, **fields})


def stage_of(numbers: Iterable[int], *, producer: int = 1, time_ms: int = 0, **fields: Any) -> Stage:
    tally = Tally(WINDOW_MS)
    payloads = [payload(producer, number, time_ms) for number in numbers]
    tally.count_entries(pack(payloads), len(payloads))
    return Stage("brokers", "t", tally, **fields)


def rows(events: list[SentEvent], stage: Stage, grace_ms: int = AGE_MS, age_ms: int = 0) -> list[Row]:
    return compare([AuditReport(item, age_ms) for item in events], stage, WINDOW_MS, grace_ms)


def only(events: list[SentEvent], stage: Stage, **options: Any) -> Row:
    (row,) = rows(events, stage, **options)
    return row


def test_all_there_is_ok() -> None:
    row = only([event(0, 4), event(5, 9, seq=1)], stage_of(range(10)))
    assert (row.topic, row.stage, row.window_start, row.window_ms) == ("t", "brokers", 0, WINDOW_MS)
    assert (row.sent, row.received, row.state) == (10, 10, "ok")


@pytest.mark.parametrize("lost", [0, 7, 99])
@pytest.mark.parametrize("twice", [None, 3, 98])
def test_one_is_missing_and_one_is_there_twice(lost: int, twice: int | None) -> None:
    """In one window, where the counts alone would cancel out."""
    numbers = [number for number in range(100) if number != lost] + ([] if twice is None else [twice])
    row = only([event(0, 99)], stage_of(numbers))
    assert (row.missing, row.duplicates) == (1, 0 if twice is None else 1)
    assert row.gaps == [(1, "web-1", lost, lost)]
    assert row.state == ("missing" if twice is None else "missing+duplicate")


def test_more_twice_than_missing_hides_nothing() -> None:
    row = only([event(0, 99)], stage_of([*range(99), *range(99)]))
    assert (row.sent, row.received, row.missing, row.duplicates) == (100, 198, 1, 99)


def test_what_nobody_reported() -> None:
    """Behind the last report of a producer that was killed, and of one that reports nothing; never missing."""
    row = only([event(0, 4)], stage_of([*range(8), 11]))
    assert (row.sent, row.received, row.unreported, row.missing, row.state) == (5, 9, 4, 0, "unreported")
    row = only([], stage_of(range(3)))
    assert (row.sent, row.received, row.unreported) == (0, 3, 3)


def test_what_failed_may_be_there_or_not() -> None:
    found = only([event(0, 9, failed=[(2, 3), (9, 9)])], stage_of([0, 1, 3, 4, 5, 6, 7, 8]))
    assert (found.sent, found.missing, found.unreported, found.state) == (7, 0, 0, "ok")
    found = only([event(0, 9, failed=[(2, 3)])], stage_of([0, 1, 4, 5, 6, 8, 9]))
    assert (found.sent, found.missing, found.gaps) == (8, 1, [(1, "web-1", 7, 7)])
    found = only([event(0, 9, failed=[(2, 3), (6, 7)])], stage_of([0]))
    assert [gap[2:] for gap in found.gaps] == [(1, 1), (4, 5), (8, 9)]


def test_each_window_has_its_own() -> None:
    tally = Tally(WINDOW_MS)
    payloads = [payload(1, number, number * WINDOW_MS + 7) for number in range(5) if number != 3]
    tally.count_entries(pack(payloads), len(payloads))
    events = [event(number, number, window=number * WINDOW_MS, seq=number) for number in range(5)]
    found = rows(events, Stage("brokers", "t", tally))
    assert [(row.window_start // WINDOW_MS, row.state) for row in found] == [
        (0, "ok"), (1, "ok"), (2, "ok"), (3, "missing"), (4, "ok"),
    ]  # fmt: skip


def test_other_topics_are_other_rows() -> None:
    assert rows([event(0, 4, topic="u")], stage_of([])) == []


def test_windows_of_different_lengths_meet() -> None:
    events = [event(0, 0), event(0, 0, window_ms=90_000)]
    assert common_window(events) == 180_000
    assert common_window([]) == 60_000


@pytest.mark.parametrize(("age", "state"), [(0, "pending"), (AGE_MS - 1, "pending"), (AGE_MS, "missing")])
def test_a_stage_that_lags_has_time(age: int, state: str) -> None:
    row = only([event(0, 4)], stage_of(range(3), lags=True), age_ms=age)
    assert row.state == state
    assert row.pending + row.missing == 2
    assert only([event(0, 4)], stage_of(range(3)), age_ms=age).state == "missing"


def test_what_retention_removed_is_not_missing() -> None:
    """Up to the first number that is left; a producer of whom nothing is left may have had everything removed."""
    row = only([event(0, 9, failed=[(1, 2), (4, 4)])], stage_of([2, 5, 6, 7, 9], first_kept={1: 5}))
    assert (row.expired, row.missing, row.gaps) == (2, 1, [(1, "web-1", 8, 8)])
    row = only([event(0, 9)], stage_of([2], first_kept={}))
    assert (row.expired, row.missing, row.state) == (9, 0, "ok")
    row = only([event(5, 9)], stage_of([5, 6, 8, 9], first_kept={1: 3}))
    assert (row.expired, row.missing) == (0, 1)


# -- ages --------------------------------------------------------------------------------------------------------------


def test_the_age_of_a_report_needs_no_common_clock() -> None:
    """Clocks that are hours apart: what one of them has gone on counts, for all that came before."""
    here = [
        event(0, 0, producer=1, seq=0, time_ms=5_000_000),
        event(0, 0, producer=2, seq=0, time_ms=1_000),
        event(1, 1, producer=1, seq=1, time_ms=5_000_400),
        event(1, 1, producer=2, seq=1, time_ms=9_000),
        event(2, 2, producer=1, seq=2, time_ms=4_000_000),  # it was set back
    ]
    ages = {(item.event.producer_id, item.event.seq): item.age_ms for item in aged([here])}
    assert ages == {(1, 0): 8_000, (2, 0): 8_000, (1, 1): 0, (2, 1): 0, (1, 2): 0}


def test_a_report_that_is_there_twice_counts_once() -> None:
    """With the larger age: it may have been written again later, or to another partition."""
    one, later = event(0, 0, time_ms=100), event(1, 1, seq=1, time_ms=900)
    found = aged([[one, later, one], [one], []])
    assert sorted((item.event.seq, item.age_ms) for item in found) == [(0, 800), (1, 0)]


def test_reports_that_are_lost_are_counted() -> None:
    """Those before the last one of a producer that is there; twice is once."""
    events = [event(0, 0, seq=seq) for seq in (1, 3, 3)] + [event(0, 0, producer=2, seq=0)]
    assert reports_lost(events) == 2
    assert reports_lost([]) == 0


def test_a_report_that_comes_late_makes_nothing_older() -> None:
    """Its time is from before those of its producer that stand before it."""
    found = aged([[event(1, 1, seq=1, time_ms=900), event(0, 0, time_ms=100), event(2, 2, seq=2, time_ms=950)]])
    assert sorted((item.event.seq, item.age_ms) for item in found) == [(0, 50), (1, 50), (2, 0)]


def test_skewed_clocks_raise_no_false_alarm() -> None:
    """Producers whose clocks are minutes apart, and a stage that is one minute behind with a grace of two."""
    source = random.Random(7)
    skews = [source.randint(-900_000, 900_000) for _ in range(5)]
    events, numbers = [], [0] * 5
    now = 10_000_000
    while now < 10_600_000:
        now += source.randint(100, 5000)
        who = source.randrange(5)
        events.append(
            event(numbers[who], numbers[who], producer=who, seq=numbers[who], time_ms=now + skews[who], window=now)
        )
        numbers[who] += 1
    arrived_until = now - 60_000
    tally = Tally(WINDOW_MS)
    payloads = [
        payload(item.producer_id, item.first)
        for item in events
        if item.time_ms - skews[item.producer_id] < arrived_until
    ]
    tally.count_entries(pack(payloads), len(payloads))
    found = compare(aged([events]), Stage("copy", "t", tally, lags=True), WINDOW_MS, 120_000)
    assert sum(row.missing for row in found) == 0
    assert sum(row.pending for row in found) == len(events) - len(payloads)


# -- stages that are told ----------------------------------------------------------------------------------------------


def seen_event(tally: Tally, counter: int, duplicates: list[SeenDuplicates] | None = None) -> SeenEvent:
    pages = [SeenPage(*page[:3], page[4]) for page in tally.changed_pages()]
    return SeenEvent("load", "t", "host", counter, WINDOW_MS, pages, duplicates or [], 0)


def test_counters_of_a_stage_are_added_up() -> None:
    """Two processes with a part each; a third that saw some of it again after a restart."""
    events = [
        seen_event(stage_of(range(0, 6)).tally, 1),
        seen_event(stage_of(range(4, 9)).tally, 2),
        seen_event(stage_of(range(6, 9)).tally, 3),
    ]
    (stage,) = stages_seen([*events, event(0, 9), *events], WINDOW_MS)
    row = only([event(0, 9)], stage, age_ms=AGE_MS)
    assert (row.stage, row.received, row.missing, row.duplicates) == ("load", 9, 1, 0)
    assert row.gaps == [(1, "web-1", 9, 9)]


def test_duplicates_of_counters_grow_and_add_up() -> None:
    tally = stage_of(range(5)).tally
    events = [
        seen_event(tally, 1, [SeenDuplicates(1, 0, 2)]),
        seen_event(tally, 1, [SeenDuplicates(1, 0, 3)]),
        seen_event(tally, 2, [SeenDuplicates(1, 0, 4)]),
    ]
    (stage,) = stages_seen(events, WINDOW_MS)
    row = only([event(0, 4)], stage)
    assert (row.sent, row.received, row.duplicates, row.state) == (5, 12, 7, "duplicate")


# -- events ------------------------------------------------------------------------------------------------------------

SENT = event(3, 9, failed=[(4, 5), (9, 9)], window=-60_000)
SEEN = SeenEvent("s", "t", "host", 7, 1000, [SeenPage(1, 2, 3, bytes(PAGE_BYTES))], [SeenDuplicates(1, -1000, 4)], 5)


@pytest.mark.parametrize("given", [SENT, SEEN])
def test_events_come_out_as_they_went_in(given: SentEvent | SeenEvent) -> None:
    assert decode(given.encode()) == given


def test_the_fields_of_a_report_are_those_that_are_promised() -> None:
    assert set(json.loads(SENT.encode())) >= {
        "topic", "server", "server_id", "window_start", "window_ms", "n", "producer_id", "seq",
    }  # fmt: skip


@pytest.mark.parametrize(
    "payload_bytes", [b"", b"\xff", b"[1]", b"1", b"{" * 100_000, b'{"a":', b'{"first":0}', b'{"stage":"x"}']
)
def test_what_is_no_event(payload_bytes: bytes) -> None:
    with pytest.raises(AuditError):
        decode(payload_bytes)


def test_other_objects_are_passed_over() -> None:
    assert decode(b'{"hello": 1}') is None


@pytest.mark.parametrize(
    "change",
    [
        {"n": 5},
        {"first": -1},
        {"last": 2},
        {"first": 2**63},
        {"last": 2**62, "n": 2**62 - 5},
        {"first": True},
        {"topic": 5},
        {"window_ms": 0},
        {"producer_id": -1},
        {"failed": [[4, 3]]},
        {"failed": [[2, 3]]},
        {"failed": [[4, 5], [5, 5]]},
        {"failed": [[4]]},
        {"failed": [4]},
        {"failed": [["4", 5]]},
        {"failed": None},
    ],
)
def test_reports_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(AuditError):
        decode(json.dumps({**SENT._asdict(), **change}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"pages": [[1, 2, 3, "x"]]},
        {"pages": [[1, 2, 3, "eJwDAAAAAAE="]]},
        {"pages": [[1, 2, 3]]},
        {"pages": [[1, 2**32, 3, json.loads(SEEN.encode())["pages"][0][3]]]},
        {"pages": [[1, 2, 2**48, json.loads(SEEN.encode())["pages"][0][3]]]},
        {"pages": [5]},
        {"duplicates": [[1, 2]]},
        {"duplicates": [[1, 2, -3]]},
        {"duplicates": [5]},
        {"stage": 5},
        {"counter_id": "x"},
    ],
)
def test_counts_that_cannot_be(change: dict[str, Any]) -> None:
    fields = {**json.loads(SEEN.encode()), **change}
    with pytest.raises(AuditError):
        decode(json.dumps(fields).encode())
