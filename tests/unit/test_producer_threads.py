"""A producer that threads share, stopped at the places where one of them may come in between another's steps."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fastlog.producer import Producer
from fastlog.producer import router as router_module
from fastlog.producer.router import Router, TopicRoute
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.timing import PATIENCE


def test_threads_that_are_the_first_to_send_to_a_topic_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ask the broker about the topic; the second one has to send through what the first one has made of it."""
    both, first_sent = threading.Barrier(2), threading.Event()
    ask = Router._ask

    def asked_by_both(router: Router, *arguments: Any) -> list[Exception]:
        found = ask(router, *arguments)
        both.wait(PATIENCE)
        if threading.current_thread().name == "second":
            assert first_sent.wait(PATIENCE)
        return found

    monkeypatch.setattr(Router, "_ask", asked_by_both)
    with FakeBroker() as broker:
        producer = Producer(broker.address, producer_type="async", queue_time_ms=60_000)

        def send(name: str) -> None:
            for number in range(3):
                producer.send("t", b"%s %d" % (name.encode(), number), partition=0)
                first_sent.set()

        threads = [threading.Thread(target=send, args=(name,), name=name) for name in ("first", "second")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        producer.close()
        for name in (b"first", b"second"):
            mine = [each for each in stored(broker) if each.startswith(name)]
            assert mine == [b"%s %d" % (name, number) for number in range(3)]


def test_a_broker_that_a_topic_misses_is_looked_for_though_another_look_just_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic that misses a broker comes when the thread that looks for them has found nothing left to do."""

    monkeypatch.setattr(router_module, "_LOOK_AGAIN_SECONDS", 0.01)

    class TopicsThatGrow(dict[str, TopicRoute]):
        def values(self) -> Any:
            router._topics = topics  # right behind the look that finds none
            return []

    with FakeBroker() as one, FakeBroker() as two, Producer(f"0:{one.address},1:{two.address}") as producer:
        producer.send("t", b"x")
        router = producer._router
        topics = router._topics
        route = topics["t"]
        del route.partitions[1], route.buffers[1, -1]
        router._topics = TopicsThatGrow()
        router._look_for_missing()
        wait_until("the broker is in use again", lambda: (1, -1) in route.buffers)
