"""``fastlog load`` without a broker: what is appended, what is made, and how each of them ends."""

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
from fastlog.client.addresses import Address
from fastlog.client.records import RecordsError
from fastlog.errors import (
    TransportError,
)
from fastlog.tools import append_dump, dump_file, options, record_topics, write_dump
from fastlog.tools.append_dump import MessageDump, RecordDump
from fastlog.tools.appending import MessageAppender, OtherBytesError
from fastlog.tools.dump_file import DumpedPartition, DumpPiece, DumpReader, DumpWriter, TopicHead
from fastlog.tools.progress import ConsoleProgress
from fastlog.tools.report import EXIT_DAMAGED, EXIT_FAILED, EXIT_USAGE, CommandError
from fastlog.tools.topic_places import PartitionPlace, Site, find_topic_sites
from fastlog.wire import requests
from fastlog.zkpaths import PartitionId
from tests.harness import wire07
from tests.harness.dumps import ADDRESS, ONE, SETTINGS, SIZE, TIMEOUT, TWO, Settings, batch, refused
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE


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

    known = {"t": SimpleNamespace(code=0, partitions=(0,))}
    records: Any = SimpleNamespace(known_topics=lambda names: known, delete=delete)
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
        if isinstance(request, wire07.ProduceAckRequest):
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

    def sites(topic: str, *given: object) -> list[Site]:
        assert given == ("h:7", None, TIMEOUT) and topic == found[-1][0]
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
