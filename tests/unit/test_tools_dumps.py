"""``fastlog dump`` without a broker: what is read, what is written, and how each of them ends."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from fastlog import message
from fastlog.client import connection
from fastlog.client.addresses import Address
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
from fastlog.tools import append_dump, options, write_dump
from fastlog.tools.dump_file import DumpedPartition, DumpPiece, DumpReader, TopicHead
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, CommandError
from fastlog.tools.topic_places import PartitionPlace, Site
from tests.harness.dumps import ADDRESS, ONE, SIZE, TIMEOUT, TWO, Settings, batch, refused

SECONDS = 30.0


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
