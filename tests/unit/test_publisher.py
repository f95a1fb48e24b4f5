"""The queue before a producer, with a signal handler that uses it wherever it interrupts a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fastlog.message import deep
from fastlog.producer import publisher as publishing
from fastlog.producer.config import ProducerConfig
from fastlog.producer.publisher import Publisher
from fastlog.producer.waiting import wait_ended
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.moments import MOST_MOMENTS, interrupted_at
from tests.harness.timing import PATIENCE, sooner_than


def payloads_of(broker: FakeBroker, topic: str) -> list[bytes]:
    return [each.message.payload for (name, _), data in broker.logs.items() if name == topic for each in deep(data)]


def put(publisher: Publisher) -> None:
    publisher.put(b"1")
    publisher.put(b"2")


def put_and_flush(publisher: Publisher) -> None:
    publisher.put(b"1")
    publisher.flush()


@pytest.mark.parametrize("call", [put, put_and_flush, Publisher.close])
@pytest.mark.parametrize("handle", [Publisher.flush, Publisher.close, lambda one: one.put(b"3")])
def test_a_handler_uses_it_at_any_moment(
    call: Callable[[Publisher], None], handle: Callable[[Publisher], object]
) -> None:
    """It waits for no thread that waits for what was interrupted; what was put is delivered, or told as dropped."""
    with FakeBroker(partitions=2) as broker:
        for number in range(1, MOST_MOMENTS):
            topic = f"t{number}"
            fields: dict[str, Any] = {"broker_list": broker.address, "queue_time_ms": 60_000, "queue_messages": 1000}
            publisher = Publisher(topic, ProducerConfig.from_fields(fields))
            if call is Publisher.close:  # else its thread begins with the call
                publisher.put(b"1")
            done: list[int] = []

            def handler(publisher: Publisher = publisher, done: list[int] = done, number: int = number) -> None:
                with sooner_than(PATIENCE / 2, f"in a handler at moment {number}"):
                    handle(publisher)
                done.append(number)

            with interrupted_at(number, handler):
                call(publisher)
            publisher.close()
            found = payloads_of(broker, topic)
            assert publisher.pending == 0 and publisher.published == len(found), number
            assert len(found) + publisher.dropped == wanted(call, handle, bool(done)), number
            assert not publisher.dropped or Publisher.close in (call, handle), number
            assert "fastlog-publisher" not in {one.name for one in threading.enumerate()}, number
            if not done:
                break
        assert number > 3


def wanted(call: object, handle: object, is_handled: bool) -> int:
    """How many were put."""
    return (2 if call is put else 1) + (is_handled and handle not in (Publisher.flush, Publisher.close))


def made(broker: FakeBroker, **fields: Any) -> Publisher:
    return Publisher("t", ProducerConfig.from_fields({"broker_list": broker.address, **fields}))


def test_what_comes_while_nothing_is_to_be_done_is_sent() -> None:
    """Nobody flushes: its thread is woken by what is put, also just when it has seen that there is nothing."""

    class Late(Publisher):
        is_noted = has_put = False

        @property
        def _is_asleep(self) -> bool:
            return self.is_noted

        @_is_asleep.setter
        def _is_asleep(self, is_asleep: bool) -> None:
            if is_asleep and not self.has_put:
                self.has_put = True
                self.put(b"when it falls asleep")
            self.is_noted = is_asleep

    with FakeBroker() as broker:
        publisher = Late("t", ProducerConfig.from_fields({"broker_list": broker.address, "queue_time_ms": 0}))
        publisher.put(b"first")
        wait_until("both are sent", lambda: publisher.published == 2)
        wait_until("it sleeps", lambda: publisher._is_asleep)
        publisher.put(b"when it sleeps")
        wait_until("all are sent", lambda: publisher.published == 3)
        publisher.close()


def test_a_queue_that_is_half_full_is_not_collected_any_longer() -> None:
    with FakeBroker() as broker:
        publisher = made(broker, queue_messages=10, queue_time_ms=3_600_000)
        for number in range(5):
            publisher.put(b"%d" % number)
        wait_until("they are sent", lambda: publisher.published == 5)
        publisher.close()


def test_a_flush_is_of_more_than_goes_at_once() -> None:
    with FakeBroker() as broker:
        publisher = made(broker, queue_time_ms=3_600_000)
        for number in range(2500):
            publisher.put(b"%d" % number)
        assert publisher.flush(PATIENCE) and publisher.published == 2500
        publisher.close()


def test_what_was_given_up_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread still asks for the topic; what becomes of that is nobody's concern, and no flush waits for it."""
    monkeypatch.setattr(publishing, "_END_SECONDS", 0.05)
    release = threading.Event()

    def stall(request: object) -> bytes | None:
        release.wait(PATIENCE)
        return None

    with FakeBroker(hook=stall) as broker:
        publisher = made(broker, queue_time_ms=0)
        publisher.put(b"never")
        wait_until("its thread asks", lambda: not publisher._items)
        publisher.close(0)
        assert (publisher.dropped, publisher.pending) == (1, 0)
        with sooner_than(PATIENCE / 2):
            assert publisher.flush()
        release.set()
        wait_until("its thread has ended", lambda: wait_ended(publisher, 0.1))
        assert (publisher.dropped, publisher.published, publisher.pending) == (1, 0, 0)
