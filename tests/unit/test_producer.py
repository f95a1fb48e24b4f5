"""The producer against a broker that does what it is told: answers, breaks, lies, stands still."""

from __future__ import annotations

import gc
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from fastlog import codecs
from fastlog._segment import payloads
from fastlog.errors import (
    ClosedError,
    ConfigError,
    DeliveryError,
    FastlogError,
    ForkedError,
    InvalidTopicError,
    MessageTooLargeError,
    QueueFullError,
    StorageError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.message import Message
from fastlog.producer import Crc32Partitioner, Delivery, Producer, ProducerData, StringEncoder, SyncProducer
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker


def stored(broker: FakeBroker, topic: str = "t", partition: int = 0) -> list[bytes]:
    """The payloads of a partition's log."""
    return payloads(broker.logs.get((topic, partition), b""))


def open_descriptors() -> int:
    """How many this process has."""
    return len(list(Path("/proc/self/fd").iterdir()))


# --- synchronous ---


def test_send_returns_where_the_messages_went() -> None:
    """A value, a list, a hand-chosen partition, several ProducerData: one delivery for each set, in order."""
    with FakeBroker(partitions=4) as broker, Producer(broker.address) as producer:
        (one,) = producer.send("t", b"a", partition=2)
        assert one == Delivery("t", 0, 2, 0, 11, 1)
        (two,) = producer.send("t", [b"b", b"c"], partition=2)
        assert (two.offset, two.next_offset, two.messages) == (11, 33, 2)
        found = producer.send([ProducerData("t", b"d", partition=1), ProducerData("u", [b"e", b"f"])])
        assert [(each.topic, each.messages) for each in found] == [("t", 1), ("u", 2)]
        assert producer.send("t", []) == ()
        assert producer.send(ProducerData("t", b"g", partition=1))[0].offset == 11
        assert stored(broker, "t", 2) == [b"a", b"b", b"c"]
        assert stored(broker, "t", 1) == [b"d", b"g"]
        assert producer.stats().delivered == 7


def test_keys_choose_among_the_sorted_list_of_brokers_and_partitions() -> None:
    """The partitioner's index counts through (broker, partition) in order of broker id, then partition."""
    with (
        FakeBroker(partitions=2) as first,
        FakeBroker(partitions=3) as second,
        Producer(f"9:{second.address},4:{first.address}") as producer,
    ):
        places = [(4, 0), (4, 1), (9, 0), (9, 1), (9, 2)]
        seen = set()
        for number in range(40):
            key = f"key-{number}"
            expected = places[Crc32Partitioner().partition(key, 5)]
            (delivery,) = producer.send("t", key.encode(), key=key)
            assert (delivery.broker, delivery.partition) == expected
            seen.add(expected)
        assert seen == set(places)
        assert producer.send("t", b"x", partition=(9, 2))[0].broker == 9
        with pytest.raises(ConfigError, match="which broker"):
            producer.send("t", b"x", partition=1)


def test_a_partitioner_of_ones_own() -> None:
    """It is asked for keys alone; an index outside the list is an error."""

    class Fixed:
        def partition(self, key: object, count: int) -> int:
            return int(str(key))

    with FakeBroker(partitions=4) as broker, Producer(broker.address, partitioner=Fixed()) as producer:
        assert producer.send("t", b"x", key=3)[0].partition == 3
        producer.send("t", b"x")
        with pytest.raises(WrongPartitionError, match="chose 4 of 4"):
            producer.send("t", b"x", key=4)


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_what_cannot_be_sent_is_refused_before_anything_is(kind: str) -> None:
    """Wrong topic, partition, type or size raises at send(), and no part of the call is sent."""
    with FakeBroker(partitions=2) as broker:
        with Producer(broker.address, producer_type=kind, max_message_bytes=100) as producer:
            for send, error in (
                (lambda: producer.send("a/b", b"x"), InvalidTopicError),
                (lambda: producer.send("t", b"x", partition=2), WrongPartitionError),
                (lambda: producer.send("t", b"x", partition=-2), WrongPartitionError),
                (lambda: producer.send("t", b"x", partition=(7, 0)), WrongPartitionError),
                (lambda: producer.send("t", "text"), TypeError),
                (lambda: producer.send("t", [b"x", None]), TypeError),
                (lambda: producer.send(5, b"x"), TypeError),  # type: ignore[arg-type]
                (lambda: producer.send([ProducerData("t", b"x")], b"y"), TypeError),
                (lambda: producer.send(["t"]), TypeError),  # type: ignore[list-item]
                (lambda: producer.send("t", b"x", key=1.5), TypeError),
                (lambda: producer.send("t", bytes(101)), MessageTooLargeError),
                (lambda: producer.send([ProducerData("t", b"x"), ProducerData("t", bytes(101))]), MessageTooLargeError),
                (lambda: producer.send("t", Message(b"x", attributes=1)), TypeError),
            ):
                with pytest.raises(error):
                    send()
            producer.send("t", [bytes(100), bytearray(b"y"), memoryview(b"z"), Message(b"m")], partition=1)
        assert stored(broker, "t", 1) == [bytes(100), b"y", b"z", b"m"]
        assert producer.stats().accepted == 4


def test_the_brokers_own_limit_counts_too() -> None:
    """A broker that takes less than the client's setting would drop larger messages in silence."""
    with (
        FakeBroker(max_message_bytes=50) as broker,
        Producer(broker.address, acks="none") as producer,
        pytest.raises(MessageTooLargeError, match="limit of 50"),
    ):
        producer.send("t", bytes(51))


def test_size_limits_of_07() -> None:
    """0.7's vectors: limit 100 refuses 101 bytes, and ten payloads of 20 that gzip to more than 100 in one wrapper."""
    values = [os.urandom(20) for _ in range(10)]
    with FakeBroker() as broker:
        with Producer(broker.address, max_message_bytes=100, compression="gzip") as producer:
            with pytest.raises(MessageTooLargeError, match="as one compressed set"):
                producer.send("t", values)
            assert producer.stats().failed == 10
        with SyncProducer("127.0.0.1", broker.port, max_message_bytes=100) as plain:
            with pytest.raises(MessageTooLargeError, match="a message of 101 bytes"):
                plain.send("t", bytes(101))
            with pytest.raises(MessageTooLargeError, match="a compressed set"):
                plain.send("t", values, codec=codecs.GZIP)
            plain.send("t", bytes(100))
        wait_until("the message", lambda: stored(broker))
        assert stored(broker) == [bytes(100)]


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_compressed_topics(kind: str, codec: str) -> None:
    """Only the topics of the list are compressed, on the synchronous path as well."""
    with FakeBroker() as broker:
        settings = {
            "broker.list": f"0:{broker.address}",
            "compression.codec": codec,
            "compressed.topics": "small",
            "producer.type": kind,
        }
        with Producer(settings) as producer:
            producer.send("small", [b"abc"] * 50)
            producer.send("plain", [b"abc"] * 50)
        assert stored(broker, "plain") == [b"abc"] * 50
        (inner,) = stored(broker, "small")
        assert payloads(codecs.inflate({"gzip": 1, "snappy": 2}[codec], inner, 10**6)) == [b"abc"] * 50


def test_an_error_answer_is_raised() -> None:
    """The broker's code becomes its exception; nothing is sent again, and the producer goes on."""
    codes = [103]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceAckRequest) and codes:
            return rs.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, codes.pop(), 0, -1, -1))
        return None

    with FakeBroker(hook=hook) as broker, Producer(broker.address) as producer:
        with pytest.raises(StorageError):
            producer.send("t", b"x")
        producer.send("t", b"y")
        assert stored(broker) == [b"y"]
        assert (producer.stats().failed, producer.stats().delivered) == (1, 1)


def test_no_broker_at_all() -> None:
    """R-2: the error lists every address with its own reason."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        port = one.getsockname()[1]
    with Producer(f"127.0.0.1:{port},no-such-host.invalid:1", connect_timeout_ms=100) as producer:
        with pytest.raises(TransportError) as caught:
            producer.send("t", b"x")
        assert f"127.0.0.1:{port}" in str(caught.value)
        assert "no-such-host.invalid:1" in str(caught.value)


def test_a_plain_07_broker() -> None:
    """No acknowledgement, and an error where one is wanted; keys are left to the broker, partitions by hand are not."""
    with FakeBroker(own=False) as broker:
        with Producer(broker.address) as producer:
            (delivery,) = producer.send("t", [b"a", b"b"])
            assert (delivery.partition, delivery.offset, delivery.messages) == (-1, -1, 2)
            producer.send("t", b"c", partition=7)
            producer.send("t", b"d", key="k")
        assert stored(broker, "t", 0) == [b"a", b"b", b"d"]
        assert stored(broker, "t", 7) == [b"c"]
        with Producer(broker.address, acks="flushed") as producer, pytest.raises(UnsupportedFeatureError):
            producer.send("t", b"x")

        class Any:
            def partition(self, key: object, count: int) -> int:
                return 0

        with Producer(broker.address, partitioner=Any()) as producer, pytest.raises(UnsupportedFeatureError):
            producer.send("t", b"x", key="k")


# --- asynchronous ---


def test_batches_and_flush() -> None:
    """A request has batch.size messages; flush() does not wait for one to fill."""
    with FakeBroker() as broker, Producer(broker.address, producer_type="async", batch_messages=4) as producer:
        for number in range(10):
            assert producer.send("t", b"%d" % number) == ()
        producer.flush(5)
        assert [len(payloads(each)) for each in broker.sets] == [4, 4, 2]
        assert stored(broker) == [b"%d" % number for number in range(10)]
        assert producer.stats().queued == producer.stats().in_flight == 0


def test_the_queue_time_is_kept_while_messages_keep_coming() -> None:
    """A message of a slow topic goes out in time though another topic is busy all the while."""
    with (
        FakeBroker() as broker,
        Producer(broker.address, producer_type="async", queue_time_ms=100, batch_messages=1000) as producer,
    ):
        producer.send("busy", b"x")
        producer.flush(5)
        start = time.monotonic()
        producer.send("slow", b"x")
        while not broker.logs.get(("slow", 0)):
            producer.send("busy", b"x" * 100)
            time.sleep(0.0005)
            assert time.monotonic() - start < 1
        assert time.monotonic() - start > 0.09


def test_delivery_callbacks_and_futures() -> None:
    """Each message knows its own offset; the producer's callback hears of every request."""
    seen: list[Delivery] = []
    own: list[Delivery] = []
    with FakeBroker() as broker:
        with Producer(broker.address, producer_type="async", batch_messages=3, on_delivery=seen.append) as producer:
            futures = [producer.submit("t", b"%d" % number) for number in range(5)]
            producer.send("t", [b"x", b"y"], on_delivery=own.append)
            producer.flush(5)
            assert [future.result(5).offset for future in futures] == [0, 11, 22, 33, 44]
        assert [(each.offset, each.messages) for each in own] == [(55, 1), (66, 1)]
        assert [(each.offset, each.messages) for each in seen] == [(0, 3), (33, 3), (66, 1)]


def test_a_callback_that_raises_or_sends() -> None:
    """What a callback raises is logged and harms nobody; it may send, even into a full queue."""
    with FakeBroker() as broker:
        again: list[int] = []

        def on_delivery(delivery: Delivery) -> None:
            if len(again) < 3:
                again.append(1)
                producer.send("again", [b"a", b"b", b"c"])
                with pytest.raises(RuntimeError, match="wait for its own"):
                    producer.flush()
            raise ValueError("of no importance")

        producer = Producer(
            broker.address, producer_type="async", on_delivery=on_delivery, queue_messages=1, batch_messages=1
        )
        for _ in range(20):
            producer.send("t", b"x")
        producer.flush(5)
        producer.close()
        assert len(stored(broker)) == 20
        assert len(stored(broker, "again")) == 9


def stalled(release: threading.Event) -> Callable[[rq.Request], bytes | None]:
    """A hook that holds produce requests back."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceAckRequest | rq.ProduceRequest):
            release.wait(20)
        return None

    return hook


def test_a_full_queue_blocks_raises_or_drops() -> None:
    """R-4: by default send() waits, in bounded memory; ``raise`` and ``drop`` do not, and drops are counted."""
    release = threading.Event()
    common: dict[str, Any] = {
        "producer_type": "async",
        "queue_messages": 10,
        "batch_messages": 5,
        "in_flight_bytes": 100,
        "queue_time_ms": 0,
    }
    with FakeBroker(hook=stalled(release)) as broker:
        for settings in ({"queue_full": "raise"}, {"enqueue_timeout_ms": 30}):
            producer = Producer(broker.address, **common, **settings)
            with pytest.raises(QueueFullError):
                for _ in range(100):
                    producer.send("t", b"x" * 20)
            assert producer.stats().queued == 10
            with pytest.raises(DeliveryError):
                producer.close(0)
        producer = Producer(broker.address, **common, queue_full="drop")
        for _ in range(100):
            producer.send("t", b"x" * 20)
        wait_until("what fits is in flight", lambda: producer.stats().queued in (0, 10))
        stats = producer.stats()
        assert stats.dropped + stats.accepted == 100
        assert stats.dropped >= 60
        with pytest.raises(DeliveryError):
            producer.close(0)
        producer = Producer(broker.address, **common)
        thread = threading.Thread(target=lambda: [producer.send("waits", b"%d" % n) for n in range(200)])
        thread.start()
        wait_until("the queue is full", lambda: producer.stats().queued == 10)
        assert thread.is_alive()
        release.set()
        thread.join(5)
        producer.close()
        assert stored(broker, "waits") == [b"%d" % n for n in range(200)]


def test_a_full_queue_does_not_wait_for_batches_to_fill() -> None:
    """With a queue smaller than a batch and a long queue time, send() still gets on."""
    with (
        FakeBroker() as broker,
        Producer(
            broker.address, producer_type="async", queue_messages=7, batch_messages=1000, queue_time_ms=60_000
        ) as producer,
    ):
        start = time.monotonic()
        producer.send("t", [b"%d" % n for n in range(50)])
        for n in range(50, 100):
            producer.send("t", b"%d" % n)
        producer.flush(5)
        assert time.monotonic() - start < 5
        assert stored(broker) == [b"%d" % n for n in range(100)]


# --- broken connections ---


@pytest.mark.parametrize("stored_first", [False, True])
def test_what_was_not_acknowledged_is_sent_again_in_order(stored_first: bool) -> None:
    """Every 7th request breaks the connection, before or after it is stored: nothing is lost, order holds, and what
    may be there twice is counted."""
    counted = [0]

    def breaks(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceAckRequest):
            counted[0] += 1
            if counted[0] % 7 == 0:
                raise ConnectionError
        return None

    with FakeBroker(**{"after" if stored_first else "hook": breaks}) as broker:  # type: ignore[arg-type]
        with Producer(broker.address, producer_type="async", batch_messages=3) as producer:
            for number in range(300):
                producer.send("t", b"%d" % number)
            producer.flush(20)
            stats = producer.stats()
        found = stored(broker)
        assert sorted(set(map(int, found))) == list(range(300))
        assert list(dict.fromkeys(found)) == [b"%d" % number for number in range(300)]
        assert len(found) - 300 <= stats.possible_duplicates
        assert stored_first == (len(found) > 300)
        assert stats.connections > 3
        assert stats.delivered == 300


def test_without_acknowledgements_the_rest_goes_on_behind_the_break(caplog: pytest.LogCaptureFixture) -> None:
    """A frame that went out in part is sent again whole; a warning says that messages may be lost."""
    caplog.set_level(logging.WARNING, "fastlog.producer")
    counted = [0]

    def breaks(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceRequest):
            counted[0] += 1
            if counted[0] == 20:
                raise ConnectionError
        return None

    with FakeBroker(hook=breaks) as broker:
        with Producer(broker.address, producer_type="async", acks="none", batch_messages=10) as producer:
            for number in range(4000):
                producer.send("t", b"%06d" % number * 200)
            producer.flush(10)
        found = [int(payload[:6]) for payload in stored(broker)]
        assert found == sorted(set(found))
        assert found[-1] == 3999
        assert "may be lost" in caplog.text


def test_num_retries() -> None:
    """0 gives up after the first break, and says so."""

    def breaks(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceAckRequest):
            raise ConnectionError
        return None

    with FakeBroker(hook=breaks) as broker:
        producer = Producer(broker.address, producer_type="async", num_retries=0)
        producer.send("t", b"x")
        with pytest.raises(DeliveryError, match=r"1 messages were not delivered: .*closed the connection"):
            producer.flush(5)
        producer.close()
        with Producer(broker.address, num_retries=2) as sync, pytest.raises(TransportError):
            sync.send("t", b"x")
        assert broker.seen["ProduceAckRequest"] == 4


def test_the_delivery_time_ends(caplog: pytest.LogCaptureFixture) -> None:
    """Messages that a silent broker does not acknowledge fail in time; later ones get their own try."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        producer = Producer(broker.address, producer_type="async", delivery_timeout_ms=150)
        producer.send("t", b"x")
        start = time.monotonic()
        with pytest.raises(DeliveryError, match="not delivered within 150 ms"):
            producer.flush(5)
        assert time.monotonic() - start < 2
        release.set()
        producer.send("t", b"y")
        producer.flush(5)
        producer.close()
        assert b"y" in stored(broker)


def test_a_connection_that_stands_still_is_replaced() -> None:
    """After socket.timeout.ms without an answer the request goes out on a new connection."""
    first = [True]
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.ProduceAckRequest) and first:
            first.clear()
            release.wait(20)
            raise ConnectionError
        return None

    with FakeBroker(hook=hook) as broker:
        with Producer(broker.address, socket_timeout_ms=100) as producer:
            producer.send("t", b"x")
            assert producer.stats().possible_duplicates == 1
        release.set()
        assert stored(broker) == [b"x"]


@pytest.mark.parametrize(
    "lie",
    [
        b"\x7f\xff\xff\xff\x00\x00",
        b"\xff\xff\xff\xff",
        b"\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00",
        rs.encode_produce_ack(rs.ProduceAckAnswer(77, 0, 0, 0, 5)),
        rs.encode_produce_ack(rs.ProduceAckAnswer(0, 0, 0, 0, 5)) * 2,
        os.urandom(5000),
    ],
)
def test_a_broker_that_lies(lie: bytes) -> None:
    """T-25: an answer that cannot be one ends the connection; only the first of two right ones delivers."""

    def hook(request: rq.Request) -> bytes | None:
        return lie if isinstance(request, rq.ProduceAckRequest) else None

    with FakeBroker(hook=hook) as broker:
        producer = Producer(broker.address, producer_type="async", num_retries=1)
        producer.send("t", b"x")
        if lie.startswith(b"\x00\x00\x00\x1a\x00\x00\x00\x00"):
            producer.flush(5)
        else:
            with pytest.raises(DeliveryError, match="protocol"):
                producer.flush(5)
        producer.close()


def test_another_broker_takes_over_what_may_go_anywhere() -> None:
    """With one of two brokers gone, messages without a key go to the other, also those already on their way."""
    with FakeBroker() as second:
        with FakeBroker() as first:
            producer = Producer(f"{first.address},{second.address}", producer_type="async", batch_messages=2)
            producer.send("t", [b"w"] * 40)
            producer.flush(5)
            before = len(stored(first)) + len(stored(second))
            assert before == 40
        for number in range(100):
            producer.send("t", b"%03d" % number)
        producer.flush(10)
        producer.close()
        found = [payload for payload in stored(first) + stored(second) if payload != b"w"]
        assert {int(payload) for payload in found} == set(range(100))


# --- the end ---


def test_a_closed_producer() -> None:
    """R-3: every call on it raises ClosedError, close() may be repeated, from many threads at once."""
    with FakeBroker() as broker:
        for kind in ("sync", "async"):
            producer = Producer(broker.address, producer_type=kind)
            producer.send("t", b"x")
            threads = [threading.Thread(target=producer.close) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(5)
                assert not thread.is_alive()
            producer.close()
            for call in (
                partial(producer.send, "t", b"x"),
                partial(producer.send, "new", b"x"),
                partial(producer.submit, "t", b"x"),
                producer.flush,
                producer.__enter__,
            ):
                with pytest.raises(ClosedError):
                    call()
            assert producer.stats().delivered == 1
        assert stored(broker) == [b"x", b"x"]


def test_close_gives_up_in_time_and_says_how_much() -> None:
    """Messages that a silent broker does not take are counted in the error; close() does not hang."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        producer = Producer(broker.address, producer_type="async")
        producer.send("t", [b"x"] * 12)
        start = time.monotonic()
        with pytest.raises(DeliveryError, match="12 messages") as caught:
            producer.close(0.1)
        assert time.monotonic() - start < 1
        assert caught.value.messages == 12
        release.set()


def test_a_forgotten_producer_delivers() -> None:
    """A producer that is garbage sends what it has first, and leaves no thread and no descriptor."""
    with FakeBroker() as broker:
        gc.collect()
        threads, descriptors = threading.active_count(), open_descriptors()
        producer = Producer(broker.address, producer_type="async")
        producer.send("t", [b"x"] * 10)
        del producer
        gc.collect()
        assert stored(broker) == [b"x"] * 10
        wait_until("threads gone", lambda: threading.active_count() <= threads + 3)  # the broker's own
        wait_until("descriptors gone", lambda: open_descriptors() <= descriptors + 3)
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("fastlog-producer")]


def test_the_child_of_a_fork_is_told() -> None:
    """R-6: in the child every call raises ForkedError and close() is quiet; the parent's messages are not disturbed."""
    with FakeBroker() as broker:
        producer = Producer(broker.address, producer_type="async", queue_time_ms=50)
        producer.send("t", b"before")
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for call in (lambda: producer.send("t", b"child"), producer.flush):
                    try:
                        call()
                        os._exit(2)
                    except ForkedError:
                        pass
                producer.close()
                del producer
                gc.collect()
                status = 0
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.send("t", b"after")
        producer.close()
        assert stored(broker) == [b"before", b"after"]


def test_an_exception_in_the_block_is_the_one_that_is_seen(caplog: pytest.LogCaptureFixture) -> None:
    """What close() could not deliver then goes to the log."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as broker:
        with (
            pytest.raises(KeyboardInterrupt),
            Producer(broker.address, producer_type="async") as producer,
        ):
            producer.send("t", b"x")
            raise KeyboardInterrupt
        release.set()
    assert "1 messages" in caplog.text


# --- SyncProducer ---


def test_sync_producer_sends_07_requests() -> None:
    """send is one PRODUCE, multi_send one MULTIPRODUCE; a reconnect loses nothing."""
    with FakeBroker() as broker:
        with SyncProducer("127.0.0.1", broker.port, reconnect_interval_sends=2) as producer:
            for number in range(9):
                producer.send("t", [b"%d" % number, b"x"])
        assert stored(broker) == [part for number in range(9) for part in (b"%d" % number, b"x")]
        assert broker.seen == {"ProduceRequest": 9}
        with pytest.raises(ClosedError):
            producer.send("t", b"x")
        producer.close()


def test_sync_producer_multi_send() -> None:
    """All sets in one frame, in order."""
    seen: list[rq.Request] = []

    def hook(request: rq.Request) -> bytes | None:
        seen.append(request)
        return b"" if isinstance(request, rq.MultiProduceRequest) else None

    with FakeBroker(hook=hook) as broker:
        with SyncProducer("127.0.0.1", broker.port) as producer:
            producer.multi_send([("a", 0, b"1"), ("b", 3, [b"2", b"3"])])
            producer.multi_send([])
        (request,) = seen
        assert isinstance(request, rq.MultiProduceRequest)
        assert [(each.topic, each.partition, payloads(each.message_set)) for each in request.produces] == [
            ("a", 0, [b"1"]),
            ("b", 3, [b"2", b"3"]),
        ]


def test_sync_producer_notices_a_broken_connection() -> None:
    """The send after the break raises and sends nothing; the one after that connects again."""

    def hook(request: rq.Request) -> bytes | None:
        if b"bad" in request.message_set:  # type: ignore[union-attr]
            raise ConnectionError
        return None

    with FakeBroker(hook=hook) as broker, SyncProducer("127.0.0.1", broker.port) as producer:
        producer.send("t", b"bad")
        with pytest.raises(TransportError):
            for _ in range(1000):
                producer.send("t", b"lost?")
                time.sleep(0.002)
        producer.send("t", b"good")
        wait_until("the message", lambda: stored(broker)[-1:] == [b"good"])


def test_encoder_is_used_for_each_value() -> None:
    """An encoder turns each event of a list into a payload."""
    with FakeBroker() as broker, Producer(broker.address, encoder=StringEncoder()) as producer:
        producer.send("t", ["ä", "b"])
        with pytest.raises(TypeError):
            producer.send("t", b"bytes")
        assert stored(broker) == ["ä".encode(), b"b"]


# --- any order of calls ---


class Calls(RuleBasedStateMachine):
    """R-3: whatever is called in whatever order, only fastlog's own exceptions come, and the counts stay right."""

    def __init__(self) -> None:
        super().__init__()
        self.broker = FakeBroker().__enter__()
        self.sent = 0
        self.closed = False

    @initialize(kind=st.sampled_from(["sync", "async"]), acks=st.sampled_from([None, "none"]), own=st.booleans())
    def make(self, kind: str, acks: str | None, own: bool) -> None:
        self.broker.own = own
        self.producer = Producer(self.broker.address, producer_type=kind, acks=acks, batch_messages=3, queue_messages=5)

    @rule(values=st.lists(st.binary(max_size=20), max_size=9), key=st.none() | st.text(max_size=3))
    def send(self, values: list[bytes], key: str | None) -> None:
        self._call(partial(self.producer.send, "t", values, key=key), len(values))

    @rule(value=st.binary(max_size=20))
    def send_one(self, value: bytes) -> None:
        self._call(partial(self.producer.send, "t", value), 1)

    @rule(value=st.binary(max_size=20))
    def submit(self, value: bytes) -> None:
        self._call(partial(self.producer.submit, "t", value), 1)

    @rule()
    def send_nonsense(self) -> None:
        with pytest.raises((TypeError, FastlogError)):
            self.producer.send("a/b", object())

    @rule()
    def flush(self) -> None:
        self._call(partial(self.producer.flush, 10), 0)
        if not self.closed:
            assert self.producer.stats().delivered == self.sent

    @precondition(lambda self: self.sent > 5)
    @rule()
    def close(self) -> None:
        self.producer.close()
        self.closed = True
        assert self.producer.stats().delivered == self.sent

    @rule()
    def stats(self) -> None:
        stats = self.producer.stats()
        assert (stats.accepted, stats.failed, stats.dropped) == (self.sent, 0, 0)

    def _call(self, call: Callable[[], object], messages: int) -> None:
        if self.closed:
            with pytest.raises(ClosedError):
                call()
        else:
            call()
            self.sent += messages

    def teardown(self) -> None:
        if hasattr(self, "producer"):
            self.producer.close()
            wait_until("everything arrived", lambda: sum(map(len, map(payloads, self.broker.sets))) == self.sent)
        self.broker.__exit__()


TestCalls = Calls.TestCase
TestCalls.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)
