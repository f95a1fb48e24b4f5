"""Reading one task's range: all of it or an error that names it, whatever the broker does meanwhile."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from fastlog._segment import pack
from fastlog.codecs import GZIP, compress
from fastlog.errors import DataLossError, RangeIncompleteError
from fastlog.message import encode_set
from fastlog.segment_files import KAFKA_0_7, segment_name
from fastlog.spark import ranges
from fastlog.spark.columns import BatchMaker
from fastlog.spark.options import SourceOptions, parse_options
from fastlog.spark.plans import Task
from fastlog.spark.ranges import read_task
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import PAYLOADS, with_log
from tests.harness.fake_broker import FakeBroker

LOG = pack(PAYLOADS)
ENTRY = len(LOG) // len(PAYLOADS)


def options_of(**given: str) -> SourceOptions:
    quick = {"fetch.numRetries": "2", "fetch.retryIntervalMs": "1", "fetch.timeout.ms": "5000", "direct": "off"}
    given = {name.replace("__", "."): text for name, text in given.items()}
    return parse_options({"brokers": "h", "subscribe": "t", **quick, **given}, streaming=False)


def task_of(fake: FakeBroker, start: int = 0, end: int = len(LOG), port: int = 0) -> Task:
    return Task("t", 0, 0, "127.0.0.1", port or fake.port, start, end)


def read(task: Task, **given: str) -> list[Any]:
    """(offset, value) of each row."""
    maker = BatchMaker([("offset", True), ("value", True)], "t", 0, 0)
    rows = []
    for batch in read_task(task, options_of(**given), maker):
        rows += list(zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True))
    return rows


@pytest.mark.parametrize("own", [True, False], ids=["fastlog", "plain 0.7"])
@pytest.mark.parametrize("size", ["1", "100", "1MiB"])
def test_exactly_the_range_is_read(own: bool, size: str) -> None:
    """With fetches smaller and larger than messages; what is behind its end is not asked for."""
    with with_log(LOG, own=own) as fake:
        found = read(task_of(fake, 3 * ENTRY, 9 * ENTRY), fetch__size=size)
        assert found == [(number * ENTRY, PAYLOADS[number]) for number in range(3, 9)]
        assert read(task_of(fake, ENTRY, ENTRY)) == []


def test_a_wrapper_is_never_cut() -> None:
    wrapper = encode_set(PAYLOADS[:50], GZIP)
    with with_log(wrapper + LOG) as fake:
        assert read(task_of(fake, 0, len(wrapper)), fetch__size="20") == [(0, payload) for payload in PAYLOADS[:50]]


def test_a_broker_that_dies_now_and_then() -> None:
    """Every third fetch breaks the connection: reading goes on where it was, without a row twice."""
    count = 0

    def hook(request: rq.Request) -> None:
        nonlocal count
        if isinstance(request, wire07.HeldFetchRequest):
            count += 1
            if count % 3:
                return
            raise ConnectionError

    with with_log(LOG, hook=hook) as fake:
        assert [value for _, value in read(task_of(fake), fetch__size="100")] == PAYLOADS
    assert count > 20


def test_a_broker_that_stays_away_names_the_range() -> None:
    with with_log(LOG) as fake:
        port = fake.port
    begun = time.monotonic()
    with pytest.raises(RangeIncompleteError, match=rf"t/0-0, bytes {ENTRY} to 60: could not be read beyond {ENTRY}: "):
        read(task_of(fake, ENTRY, 60, port))
    assert time.monotonic() - begun < 20


def test_a_log_that_ends_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranges, "_SHORT_SECONDS", 0.05)
    with (
        with_log(LOG[: 5 * ENTRY]) as fake,
        pytest.raises(RangeIncompleteError, match=f"could not be read beyond {5 * ENTRY}: the log ends there"),
    ):
        read(task_of(fake, 0, 9 * ENTRY))


@pytest.mark.parametrize(("planned", "now", "fails"), [(1, 1, False), (1, 2, True), (1, 0, False), (0, 2, False)])
def test_a_log_that_is_made_anew_while_it_is_read(planned: int, now: int, fails: bool) -> None:
    """What was read may be of either, so the task fails; where one side does not know, it goes on."""

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest) or not request.topics:
            return None
        topic = rs.TopicMetadata("t", 0, 1, (rs.PartitionMetadata(0, 0, 0, len(LOG), len(LOG), now),))
        limits = 10**6, 10**6, 1000, rq.LOWEST_OWN, rq.HIGHEST_OWN
        return rs.encode_metadata(rs.MetadataAnswer(request.correlation_id, 0, 0, "h", 1, *limits, (topic,)))

    with with_log(LOG, hook=hook) as fake:
        task = task_of(fake)._replace(created_ms=planned)
        if fails:
            with pytest.raises(RangeIncompleteError, match=r"^t/0-0, bytes 0 to .* made anew while it was read"):
                read(task)
        else:
            assert [value for _, value in read(task)] == PAYLOADS


def test_a_log_that_cannot_be_told_any_more() -> None:
    """Whether it was made anew nobody can say then."""
    with with_log(LOG) as fake:
        fake.refused = {"t": 106}
        with pytest.raises(RangeIncompleteError, match="does not let this connection's principal"):
            read(task_of(fake)._replace(created_ms=1))


def test_an_end_inside_a_message() -> None:
    with (
        with_log(LOG) as fake,
        pytest.raises(RangeIncompleteError, match=f"beyond {2 * ENTRY}: the message there ends at {3 * ENTRY}"),
    ):
        read(task_of(fake, 0, 3 * ENTRY - 1))


def test_a_start_inside_a_message() -> None:
    with with_log(LOG) as fake, pytest.raises(RangeIncompleteError, match="could not be read beyond 1: "):
        read(task_of(fake, 1))


@pytest.mark.parametrize("wrapped", [False, True])
def test_damage_names_the_range(wrapped: bool) -> None:
    data = bytearray(encode_set(PAYLOADS[:10]))
    data[5 * ENTRY + 12] ^= 1
    log = pack([compress(GZIP, data)], GZIP) if wrapped else bytes(data)
    with (
        with_log(LOG[:ENTRY] + log) as fake,
        pytest.raises(RangeIncompleteError, match=rf"t/0-0, bytes 0 to {ENTRY + len(log)}: could not be read beyond"),
    ):
        read(task_of(fake, 0, ENTRY + len(log)))


class Shrinking:
    """A broker whose log begins later once reading has begun."""

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.fetches = 0

    def __call__(self, request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            self.fetches += 1
            if self.fetches > 1 and request.offset < self.begin:
                return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 1, len(LOG), self.begin))
        if isinstance(request, rq.OffsetsRequest):
            return rs.encode_offsets(0, [self.begin])
        return None


@pytest.mark.parametrize("begin", [50 * ENTRY, 150 * ENTRY])
def test_retention_that_overtakes_the_reader(begin: int) -> None:
    """The lost bytes are named; with ``failOnDataLoss=false`` the rest of the range comes, which may be nothing."""
    size, end = str(10 * ENTRY), 100 * ENTRY
    with with_log(LOG, hook=Shrinking(begin)) as fake:
        lost = f"bytes {10 * ENTRY} to {min(begin, end)} cannot be read any more: the log begins at {begin}"
        with pytest.raises(DataLossError, match=lost):
            read(task_of(fake, 0, end), fetch__size=size)
    with with_log(LOG, hook=Shrinking(begin)) as fake:
        found = [value for _, value in read(task_of(fake, 0, end), fetch__size=size, failOnDataLoss="false")]
        assert found == PAYLOADS[:10] + PAYLOADS[begin // ENTRY : 100]


# -- direct ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "t-0"
    made.mkdir()
    (made / segment_name(0)).write_bytes(LOG)
    return made


def told_of(directory: Path) -> FakeBroker:
    """A broker that says that its files are there."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.LocalReadRequest):
            answer = rs.LocalReadAnswer(request.correlation_id, 0, str(directory), KAFKA_0_7, 0, len(LOG), (0,))
            return rs.encode_local_read(answer)
        return None

    return with_log(LOG, hook=hook)


@pytest.mark.parametrize("direct", ["auto", "shared", "only"])
def test_direct_reads_the_files(directory: Path, direct: str) -> None:
    """The broker sends one proof that they are its own, and not the messages."""
    with told_of(directory) as fake:
        assert [value for _, value in read(task_of(fake), direct=direct, fetch__size="500")] == PAYLOADS
        assert fake.seen["HeldFetchRequest"] == 1


@pytest.mark.parametrize("direct", ["shared", "only"])
def test_the_log_directory_of_another_machine(directory: Path, direct: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastlog.consumer.channel.Channel.reaches_this_host", lambda channel: False)
    with told_of(directory) as fake:
        assert [value for _, value in read(task_of(fake), direct=direct, fetch__size="500")] == PAYLOADS
        assert fake.seen["HeldFetchRequest"] == 1


def test_auto_leaves_the_directories_of_other_machines_alone(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastlog.consumer.channel.Channel.reaches_this_host", lambda channel: False)
    with told_of(directory) as fake:
        assert [value for _, value in read(task_of(fake), direct="auto", fetch__size="500")] == PAYLOADS
        assert fake.seen["LocalReadRequest"] == 0


def test_files_that_are_not_there(directory: Path) -> None:
    """The socket serves, unless the user wants files only."""
    (directory / segment_name(0)).unlink()
    with told_of(directory) as fake:
        assert len(read(task_of(fake))) == len(PAYLOADS)
        with pytest.raises(RangeIncompleteError, match="direct=only, and its files cannot be read here: "):
            read(task_of(fake), direct="only")


def test_nothing_is_left_open() -> None:
    """Also when Spark stops in the middle, as for a LIMIT."""

    def connections() -> int:
        found = psutil.Process().net_connections("tcp")
        return sum(item.raddr != () and item.raddr.port == fake.port for item in found)

    with with_log(LOG) as fake:
        batches = read_task(task_of(fake), options_of(fetch__size="100"), BatchMaker([("offset", True)], "t", 0, 0))
        next(batches)
        assert connections() == 1
        batches.close()  # type: ignore[attr-defined]
        assert connections() == 0
