"""The queue before a producer, with a signal handler that uses it wherever it interrupts a call."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from fastlog.message import deep
from fastlog.producer.config import ProducerConfig
from fastlog.producer.publisher import Publisher
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
            publisher.put(b"0")
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
            assert len(found) + publisher.dropped == 1 + wanted(call, handle, bool(done)), number
            assert not publisher.dropped or Publisher.close in (call, handle), number
            assert "fastlog-publisher" not in {one.name for one in threading.enumerate()}, number
            if not done:
                break
        assert number > 3


def wanted(call: object, handle: object, is_handled: bool) -> int:
    """How many were put besides the first."""
    own = {put: 2, put_and_flush: 1}.get(call, 0)  # type: ignore[call-overload]
    return int(own) + (is_handled and handle not in (Publisher.flush, Publisher.close))
