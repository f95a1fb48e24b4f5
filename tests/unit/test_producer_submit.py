"""``submit``: futures, before and after anything is known of a topic and its brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fastlog.errors import (
    ArgumentError,
    ClosedError,
    InvalidTopicError,
    MessageTooLargeError,
    QueueFullError,
    TransportError,
    WrongPartitionError,
)
from fastlog.producer import Producer
from fastlog.producer._send import Routes
from fastlog.producer.placing import Placing
from fastlog.producer.router import Router
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.timing import PATIENCE


def test_a_topic_is_held_for_as_long_as_one_of_its_messages_waits() -> None:
    """The last one lets go of it; one that comes later holds it anew."""
    routes = Routes()
    waiting: list[int] = []
    for _ in range(2):
        routes.hold("t", waiting, 1)
        routes.hold("t", waiting, 2)
        routes.hold("u", waiting, 3)
        assert [routes.let_go("t", False), routes.is_held("t")] == [False, True]
        assert [routes.let_go("t", True), routes.is_held("t"), routes.is_held()] == [True, False, True]
        assert [routes.let_go("u", False), routes.is_held()] == [True, False]
    assert (waiting, routes.waiting, routes.failed) == ([1, 2, 3] * 2, 0, 2)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Set it, and brokers answer what they are asked about topics."""
    answer = threading.Event()
    ask = Router._ask

    def held(router: Router, *arguments: Any) -> Any:
        assert answer.wait(PATIENCE)
        return ask(router, *arguments)

    monkeypatch.setattr(Router, "_ask", held)
    yield answer
    answer.set()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("fields", [{}, {"key": "k"}, {"partition": 0}])
def test_the_first_messages_wait_for_no_broker_and_keep_their_order(
    asked: threading.Event, kind: str, fields: dict[str, Any]
) -> None:
    """Those of submit() among themselves, and the sends of the same thread behind them."""
    with FakeBroker() as broker, Producer(broker.address, producer_type=kind, queue_time_ms=60_000) as producer:
        futures = [producer.submit("t", b"%d" % number, **fields) for number in range(50)]
        assert not any(future.done() for future in futures)
        assert producer.stats().queued >= 49
        threading.Timer(0.01, asked.set).start()
        for number in range(50, 100):
            producer.send("t", b"%d" % number, **fields)
        futures.append(producer.submit("t", b"100", **fields))
        producer.flush()
        assert stored(broker) == [b"%d" % number for number in range(101)]
        assert [future.result(0).messages for future in futures] == [1] * 51


def test_the_compiled_path_does_not_overtake_them(asked: threading.Event, monkeypatch: pytest.MonkeyPatch) -> None:
    """The topic is known, and the first message is not in its buffer yet."""
    put, stopped, go_on = Placing._put, threading.Event(), threading.Event()

    def put_later(placing: Placing, *arguments: Any) -> bool:
        if threading.current_thread() is not threading.main_thread():
            stopped.set()
            assert go_on.wait(PATIENCE)
        return put(placing, *arguments)

    monkeypatch.setattr(Placing, "_put", put_later)
    asked.set()
    with FakeBroker() as broker, Producer(broker.address, producer_type="async", queue_time_ms=60_000) as producer:
        producer.submit("t", b"0")
        assert stopped.wait(PATIENCE)
        assert producer._router.knows("t", False)
        threading.Timer(0.01, go_on.set).start()
        producer.send("t", b"1")
        producer.send("t", b"2")
        producer.flush()
        assert stored(broker) == [b"0", b"1", b"2"]
        assert not producer._routes.is_held()


def test_a_broker_that_cannot_be_reached_fails_the_futures_and_not_the_calls() -> None:
    """One attempt is enough for all that waited for it, and another call makes another."""
    with Producer("127.0.0.1:1", producer_type="async", connect_timeout_ms=50) as producer:
        for _ in range(2):
            futures = [producer.submit("t", b"x") for _ in range(100)]
            for future in futures:
                error = future.exception(PATIENCE)
                assert isinstance(error, TransportError)
                assert error.topic == "t"
        producer.flush()


def test_what_the_call_raises_and_what_the_future_does() -> None:
    """What cannot be sent anywhere is the call's; whatever depends on brokers, limits and room is the future's."""
    with FakeBroker() as broker:
        with Producer(broker.address, producer_type="async", max_message_bytes=10, queue_time_ms=0) as producer:
            for _ in range(2):  # nothing is known, then it is
                for wrong, kind in (({"value": "text"}, ArgumentError), ({"topic": "a/b"}, InvalidTopicError)):
                    with pytest.raises(kind):
                        producer.submit(**{"topic": "t", "value": b"x", **wrong})  # type: ignore[arg-type]
                large = producer.submit("t", b"x" * 11)
                elsewhere = producer.submit("t", b"x", partition=7)
                assert isinstance(large.exception(PATIENCE), MessageTooLargeError)
                assert isinstance(elsewhere.exception(PATIENCE), WrongPartitionError)
                assert producer.submit("t", b"fits").result(PATIENCE).messages == 1
        with pytest.raises(ClosedError):
            producer.submit("t", b"x")


def test_no_more_wait_than_fit_the_queue(asked: threading.Event) -> None:
    with FakeBroker() as broker:
        with Producer(broker.address, producer_type="async", queue_messages=3, queue_full="raise") as producer:
            futures = [producer.submit("t", b"x") for _ in range(5)]  # one of them is with the thread that asks
            wait_until("one is too many", lambda: any(future.done() for future in futures))
            failed = [future.exception(0) for future in futures if future.done()]
            assert all(isinstance(error, QueueFullError) for error in failed)
            asked.set()
        assert len(stored(broker)) == 5 - len(failed)


def test_close_delivers_what_waits_or_fails_it(asked: threading.Event) -> None:
    with FakeBroker() as broker:
        producer = Producer(broker.address, producer_type="async")
        futures = [producer.submit("t", b"x") for _ in range(5)]
        producer.close(0)
        asked.set()
        assert all(isinstance(future.exception(PATIENCE), ClosedError) for future in futures)
        producer = Producer(broker.address, producer_type="async")
        futures = [producer.submit("t", b"x") for _ in range(5)]
        producer.close()
        assert [future.result(0).offset for future in futures] == [0, 11, 22, 33, 44]
