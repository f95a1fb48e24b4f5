"""A producer whose broker breaks connections, lies, refuses, or stands still."""

from __future__ import annotations

import logging
import os
import threading

import pytest

from fastlog.errors import (
    DeliveryError,
    ProtocolError,
    TransportError,
)
from fastlog.producer import Producer
from fastlog.producer import router as router_module
from fastlog.producer.link import Link
from fastlog.producer.waiting import OneShotEvent
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE


@pytest.mark.parametrize("stored_first", [False, True])
def test_what_was_not_acknowledged_is_sent_again_in_order(stored_first: bool) -> None:
    """Every 7th request breaks the connection, before or after it is stored: nothing is lost, order holds, and what
    may be there twice is counted."""
    counted = [0]

    def breaks(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            counted[0] += 1
            if counted[0] % 7 == 0:
                raise ConnectionError
        return None

    with FakeBroker(**{"after" if stored_first else "hook": breaks}) as broker:  # type: ignore[arg-type]
        with Producer(broker.address, producer_type="async", batch_messages=3) as producer:
            for number in range(300):
                producer.send("t", b"%d" % number)
            producer.flush(30)
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
        if isinstance(request, wire07.ProduceRequest):
            counted[0] += 1
            if counted[0] == 20:
                raise ConnectionError
        return None

    with FakeBroker(hook=breaks) as broker:
        with Producer(broker.address, producer_type="async", acks="none", batch_messages=10) as producer:
            for number in range(4000):
                producer.send("t", b"%06d" % number * 200)
            producer.flush(30)
        found = [int(payload[:6]) for payload in stored(broker)]
        assert found == sorted(set(found))
        assert found[-1] == 3999
        assert "may be lost" in caplog.text


def test_num_retries() -> None:
    """0 gives up after the first break, and says so."""

    def breaks(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            raise ConnectionError
        return None

    with FakeBroker(hook=breaks) as broker:
        producer = Producer(broker.address, producer_type="async", num_retries=0)
        producer.send("t", b"x")
        with pytest.raises(DeliveryError, match=r"1 message was not delivered: .*closed the connection"):
            producer.flush(30)
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
        with pytest.raises(DeliveryError, match="not delivered within 150 ms"):
            producer.flush(PATIENCE)
        release.set()
        producer.send("t", b"y")
        producer.flush(30)
        producer.close()
        assert b"y" in stored(broker)


def test_a_connection_that_stands_still_is_replaced() -> None:
    """After socket.timeout.ms without an answer the request goes out on a new connection."""
    first = [True]
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and first:
            first.clear()
            release.wait(30)
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
        wire07.encode_produce_ack(rs.ProduceAckAnswer(77, 0, 0, 0, 5)),
        wire07.encode_produce_ack(rs.ProduceAckAnswer(0, 0, 0, 0, 5)) * 2,
        os.urandom(5000),
    ],
)
def test_a_broker_that_lies(lie: bytes) -> None:
    """T-25: an answer that cannot be one ends the connection; only the first of two right ones delivers."""

    def hook(request: rq.Request) -> bytes | None:
        return lie if isinstance(request, wire07.ProduceAckRequest) else None

    with FakeBroker(hook=hook) as broker:
        producer = Producer(broker.address, producer_type="async", num_retries=1)
        producer.send("t", b"x")
        if lie.startswith(b"\x00\x00\x00\x1a\x00\x00\x00\x00"):
            producer.flush(30)
        else:
            with pytest.raises(DeliveryError, match="protocol"):
                producer.flush(30)
        producer.close()


def test_another_broker_takes_over_what_may_go_anywhere() -> None:
    """With one of two brokers gone, messages without a key go to the other, also those already on their way."""
    with FakeBroker() as second:
        with FakeBroker() as first:
            producer = Producer(f"{first.address},{second.address}", producer_type="async", batch_messages=2)
            producer.send("t", [b"w"] * 40)
            producer.flush(30)
            before = len(stored(first)) + len(stored(second))
            assert before == 40
        for number in range(100):
            producer.send("t", b"%03d" % number)
        producer.flush(30)
        producer.close()
        found = [payload for payload in stored(first) + stored(second) if payload != b"w"]
        assert {int(payload) for payload in found} == set(range(100))


def test_a_broker_that_was_away_at_the_first_message_gets_its_share_once_it_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router_module, "_LOOK_AGAIN_SECONDS", 0.01)
    late = FakeBroker()
    late.port = unused_port()
    with FakeBroker() as there, Producer(f"{there.address},127.0.0.1:{late.port}") as producer:
        producer.send("t", b"x")
        with late:
            wait_until("it gets messages", lambda: producer.send("t", b"y") and late.sets)
            producer.close()


def test_a_flush_waits_for_what_another_broker_has_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though that one had nothing to flush when it was asked."""
    release, request_flush = threading.Event(), Link.request_flush

    def idle_first(link: Link) -> OneShotEvent:
        event = request_flush(link)
        assert link.broker_id or event.wait(PATIENCE)
        return event

    with FakeBroker() as there, FakeBroker() as away:
        with Producer(f"0:{there.address},1:{away.address}", producer_type="async", queue_time_ms=60_000) as producer:
            for broker in (0, 1):
                producer.send("t", b"x", partition=(broker, -1))
            producer.flush(PATIENCE)
            away.__exit__()
            there.hook = stalled(release)
            monkeypatch.setattr(Link, "request_flush", idle_first)
            producer.send("t", b"moves", partition=(1, -1))
            flushing = threading.Thread(target=producer.flush, args=(PATIENCE,))
            flushing.start()
            try:
                wait_until("the other one has it", lambda: there.seen["ProduceAckRequest"] == 2)
                flushing.join(0.1)
                assert flushing.is_alive()
            finally:
                release.set()
                flushing.join(PATIENCE)
            assert producer.stats().delivered == 3
        assert stored(there) == [b"x", b"moves"]


def test_a_broker_that_claims_any_number_of_partitions() -> None:
    """T-25: a number takes no memory, though with keys each partition does."""
    with FakeBroker(partitions=2**31 - 1) as broker, Producer(broker.address) as producer:
        with pytest.raises(ProtocolError, match="claims 2147483647 partitions"):
            producer.send("t", b"x", key="k")
        assert producer.stats().accepted == 0
