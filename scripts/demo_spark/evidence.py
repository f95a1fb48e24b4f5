"""What the tables hold in the end, against what was acknowledged: read by Delta's library and pyarrow."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastlog.spark.storage import TableLocation
from scripts.demo_spark.lines import TICK, WINDOW_MS, Sent, place_of, value_of

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]


@dataclass(frozen=True)
class Commit:
    """A transaction of the table with the page views: when it was made, and the values and times (in ms since 1970) of
    its rows."""

    at_ms: int
    values: Sequence[bytes]
    times_ms: Sequence[int]

    @property
    def latencies_ms(self) -> list[int]:
        """How long each row took from its sender to here, sorted; ticks are not of their time."""
        rows = zip(self.values, self.times_ms, strict=True)
        return sorted(self.at_ms - time_ms for value, time_ms in rows if not value.startswith(TICK.encode()))


def read_commits(location: TableLocation) -> list[Commit]:
    """Every transaction with rows, from the log of the table and the files that it names."""
    import pyarrow.parquet as pq  # type: ignore[import-untyped]
    from pyarrow.fs import FileSelector  # type: ignore[import-untyped]

    store = location.filesystem()
    found = []
    for entry in sorted(store.get_file_info(FileSelector("_delta_log")), key=lambda item: str(item.base_name)):
        if not entry.base_name.endswith(".json"):
            continue
        with store.open_input_stream(entry.path) as lines:
            actions = [json.loads(line) for line in lines.readall().splitlines()]
        paths = [action["add"]["path"] for action in actions if "add" in action]
        at_ms = next((action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action), 0)
        values: list[bytes] = []
        times: list[int] = []
        for path in paths:
            rows = pq.read_table(path, columns=["value", "timestamp"], partitioning=None, filesystem=store)
            values += rows["value"].to_pylist()
            times += _ms(rows["timestamp"])
        if paths:
            found.append(Commit(at_ms, values, times))
    return found


def read_rows(location: TableLocation) -> list[dict[str, Any]]:
    """All rows of a small table; none where there is no table. Times in ms since 1970."""
    from deltalake import DeltaTable
    from deltalake.exceptions import TableNotFoundError

    with location.reached():
        try:
            table = DeltaTable(str(location), storage_options=location.given_options).to_pyarrow_table()
        except TableNotFoundError:
            return []
    columns = {
        name: _ms(table[name])
        if str(table.schema.field(name).type).startswith("timestamp")
        else table[name].to_pylist()
        for name in table.column_names
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _ms(times: pyarrow.ChunkedArray) -> list[int]:
    import pyarrow as pa

    found: list[int] = times.cast(pa.timestamp("us", "UTC")).cast(pa.int64()).to_pylist()
    return [us // 1000 for us in found]


@dataclass
class Windows:
    """Numbers of page views by the window in which their time is, each by the beginning of it in ms since 1970."""

    acknowledged: Counter[int] = field(default_factory=Counter)
    told: Counter[int] = field(default_factory=Counter)
    """By the producers, as the audit has it."""
    arrived: Counter[int] = field(default_factory=Counter)
    """Those that the audit has counted."""
    states: Counter[str] = field(default_factory=Counter)
    counted: Counter[int] = field(default_factory=Counter)
    late: Counter[int] = field(default_factory=Counter)
    """Messages that the counts have left out, as the table for them has it."""
    rows: Counter[int] = field(default_factory=Counter)


def window_of(time_ms: int) -> int:
    """The beginning of the window in which a time is."""
    return time_ms // WINDOW_MS * WINDOW_MS


def windows_of(
    sent: Iterable[Sent],
    commits: Iterable[Commit],
    counts: Iterable[Mapping[str, Any]],
    late: Iterable[Mapping[str, Any]],
    audit: Iterable[Mapping[str, Any]],
) -> Windows:
    """Put together what the diaries and the tables say."""
    found = Windows()
    for batch in sent:
        if batch.acknowledged_ms:
            found.acknowledged[window_of(batch.time_ms)] += batch.count
    for commit in commits:
        for value, time_ms in zip(commit.values, commit.times_ms, strict=True):
            if not value.startswith(TICK.encode()):
                found.rows[window_of(time_ms)] += 1
    for row in counts:
        found.counted[row["window_start"]] += row["n"]
    for row in late:
        found.late[window_of(row["time"])] += 1
    for row in audit:
        found.told[row["window_start"]] += row["sent"]
        found.arrived[row["window_start"]] += row["arrived"]
        found.states[row["state"]] += 1
    return found


@dataclass(frozen=True)
class Verdict:
    """How the rows of the table stand against what was acknowledged."""

    acknowledged: int
    rows: int
    lost: int
    doubled: int
    """How many rows the table has more than once."""
    foreign: int
    """Rows that nobody sent, or that are not as they were sent."""
    miscounted: int
    """Windows of which counts and late messages together, or the audit, have another number than the table."""
    latency_ms: Mapping[str, int]

    @property
    def is_right(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.foreign or self.miscounted)

    def __str__(self) -> str:
        told = f"{self.lost:,} lost, {self.doubled:,} doubled: {self.acknowledged:,} acknowledged, {self.rows:,} rows"
        told += f"; {self.foreign:,} rows that nobody sent" if self.foreign else ""
        return told + (f"; {self.miscounted:,} windows with wrong counts" if self.miscounted else "")


def judged(
    diaries: Mapping[str, Sequence[Sent]], lines: Sequence[bytes], commits: Sequence[Commit], windows: Windows
) -> Verdict:
    """Hold the rows against the diaries, by sender."""
    acknowledged = {
        (sender, number)
        for sender, diary in diaries.items()
        for batch in diary
        if batch.acknowledged_ms
        for number in range(batch.first, batch.first + batch.count)
    }
    ends = {sender: max((batch.first + batch.count for batch in diary), default=0) for sender, diary in diaries.items()}
    found: Counter[tuple[str, int]] = Counter()
    foreign = 0
    for commit in commits:
        for value in commit.values:
            place = place_of(value)
            if place is None or place[1] >= ends.get(place[0], 0) or value != value_of(*place, lines):
                foreign += 1
            else:
                found[place] += 1
    latencies = sorted(ms for commit in commits for ms in commit.latencies_ms)
    return Verdict(
        acknowledged=len(acknowledged),
        rows=found.total() + foreign,
        lost=len(acknowledged - found.keys()),
        doubled=found.total() - len(found),
        foreign=foreign,
        miscounted=len(miscounted(windows)),
        latency_ms={name: share_of(latencies, share) for name, share in (("p50", 0.5), ("p99", 0.99))},
    )


def miscounted(windows: Windows) -> list[int]:
    """Windows in which what was counted and what was late are not what the table has; and those that the audit found
    missing, or of which it has other numbers."""
    together = windows.counted + windows.late
    found = {window for window in windows.rows | together if windows.rows[window] != together[window]}
    found |= {window for window in windows.told | windows.arrived if windows.told[window] > windows.arrived[window]}
    found |= {window for window in windows.acknowledged if windows.acknowledged[window] != windows.told[window]}
    return sorted(found)


def share_of(ordered: Sequence[int], share: float) -> int:
    """The value that this share of all does not exceed; 0 of none."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
