"""Reading segment files instead of the socket: while they are appended to, rolled and deleted, damaged, or foreign."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.consumer.local import LocalLog, NotLocalError, SegmentsChangedError
from fastlog.consumer.simple import SimpleConsumer
from fastlog.errors import InvalidMessageError, LogError, OffsetOutOfRangeError
from fastlog.message import encode_set
from fastlog.segment_files import KAFKA_0_7, segment_name
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import Broker, wait_until
from tests.harness.descriptors import open_descriptors
from tests.harness.fake_broker import FakeBroker

NOBODY = 65534
MODES = pytest.mark.parametrize("local", ["read", "map"])


def consumer_of(port: int, **options: Any) -> SimpleConsumer:
    return SimpleConsumer("127.0.0.1", port, **{"timeout": 10.0, **options})


# -- a real broker ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@MODES
def test_a_log_that_grows_rolls_and_shrinks_meanwhile(
    start_broker: Callable[..., Broker], topic: str, local: str
) -> None:
    """Every message once and in order over many segments, of which retention takes some away under the reader; and
    nothing at or beyond the visible limit.
    """
    broker = start_broker(
        processors=1,
        settings={
            "log.file.size": 20_000,
            "topic.log.retention.size": f"{topic}:200000",
            "log.cleanup.interval.mins": 0.001,
            "log.flush.interval": 200,
        },
    )
    count, size = 30_000, 60
    done = threading.Event()

    def produce() -> None:
        with broker.connect() as client:
            for start in range(0, count, 100):
                client.produce_ack(
                    topic, 0, encode_set([b"%0*d" % (size, n) for n in range(start, start + 100)]), acks=1
                )
                if start % 1000 == 0:
                    time.sleep(0.01)  # the reader keeps up with retention
            client.produce_ack(topic, 0, encode_set([b"end"]), acks=2)
        done.set()

    producer = threading.Thread(target=produce)
    producer.start()
    with consumer_of(broker.port, local=local, fetch_bytes=5000) as consumer, broker.connect() as client:
        expected = 0
        for message in consumer.messages(topic, 0, wait=10):
            if message.payload == b"end":
                break
            assert int(message.payload) == expected
            assert message.offset == expected * (size + 10)
            expected += 1
            if expected % 1000 == 0:
                assert message.next_offset <= client.metadata([topic]).topics[topic].partitions[0].high_watermark
        assert expected == count
        found = consumer.fetch(topic, 0, message.offset)
        assert (found.payloads(), consumer.source_of(topic, 0)) == ([b"end"], (local, ""))
        wait_until("old segments are gone", lambda: min(broker.segments(topic, 0)) > 0)
        with pytest.raises(OffsetOutOfRangeError):
            consumer.fetch(topic, 0, 0)
    producer.join(30)
    assert done.is_set()


@MODES
def test_an_open_segment_survives_retention(start_broker: Callable[..., Broker], topic: str, local: str) -> None:
    """What was open when its file was removed is read to its end, then the next one that is still there follows."""
    broker = start_broker(
        processors=1,
        settings={
            "log.file.size": 1000,
            "topic.log.retention.size": f"{topic}:1000",
            "log.cleanup.interval.mins": 0.001,
        },
    )
    with broker.connect() as client, consumer_of(broker.port, local=local, fetch_bytes=100) as consumer:
        client.produce_ack(topic, 0, encode_set([b"%040d" % n for n in range(10)]), acks=2)
        found = consumer.messages(topic, 0, wait=5)
        assert int(next(found).payload) == 0
        for start in range(10, 100, 10):
            client.produce_ack(topic, 0, encode_set([b"%040d" % n for n in range(start, start + 10)]), acks=2)
        wait_until("the first segment is gone", lambda: min(broker.segments(topic, 0)) > 0)
        assert [int(next(found).payload) for _ in range(9)] == list(range(1, 10))


@pytest.mark.parametrize("wait", [0.0, 5.0], ids=["plain", "held"])
@MODES
def test_a_reader_that_was_there_before_the_partition(broker: Broker, topic: str, local: str, wait: float) -> None:
    """A partition that is asked for before it exists is read from its files as soon as it has some."""
    with consumer_of(broker.port, local=local) as consumer, broker.connect() as client:
        assert not consumer.fetch(topic, 0, 0)
        sender = threading.Thread(target=client.produce_ack, args=(topic, 0, encode_set([b"a", b"b"]), 2))
        sender.start()
        if not wait:
            sender.join(30)
        first = consumer.fetch(topic, 0, 0, wait=wait)
        sender.join(30)
        assert first.payloads() == [b"a", b"b"]
        client.produce_ack(topic, 0, encode_set([b"c"]), acks=2)
        assert consumer.fetch(topic, 0, first.next_offset).payloads() == [b"c"]
        assert consumer.source_of(topic, 0) == (local, "")
    with consumer_of(broker.port, local=local) as consumer:
        iteration = consumer.messages(topic, 0)
        next(iteration)
        assert consumer.source_of(topic, 0) == (local, "")  # also of what has a reader of its own
        assert len(list(iteration)) == 2 and consumer.source_of(topic, 0) == (local, "")


def test_the_socket_carries_next_to_nothing(start_broker: Callable[..., Broker], topic: str) -> None:
    """Of a few megabytes of messages only the proofs go through the broker."""
    broker = start_broker(processors=1)
    with broker.connect() as client, FakeRelay(broker.port) as relay:
        for _ in range(20):
            client.produce(topic, 0, encode_set([bytes(1000)] * 200))
        client.produce_ack(topic, 0, encode_set([b"end"]), acks=2)
        with consumer_of(relay.port, local="read") as consumer:
            assert sum(len(batch) for batch in consumer.batches(topic, 0)) == 4001
        assert 0 < relay.answered_bytes < 20_000


class FakeRelay:
    """Counts what a broker answers on its way."""

    def __init__(self, port: int) -> None:
        from fastlog.testing import Proxy

        self._proxy = Proxy(("127.0.0.1", port))
        self.port = self._proxy.port
        self.answered_bytes = 0

    def __enter__(self) -> FakeRelay:
        give = self._proxy.on_data

        def counted(data: bytes, from_server: bool) -> bytes:
            self.answered_bytes += len(data) if from_server else 0
            return give(data, from_server)

        self._proxy.on_data = counted  # type: ignore[method-assign]
        return self

    def __exit__(self, *_: object) -> None:
        self._proxy.close()


# -- a broker that says what the test wants --------------------------------------------------------------------------


class Told:
    """A directory of segments and a fake broker that tells of it; ``limit`` and ``bases`` may be changed."""

    def __init__(self, directory: Path, segments: list[bytes]) -> None:
        self.directory = directory / "t-0"
        self.directory.mkdir()
        self.log = b"".join(segments)
        self.bases = [sum(map(len, segments[:number])) for number in range(len(segments))]
        for base, data in zip(self.bases, segments, strict=True):
            (self.directory / segment_name(base)).write_bytes(data)
        self.format = KAFKA_0_7
        self.told = str(self.directory)
        self.fake = FakeBroker(hook=self._hook)
        self.fake.logs["t", 0] = self.log
        self.asked = 0

    def path(self, number: int) -> Path:
        return self.directory / segment_name(self.bases[number])

    def _hook(self, request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.LocalReadRequest):
            return None
        self.asked += 1
        return rs.encode_local_read(
            rs.LocalReadAnswer(
                request.correlation_id, 0, self.told, self.format, 0, len(self.fake.logs["t", 0]), tuple(self.bases)
            )
        )


SEGMENTS = [encode_set([b"%d-%d" % (segment, number) for number in range(10)]) for segment in range(3)]
PAYLOADS = [b"%d-%d" % (segment, number) for segment in range(3) for number in range(10)]


@pytest.fixture
def told(tmp_path: Path) -> Iterator[Told]:
    made = Told(tmp_path, SEGMENTS)
    with made.fake:
        yield made


@MODES
def test_nothing_at_or_beyond_the_limit_is_read(told: Told, local: str) -> None:
    """The files hold three segments; the broker shows one and a half."""
    visible = len(SEGMENTS[0]) + len(encode_set(PAYLOADS[10:15]))
    told.fake.logs["t", 0] = told.log[:visible]
    with consumer_of(told.fake.port, local=local) as consumer:
        assert [message.payload for message in consumer.messages("t", 0)] == PAYLOADS[:15]
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS[:10]
        assert consumer.source_of("t", 0) == (local, "")
        assert not consumer.fetch("t", 0, visible)
        told.fake.logs["t", 0] = told.log
        assert consumer.fetch("t", 0, visible).payloads() == PAYLOADS[15:20]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda told: setattr(told, "format", "records-2"), "records-2"),
        (lambda told: setattr(told, "told", "t-0"), "no directory of t-0"),
        (lambda told: setattr(told, "told", str(told.directory.parent)), "no directory of t-0"),
        (lambda told: setattr(told, "bases", told.bases[::-1]), "out of order"),
        (lambda told: shutil.rmtree(told.directory), "No such file"),
        (lambda told: shutil.rmtree(told.directory) or told.directory.mkdir(), "does not fit"),
        (lambda told: told.path(0).unlink() or os.mkfifo(told.path(0)), "no regular file"),
        (lambda told: told.path(0).unlink() or told.path(0).symlink_to(told.path(1)), "levels of symbolic links"),
        (lambda told: told.path(0).write_bytes(SEGMENTS[1]), "other bytes"),
        (lambda told: told.path(0).write_bytes(b""), "other bytes"),
    ],
    ids=["format", "relative", "other directory", "order", "absent", "empty", "fifo", "link", "other log", "no bytes"],
)
def test_files_that_are_not_those_of_the_log_are_left_alone(
    told: Told, change: Callable[[Told], object], reason: str
) -> None:
    """The socket takes over by itself, and the reason can be asked for."""
    change(told)
    with consumer_of(told.fake.port, local="auto") as consumer:
        assert [message.payload for message in consumer.messages("t", 0)] == PAYLOADS
        consumer.fetch("t", 0, 0)
        source, why = consumer.source_of("t", 0)
        assert source == "socket"
        assert reason in why


def test_a_few_bytes_prove_nothing(told: Told) -> None:
    """Every segment file begins with the same bytes: only a whole message shows that the files are those of the log."""
    told.path(0).write_bytes(encode_set([b"somebody else's"] * 10))
    short = told.log[:3]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, len(told.log), 0, short))
        return told_hook(request)

    told_hook, told.fake.hook = told.fake.hook, hook
    with consumer_of(told.fake.port, local="read") as consumer:
        assert not consumer.fetch("t", 0, 0)
        assert "too little" in consumer.source_of("t", 0)[1]


def test_a_broker_on_another_machine_is_not_asked(told: Told) -> None:
    """The other end of the connection has another address: what its paths mean here is anybody's guess."""
    with consumer_of(told.fake.port) as consumer, pytest.MonkeyPatch.context() as patch:
        patch.setattr("fastlog.consumer.channel.Channel.reaches_this_host", lambda channel: False)
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        assert consumer.source_of("t", 0) == ("socket", "the broker is on another machine")
        assert told.asked == 0


def test_files_without_the_right_to_read_them(told: Told) -> None:
    """The socket serves whoever may not read the files."""
    told.directory.chmod(0)
    user = os.geteuid()
    try:
        with consumer_of(told.fake.port) as consumer:
            if user == 0:
                os.seteuid(NOBODY)  # root may read everything
            assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
            assert consumer.source_of("t", 0)[0] == "socket"
    finally:
        os.seteuid(user)
        told.directory.chmod(0o700)


def test_another_log_under_the_same_name_is_noticed_later(told: Told) -> None:
    """Files that agree at first and differ from what the broker appends are given up, without a wrong message."""
    half = len(SEGMENTS[0])
    told.fake.logs["t", 0] = told.log[:half]
    with consumer_of(told.fake.port, local="read") as consumer:
        found = consumer.messages("t", 0, wait=5)
        assert [next(found).payload for _ in range(10)] == PAYLOADS[:10]
        told.fake.logs["t", 0] = told.log[:half] + encode_set([b"from the broker"])
        assert next(found).payload == b"from the broker"


@MODES
def test_damage_in_a_file_names_file_and_position(told: Told, local: str) -> None:
    """What is whole comes first."""
    at = 5 * 13
    damaged = SEGMENTS[1][: at + 12] + b"X" + SEGMENTS[1][at + 13 :]
    told.path(1).write_bytes(damaged)
    told.fake.logs["t", 0] = SEGMENTS[0] + damaged + SEGMENTS[2]
    with consumer_of(told.fake.port, local=local, fetch_bytes=10_000) as consumer:
        found = []
        with pytest.raises(InvalidMessageError, match=f"{told.path(1)}, position {at}") as caught:
            for message in consumer.messages("t", 0):
                found.append(message.payload)
        assert found == PAYLOADS[:15]
    error = caught.value
    assert (error.topic, error.partition, error.offset) == ("t", 0, told.bases[1] + at)
    assert (error.path, error.position) == (str(told.path(1)), at)


@MODES
def test_a_file_that_ends_too_early_names_file_and_position(told: Told, local: str) -> None:
    cut = len(SEGMENTS[1]) - 5
    with consumer_of(told.fake.port, local=local, fetch_bytes=60) as consumer:
        messages = consumer.messages("t", 0)
        found = [next(messages).payload]
        os.truncate(told.path(1), cut)
        with pytest.raises(LogError, match="ends before what the broker has made visible") as caught:
            for message in messages:
                found.append(message.payload)
        assert found == PAYLOADS[:19]
        assert (caught.value.path, caught.value.position) == (str(told.path(1)), cut)


def test_a_page_that_cannot_be_read_names_file_and_position(told: Told) -> None:
    """EIO from the disk is an error of its own, not a reason to ask the socket for the same page."""

    def bad_read(fd: int, view: memoryview, position: int) -> int:
        raise OSError(5, "Input/output error")

    log = LocalLog("t", 0, mapped=False, read=bad_read)
    log.update(rs.LocalReadAnswer(0, 0, str(told.directory), KAFKA_0_7, 0, len(told.log), tuple(told.bases)))
    with pytest.raises(LogError, match=r"Input/output error.*position=3") as caught:
        log.piece(told.bases[2] + 3, 100)
    assert caught.value.path == str(told.path(2))
    log.close()


def test_a_mapped_page_that_cannot_be_read_is_an_error_not_a_signal(told: Told) -> None:
    """The kernel refuses to bring in pages behind the end of the file (EFAULT) where touching them would kill."""
    size = os.path.getsize(told.path(0))  # noqa: PTH202 - with the truncate below
    os.truncate(told.path(0), 3 * 4096)
    log = LocalLog("t", 0, mapped=True)
    log.update(rs.LocalReadAnswer(0, 0, str(told.directory), KAFKA_0_7, 0, 3 * 4096, (0,)))
    first = log.piece(0, 100)
    os.truncate(told.path(0), size)
    with pytest.raises(LogError, match="position=8192") as caught:
        log.piece(8192, 100)
    assert caught.value.path == str(told.path(0))
    del first
    log.close()


def test_segments_are_found_as_they_come(told: Told) -> None:
    """A list that is too old says so instead of guessing; names of another width are found."""
    log = LocalLog("t", 0, mapped=False)
    answer = rs.LocalReadAnswer(0, 0, str(told.directory), KAFKA_0_7, 0, len(told.log), (0,))
    log.update(answer)
    assert bytes(log.piece(0, 10**6)) == SEGMENTS[0]
    with pytest.raises(SegmentsChangedError):
        log.piece(told.bases[1], 10**6)
    told.path(1).rename(told.directory / f"{told.bases[1]:011}.kafka")
    log.update(answer._replace(base_offsets=tuple(told.bases)))
    assert bytes(log.piece(told.bases[1], 10**6)) == SEGMENTS[1]
    assert bytes(log.piece(len(told.log), 10)) == b""
    with pytest.raises(NotLocalError):
        log.update(answer._replace(format="other"))
    log.close()
    log.close()


@MODES
def test_no_descriptor_is_left(told: Told, local: str) -> None:
    def open_files() -> int:
        return sum(str(told.directory) in name for name in open_descriptors().values())

    for tidy in (True, False):
        consumer = consumer_of(told.fake.port, local=local)
        consumer.fetch("t", 0, 0)
        found = consumer.messages("t", 0)
        next(found)
        assert open_files() >= 2
        if tidy:
            consumer.close()
        del consumer, found
        assert open_files() == 0
