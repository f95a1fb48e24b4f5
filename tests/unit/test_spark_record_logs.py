"""What the driver asks a broker of its topics of record batches, and how a task reads their records: over answers that
are made up, with each refusal, gap and silence in turn."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

import pytest

from fastlog.client.kafka_connection import NotSpokenError
from fastlog.client.record_requests import Fetched
from fastlog.client.record_topics import KnownTopic, Stored
from fastlog.client.records import EARLIEST, LATEST, RecordsError
from fastlog.errors import (
    DataLossError,
    FastlogError,
    OffsetOutOfRangeError,
    PartitionOfflineError,
    RangeIncompleteError,
    TransportError,
)
from fastlog.record_batches import Record, build
from fastlog.spark import discovery, record_logs, record_ranges
from fastlog.spark.cluster import RecordLogSource
from fastlog.spark.options import parse_options
from fastlog.spark.plans import Task
from fastlog.spark.record_columns import RecordMaker
from fastlog.spark.record_files import NotHereError
from fastlog.spark.record_logs import RecordExtent, RecordLogs, kind_of
from fastlog.spark.record_ranges import read_record_task
from tests.harness.timing import patch_time

T0, T1 = ("t", 0), ("t", 1)
ID = bytes(range(16))
PER_BATCH = 10
Place = tuple[str, int]


class MadeUpBroker:
    """Has a log of batches of ten records from ``start`` to ``end``; each kind of call may go wrong first."""

    def __init__(self, start: int = 0, end: int = 50) -> None:
        self.start, self.end = start, end
        self.topics = {"t": KnownTopic(0, ID, (0, 1), False)}
        self.failures: dict[str, list[Exception | Fetched]] = {}
        self.calls: list[tuple[Any, ...]] = []
        self.sizes = {T0: Stored(1000, "/data"), T1: Stored(0, "/data")}
        self.is_here = True
        self.closed = 0

    def _called(self, name: str, *more: Any) -> Fetched | None:
        self.calls.append((name, *more))
        left = self.failures.get(name)
        found = left.pop(0) if left else None
        if isinstance(found, Exception):
            raise found
        return found

    def known_topics(self, names: Iterable[str] | None) -> dict[str, KnownTopic]:
        self._called("topics", names)
        return self.topics

    def offsets(self, places: Collection[Place], time_ms: int) -> dict[Place, int]:
        self._called("offsets", time_ms)
        return {place: {EARLIEST: self.start, LATEST: self.end}.get(time_ms, -1) for place in places}

    def stored(self, places: Collection[Place]) -> dict[Place, Stored]:
        self._called("stored", sorted(places))
        return {place: self.sizes[place] for place in places if place in self.sizes}

    def fetch(self, wanted: dict[Place, int], *, max_bytes: int, max_wait: float = 0.0) -> dict[Place, Fetched]:
        ((place, offset),) = wanted.items()
        found = self._called("fetch", offset, max_bytes, max_wait)
        if found is not None:
            return {place: found}
        if not self.start <= offset <= self.end:
            return {place: Fetched(1, self.end, self.start, b"")}
        first = offset // PER_BATCH * PER_BATCH
        bases = [first] if max_bytes == 1 else [*range(first, self.end, PER_BATCH)]
        data = b"".join(batch(base) for base in bases if base < self.end)
        return {place: Fetched(0, self.end, self.start, data)}

    def reaches_this_host(self) -> bool:
        return self.is_here

    def close(self) -> None:
        self.closed += 1


def batch(base: int) -> bytes:
    return bytes(build([Record(None, b"%d" % (base + at), 5, ()) for at in range(PER_BATCH)], base_offset=base))


@pytest.fixture
def broker() -> MadeUpBroker:
    return MadeUpBroker()


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found = [100.0]
    patch_time(monkeypatch, record_logs, monotonic=lambda: found[0])
    return found


def logs_of(broker: MadeUpBroker) -> RecordLogs:
    given: Any = broker
    return RecordLogs(given)


# -- what the driver asks ----------------------------------------------------------------------------------------------


def test_topics_that_can_be_read(broker: MadeUpBroker) -> None:
    """Not those of the broker's own, nor those without a partition."""
    broker.topics |= {"own": KnownTopic(0, ID, (0,), True), "none": KnownTopic(3, ID, (), False)}
    assert logs_of(broker).topics(["t"]).keys() == {"t"}
    assert broker.calls == [("topics", ["t"])]


def test_a_broker_of_0_7_is_asked_again_in_half_a_minute(broker: MadeUpBroker, now: list[float]) -> None:
    """Twice at first: its first connection may have been cut for another reason."""
    logs = logs_of(broker)
    broker.failures["topics"] = [NotSpokenError("no"), NotSpokenError("no")]
    for seconds, calls in ((0.0, 2), (29.9, 2), (0.1, 3)):
        now[0] += seconds
        assert logs.topics(None) == (broker.topics if calls == 3 else {})
        assert len(broker.calls) == calls
    broker.failures["topics"] = [NotSpokenError("it stops")]
    with pytest.raises(NotSpokenError, match="it stops"):
        logs.topics(None)
    fresh = logs_of(broker)
    broker.failures["topics"] = [NotSpokenError("once")]
    assert fresh.topics(None) == broker.topics


def test_how_far_partitions_go(broker: MadeUpBroker) -> None:
    """An end before the start is one that was asked for first."""
    logs = logs_of(broker)
    assert logs.extents(broker.topics, []) == {}
    assert broker.calls == []
    broker.start, broker.end = 20, 50
    assert logs.extents(broker.topics, [T0]) == {T0: RecordExtent(20, 50, ID)}
    assert broker.calls == [("offsets", EARLIEST), ("offsets", LATEST)]
    broker.start = 60
    assert logs.extents(broker.topics, [T0]) == {T0: RecordExtent(60, 60, ID)}


def test_the_offset_at_a_time(broker: MadeUpBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    logs = logs_of(broker)
    for found, expected in ((0, 0), (7, 7), (-1, None)):
        monkeypatch.setattr(broker, "offsets", lambda places, time_ms, found=found: {T0: found})
        assert logs.offset_at(T0, 5) == expected


@pytest.mark.parametrize(
    ("start", "end", "step", "cuts"),
    [
        (0, 50, 10, [0, 10, 20, 30, 40]), (0, 50, 11, [0, 20, 40]), (0, 50, 9, [0, 10, 20, 30, 40]), (0, 20, 20, [0]),
        (0, 21, 20, [0, 20]), (5, 50, 10, [5, 20, 30, 40]), (0, 45, 35, [0, 40]), (0, 40, 35, [0]), (0, 0, 5, [0]),
    ],
)  # fmt: skip
def test_tasks_begin_where_batches_do(broker: MadeUpBroker, start: int, end: int, step: int, cuts: list[int]) -> None:
    """At least so many records apart, and before the end."""
    assert logs_of(broker).cuts(T0, start, end, step) == cuts


def test_a_place_that_has_no_batch_is_no_cut(broker: MadeUpBroker) -> None:
    broker.failures["fetch"] = [Fetched(0, 50, 0, b"")]
    assert logs_of(broker).cuts(T0, 0, 50, 10)[:2] == [0, 10]
    broker.failures["fetch"] = [Fetched(1, 50, 0, b"")]
    with pytest.raises(OffsetOutOfRangeError):
        logs_of(broker).cuts(T0, 0, 50, 10)


def test_sizes_are_those_of_a_moment_ago(broker: MadeUpBroker, now: list[float]) -> None:
    """For half a minute; what the broker does not say is not there."""
    logs = logs_of(broker)
    assert logs.stored([T0]) == {T0: Stored(1000, "/data")}
    broker.sizes[T0] = Stored(5, "/other")
    now[0] += 30.0
    assert logs.stored([T0])[T0].size_bytes == 1000
    assert logs.stored([T0, T1])[T0].size_bytes == 5, "all are asked for where one is not known"
    now[0] += 30.1
    broker.sizes.pop(T1)
    assert logs.stored([T0, ("t", 2)]) == {T0: Stored(5, "/other")}
    assert [call[1] for call in broker.calls] == [[T0], [T0, T1], [T0, ("t", 2)]]


@pytest.mark.parametrize(("size", "bytes_each"), [(1000, 20.0), (50, 1.0), (10, 1.0), (0, 10.0)])
def test_the_bytes_of_a_record(broker: MadeUpBroker, size: int, bytes_each: float) -> None:
    """On the average of what is there, one at least; about ten where nothing is known."""
    broker.sizes = {T0: Stored(size, "/data")}
    logs = logs_of(broker)
    logs.extents(broker.topics, [T0, T1])
    assert logs.record_bytes([T0, T1]) == {T0: bytes_each, T1: 10.0}
    broker.start = broker.end
    logs.extents(broker.topics, [T0])
    assert logs.record_bytes([T0]) == {T0: 10.0}


def test_refusals_are_the_errors_that_messages_have() -> None:
    for codes, kind in (((3, 5, 6, 7, 14, 15), TransportError), ((1,), OffsetOutOfRangeError),
                        ((56,), PartitionOfflineError), ((2, 4, 29), RecordsError)):  # fmt: skip
        for code in codes:
            found = kind_of(RecordsError("x", code))
            assert (type(found), str(found)) == (kind, "x")


@pytest.mark.parametrize(("code", "kind"), [(3, TransportError), (1, OffsetOutOfRangeError), (29, RecordsError)])
def test_what_a_driver_asks_may_be_refused(broker: MadeUpBroker, code: int, kind: type[Exception]) -> None:
    broker.failures["offsets"] = [RecordsError("no", code)]
    with pytest.raises(kind, match="no"):
        logs_of(broker).extents(broker.topics, [T0])


def test_a_connection_is_closed(broker: MadeUpBroker) -> None:
    logs_of(broker).close()
    assert broker.closed == 1


# -- a task ------------------------------------------------------------------------------------------------------------

Read = Callable[..., list[int]]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr(discovery, "pause", found.append)
    return found


@pytest.fixture
def read(broker: MadeUpBroker, monkeypatch: pytest.MonkeyPatch, pauses: list[float]) -> Read:
    """Reads a range of the broker's log; the values, which are the offsets."""
    monkeypatch.setattr(record_ranges, "RecordBroker", lambda *_, **__: broker)

    def read(start: int, end: int, **given: str) -> list[int]:
        options = {"brokers": "h:1", "subscribe": "t", "direct": "off", "fetch.numRetries": "2",
                   "fetch.retryIntervalMs": "1"}  # fmt: skip
        parsed = parse_options(options | {name.replace("_", "."): text for name, text in given.items()}, streaming=None)
        task = Task("t", 0, 0, "h", 1, start, end, 0, RecordLogSource(ID, "/data"))
        maker = RecordMaker([("value", True), ("offset", True)], "t", 0, 0)
        rows = [row for made in read_record_task(task, parsed, maker) for row in made.to_pylist()]
        assert [int(row["value"]) for row in rows] == [row["offset"] for row in rows]
        return [row["offset"] for row in rows]

    return read


@pytest.mark.parametrize(("start", "end"), [(0, 50), (0, 10), (5, 15), (9, 10), (10, 11), (49, 50), (20, 20)])
def test_a_range_is_its_records(broker: MadeUpBroker, read: Read, start: int, end: int) -> None:
    """Whichever batches they are in. The topic is looked at when all is read."""
    assert read(start, end) == [*range(start, end)]
    assert broker.calls[-1] == ("topics", ["t"])
    assert broker.closed == 1


@pytest.mark.parametrize("direct", ["off", "auto"])
def test_the_first_batch_comes_by_itself_where_files_may_go_on(broker: MadeUpBroker, read: Read, direct: str) -> None:
    """It says whether they are those of the broker; else as much is asked for as may be."""
    broker.is_here = False
    assert read(5, 50, direct=direct, fetch_size="4096") == [*range(5, 50)]
    fetched = [call[1:3] for call in broker.calls if call[0] == "fetch"]
    assert fetched == ([(5, 4096)] if direct == "off" else [(5, 1), (10, 4096)])


def test_a_broker_that_is_away_is_tried_from_where_reading_stands(
    broker: MadeUpBroker, read: Read, pauses: list[float]
) -> None:
    """So often in a row; one answer, and it may fail as often again."""
    away = TransportError("away")
    broker.failures["fetch"] = [away, away, Fetched(0, 50, 0, batch(0)), away, Fetched(5, 0, 0, b""), away]
    with pytest.raises(RangeIncompleteError, match=r"t/0-0, records 0 to 50: could not be read beyond 10: away"):
        read(0, 50)
    assert [call[1] for call in broker.calls if call[0] == "fetch"] == [0, 0, 0, 10, 10, 10]
    assert len(pauses) == 4
    broker.failures["fetch"] = [away, away]
    broker.failures["topics"] = [away, away]
    assert read(0, 50) == [*range(50)]


def test_a_refusal_ends_a_task(broker: MadeUpBroker, read: Read) -> None:
    for code, said in ((29, "could not be read beyond 0"), (56, "could not be read beyond 0")):
        broker.failures["fetch"] = [Fetched(code, 50, 0, b"")]
        with pytest.raises(RangeIncompleteError, match=said):
            read(0, 50)


@pytest.mark.parametrize("end", [51, 60])
def test_a_log_that_ends_before_the_range(broker: MadeUpBroker, read: Read, end: int) -> None:
    with pytest.raises(RangeIncompleteError, match=f"records 0 to {end}: could not be read beyond 50: the log ends"):
        read(0, end)
    broker.end = 40
    with pytest.raises(RangeIncompleteError, match="could not be read beyond 45: the log ends at 40"):
        read(45, 50)


def test_answers_that_do_not_go_on(broker: MadeUpBroker, read: Read) -> None:
    """Batches that end before the place that was asked for: it would be asked for ever."""
    broker.failures["fetch"] = [Fetched(0, 50, 0, batch(0))]
    with pytest.raises(RangeIncompleteError, match="could not be read beyond 15: the log ends there"):
        read(15, 50)


def test_a_damaged_batch(broker: MadeUpBroker, read: Read) -> None:
    """It is named by its place, also where others came with it."""
    bad = batch(10)[:-1] + b"\xff"
    broker.failures["fetch"] = [Fetched(0, 50, 0, batch(0) + bad)] + [Fetched(0, 50, 0, bad)] * 2
    with pytest.raises(RangeIncompleteError, match="the batch at offset 10 has a wrong checksum"):
        read(0, 50)


@pytest.mark.parametrize(("start", "found"), [(5, [*range(20, 50)]), (20, [*range(20, 50)])])
def test_what_retention_took_is_a_loss_unless_that_is_allowed(
    broker: MadeUpBroker, read: Read, start: int, found: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    broker.start = 20
    assert read(start, 50, failOnDataLoss="false") == found
    if start == 20:
        assert caplog.text == ""
        return
    assert "going on without the 15 records from 5 to 20" in caplog.text
    with pytest.raises(DataLossError, match=r"records 5 to 20 cannot be read any more: the log begins at 20; failOn"):
        read(start, 50)
    assert read(5, 15, failOnDataLoss="false") == []
    with pytest.raises(DataLossError, match="records 5 to 15 cannot be read any more: the log begins at 20"):
        read(5, 15)


def test_a_gap_that_is_none(broker: MadeUpBroker, read: Read) -> None:
    """The broker refuses an offset that it says it has, or does not say what it has."""
    broker.failures["fetch"] = [Fetched(1, 50, 0, b"")]
    with pytest.raises(RangeIncompleteError, match="could not be read beyond 5"):
        read(5, 50, failOnDataLoss="false")
    broker.failures["fetch"] = [Fetched(1, 50, 0, b"")]
    broker.failures["offsets"] = [TransportError("away now")]
    with pytest.raises(RangeIncompleteError, match="could not be read beyond 5: away now"):
        read(5, 50, failOnDataLoss="false")


def test_a_topic_that_was_made_anew_meanwhile(broker: MadeUpBroker, read: Read) -> None:
    for topics in ({}, {"t": KnownTopic(0, bytes(16), (0,), False)}):
        broker.topics = topics
        with pytest.raises(RangeIncompleteError, match="the topic was deleted, or made anew, while it was read"):
            read(0, 50)


# -- files -------------------------------------------------------------------------------------------------------------


class MadeUpFiles:
    """The files of the log, as far as a task asks; ``broken`` names what goes wrong."""

    made: MadeUpFiles | None = None

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.path = Path("/data/t-0")
        self.at = 0
        self.closed = 0
        self.seeks: list[int] = []
        self.broken: dict[int, FastlogError | NotHereError] = {}
        self.other = False

    def seek(self, offset: int) -> None:
        self.seeks.append(offset)
        self.at = offset // PER_BATCH * PER_BATCH

    def read(self, next_offset: int) -> memoryview:
        if next_offset in self.broken:
            raise self.broken[next_offset]
        data = batch(self.at + (100 if self.other else 0))
        self.at += PER_BATCH
        return memoryview(data)

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def files(monkeypatch: pytest.MonkeyPatch) -> MadeUpFiles:
    made = MadeUpFiles()

    def opened(*given: Any) -> MadeUpFiles:
        made.given = given
        return made

    monkeypatch.setattr(record_ranges, "RecordFiles", opened)
    return made


@pytest.mark.parametrize("direct", ["auto", "shared", "only"])
def test_a_task_goes_on_in_files_behind_the_first_batch(
    broker: MadeUpBroker, read: Read, files: MadeUpFiles, direct: str
) -> None:
    """Which it compares; then nothing is asked of the broker but whether the topic is still that one."""
    broker.is_here = direct == "auto"
    assert read(5, 45, direct=direct) == [*range(5, 45)]
    assert [call[:2] for call in broker.calls] == [("fetch", 5), ("topics", ["t"])]
    assert (files.given, files.seeks, files.closed) == (("/data", "t", 0, ID), [5, 10], 1)


def test_a_task_of_one_batch_seeks_no_further(broker: MadeUpBroker, read: Read, files: MadeUpFiles) -> None:
    assert read(0, 10, direct="shared") == [*range(10)]
    assert files.seeks == [0]


@pytest.mark.parametrize("kind", ["elsewhere", "other bytes", "gone"])
def test_files_that_are_not_the_broker_s_are_left_alone(
    broker: MadeUpBroker, read: Read, files: MadeUpFiles, kind: str
) -> None:
    """All is read by the socket then; who wants files only is told why there are none."""
    direct = {"elsewhere": "auto", "other bytes": "shared", "gone": "shared"}[kind]
    broker.is_here = kind != "elsewhere"
    files.other = kind == "other bytes"
    if kind == "gone":
        files.broken[0] = NotHereError("no such file")
    assert read(0, 50, direct=direct) == [*range(50)]
    assert files.closed == (0 if kind == "elsewhere" else 1)
    if kind != "elsewhere":
        said = {"other bytes": "has not the bytes that the broker sends", "gone": "no such file"}[kind]
        with pytest.raises(RangeIncompleteError, match=f"direct=only, and its files cannot be read here: .*{said}"):
            read(0, 50, direct="only")


def test_files_that_go_while_they_are_read(broker: MadeUpBroker, read: Read, files: MadeUpFiles) -> None:
    """The socket has the rest; damage is told of, since the broker would send the same."""
    files.broken[20] = NotHereError("retention")
    assert read(0, 50, direct="shared") == [*range(50)]
    assert [call[1] for call in broker.calls if call[0] == "fetch"] == [0, 20]
    assert files.closed == 1
    with pytest.raises(RangeIncompleteError, match="beyond 20: direct=only, and its files cannot be read here: reten"):
        read(0, 50, direct="only")
    files.broken[20] = FastlogError("damaged")
    with pytest.raises(RangeIncompleteError, match="could not be read beyond 20: damaged"):
        read(0, 50, direct="shared")
    assert files.closed == 3
