"""The asynchronous producer: batches, the queue and its bounds, callbacks and futures."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from fastlog._segment import payloads
from fastlog.errors import (
    DeliveryError,
    QueueFullError,
)
from fastlog.producer import Delivery, Producer
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.timing import PATIENCE, sooner_than


def test_batches_and_flush() -> None:
    """A request has batch.size messages; flush() does not wait for one to fill."""
    with FakeBroker() as broker, Producer(broker.address, producer_type="async", batch_messages=4) as producer:
        for number in range(10):
            assert producer.send("t", b"%d" % number) == ()
        producer.flush(30)
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
        producer.flush(30)
        start = time.monotonic()
        producer.send("slow", b"x")
        while not broker.logs.get(("slow", 0)):
            producer.send("busy", b"x" * 100)
            time.sleep(0.0005)
            assert time.monotonic() - start < PATIENCE
        assert time.monotonic() - start > 0.09


def test_delivery_callbacks_and_futures() -> None:
    """Each message knows its own offset; the producer's callback hears of every request."""
    seen: list[Delivery] = []
    own: list[Delivery] = []
    with FakeBroker() as broker:
        with Producer(broker.address, producer_type="async", batch_messages=3, on_delivery=seen.append) as producer:
            futures = [producer.submit("t", b"%d" % number) for number in range(5)]
            producer.send("t", [b"x", b"y"], on_delivery=own.append)
            producer.flush(30)
            assert [future.result(30).offset for future in futures] == [0, 11, 22, 33, 44]
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
        producer.flush(30)
        producer.close()
        assert len(stored(broker)) == 20
        assert len(stored(broker, "again")) == 9


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

        def with_as_much_in_flight_as_may_be(**settings: Any) -> Producer:
            producer = Producer(broker.address, **common, **settings)
            producer.send("t", b"x" * 100)
            wait_until("it is in flight", lambda: producer.stats().in_flight == 1)
            return producer

        for settings in ({"queue_full": "raise"}, {"enqueue_timeout_ms": 30}):
            producer = with_as_much_in_flight_as_may_be(**settings)
            for _ in range(10):
                producer.send("t", b"x" * 20)
            with pytest.raises(QueueFullError):
                producer.send("t", b"x" * 20)
            assert producer.stats().queued == 10
            with pytest.raises(DeliveryError):
                producer.close(0)
        producer = with_as_much_in_flight_as_may_be(queue_full="drop")
        for _ in range(100):
            producer.send("t", b"x" * 20)
        stats = producer.stats()
        assert (stats.accepted, stats.queued, stats.dropped) == (11, 10, 90)
        with pytest.raises(DeliveryError):
            producer.close(0)
        producer = Producer(broker.address, **common)
        thread = threading.Thread(target=lambda: [producer.send("waits", b"%d" % n) for n in range(200)])
        thread.start()
        wait_until("the queue is full", lambda: producer.stats().queued == 10)
        assert thread.is_alive()
        release.set()
        thread.join(30)
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
        with sooner_than(50):
            producer.send("t", [b"%d" % n for n in range(50)])
            for n in range(50, 100):
                producer.send("t", b"%d" % n)
            producer.flush(PATIENCE)
        assert stored(broker) == [b"%d" % n for n in range(100)]
