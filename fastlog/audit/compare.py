"""Comparing what producers say they have sent with what a stage has seen, window by window."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fastlog.audit._tally import Tally
from fastlog.audit.events import Event, Range, SeenEvent, SentEvent

OK, MISSING, DUPLICATE, UNREPORTED, PENDING = "ok", "missing", "duplicate", "unreported", "pending"
_SHOWN_RANGES = 20
_DEFAULT_WINDOW_MS = 60_000


class AuditReport(NamedTuple):
    """What a producer says, and for how long at least it has said so: by how much some clock has gone on since."""

    event: SentEvent
    age_ms: int


@dataclass
class Stage:
    """What was seen of one topic at one place of the pipeline.

    ``first_kept``: the log does not begin at its beginning any more; of each producer, the number from which on nothing
    can have been removed (a producer that is not in it may have lost everything). None: nothing was removed.
    ``lags``: messages come here some time after they were reported.
    """

    name: str
    topic: str
    tally: Tally
    lags: bool = False
    first_kept: Mapping[int, int] | None = None
    duplicates: dict[tuple[int, int], int] | None = None
    """The duplicates by producer and window, where counters have reported them; None: the tally has them."""


@dataclass
class Row:
    """One window of one topic at one stage."""

    topic: str
    stage: str
    window_start: int
    window_ms: int
    sent: int = 0
    received: int = 0
    missing: int = 0
    duplicates: int = 0
    unreported: int = 0
    pending: int = 0
    expired: int = 0
    gaps: list[tuple[int, str, int, int]] = field(default_factory=list)
    """Which are missing: producer, server, first and last number; not more than some."""

    @property
    def state(self) -> str:
        """``ok``, or what is wrong, the worst first, joined by ``+``."""
        found = [
            name
            for name, count in (
                (MISSING, self.missing),
                (DUPLICATE, self.duplicates),
                (UNREPORTED, self.unreported),
                (PENDING, self.pending),
            )
            if count
        ]
        return "+".join(found) or OK


def aged(parts: Iterable[Sequence[Event]]) -> list[AuditReport]:
    """The reports of producers, each once, with their ages; each part is the events of one partition, in order.

    An event is as old as the most that any single clock has gone on between events behind it. No two clocks are
    compared, so it does not matter what they show.
    """
    found: dict[tuple[int, int], AuditReport] = {}
    for part in parts:
        times = _never_back(part)
        latest: dict[int, int] = {}
        age = 0
        for event, time_ms in zip(reversed(part), reversed(times), strict=True):
            age = max(age, latest.setdefault(event.clock, time_ms) - time_ms)
            if isinstance(event, SentEvent):
                known = found.get((event.producer_id, event.seq))
                if known is None or known.age_ms < age:
                    found[event.producer_id, event.seq] = AuditReport(event, age)
    return list(found.values())


def _never_back(part: Sequence[Event]) -> list[int]:
    """The time of each event, or the latest of its clock before, where that was set back or the event comes late."""
    reached: dict[int, int] = {}
    times = []
    for event in part:
        reached[event.clock] = max(reached.get(event.clock, event.time_ms), event.time_ms)
        times.append(reached[event.clock])
    return times


def stages_seen(events: Iterable[Event], window_ms: int) -> list[Stage]:
    """The stages that have published counts, each with what it has seen."""
    stages: dict[tuple[str, str], Stage] = {}
    most: dict[tuple[str, str, int, int, int], int] = {}
    for event in events:
        if not isinstance(event, SeenEvent):
            continue
        place = (event.stage, event.topic)
        stage = stages.get(place)
        if stage is None:
            stage = stages[place] = Stage(event.stage, event.topic, Tally(window_ms), lags=True, duplicates={})
        for page in event.pages:
            stage.tally.merge_page(*page)
        for item in event.duplicates:
            key = (*place, event.counter_id, item.producer_id, item.window_start)
            most[key] = max(most.get(key, 0), item.messages)
    for (name, topic, _, producer, window), count in most.items():
        duplicates = stages[name, topic].duplicates
        assert duplicates is not None
        duplicates[producer, window] = duplicates.get((producer, window), 0) + count
    return [stages[place] for place in sorted(stages)]


def reports_lost(events: Iterable[Event]) -> int:
    """How many reports are not there although later ones of the same producer are."""
    numbers: dict[int, set[int]] = {}
    for event in events:
        if isinstance(event, SentEvent):
            numbers.setdefault(event.producer_id, set()).add(event.seq)
    return sum(max(found) + 1 - len(found) for found in numbers.values())


def common_window(events: Iterable[Event]) -> int:
    """The shortest window, in ms, that consists of whole windows of every event; a minute where there is none."""
    return math.lcm(*{event.window_ms for event in events}) if events else _DEFAULT_WINDOW_MS


def compare(reports: Iterable[AuditReport], stage: Stage, window_ms: int, grace_ms: int) -> list[Row]:
    """The windows of a stage, in order. A report younger than ``grace_ms`` is not held against a stage that lags."""
    rows: dict[int, Row] = {}

    def row_of(time_ms: int) -> Row:
        start = time_ms // window_ms * window_ms
        if start not in rows:
            rows[start] = Row(stage.topic, stage.name, start, window_ms)
        return rows[start]

    reported: dict[tuple[int, int], int] = {}  # messages seen that a report speaks of, by producer and window
    for report in reports:
        event = report.event
        if event.topic != stage.topic:
            continue
        row = row_of(event.window_start)
        counted = _Counted(stage, event)
        row.sent += event.n
        row.expired += counted.expired
        missing = event.n - counted.seen - counted.expired
        if missing and stage.lags and report.age_ms < grace_ms:
            row.pending += missing
        elif missing:
            row.missing += missing
            row.gaps += counted.gaps()[: _SHOWN_RANGES - len(row.gaps)]
        if stage.duplicates is not None:
            row.received += counted.seen
        key = (event.producer_id, row.window_start)
        reported[key] = reported.get(key, 0) + counted.seen + counted.failed_seen
    if stage.duplicates is not None:
        for (_, window), count in stage.duplicates.items():
            row = row_of(window)
            row.duplicates += count
            row.received += count
        return [rows[start] for start in sorted(rows)]
    unique: dict[tuple[int | None, int], int] = {}
    for producer, _, window, messages, duplicates in stage.tally.cells():
        row = row_of(window)
        row.received += messages
        row.duplicates += duplicates
        place = (producer, row.window_start)
        unique[place] = unique.get(place, 0) + messages - duplicates
    for (producer, window), count in unique.items():
        known = reported.get((producer, window), 0) if producer is not None else 0
        row_of(window).unreported += max(0, count - known)
    return [rows[start] for start in sorted(rows)]


class _Counted:
    """What a stage has seen of the messages of one event."""

    def __init__(self, stage: Stage, event: SentEvent) -> None:
        self._event = event
        self._tally = stage.tally
        self.failed_seen = sum(self._tally.seen(event.producer_id, low, high) for low, high in event.failed)
        self.seen = self._tally.seen(event.producer_id, event.first, event.last) - self.failed_seen
        self.judged_from = event.first
        if stage.first_kept is not None:
            self.judged_from = min(stage.first_kept.get(event.producer_id, event.last + 1), event.last + 1)
            self.judged_from = max(self.judged_from, event.first)
        self.expired = 0
        if self.judged_from > event.first:
            gone = self._tally.seen(event.producer_id, event.first, self.judged_from - 1)
            failed_gone = sum(
                min(high, self.judged_from - 1) - low + 1 - self._seen_before(low, high)
                for low, high in event.failed
                if low < self.judged_from
            )
            self.expired = self.judged_from - event.first - gone - failed_gone

    def _seen_before(self, low: int, high: int) -> int:
        return self._tally.seen(self._event.producer_id, low, min(high, self.judged_from - 1))

    def gaps(self) -> list[tuple[int, str, int, int]]:
        """The numbers that are missing, as (producer, server, first, last), without those that failed."""
        event = self._event
        failed = list(event.failed)
        # each range that failed takes at most one of these away
        most = _SHOWN_RANGES + len(failed)
        found: list[Range] = self._tally.missing(event.producer_id, self.judged_from, event.last, most)
        left: list[Range] = []
        for low, high in found:
            for start, end in failed:
                if start > high or end < low:
                    continue
                if start > low:
                    left.append((low, start - 1))
                low = end + 1
            if low <= high:
                left.append((low, high))
        return [(event.producer_id, event.server, low, high) for low, high in left]
