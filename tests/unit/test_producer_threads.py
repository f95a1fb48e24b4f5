"""A producer that threads share, stopped at the places where one of them may come in between another's steps."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import pytest

from fastlog.producer import DefaultEventHandler, Producer
from fastlog.producer import producer as producer_module
from fastlog.producer import router as router_module
from fastlog.producer.router import Router, TopicRoute
from fastlog.producer.waiting import OwnedThread
from fastlog.producer.zookeeper_router import ZooKeeperRouter
from fastlog.zkpaths import BrokerRegistration, broker_path
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.fake_session import FakeZooKeeper
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
        del route.partitions[1], route.buffers[1, -1], route.anywhere[1]
        router._topics = TopicsThatGrow()
        router._look_for_missing()
        wait_until("the broker is in use again", lambda: (1, -1) in route.buffers)
        wait_until("nothing is looked for any more", lambda: "fastlog-producer-find" not in threads_of_producers())


@pytest.fixture
def slow_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer's threads are there for a while when their work is done."""

    def run_and_linger(thread: OwnedThread) -> None:
        threading.Thread.run(thread)
        time.sleep(0.2)

    monkeypatch.setattr(OwnedThread, "run", run_and_linger)
    monkeypatch.setattr(router_module, "END_SECONDS", PATIENCE)


def threads_of_producers() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("fastlog-producer")]


@pytest.mark.usefixtures("slow_ends")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"producer_type": "async", "event_handler": DefaultEventHandler()},
        {"audit_topic": "audit"},
        {"broker_list": "0:{address},1:127.0.0.1:1"},
    ],
    ids=["plain", "handlers", "audited", "a broker is missing"],
)
def test_nothing_is_left_after_close(fields: dict[str, Any]) -> None:
    with FakeBroker() as broker:
        brokers = fields.get("broker_list", "{address}").format(address=broker.address)
        with Producer(**{**fields, "broker_list": brokers}) as producer:
            producer.send("t", b"x")
            assert threads_of_producers()
        assert not threads_of_producers()


@pytest.mark.usefixtures("slow_ends")
def test_nothing_of_zookeeper_is_left_after_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor a session, nor what asked brokers."""
    tree = FakeZooKeeper()
    router = partial(ZooKeeperRouter, open_session=lambda on_change, is_wanted: tree.open(on_change))
    monkeypatch.setattr(producer_module, "make_router", router)
    with FakeBroker() as broker:
        shown = BrokerRegistration("c-1", "127.0.0.1", broker.port).encode()
        tree.open().create(broker_path(1), shown, ephemeral=True)
        with Producer(zk_connect="fake:1") as producer:
            producer.send("t", b"x")
            sessions = set(tree.sessions)
        assert len(sessions - set(tree.sessions)) == 1
        assert not threads_of_producers()
        Producer(zk_connect="fake:1").close()
        assert not threads_of_producers()
