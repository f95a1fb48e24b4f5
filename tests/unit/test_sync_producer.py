"""0.7's plain producer against a broker that does what it is told."""

from __future__ import annotations

import time

import pytest

from fastlog._segment import payloads
from fastlog.errors import (
    ClosedError,
    TransportError,
)
from fastlog.producer import SyncProducer
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored


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
        return b"" if isinstance(request, wire07.MultiProduceRequest) else None

    with FakeBroker(hook=hook) as broker:
        with SyncProducer("127.0.0.1", broker.port) as producer:
            producer.multi_send([("a", 0, b"1"), ("b", 3, [b"2", b"3"])])
            producer.multi_send([])
        (request,) = seen
        assert isinstance(request, wire07.MultiProduceRequest)
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
