"""Topics of records as one file, and back: each with its offset, key, value, headers and time, and the settings."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer

import fastlog
from fastlog import testing
from fastlog.client.addresses import Address
from fastlog.client.records import EARLIEST, LATEST, RecordBroker
from fastlog.errors import TransportError
from fastlog.record_batches import CONTROL, LOG_APPEND_TIME, TRANSACTIONAL, Record, batches, build
from fastlog.testing import RunningBroker
from fastlog.tools.dump_file import DumpReader
from fastlog.tools.record_appending import storable
from tests.harness.broker import ROOT, wait_until
from tests.harness.command_line import Commands
from tests.harness.timing import PATIENCE

pytestmark = pytest.mark.slow

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SETTINGS = {"segment.bytes": "30000", "retention.ms": "-1", "max.message.bytes": "200000"}


def reached(broker: RunningBroker) -> RecordBroker:
    return RecordBroker([Address(broker.host, broker.port)], timeout=PATIENCE)


def _stored(error: object, _: object) -> None:
    assert error is None


def produce(broker: RunningBroker, topic: str, partition: int, codec: str, count: int = 600) -> None:
    """By a producer that numbers its batches; values and keys that are null, empty or binary, headers, times."""
    settings = {"bootstrap.servers": broker.address, "compression.type": codec, "enable.idempotence": True}
    producer = Producer({**settings, "linger.ms": 2, "batch.size": 50_000, "on_delivery": _stored})
    for number in range(count):
        value = None if number % 7 == 0 else b"" if number % 7 == 1 else b"\x00\xff %d " % number * 10
        key = None if number % 5 == 0 else b"" if number % 5 == 1 else b"k\n%d" % number
        headers = [("name", b"\xfe"), ("name", None), ("", b"")][: number % 4]
        producer.produce(topic, value, key, partition, headers=headers, timestamp=1_700_000_000_000 + number * 1000)
    assert producer.flush(PATIENCE) == 0


@pytest.fixture(scope="module")
def source() -> Iterator[RunningBroker]:
    """Has ``mixed`` with records of every codec, of which the first ones are deleted; ``stamped``, with the times of
    appends and what a transaction leaves; and ``old``, of Kafka 0.7."""
    with testing.broker(partitions=2) as broker, reached(broker) as records:
        records.create("mixed", 3, SETTINGS)
        for codec in CODECS:
            produce(broker, "mixed", 0, codec)
        produce(broker, "mixed", 0, "none", 6000)
        produce(broker, "mixed", 1, "zstd")
        records.delete_records(("mixed", 0), 1500)
        records.delete_records(("mixed", 1), 7)
        records.create("stamped", 1, {"message.timestamp.type": "LogAppendTime"})
        produce(broker, "stamped", 0, "lz4")
        for attributes in (TRANSACTIONAL, TRANSACTIONAL | CONTROL, LOG_APPEND_TIME):
            end = records.offsets([("stamped", 0)], LATEST)["stamped", 0]
            batch = build([Record(b"\0\0\0\1", b"x", 5)], base_offset=end, attributes=attributes)
            assert records.store(("stamped", 0), [batch]) == [0]
        with fastlog.Producer(broker.address, acks="flushed", compression="snappy") as producer:
            producer.send("old", [b"message %d" % number for number in range(500)], partition=1)
        yield broker


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> Commands:
    return Commands(capfd)


@pytest.fixture(scope="module")
def dumped(source: RunningBroker, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump") / "all.dump"
    topics = ("--topic", "mixed", "--topic", "old", "--topic", "stamped")
    command = [sys.executable, "-m", "fastlog", "dump", "--brokers", source.address, *topics, str(path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, stderr=subprocess.DEVNULL)
    return path


Held = dict[int, tuple[int, int, list[bytes]]]


def held(broker: RunningBroker, topic: str) -> Held:
    """Of each partition, where it begins and ends, and its batches, without the ids of producers and leader epochs."""
    with reached(broker) as records:
        places = [(topic, number) for number in records.known_topics([topic])[topic].partitions]
        starts, ends = records.offsets(places, EARLIEST), records.offsets(places, LATEST)
        found: Held = {}
        for place in places:
            at, rows = starts[place], list[bytes]()
            while at < ends[place]:
                data = records.fetch({place: at}, max_bytes=1 << 20)[place].batches
                data = data[: sum(len(view) for _, view in batches(data))]
                for batch in storable(data):
                    rows.append(bytes(batch.data[:12] + batch.data[16:]))
                    at = batch.next_offset
            found[place[1]] = starts[place], ends[place], rows
        return found


def own_settings(broker: RunningBroker, topic: str) -> dict[str, str | None]:
    with reached(broker) as records:
        return {name: one.value for name, one in records.settings(topic).items() if one.is_own}


def test_each_record_is_where_it_was(source: RunningBroker, dumped: Path, run: Commands) -> None:
    """Into a broker of another id, through a start of it too; and the file of that is the same but for ids."""
    expected = {topic: held(source, topic) for topic in ("mixed", "stamped")}
    assert [(start, end) for start, end, _ in expected["mixed"].values()] == [(1500, 9000), (7, 600), (0, 0)]
    with testing.broker(broker_id=7, partitions=2) as other:
        ran = run("load", "--brokers", other.address, "--json", str(dumped))
        assert ran.code == 0 and len(ran.out.splitlines()) == 3, ran.err
        assert {topic: held(other, topic) for topic in expected} == expected
        assert own_settings(other, "mixed") == SETTINGS
        assert own_settings(other, "stamped") == {"message.timestamp.type": "LogAppendTime"}
        ran = run("load", "--brokers", other.address, str(dumped))
        assert (
            ran.code == 1 and "mixed, partition 7-0 is not empty" in ran.refused()[0] and "--resume" in ran.refused()[2]
        )
        other.kill()
        other.start()
        assert {topic: held(other, topic) for topic in expected} == expected
        ran = run("load", "--brokers", other.address, "--resume", str(dumped))
        assert ran.code == 0 and "records were there already" in ran.err and "loaded 0 messages" in ran.err
        produce(other, "stamped", 0, "none", 1)
        ran = run("load", "--brokers", other.address, "--resume", str(dumped))
        assert ran.code == 1 and "cannot become that of the file" in ran.refused()[0]


@pytest.mark.parametrize("kind", ["records", "messages"])
def test_a_disk_that_is_full_ends_a_load_which_goes_on(
    source: RunningBroker, tmp_path: Path, run: Commands, kind: str
) -> None:
    """What was acknowledged by then is there, and nothing twice once there is room."""
    name, payload = f"full-{kind}", b"x" * 1000
    if kind == "records":
        with reached(source) as records:
            records.create(name, 1, {})
            for _ in range(200):
                records.append({(name, 0): build([Record(b"k", payload)] * 5)}, is_flushed=True)
    else:
        with fastlog.Producer(source.address, acks="flushed") as producer:
            producer.send(name, [payload] * 1000, partition=0)
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("dump", "--brokers", source.address, "--topic", name, str(first)).code == 0
    with testing.broker() as other:
        other._limit_files(700_000)
        ran = run("load", "--brokers", other.address, str(first))
        what, _, what_to_do = ran.refused()
        assert ran.code == 1 and "--resume goes on" in what and "make room on the broker's disk" in what_to_do, ran.err
        with fastlog.SimpleConsumer(other.address) as consumer:
            stored = sum(len(message.payload or b"") for message in consumer.messages(name, 0))
        assert 0 < stored <= 700_000
        other.free_disk()
        ran = run("load", "--brokers", other.address, "--resume", str(first))
        assert ran.code == 0 and "were there already and are the same" in ran.err, ran.err
        with fastlog.SimpleConsumer(other.address) as consumer:
            assert list(consumer.payloads(name, 0)) == [payload] * 1000
        assert run("dump", "--brokers", other.address, "--topic", name, str(second)).code == 0
    one, two = ([(piece[0], piece[2]) for piece in pieces_of(path)] for path in (first, second))
    assert one[-1] == two[-1]


def test_the_whole_comes_through_a_pipe_under_another_name(source: RunningBroker, run: Commands) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = f"{sys.executable} -m fastlog"
    script = (
        f"{command} dump --brokers {source.address} --topic mixed - |"
        f" {command} load --brokers {source.address} --topic copy -"
    )
    subprocess.run(["bash", "-o", "pipefail", "-c", script], check=True, env=environment, stderr=subprocess.DEVNULL)
    assert held(source, "copy") == held(source, "mixed") and own_settings(source, "copy") == SETTINGS


def pieces_of(file: Path) -> list[tuple[int, int, int]]:
    """Of the first topic: where each piece ends in the file, its partition, and the offset behind it."""
    with file.open("rb") as source:
        reader = DumpReader(str(file), source)
        return [
            (reader._position, piece.partition.partition, reader.head.next_offset(piece.offset, piece.data))
            for piece in reader.pieces()
        ]


@contextmanager
def loading(broker: RunningBroker, data: bytes, partition: int, end: int) -> Iterator[subprocess.Popen[bytes]]:
    """A load that has come so far with a file of which it has not got more yet."""
    with (
        subprocess.Popen(
            [sys.executable, "-m", "fastlog", "load", "--brokers", broker.address, "--resume", "-"],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process,
        reached(broker) as records,
    ):
        assert process.stdin is not None
        process.stdin.write(data)
        process.stdin.flush()

        def has_come() -> bool:
            assert process.poll() is None
            if partition not in records.known_topics(["mixed"])["mixed"].partitions:
                return False
            return records.offsets([("mixed", partition)], LATEST)["mixed", partition] >= end

        wait_until("the load has come so far", has_come)
        yield process


def test_a_load_that_was_killed_goes_on(source: RunningBroker, dumped: Path, run: Commands) -> None:
    """kill -9 of the command, then of the broker, between any two pieces of a topic of records."""
    data = dumped.read_bytes()
    cuts = pieces_of(dumped)
    assert [partition for _, partition, _ in cuts].count(0) > 1
    with testing.broker(partitions=2) as other:
        for position, partition, end in cuts[:: max(1, len(cuts) // 3)]:
            with loading(other, data[: position + 20], partition, end) as process:
                process.kill()
            other.kill()
            other.start()
        ran = run("load", "--brokers", other.address, "--resume", str(dumped))
        assert ran.code == 0 and "records were there already and are the same" in ran.err, ran.err
        assert {topic: held(other, topic) for topic in ("mixed", "stamped")} == {
            topic: held(source, topic) for topic in ("mixed", "stamped")
        }


@pytest.mark.parametrize("is_stored", [True, False])
def test_an_answer_that_was_lost_is_looked_up(
    source: RunningBroker, dumped: Path, run: Commands, monkeypatch: pytest.MonkeyPatch, is_stored: bool
) -> None:
    """The connection breaks behind an append, or before it: each record is there once in the end."""
    store, calls = RecordBroker.store, itertools.count()

    def losing(records: RecordBroker, place: tuple[str, int], batches: list[bytes]) -> list[int]:
        number = next(calls)
        if number % 2 and not is_stored:
            raise TransportError("lost")
        found = store(records, place, batches[: len(batches) // 2 + 1] if number % 2 else batches)
        if number % 2:
            raise TransportError("lost")
        return found

    with testing.broker(partitions=2) as other:
        monkeypatch.setattr(RecordBroker, "store", losing)
        ran = run("load", "--brokers", other.address, str(dumped))
        assert ran.code == 0 and next(calls) > 4, ran.err
        for topic in ("mixed", "stamped"):
            assert held(other, topic) == held(source, topic)


def test_what_cannot_become_the_topic_of_the_file(
    source: RunningBroker, dumped: Path, tmp_path: Path, run: Commands
) -> None:
    """Nothing is loaded then, and what there is stays."""
    one = tmp_path / "one.dump"
    assert run("dump", "--brokers", source.address, "--topic", "mixed", str(one)).code == 0
    old = tmp_path / "old.dump"
    assert run("dump", "--brokers", source.address, "--topic", "old", str(old)).code == 0
    with testing.broker(partitions=2) as other, reached(other) as records:
        records.create("empty", 3, {})
        records.create("few", 1, {})
        records.create("records", 2, {})
        records.create("small", 1, {"max.message.bytes": "1000"})
        with fastlog.Producer(other.address, acks="flushed") as producer:
            producer.send("messages", [b"a", b"b"])
        for file, topic, said in (
            (one, "empty", "a topic that load makes begins there"),
            (one, "few", "it has 1 already"),
            (one, "messages", "is a topic of messages of Kafka 0.7"),
            (old, "records", "is a topic of records"),
            (dumped, "renamed", "has 3 topics, which cannot all be loaded as"),
            (one, "a+b", "Topic name is invalid"),
        ):
            ran = run("load", "--brokers", other.address, "--topic", topic, str(file))
            assert ran.code in (1, 2) and said in " ".join(ran.refused()), ran.err
        assert run("dump", "--brokers", source.address, "--topic", "stamped", str(one)).code == 0
        ran = run("load", "--brokers", other.address, "--topic", "small", str(one))
        assert ran.code == 1 and "max.message.bytes" in ran.refused()[2]
        assert [end for _, end, _ in held(other, "empty").values()] == [0, 0, 0]


@pytest.mark.parametrize("where", ["before a piece", "between two", "behind the last"])
def test_who_else_appends_is_noticed(source: RunningBroker, dumped: Path, where: str) -> None:
    """Before a piece: as many records as its first batch has, so that the offsets fit."""
    data = dumped.read_bytes()
    cuts = [cut for cut in pieces_of(dumped) if cut[1] == 0]
    position, partition, end = cuts[-1 if where == "behind the last" else 0]
    with dumped.open("rb") as file:
        later = next(piece for piece in DumpReader("", file).pieces() if piece.partition.partition == 1)
    count = next(storable(later.data)).records if where == "before a piece" else 3
    with testing.broker() as other, loading(other, data[:position], partition, end) as process:
        produce(other, "mixed", 1 if where == "before a piece" else 0, "none", count)
        _, err = process.communicate(data[position:], timeout=2 * PATIENCE)
        assert process.returncode == 1 and b"somebody else appends" in err, err
        (text,) = [line for line in err.splitlines() if b"loading stopped at" in line]
        assert f"stopped at offset {0 if where == 'before a piece' else end};".encode() in text


@pytest.mark.parametrize(
    ("kind", "count"),
    [("records", 20), ("records", 30), ("records", 5), ("records", None), ("messages", 5), ("messages", None)],
)
def test_a_topic_that_is_deleted_meanwhile_is_not_dumped(
    source: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: Commands, kind: str, count: int | None
) -> None:
    """Also where it is made anew with as much in it, or with more, or less: which of these it was is said at once."""
    from fastlog.tools import write_dump

    name = f"again-{kind}-{count}"
    pieces = write_dump._pieces

    def made(items: int) -> None:
        if kind == "records":
            with reached(source) as records:
                records.create(name, 1, {})
            produce(source, name, 0, "none", items)
            return
        with fastlog.Producer(source.address, acks="flushed") as producer:
            producer.send(name, [b"m"] * items, partition=0)

    def anew(*arguments: object) -> Iterator[object]:
        assert run("topics", "delete", "--brokers", source.address, name).code == 0
        if count is not None:
            made(count)
        yield from pieces(*arguments)  # type: ignore[arg-type]

    made(20)
    monkeypatch.setattr(write_dump, "_pieces", anew)
    monkeypatch.setattr(write_dump, "_MOST_FLUSH_SECONDS", 60 + 2 * PATIENCE)
    ran = run("dump", "--brokers", source.address, "--topic", name, str(tmp_path / "f"))
    what = "deleted" if count is None else "made anew"
    assert ran.code == 1 and f"was {what} while it was read; nothing was written" in ran.refused()[0], ran.err
    assert list(tmp_path.iterdir()) == []
