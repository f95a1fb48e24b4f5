"""The audit's numbers against a model of sets, and its limits at one less, equal and one more."""

from __future__ import annotations

import base64
import json
import random
import zlib
from itertools import pairwise
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.audit._tally import Tally
from fastlog.audit.compare import AuditReport, Row, Stage, compare, stages_seen
from fastlog.audit.events import SeenDuplicates, SeenEvent, SeenPage, SentEvent, decode
from fastlog.envelope import Envelope, wrap
from fastlog.errors import AuditError
from tests.unit.test_audit_compare import SEEN, SENT, WINDOW_MS, event, only, rows, seen_event, stage_of
from tests.unit.test_tally import payload


def runs_of(numbers: set[int]) -> list[tuple[int, int]]:
    """The ranges that a set consists of."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return [(low, high) for low, high in found]


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_a_report_is_judged_as_a_set_would_be(share: float) -> None:
    """Seen, failed and removed in any mixture: what is expired, missing, unreported and named is exactly that."""
    source = random.Random(int(share * 10))
    for _ in range(200):
        _judge(source, share)


def _judge(source: random.Random, share: float) -> None:
    first = source.randrange(4)
    last = first + source.randrange(14)
    failed = runs_of({number for number in range(first, last + 1) if source.random() < share})
    if len(failed) == 1 and failed[0] == (first, last):
        failed = []
    cuts = [(low, high) for low, high in failed if low < high and source.random() < 0.5]
    for low, high in cuts:  # two ranges may touch
        failed.remove((low, high))
        failed += [(low, low), (low + 1, high)]
    failed.sort()
    assert all(one[1] < other[0] for one, other in pairwise(failed))
    seen = {number for number in range(last + 3) if source.random() < 0.6}
    kept = source.choice([None, {}, {1: source.randrange(last + 4)}])
    report = event(first, last, failed=failed)
    stage = stage_of(sorted(seen), first_kept=kept)
    delivered = set(range(first, last + 1)) - {n for low, high in failed for n in range(low, high + 1)}
    judged_from = first if kept is None else kept.get(1, last + 1)
    expired = {number for number in delivered - seen if number < judged_from}
    missing = delivered - seen - expired
    row = only([report], stage)
    assert (row.sent, row.received) == (len(delivered), len(seen))
    assert (row.expired, row.missing, row.pending) == (len(expired), len(missing), 0)
    assert [gap[2:] for gap in row.gaps] == runs_of(missing)
    assert row.unreported == len(seen - set(range(first, last + 1)))


def test_what_is_missing_is_named_however_much_failed_before_it() -> None:
    """More ranges failed than are ever shown, and nobody stored them."""
    failed = [(number, number) for number in range(0, 60, 2)]
    row = only([event(0, 69, failed=failed)], stage_of(set(range(70)) - set(range(0, 60, 2)) - {65}))
    assert (row.missing, row.gaps) == (1, [(1, "web-1", 65, 65)])


@pytest.mark.parametrize(("count", "shown"), [(19, 19), (20, 20), (21, 20), (50, 20)])
@pytest.mark.parametrize("parts", [1, 2])
def test_so_many_ranges_of_a_window_are_named(count: int, shown: int, parts: int) -> None:
    """Whether one report speaks of them or two; what is missing is counted in any case."""
    numbers = range(1, 2 * count, 2)
    middle = count // 2 * 2
    events = [event(0, 2 * count)] if parts == 1 else [event(0, middle), event(middle + 1, 2 * count, seq=1)]
    row = only(events, stage_of(set(range(2 * count + 1)) - set(numbers)))
    assert row.missing == count
    assert [gap[2:] for gap in row.gaps] == [(number, number) for number in numbers][:shown]


def test_messages_without_a_number_are_in_no_report() -> None:
    tally = Tally(WINDOW_MS)
    payloads = [wrap(b"", Envelope(5, 5)), wrap(b"", Envelope(WINDOW_MS, 5)), payload(1, 0)]
    tally.count_entries(pack(payloads), len(payloads))
    first, second = rows([event(0, 0)], Stage("brokers", "t", tally))
    assert (first.received, first.unreported, second.unreported) == (2, 1, 1)


@pytest.mark.parametrize(("time_ms", "window"), [(-1, -WINDOW_MS), (0, 0), (WINDOW_MS - 1, 0), (WINDOW_MS, WINDOW_MS)])
def test_a_message_at_the_edge_of_a_window(time_ms: int, window: int) -> None:
    """The report's window and the message's are the same one; half a window is no other one."""
    row = only([event(0, 0, window=window)], stage_of([0], time_ms=time_ms))
    assert (row.window_start, row.state) == (window, "ok")
    row = only([event(0, 0, window=window + WINDOW_MS - 1)], stage_of([0], time_ms=time_ms))
    assert (row.window_start, row.state) == (window, "ok")


def test_windows_of_two_lengths_are_put_together() -> None:
    """Two reports of 60 s and one of 120 s, judged in windows of 120 s: sums, and nothing unreported."""
    tally = Tally(120_000)
    payloads = [payload(1, number, number * 60_000) for number in range(4)] + [payload(2, 0, 119_999)]
    tally.count_entries(pack(payloads), len(payloads))
    events = [event(number, number, window=number * 60_000, seq=number) for number in range(4)]
    events.append(event(0, 0, producer=2, window_ms=120_000))
    found = compare([AuditReport(item, 0) for item in events], Stage("brokers", "t", tally), 120_000, 0)
    assert [(row.window_start, row.window_ms, row.sent, row.received, row.state) for row in found] == [
        (0, 120_000, 3, 3, "ok"), (120_000, 120_000, 2, 2, "ok"),
    ]  # fmt: skip


def test_the_same_number_of_two_producers_are_two_messages() -> None:
    tally = Tally(WINDOW_MS)
    payloads = [payload(1, 0), payload(2, 1)]
    tally.count_entries(pack(payloads), 2)
    row = only([event(0, 1), event(0, 1, producer=2)], Stage("brokers", "t", tally))
    assert (row.sent, row.missing, row.gaps) == (4, 2, [(1, "web-1", 1, 1), (2, "web-1", 0, 0)])


def test_the_states_stand_together_the_worst_first() -> None:
    row = Row("t", "s", 0, 1, missing=1, duplicates=1, unreported=1, pending=1)
    assert row.state == "missing+duplicate+unreported+pending"
    for name in ("missing", "duplicates", "unreported", "pending"):
        assert Row("t", "s", 0, 1, **{name: 1}).state == name.rstrip("s")  # type: ignore[arg-type]
    assert Row("t", "s", 0, 1, sent=1, received=1, expired=1).state == "ok"


def test_counters_lag_and_the_brokers_do_not() -> None:
    (stage,) = stages_seen([seen_event(stage_of([0]).tally, 1)], WINDOW_MS)
    row = only([event(0, 1)], stage, age_ms=0)
    assert (row.received, row.pending, row.missing) == (1, 1, 0)


def test_a_counter_that_has_seen_nothing_twice_says_so() -> None:
    (stage,) = stages_seen([seen_event(stage_of([0]).tally, 1, [SeenDuplicates(1, 0, 0)])], WINDOW_MS)
    row = only([event(0, 0)], stage)
    assert (row.received, row.duplicates, row.state) == (1, 0, "ok")


def test_stages_and_topics_are_kept_apart() -> None:
    """And come in the order of their names."""
    tally = stage_of([0]).tally
    events = [
        seen_event(tally, number)._replace(stage=stage, topic=topic, duplicates=[SeenDuplicates(1, 0, number)])
        for number, (stage, topic) in enumerate([("b", "t"), ("a", "u"), ("a", "t")], 1)
    ]
    found = stages_seen(events, WINDOW_MS)
    assert [(stage.name, stage.topic) for stage in found] == [("a", "t"), ("a", "u"), ("b", "t")]
    assert [stage.duplicates for stage in found] == [{(1, 0): 3}, {(1, 0): 2}, {(1, 0): 1}]


# -- events ------------------------------------------------------------------------------------------------------------

PAGE = json.loads(SEEN.encode())["pages"][0][3]
TOP = 2**63 - 1


def encoded(bits: bytes) -> str:
    return base64.b64encode(zlib.compress(bits)).decode()


def is_event(given: SentEvent | SeenEvent, change: dict[str, Any]) -> bool:
    """Whether what was changed in its JSON is still an event."""
    try:
        return decode(json.dumps({**json.loads(given.encode()), **change}).encode()) is not None
    except AuditError:
        return False


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({"window_ms": 1}, True),
        ({"window_ms": 0}, False),
        ({"window_ms": -1}, False),
        ({"first": 0, "n": 7}, True),
        ({"first": -1, "n": 8}, False),
        ({"first": 9, "failed": [], "n": 1}, True),
        ({"first": 10, "failed": [], "n": 0}, False),
        ({"first": 9, "failed": [[9, 9]], "n": 0}, True),
        ({"last": 2**62 - 1, "failed": [], "n": 2**62 - 3}, True),
        ({"last": 2**62, "failed": [], "n": 2**62 - 2}, False),
        ({"producer_id": 0}, True),
        ({"producer_id": -1}, False),
        ({"producer_id": TOP}, True),
        ({"producer_id": TOP + 1}, False),
        ({"time_ms": TOP}, True),
        ({"time_ms": TOP + 1}, False),
        ({"time_ms": -TOP}, True),
        ({"time_ms": -TOP - 1}, False),
        ({"time_ms": 1.5}, False),
        ({"window_start": -TOP}, True),
        ({"failed": [[3, 5], [9, 9]], "n": 3}, True),
        ({"failed": [[2, 5], [9, 9]], "n": 2}, False),
        ({"failed": [[4, 5], [6, 6], [9, 9]], "n": 3}, True),
        ({"failed": [[4, 5], [5, 6], [9, 9]], "n": 3}, False),
        ({"failed": [[4, 5], [9, 10]], "n": 3}, False),
        ({"failed": [[5, 4], [9, 9]], "n": 6}, False),
        ({"failed": [[4, 5], [9, 9]], "n": 3}, False),
        ({"failed": [[4, 5], [9, 9]], "n": 5}, False),
        ({"failed": [[4, True], [9, 9]]}, False),
        ({"failed": [[4, 5, 6], [9, 9]]}, False),
    ],
)
def test_a_report_at_the_edge_of_what_can_be(change: dict[str, Any], is_one: bool) -> None:
    assert is_event(SENT, {})
    assert is_event(SENT, change) is is_one


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({"pages": [[0, 0, 0, PAGE]]}, True),
        ({"pages": [[TOP, 2**32 - 1, 2**48 - 1, PAGE]]}, True),
        ({"pages": [[TOP + 1, 2, 3, PAGE]]}, False),
        ({"pages": [[1, 2**32, 3, PAGE]]}, False),
        ({"pages": [[1, 2, 2**48, PAGE]]}, False),
        ({"pages": [[-1, 2, 3, PAGE]]}, False),
        ({"pages": [[1, -1, 3, PAGE]]}, False),
        ({"pages": [[1, 2, -1, PAGE]]}, False),
        ({"pages": [[1, 2, 3, PAGE, 5]]}, False),
        ({"pages": [[1, 2, 3, 5]]}, False),
        ({"pages": ["1234"]}, False),
        ({"pages": [[1, 2, 3, encoded(bytes(4095))]]}, False),
        ({"pages": [[1, 2, 3, encoded(bytes(4096))]]}, True),
        ({"pages": [[1, 2, 3, encoded(bytes(4097))]]}, False),
        ({"pages": [[1, 2, 3, encoded(bytes(10**6))]]}, False),
        ({"pages": [[1, 2, 3, base64.b64encode(zlib.compress(bytes(4096))[:-1]).decode()]]}, False),
        ({"pages": [[1, 2, 3, " " + PAGE]]}, False),
        ({"duplicates": [[0, -TOP - 1, 0]]}, True),
        ({"duplicates": [[0, -TOP - 2, 0]]}, False),
        ({"duplicates": [[TOP, TOP, TOP]]}, True),
        ({"duplicates": [[1, TOP + 1, 1]]}, False),
        ({"duplicates": [[1, 0, TOP + 1]]}, False),
        ({"duplicates": [[-1, 0, 1]]}, False),
        ({"duplicates": [[1, 0, -1]]}, False),
        ({"duplicates": [[1, 0, 1, 1]]}, False),
        ({"duplicates": ["123"]}, False),
        ({"window_ms": 1}, True),
        ({"window_ms": 0}, False),
    ],
)
def test_a_count_at_the_edge_of_what_can_be(change: dict[str, Any], is_one: bool) -> None:
    assert is_event(SEEN, {})
    assert is_event(SEEN, change) is is_one


def test_pages_of_which_little_was_seen_take_little() -> None:
    pages = [SeenPage(number, 0, 0, bytes(4096)) for number in range(40)]
    assert len(SEEN._replace(pages=pages).encode()) < 40 * 100
