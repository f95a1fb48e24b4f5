"""``fastlog dump`` and ``fastlog load`` without a broker: what is read, what is appended, and how each of them ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog import message
from fastlog.client import connection
from fastlog.client.addresses import Address
from fastlog.client.records import RecordsError
from fastlog.consumer.fetched import MessageSet, RecordSet
from fastlog.errors import (
    FastlogError,
    InvalidFetchSizeError,
    InvalidMessageError,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    TransportError,
    WrongPartitionError,
)
from fastlog.record_batches import Record, build
from fastlog.tools import append_dump, dump_file, options, record_topics, write_dump
from fastlog.tools.append_dump import MessageDump, RecordDump
from fastlog.tools.appending import MessageAppender, OtherBytesError
from fastlog.tools.dump_file import DumpedPartition, DumpPiece, DumpReader, DumpWriter, TopicHead
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE, CommandError
from fastlog.tools.topic_places import PartitionPlace, Site, find_topic_sites
from fastlog.wire import requests
from fastlog.zkpaths import PartitionId
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE

ADDRESS = Address("h", 7)
ONE, TWO = PartitionId(4, 0), PartitionId(4, 1)
SECONDS = 30.0
TIMEOUT = 2.5
SETTINGS = {"retention.ms": "-1"}


def batch(offset: int, *values: bytes) -> bytes:
    return build([Record(None, value, 5) for value in values], base_offset=offset)


def refused(error: pytest.ExceptionInfo[CommandError]) -> tuple[str, str, str]:
    what, why, what_to_do = str(error.value).split("\n")
    return what, why, what_to_do


# -- dump --------------------------------------------------------------------------------------------------------------


class Clock:
    """Time that passes only while somebody sleeps, or as a test has it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time(self) -> float:
        return 1_700_000_000.25

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Same:
    """Whether the topic is the same: counts who asks, and says no when a test wants it."""

    def __init__(self) -> None:
        self.asked = 0
        self.is_gone = False

    def check(self) -> None:
        self.asked += 1
        if self.is_gone:
            raise CommandError("gone", "gone", "gone")


class Source:
    """What a consumer fetches: answers one after the other, sets or errors; what is callable makes one."""

    def __init__(self) -> None:
        self.answers: list[Any] = []
        self.asked: list[tuple[Any, ...]] = []
        self.open = 0

    def __enter__(self) -> Source:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1

    def fetch(self, topic: str, partition: int, offset: int, most_bytes: int, *, wait: float) -> MessageSet:
        assert wait == 1.0
        self.asked.append((topic, partition, offset, most_bytes))
        answer = self.answers.pop(0)
        answer = answer() if callable(answer) else answer
        if isinstance(answer, FastlogError):
            raise answer
        assert isinstance(answer, MessageSet)
        return answer


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(write_dump, "time", made)
    monkeypatch.setattr(connection, "time", made)
    monkeypatch.setattr(connection, "sleep", made.sleep)
    return made


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Source:
    made = Source()

    def opened(address: Address, timeout: float) -> Source:
        assert (address, timeout) == (ADDRESS, TIMEOUT)
        return made

    monkeypatch.setattr(write_dump, "open_consumer", opened)
    return made


@pytest.fixture
def same() -> Same:
    return Same()


def messages(offset: int, *values: bytes, tail: bytes = b"") -> MessageSet:
    return MessageSet("t", 0, offset, memoryview(message.encode_set(list(values)) + tail))


def records(offset: int, data: bytes) -> RecordSet:
    return RecordSet("t", 0, offset, memoryview(data))


def read(place: PartitionPlace, same: Same) -> list[tuple[bytes, int, int]]:
    return list(write_dump._pieces("t", place, TIMEOUT, same))  # type: ignore[arg-type]


SIZE = len(message.encode_set([b"a"]))


def test_messages_are_read_up_to_where_the_partition_ended(source: Source, same: Same) -> None:
    source.answers = [messages(5, b"a", b"b", tail=b"\0\0"), messages(5 + 2 * SIZE, b"c", b"d")]
    place = PartitionPlace(ONE, ADDRESS, 5, 5 + 3 * SIZE)
    found = read(place, same)
    assert found == [
        (message.encode_set([b"a", b"b"]), 2, 5 + 2 * SIZE),
        (message.encode_set([b"c"]), 1, 5 + 3 * SIZE),
    ]
    assert [asked[:3] for asked in source.asked] == [("t", 0, 5), ("t", 0, 5 + 2 * SIZE)]
    assert {asked[3] for asked in source.asked} == {512 * 1024}
    assert read(PartitionPlace(ONE, ADDRESS, 5, 5), same) == []
    assert len(source.asked) == 2 and source.open == 0


def test_records_come_in_whole_batches(source: Source, same: Same) -> None:
    """Their number is that of the records, not of the batches."""
    first, second = batch(5, b"a", b"b"), batch(7, b"c")
    source.answers = [records(5, first + second[:30]), records(7, second + batch(8, b"d"))]
    assert read(PartitionPlace(ONE, ADDRESS, 5, 8), same) == [(first, 2, 7), (second, 1, 8)]


def test_a_broker_that_is_away_is_waited_for(source: Source, same: Same, clock: Clock) -> None:
    """Half a minute, each time anew."""

    def later() -> FastlogError:
        clock.now += SECONDS * 2 / 3
        return TransportError("away")

    for number in range(4):
        source.answers += [later, messages(number * SIZE, b"a")]
    assert len(read(PartitionPlace(ONE, ADDRESS, 0, 4 * SIZE), same)) == 4
    source.answers = [TransportError("away") for _ in range(1000)]
    began = clock.now
    with pytest.raises(TransportError, match="away"):
        read(PartitionPlace(ONE, ADDRESS, 0, 5), same)
    assert SECONDS - 2 < clock.now - began <= SECONDS
    assert same.asked == 0


@pytest.mark.parametrize("kind", [messages, lambda offset: records(offset, b"")], ids=["messages", "records"])
def test_an_end_that_does_not_become_visible_is_said(source: Source, same: Same, clock: Clock, kind: Any) -> None:
    """After half a minute without anything new; until then the topic may turn out to be another one."""
    passed = [SECONDS]

    def nothing() -> MessageSet:
        clock.now += passed[0]
        found: MessageSet = kind(SIZE)
        return found

    source.answers = [nothing, messages(0, b"a"), nothing, messages(SIZE, b"a")]
    assert len(read(PartitionPlace(ONE, ADDRESS, 0, 2 * SIZE), same)) == 2
    assert same.asked == 2
    passed[0] = SECONDS + 1
    source.answers = [messages(0, b"a"), nothing]
    with pytest.raises(CommandError) as found:
        read(PartitionPlace(ONE, ADDRESS, 0, 2 * SIZE), same)
    what, why, what_to_do = refused(found)
    assert what == f"t, partition 4-0 ends at {SIZE}, before offset {2 * SIZE}"
    assert "not visible" in why and "topics describe t" in what_to_do
    same.is_gone = True
    source.answers = [nothing]
    with pytest.raises(CommandError, match="gone"):
        read(PartitionPlace(ONE, ADDRESS, 0, 2 * SIZE), same)


@pytest.mark.parametrize(
    ("error", "code", "what_to_do"),
    [
        (InvalidMessageError("bad"), EXIT_DAMAGED, "fastlog fsck"),
        (InvalidFetchSizeError("bad"), EXIT_DAMAGED, "fastlog fsck"),
        (MessageTooLargeError("bad"), EXIT_DAMAGED, "fastlog fsck"),
        (OffsetOutOfRangeError("bad"), EXIT_FAILED, "retention"),
        (WrongPartitionError("bad"), EXIT_FAILED, "if the topic is there"),
        (FastlogError("bad"), EXIT_DAMAGED, "run it again"),
    ],
)
def test_what_cannot_be_read_is_said(
    source: Source, same: Same, error: FastlogError, code: int, what_to_do: str
) -> None:
    """Unless the topic is another one now, which is the reason then."""
    place = PartitionPlace(ONE, ADDRESS, 0, 100)
    source.answers = [messages(0, b"a"), error]
    with pytest.raises(CommandError) as found:
        read(place, same)
    assert refused(found)[0] == f"t, partition 4-0 cannot be read at offset {SIZE}; nothing was written"
    assert (refused(found)[1], found.value.exit_code) == ("bad", code) and what_to_do in refused(found)[2]
    assert same.asked == 1
    source.answers = [error]
    with pytest.raises(CommandError) as found:
        write_dump._first_batch("t", place, TIMEOUT)
    assert "cannot be read at offset 0;" in refused(found)[0] and found.value.exit_code == code
    same.is_gone = True
    source.answers = [error]
    with pytest.raises(CommandError, match="gone"):
        read(place, same)


def test_where_the_first_batch_begins(source: Source) -> None:
    """A log may begin inside of it."""
    source.answers = [records(6, batch(5, b"a", b"b")), records(6, b"")]
    assert write_dump._first_batch("t", PartitionPlace(ONE, ADDRESS, 6, 7), TIMEOUT) == 5
    assert write_dump._first_batch("t", PartitionPlace(ONE, ADDRESS, 6, 7), TIMEOUT) == 6
    assert write_dump._first_batch("t", PartitionPlace(ONE, ADDRESS, 6, 6), TIMEOUT) == 6
    assert source.asked == [("t", 0, 6, 1)] * 2 and source.open == 0


class Settings:
    """A broker that tells and takes the settings of topics."""

    def __init__(self, **settings: tuple[str | None, bool]) -> None:
        self.settings_of = settings
        self.made: list[tuple[str, int, dict[str, str]]] = []
        self.refuses: RecordsError | None = None
        self.open = 0

    def __enter__(self) -> Settings:
        self.open += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.open -= 1

    def settings(self, topic: str) -> dict[str, SimpleNamespace]:
        assert topic == "records"
        return {name: SimpleNamespace(value=value, is_own=own) for name, (value, own) in self.settings_of.items()}

    def create(self, topic: str, count: int, settings: dict[str, str]) -> None:
        if self.refuses is not None:
            raise self.refuses
        self.made.append((topic, count, settings))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Settings:
    made = Settings(own=("5", True), default=("6", False), nothing=(None, True))

    def at(address: str, timeout: float) -> str:
        assert (address, timeout) == (str(ADDRESS), TIMEOUT)
        return "broker"

    monkeypatch.setattr(options, "broker_at", at)
    for module in (write_dump, append_dump):
        monkeypatch.setattr(module, "records_at", lambda broker: made)
    return made


@pytest.fixture
def two_topics(monkeypatch: pytest.MonkeyPatch, source: Source, same: Same, broker: Settings) -> None:
    """``messages`` of Kafka 0.7, and ``records``, of which the first one is deleted."""
    sites = {
        "messages": Site(4, ADDRESS, False, 1, (PartitionPlace(ONE, ADDRESS, 0, SIZE),), False),
        "records": Site(
            4, ADDRESS, False, 2, (PartitionPlace(ONE, ADDRESS, 6, 7), PartitionPlace(TWO, ADDRESS, 3, 3)), True
        ),
    }

    def found(topic: str, brokers: str, zookeeper: str | None, timeout: float) -> list[Site]:
        assert (brokers, zookeeper, timeout) == ("h:7", None, TIMEOUT)
        return [sites[topic]]

    monkeypatch.setattr(write_dump, "find_topic_sites", found)
    monkeypatch.setattr(write_dump, "SameTopic", lambda topic, sites, *given: same)


HEADS = [
    TopicHead("messages", 1_700_000_000_250, (DumpedPartition(ONE, 0, SIZE),), None, 1),
    TopicHead(
        "records",
        1_700_000_000_250,
        (DumpedPartition(ONE, 5, 7, 6), DumpedPartition(TWO, 3, 3, 3)),
        {"own": "5", "nothing": ""},
    ),
]
BOTH = batch(5, b"a", b"b")


def dump(*topics: str, file: Path | str, as_json: bool = False) -> None:
    write_dump.dump(topics, Path(file), "h:7", None, TIMEOUT, shown=False, as_json=as_json)


def pieces_in(data: bytes) -> list[tuple[TopicHead, list[DumpPiece]]]:
    reader = DumpReader("file", io.BytesIO(data))
    found = [(reader.head, list(reader.pieces()))]
    while reader.goes_on():
        found.append((reader.head, list(reader.pieces())))
    return found


@pytest.mark.usefixtures("two_topics")
def test_topics_are_written_one_behind_the_other(
    source: Source, same: Same, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    source.answers = [records(6, BOTH), messages(0, b"a"), records(5, BOTH)]
    dump("messages", "records", file=file, as_json=True)
    assert pieces_in(file.read_bytes()) == [
        (HEADS[0], [DumpPiece(ONE, 0, message.encode_set([b"a"]))]),
        (HEADS[1], [DumpPiece(ONE, 5, BOTH)]),
    ]
    assert same.asked == 2
    out, err = capsys.readouterr()
    assert "dumped 3 messages" in err
    assert "; offsets by partition: messages 4-0:0-11; records 4-0:6-7, 4-1:3-3" in err
    rows = [
        {"broker": 4, "partition": 0, "start": 6, "end": 7},
        {"broker": 4, "partition": 1, "start": 3, "end": 3},
    ]
    found = json.loads(out)
    assert found["file"] == str(file) and found["messages"] == 3 and found["bytes"] == SIZE + len(BOTH)
    assert [topic["topic"] for topic in found["topics"]] == ["messages", "records"]
    assert found["topics"][1]["partitions"] == rows


@pytest.mark.usefixtures("two_topics")
def test_one_topic_is_shown_without_its_name(
    source: Source, tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    """And standard output is flushed before the summary is printed."""
    source.answers = [messages(0, b"a")]
    dump("messages", file=tmp_path / "file", as_json=True)
    out, err = capfdbinary.readouterr()
    assert json.loads(out)["topic"] == "messages" and b"by partition: 4-0:0-11" in err
    source.answers = [messages(0, b"a")]
    dump("messages", file="-")
    assert capfdbinary.readouterr()[0] == (tmp_path / "file").read_bytes()


@pytest.mark.usefixtures("two_topics")
def test_how_far_it_is(source: Source, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In offsets, over all topics."""
    made: list[ConsoleProgress] = []
    monkeypatch.setattr(
        write_dump, "ConsoleProgress", lambda *given, **named: made.append(ConsoleProgress(*given, **named)) or made[0]
    )
    source.answers = [records(6, BOTH), messages(0, b"a"), records(5, BOTH)]
    dump("messages", "records", file=tmp_path / "file")
    assert made[0].goal == made[0].reached == SIZE + 2


@pytest.mark.usefixtures("two_topics")
def test_batches_that_do_not_follow_leave_no_file(source: Source, same: Same, tmp_path: Path) -> None:
    """A topic that was made anew has others."""
    for is_gone, said in ((False, "cannot be dumped; nothing was written"), (True, "gone")):
        same.is_gone = is_gone
        source.answers = [records(6, BOTH), records(5, batch(6, b"a"))]
        with pytest.raises(CommandError, match=said):
            dump("records", file=tmp_path / "file")
    source.answers = [records(6, BOTH), records(5, BOTH)]
    with pytest.raises(CommandError, match="gone"):
        dump("records", file=tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


# -- load --------------------------------------------------------------------------------------------------------------


class Appender:
    """A partition that is loaded into: bytes of messages, or batches; what it holds already is ``there``."""

    def __init__(self, end: int, *, holds: bool = True) -> None:
        self.end = end
        self.compared: list[Any] = []
        self.appended: list[Any] = []
        self.said: list[Any] = []
        self.closed = False
        self._holds = holds

    def holds(self, *found: Any) -> bool:
        self.compared.append(found if len(found) > 1 else [one.offset for one in found[0]])
        return self._holds

    def append(self, data: Any, **options: bool) -> None:
        if isinstance(data, bytes):
            self.appended.append((data, options))
            self.end += len(data)
            return
        self.appended.append([one.offset for one in data])
        self.end = data[-1].next_offset

    def wait_flushed(self) -> None:
        self.said.append("flushed")

    def begin_at(self, offset: int) -> None:
        self.said.append(offset)

    def close(self) -> None:
        self.closed = True


MESSAGES = TopicHead("t", 1, (DumpedPartition(ONE, 100, 100 + 4 * SIZE), DumpedPartition(TWO, 7, 7)))
MESSAGE_PIECES = [
    DumpPiece(ONE, 100, message.encode_set([b"a", b"b"])),
    DumpPiece(ONE, 100 + 2 * SIZE, message.encode_set([b"c", b"d"])),
]
RECORDS = TopicHead("t", 1, (DumpedPartition(ONE, 5, 10, 6), DumpedPartition(TWO, 7, 7, 7)), SETTINGS)
RECORD_PIECES = [
    DumpPiece(ONE, 5, batch(5, b"a", b"b") + batch(7, b"c")),
    DumpPiece(ONE, 8, batch(8, b"d", b"e")),
]


def in_file(*topics: tuple[TopicHead, list[DumpPiece]]) -> bytes:
    out = io.BytesIO()
    writer = DumpWriter(out)
    for number, (head, pieces) in enumerate(topics, 1):
        writer.begin(head._replace(following=len(topics) - number))
        for piece in pieces:
            writer.piece(piece.partition, piece.data)
        writer.finish()
    return out.getvalue()


def of(kind: Any, head: TopicHead, pieces: list[DumpPiece], *, resume: bool = False) -> Any:
    """What loads them, not prepared."""
    reader = DumpReader("file", io.BytesIO(in_file((head, pieces))))
    return kind("t", reader, resume, TIMEOUT, ConsoleProgress("loaded", shown=False))


def appending(loading: Any, end: int, other_end: int, **options: bool) -> tuple[Appender, Appender]:
    first, second = Appender(end, **options), Appender(other_end)
    loading._targets = {ONE: (PartitionId(9, 0), first), TWO: (TWO, second)}
    return first, second


@pytest.mark.parametrize("there", range(0, 4 * SIZE + 1))
def test_of_messages_only_what_is_not_there_is_appended(there: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Wherever an earlier load has ended; the last piece of a partition waits for the disk."""
    data = message.encode_set([b"a", b"b", b"c", b"d"])
    loading = of(MessageDump, MESSAGES, MESSAGE_PIECES, resume=True)
    first, second = appending(loading, there, 0)
    loading.run()
    assert b"".join(part for part, _ in first.appended) == data[there:]
    compared = b"".join(part for _, part in first.compared)
    assert compared == data[:there] and [at for at, _ in first.compared] == [0, 2 * SIZE][: len(first.compared)]
    assert [flags["flushed"] for _, flags in first.appended] == [False, True][2 - len(first.appended) :]
    assert first.closed and second.closed and second.appended == [] == first.said
    assert loading._progress.reached == loading._progress.goal == 4 * SIZE
    assert loading._progress.size == 4 * SIZE - there
    if there % SIZE == 0:
        assert loading._progress.count == 4 - there // SIZE
    loading.summary()
    before = f"; {there} bytes were there already and are the same" if there else ""
    assert f"{before}; ends by partition: 9-0:{4 * SIZE} (was 4-0), 4-1:0" in capsys.readouterr().err
    assert ("already" in before) is bool(there)


@pytest.mark.parametrize(("there", "records_there"), [(5, 0), (7, 2), (8, 3), (10, 5)])
def test_of_records_only_batches_that_are_not_there_are_appended(
    there: int, records_there: int, capsys: pytest.CaptureFixture[str]
) -> None:
    loading = of(RecordDump, RECORDS, RECORD_PIECES, resume=True)
    first, second = appending(loading, there, 7)
    loading.run()
    assert [at for found in first.compared for at in found] == [at for at in (5, 7, 8) if at < there]
    assert [at for found in first.appended for at in found] == [at for at in (5, 7, 8) if at >= there]
    assert [] not in first.appended and [] not in first.compared
    assert (first.said, second.said, first.closed) == (["flushed", 6], ["flushed", 7], True)
    assert loading._progress.count == 5 - records_there
    assert loading._progress.reached == loading._progress.goal == 5
    appended = {5: batch(5, b"a", b"b"), 7: batch(7, b"c"), 8: batch(8, b"d", b"e")}
    assert loading._progress.size == sum(len(data) for at, data in appended.items() if at >= there)
    loading.summary(as_json=True)
    out, err = capsys.readouterr()
    assert (f"{records_there} records were there already" in err) is bool(records_there)
    told = json.loads(out)
    assert (told["topic"], told["records_there_before"], told["messages"]) == ("t", records_there, 5 - records_there)
    assert told["partitions"][0] == {"broker": 9, "partition": 0, "end": 10, "of": {"broker": 4, "partition": 0}}


@pytest.mark.parametrize(
    ("kind", "head", "pieces", "end", "said"),
    [
        (MessageDump, MESSAGES, MESSAGE_PIECES, 3, "from offset 0 on the log holds other bytes"),
        (RecordDump, RECORDS, RECORD_PIECES, 7, "from offset 5 on the log holds other records"),
    ],
)
def test_other_bytes_stop_it(kind: Any, head: TopicHead, pieces: list[DumpPiece], end: int, said: str) -> None:
    """And say where; what is open is closed."""
    loading = of(kind, head, pieces, resume=True)
    first, second = appending(loading, end, 0, holds=False)
    with pytest.raises(CommandError) as found:
        loading.run()
    what, why, _ = refused(found)
    assert what == f"t, partition 9-0: loading stopped at offset {end}; --resume goes on" and said in why
    assert first.appended == [] and first.closed and second.closed


def test_a_log_that_ends_inside_a_batch_is_another_one() -> None:
    loading = of(RecordDump, RECORDS, RECORD_PIECES, resume=True)
    first, _ = appending(loading, 6, 7)
    with pytest.raises(CommandError, match="loading stopped at offset 6"):
        loading.run()
    assert first.compared == [] == first.appended


def test_what_fails_at_the_end_is_said_of_its_partition(monkeypatch: pytest.MonkeyPatch) -> None:
    loading = of(RecordDump, RECORDS, RECORD_PIECES)
    _, second = appending(loading, 5, 7)

    def fail() -> None:
        raise TransportError("away")

    monkeypatch.setattr(second, "wait_flushed", fail)
    with pytest.raises(CommandError, match="partition 4-1: loading stopped at offset 7"):
        loading.run()


def site(*places: PartitionPlace, of_records: bool, is_plain: bool = False) -> Site:
    return Site(4, ADDRESS, is_plain, len(places), places, of_records)


class Prepared(list[PartitionPlace]):
    """The places that appenders are made for, in the order of the file."""

    made: dict[int, DumpedPartition] | None = None


def prepared(loading: Any, monkeypatch: pytest.MonkeyPatch, *sites: Site) -> Prepared:
    found = Prepared()

    def create(site: Site, partitions: dict[int, DumpedPartition]) -> None:
        found.made = partitions

    monkeypatch.setattr(loading, "_create", create)
    monkeypatch.setattr(loading, "_appender", found.append)
    loading.prepare(list(sites))
    return found


@pytest.mark.parametrize(("kind", "head", "ends"), [(MessageDump, MESSAGES, (0, 0)), (RecordDump, RECORDS, (5, 7))])
def test_what_is_not_there_is_made(
    monkeypatch: pytest.MonkeyPatch, kind: Any, head: TopicHead, ends: tuple[int, int]
) -> None:
    """Where the first one is there, and where both are, which are used as they are."""
    there = [PartitionPlace(one, ADDRESS, end, end) for one, end in zip((ONE, TWO), ends, strict=True)]
    for count in (0, 1, 2, 3):
        places = [*there, PartitionPlace(PartitionId(4, 2), ADDRESS, 0, 0)][:count]
        one = site(*places, of_records=kind.is_of_records)
        found = prepared(of(kind, head, []), monkeypatch, one)
        assert found.made == (None if count > 1 else {0: head.partitions[0], 1: head.partitions[1]})
        assert found == there
    third = head._replace(partitions=(head.partitions[0], head.partitions[1]._replace(partition=PartitionId(4, 2))))
    two = site(*there, of_records=kind.is_of_records)
    assert prepared(of(kind, third, []), monkeypatch, two).made == {0: third.partitions[0], 2: third.partitions[1]}
    other = PartitionPlace(TWO, Address("other", 1), ends[1], ends[1])
    assert prepared(of(kind, head, []), monkeypatch, site(there[0], other, of_records=kind.is_of_records))[1] is other


@pytest.mark.parametrize(
    ("start", "end", "said"),
    [
        (0, 0, ""),
        (0, 1, "it ends at offset 1"),
        (1, 1, "it ends at offset 1"),
        (0, 4 * SIZE, "it ends at offset 44"),
        (0, 4 * SIZE + 1, "it ends at offset 45"),
    ],
)
def test_a_log_of_messages_has_to_be_empty(monkeypatch: pytest.MonkeyPatch, start: int, end: int, said: str) -> None:
    """Or, with --resume, no longer than that of the file, and from its beginning on."""
    one = site(PartitionPlace(ONE, ADDRESS, start, end), PartitionPlace(TWO, ADDRESS, 0, 0), of_records=False)
    if said:
        with pytest.raises(CommandError, match=f"is not empty: {said}"):
            prepared(of(MessageDump, MESSAGES, []), monkeypatch, one)
    loading = of(MessageDump, MESSAGES, [], resume=True)
    if not start and end <= 4 * SIZE:
        assert prepared(loading, monkeypatch, one)[0].end == end
        return
    with pytest.raises(CommandError, match="cannot become that of the file") as found:
        prepared(loading, monkeypatch, one)
    assert f"from offset {start} to {end}, and that of the file has 44 bytes" in refused(found)[1]


@pytest.mark.parametrize(
    ("start", "end", "is_empty", "fits"),
    [
        (5, 5, True, True),
        (6, 6, True, True),
        (4, 4, True, False),
        (7, 7, True, False),
        (0, 0, True, False),
        (5, 6, False, True),
        (5, 10, False, True),
        (6, 10, False, True),
        (5, 11, False, False),
        (7, 10, False, False),
    ],
)
def test_a_log_of_records_has_to_begin_where_that_of_the_file_does(
    monkeypatch: pytest.MonkeyPatch, start: int, end: int, is_empty: bool, fits: bool
) -> None:
    """In a batch, or at its first record that could be read."""
    one = site(PartitionPlace(ONE, ADDRESS, start, end), PartitionPlace(TWO, ADDRESS, 7, 7), of_records=True)
    if not is_empty:
        with pytest.raises(CommandError, match=f"is not empty: it ends at offset {end}"):
            prepared(of(RecordDump, RECORDS, []), monkeypatch, one)
    for resume in (True, False) if is_empty else (True,):
        loading = of(RecordDump, RECORDS, [], resume=resume)
        if fits:
            assert prepared(loading, monkeypatch, one)[0] == PartitionPlace(ONE, ADDRESS, start, end)
            continue
        with pytest.raises(CommandError, match="cannot become that of the file") as found:
            prepared(loading, monkeypatch, one)
        assert "that of the file from 5 to 10" in refused(found)[1]


def test_what_cannot_be_loaded_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker of plain Kafka 0.7, and a topic of the other kind; one without partitions is of neither."""
    place = PartitionPlace(ONE, ADDRESS, 0, 0)
    with pytest.raises(CommandError, match="cannot be loaded into") as found:
        prepared(of(MessageDump, MESSAGES, []), monkeypatch, site(place, of_records=False, is_plain=True))
    assert found.value.exit_code == EXIT_USAGE
    for kind, head, is_other, words in (
        (MessageDump, MESSAGES, True, "is a topic of records"),
        (RecordDump, RECORDS, False, "is a topic of messages of Kafka 0.7"),
    ):
        with pytest.raises(CommandError, match=words) as found:
            prepared(of(kind, head, []), monkeypatch, site(place, of_records=is_other))
        assert found.value.exit_code == EXIT_FAILED
        assert prepared(of(kind, head, []), monkeypatch, site(of_records=is_other)).made is not None


def test_a_topic_of_records_is_made_as_it_was(broker: Settings) -> None:
    """With its settings, and beginning where the file does; partitions between those of the file begin at 0."""
    loading = of(RecordDump, RECORDS, [])
    empty = site(of_records=True)
    loading._create(empty, {0: RECORDS.partitions[0], 2: RECORDS.partitions[1]})
    assert broker.made == [("t", 3, {**SETTINGS, "fastlog.first.offsets": "5,0,7"})]
    loading = of(RecordDump, RECORDS._replace(settings={}), [])
    loading._create(empty, {0: DumpedPartition(ONE, 0, 5, 0), 1: DumpedPartition(TWO, 0, 5, 3)})
    assert broker.made[1:] == [("t", 2, {})] and broker.open == 0
    broker.refuses = RecordsError("no", 40)
    with pytest.raises(CommandError) as found:
        loading._create(empty, {0: RECORDS.partitions[0]})
    assert refused(found)[:2] == (f"t was not made with 1 partitions on {ADDRESS}; nothing was loaded", "no")
    with pytest.raises(CommandError, match="it has 1 already"):
        loading._create(site(PartitionPlace(ONE, ADDRESS, 0, 0), of_records=True), {1: RECORDS.partitions[0]})


class Connection:
    """One of ``options.broker_at``."""

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def connect(self) -> Connection:
        return self


@pytest.mark.parametrize(("code", "raises"), [(3, False), (29, True)])
def test_a_topic_that_somebody_else_deleted_first_is_none(
    monkeypatch: pytest.MonkeyPatch, code: int, raises: bool
) -> None:
    def delete(topic: str) -> None:
        raise RecordsError("refused", code)

    records: Any = SimpleNamespace(topics=lambda names: {"t": SimpleNamespace(code=0, partitions=(0,))}, delete=delete)
    monkeypatch.setattr(record_topics, "records_at", lambda broker: contextlib.nullcontext(records))
    with pytest.raises(RecordsError) if raises else contextlib.nullcontext():
        assert record_topics.is_deleted(Connection(), "t") is None  # type: ignore[arg-type]


def test_of_several_brokers_those_count_that_have_the_topic() -> None:
    with FakeBroker() as one, FakeBroker() as other:
        other.broker_id = 1
        one.logs["t", 0] = one.logs["both", 0] = other.logs["both", 0] = b""
        brokers = f"{other.address},{one.address}"
        assert [item.broker for item in find_topic_sites("t", brokers, None, PATIENCE)] == [0]
        assert [item.broker for item in find_topic_sites("both", brokers, None, PATIENCE)] == [0, 1]
        with pytest.raises(CommandError, match="topic 'none' does not exist"):
            find_topic_sites("none", brokers, None, PATIENCE)


def test_as_many_bytes_of_somebody_else_are_not_those_whose_answer_was_lost() -> None:
    mine, theirs = message.encode_set([b"a"]), message.encode_set([b"b"])

    def hook(request: requests.Request) -> None:
        if isinstance(request, requests.ProduceAckRequest):
            broker.logs["t", 0] = theirs
            raise ConnectionError

    with FakeBroker(hook=hook) as broker:
        broker.logs["t", 0] = b""
        with MessageAppender("t", 0, Address("127.0.0.1", broker.port), PATIENCE, 0) as appender:
            with pytest.raises(OtherBytesError, match=f"the log ends at {len(mine)}, where 0 was expected"):
                appender.append(mine)
            assert appender.end == 0


@pytest.mark.parametrize("error", [0, 3])
def test_a_topic_of_messages_is_made(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    made = []

    def create(connection: Connection, topic: str, count: int) -> SimpleNamespace:
        made.append((topic, count))
        return SimpleNamespace(error=error)

    monkeypatch.setattr(options, "broker_at", lambda *given: Connection())
    monkeypatch.setattr(append_dump, "create_topic", create)
    loading = of(MessageDump, MESSAGES, [])
    partitions = {0: MESSAGES.partitions[0], 2: MESSAGES.partitions[1]}
    if error:
        with pytest.raises(CommandError, match="was not made with 3 partitions"):
            loading._create(site(of_records=False), partitions)
    else:
        loading._create(site(of_records=False), partitions)
    assert made == [("t", 3)]


# -- the file ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, list[DumpPiece]]]:
    """What each topic of a file is loaded as, by which kind, and its pieces."""
    found: list[tuple[str, str, list[DumpPiece]]] = []

    class Loading:
        kind = ""

        def __init__(
            self, topic: str, reader: dump_file.DumpReader, resume: bool, timeout: float, progress: ConsoleProgress
        ) -> None:
            assert (resume, timeout) == (True, TIMEOUT)
            self._reader = reader
            found.append((topic, self.kind, []))

        def prepare(self, sites: Sequence[Site]) -> None:
            found[-1][2].clear()

        def run(self) -> None:
            found[-1][2].extend(self._reader.pieces())

        def summary(self, *, as_json: bool) -> None:
            assert as_json
            print("summary")

    def sites(topic: str, *given: object, of_records: bool) -> list[Site]:
        assert given == ("h:7", None, TIMEOUT) and of_records and topic == found[-1][0]
        return []

    for kind in ("MessageDump", "RecordDump"):
        monkeypatch.setattr(append_dump, kind, type(kind, (Loading,), {"kind": kind}))
    monkeypatch.setattr(append_dump, "find_all_sites", sites)
    return found


def load(topic: str | None, file: Path | str) -> None:
    append_dump.load(topic, Path(file), "h:7", None, TIMEOUT, resume=True, shown=False, as_json=True)


TOPICS = [(MESSAGES._replace(topic="one"), MESSAGE_PIECES), (RECORDS._replace(topic="two"), RECORD_PIECES)]


def test_each_topic_of_a_file_is_loaded(loaded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.write_bytes(in_file(*TOPICS))
    load(None, file)
    assert loaded == [("one", "MessageDump", MESSAGE_PIECES), ("two", "RecordDump", RECORD_PIECES)]
    assert capsys.readouterr().out == "summary\n" * 2
    with pytest.raises(CommandError, match="has 2 topics, which cannot all be loaded as 'other'") as found:
        load("other", file)
    assert found.value.exit_code == EXIT_USAGE
    loaded.clear()
    file.write_bytes(in_file(TOPICS[1]))
    load("other", file)
    assert loaded == [("other", "RecordDump", RECORD_PIECES)]


@pytest.mark.parametrize("cut", [1, 20, None])
def test_a_file_that_is_damaged_is_not_begun_with(loaded: list[Any], tmp_path: Path, cut: int | None) -> None:
    """Also where the first topic is whole."""
    file = tmp_path / "file"
    data = in_file(*TOPICS)
    file.write_bytes(data[: len(data) - cut] if cut else data + b"x")
    with pytest.raises(CommandError, match=r"is damaged at position \d+; nothing was loaded") as found:
        load(None, file)
    assert loaded == [] and found.value.exit_code == EXIT_DAMAGED


def test_a_pipe_is_read_once(loaded: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its name, or as standard input."""
    data = in_file(*TOPICS)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for name in (pipe, "-"):
        loaded.clear()
        writer = threading.Thread(target=pipe.write_bytes, args=(data,))
        writer.start()
        if name == "-":
            monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=pipe.open("rb")))
        load(None, name)
        writer.join()
        assert [topic for topic, *_ in loaded] == ["one", "two"]
