"""What a producer knows of brokers and topics from a ZooKeeper in memory, and where it sends by it."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastlog.client.addresses import Address
from fastlog.coordination import outage
from fastlog.errors import ClosedError, CoordinationError, FastlogError, TransportError, WrongPartitionError
from fastlog.producer import (
    Crc32Partitioner,
    DefaultEventHandler,
    JavaHashPartitioner,
    Producer,
    ProducerConfig,
    discovery,
    router,
)
from fastlog.producer import producer as producer_module
from fastlog.producer._buffer import Quota
from fastlog.producer.brokers import Directory
from fastlog.producer.discovery import Discovery, View
from fastlog.producer.ledger import Ledger
from fastlog.producer.waiting import Background, LocklessCondition, wait_ended
from fastlog.producer.zookeeper_router import ZooKeeperRoute, ZooKeeperRouter
from fastlog.zkpaths import BrokerRegistration, broker_path, encode_number, topic_broker_path
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stalled, stored
from tests.harness.fake_session import FakeSession, FakeZooKeeper
from tests.harness.producers import script
from tests.harness.timing import PATIENCE, sooner_than

SECONDS = PATIENCE
CONNECT = "fake:1"


def show(session: FakeSession, broker: int, port: int, **topics: int) -> None:
    """What a broker writes of itself."""
    value = BrokerRegistration(f"c-{broker}", "127.0.0.1", port)
    session.create(broker_path(broker), value.encode(), ephemeral=True)
    for topic, count in topics.items():
        session.create(topic_broker_path(topic, broker), encode_number(count), ephemeral=True)


def opener(tree: FakeZooKeeper) -> Callable[..., FakeSession]:
    return lambda on_change, is_wanted: tree.open(on_change)


@contextmanager
def watching(tree: FakeZooKeeper, **settings: Any) -> Iterator[tuple[Discovery, list[View]]]:
    """A discovery, and every view it has had."""
    config = ProducerConfig(**{"zk_connect": CONNECT, "zk_sync_time_ms": 50, **settings})
    views: list[View] = []
    ledger = Ledger(Quota(100, 10_000), None)
    made = Discovery(config, ledger, views.append, opener(tree))
    try:
        yield made, views
    finally:
        made.stop()
        assert wait_ended(ledger, SECONDS)


@pytest.fixture
def tree() -> FakeZooKeeper:
    return FakeZooKeeper(timeout=0.5)


def test_the_four_events(tree: FakeZooKeeper) -> None:
    """A broker comes, one goes, a topic is new, a broker announces a topic that is there already."""
    one, two = tree.open(), tree.open()
    show(one, 1, 9001, t=2)
    with watching(tree) as (found, _):
        assert found.wait_for("t", SECONDS) == View({1: Address("127.0.0.1", 9001)}, {"t": {1: 2}})
        show(two, 2, 9002)
        wait_until("broker 2 came", lambda: 2 in found.view.addresses)
        assert found.view.partitions["t"] == {1: 2}
        two.create(topic_broker_path("t", 2), b"3", ephemeral=True)
        wait_until("broker 2 has the topic", lambda: found.view.partitions["t"] == {1: 2, 2: 3})
        assert found.wait_for("new", SECONDS).partitions["new"] == {1: 1, 2: 1}
        two.create(topic_broker_path("new", 2), b"4", ephemeral=True)
        wait_until("the new topic", lambda: found.view.partitions["new"] == {1: 1, 2: 4})
        one.close()
        wait_until("broker 1 went", lambda: list(found.view.addresses) == [2])
        assert found.view.partitions == {"t": {2: 3}, "new": {2: 4}}


def test_a_topic_that_nobody_has_announced(tree: FakeZooKeeper) -> None:
    """Partition 0 of every living broker; kept though others come, each until it has gone or announced the topic."""
    sessions = [tree.open() for _ in range(4)]
    for broker in (10, 2, 3):
        show(sessions[broker % 4], broker, 9000 + broker)
    with watching(tree) as (found, _):
        found.follow("t")
        wait_until("the topic is followed", lambda: "t" in found.view.partitions)
        assert list(found.wait_for("t", SECONDS).partitions["t"].items()) == [(2, 1), (3, 1), (10, 1)]  # by number
        assert found.view.assumed == {"t": {2, 3, 10}}
        show(tree.open(), 4, 9004)
        wait_until("broker 4 came", lambda: 4 in found.view.addresses)
        assert found.view.partitions["t"] == {2: 1, 3: 1, 10: 1}
        sessions[3].close()
        wait_until("broker 3 went", lambda: found.view.partitions["t"] == {2: 1, 10: 1})
        tree.write(topic_broker_path("t", 10), b"8")
        wait_until("broker 10 announced it", lambda: found.view.partitions["t"] == {2: 1, 10: 8})
        assert found.view.assumed == {"t": {2}}


def test_a_new_address_of_the_same_broker(tree: FakeZooKeeper) -> None:
    show(tree.open(), 1, 9001, t=1)
    with watching(tree) as (found, _):
        found.wait_for("t", SECONDS)
        tree.write(broker_path(1), b"c-2:other.example:9002")
        wait_until("it moved", lambda: found.view.addresses == {1: Address("other.example", 9002)})


def test_a_session_that_is_over_is_followed_by_another(tree: FakeZooKeeper) -> None:
    """Everything is read again, and what changed in between is seen."""
    show(tree.open(), 1, 9001, t=1)
    with watching(tree) as (found, views):
        found.wait_for("t", SECONDS)
        for turn in range(3):
            assert found.session_id is not None
            before = len(views)
            tree.expire(found.session_id)
            show(tree.open(), 10 + turn, 9010)
            wait_until("it was seen", lambda broker=10 + turn: broker in found.view.addresses)  # type: ignore[misc]
            wait_until("it was told", lambda before=before: len(views) > before)  # type: ignore[misc]
            assert len(views) == before + 1
        assert found.sessions == 4
    assert not found.session_id


def test_a_session_that_is_being_closed_is_nobody_s(tree: FakeZooKeeper) -> None:
    """Who asks meanwhile is told of no session, and not of one that ends just now."""
    show(tree.open(), 1, 9001, t=1)
    shown: list[int | None] = []
    with watching(tree) as (found, _):
        found.wait_for("t", SECONDS)
        assert found.session_id is not None
        session = tree.sessions[found.session_id]
        close = session.close
        session.close = lambda: (shown.append(found.session_id), close())  # type: ignore[method-assign]
    assert shown == [None]


def test_the_view_outlives_zookeeper(tree: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is silent, and when it comes back without a broker, the brokers known last stay."""
    monkeypatch.setattr(outage, "AWAY_SESSIONS", 0.1)
    broker = tree.open()
    show(broker, 1, 9001, t=2)
    with watching(tree) as (found, _):
        known = found.wait_for("t", SECONDS)
        assert found.session_id is not None
        tree.is_silent = True
        tree.expire(found.session_id)
        wait_until("it noticed", lambda: found.session_id is None)
        assert found.view == known
        with pytest.raises(CoordinationError, match="no ZooKeeper answers"):
            found.wait_for("unknown", 0.05)
        tree.is_silent = False
        broker.close()
        wait_until("another session", lambda: "unknown" in found.view.partitions)
        assert found.view.addresses == known.addresses
        assert found.view.partitions == {"t": {1: 2}, "unknown": {1: 1}}
        show(tree.open(), 7, 9007)
        wait_until("a broker that is really there", lambda: list(found.view.addresses) == [7])
        assert found.view.partitions["t"] == {7: 1}


def test_reading_again_finds_what_no_watch_has_told(tree: FakeZooKeeper) -> None:
    show(tree.open(), 1, 9001, t=1)
    with watching(tree) as (found, _):
        found.wait_for("t", SECONDS)
        tree._watches.clear()
        show(tree.open(), 2, 9002)
        assert 2 not in found.view.addresses
        assert found.read_again(SECONDS)
        assert 2 in found.view.addresses


def test_who_waits_is_woken_once_everything_is_read_again(tree: FakeZooKeeper) -> None:
    """A wake-up that came before the note of what was read would leave them asleep for a minute."""
    ledger = Ledger(Quota(100, 10_000), None)
    made = Discovery(ProducerConfig(zk_connect=CONNECT), ledger, lambda view: None, opener(tree))
    noted: list[int] = []

    class Done(LocklessCondition):
        def notify_all(self) -> None:
            noted.append(made._audited)
            made._stopping = True

    made._done = Done()
    made._audit_wanted = 3
    made._serve(tree.open())
    assert noted == [3]


@pytest.mark.parametrize("is_lost", [True, False])
def test_an_error_of_a_session_that_is_lost_is_none(
    tree: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    """Another session follows it anyway; an error of one that goes on is told."""
    made = Discovery(
        ProducerConfig(zk_connect=CONNECT), Ledger(Quota(100, 10_000), None), lambda view: None, opener(tree)
    )
    session, turns = tree.open(), []
    error = CoordinationError("a read that failed")

    def read(watched: object) -> View:
        turns.append(watched)
        if is_lost:
            tree.expire(session.id)
        elif len(turns) == 2:
            made._stopping = True
        raise error

    monkeypatch.setattr(made, "_read", read)
    made._serve(session)
    assert len(turns) == (1 if is_lost else 2)
    assert made._error is (None if is_lost else error)


class At:
    """A clock that stands still, and what a discovery waits for."""

    def __init__(self, made: Discovery, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 50.0
        self.waits: list[float] = []
        monkeypatch.setattr(discovery, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr("random.uniform", lambda low, high: high)
        made._work = cast(
            LocklessCondition, SimpleNamespace(wait_for=lambda is_true, seconds: self.waits.append(seconds))
        )


def still(tree: FakeZooKeeper, **settings: Any) -> Discovery:
    """One whose thread does not run."""
    config = ProducerConfig(**{"zk_connect": CONNECT, "zk_sync_time_ms": 2000, **settings})
    return Discovery(config, Ledger(Quota(100, 10_000), None), lambda view: None, opener(tree))


def test_pauses_double_up_to_the_longest(tree: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is waited for in one piece, and ends with a stop."""
    made = still(tree)
    at = At(made, monkeypatch)
    for _ in range(12):
        made._pause()
    least = discovery._LEAST_PAUSE
    assert at.waits == pytest.approx([min(least * 2**count, 2.0) for count in range(12)])


def stepped(made: Discovery, *steps: Callable[[], object]) -> list[float]:
    """Let each wait take the next step; how long they would have been."""
    waits: list[float] = []
    left = list(steps)

    def wait_for(is_true: Callable[[], bool], seconds: float) -> None:
        waits.append(seconds)
        left.pop(0)()

    made._work = cast(LocklessCondition, SimpleNamespace(wait_for=wait_for, notify_all=lambda: None))
    return waits


def test_the_time_without_a_server_begins_anew_with_each_loss(
    tree: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = still(tree)
    at = At(made, monkeypatch)

    def turn(seconds: float, is_silent: bool) -> None:
        at.now += seconds
        tree.is_silent = is_silent

    waits = stepped(made, lambda: turn(0.0, True), lambda: turn(0.8, False), lambda: turn(0.4, True), made.stop)
    made._serve(tree.open())
    assert len(waits) == 4, "the session was given up"


def test_a_success_ends_what_failed_before(tree: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pause is the shortest, and silence has no cause of its own."""
    made = still(tree)
    At(made, monkeypatch)

    def refuse_the_next_look() -> None:
        assert str(made._silence(1)).startswith("no ZooKeeper answers")
        made._audit_wanted += 1
        tree.refused.add("/brokers/ids")

    tree.refused.add("/brokers/ids")
    least = discovery._LEAST_PAUSE
    waits = stepped(made, lambda: None, tree.refused.clear, refuse_the_next_look, made.stop)
    made._serve(tree.open())
    assert [waits[0], waits[1], waits[3]] == pytest.approx([least, 2 * least, least])


def test_a_broker_that_takes_its_word_back_keeps_its_partitions(tree: FakeZooKeeper) -> None:
    """It lives, and nobody else has the topic: keys go where they went."""
    show(tree.open(), 1, 9001, t=4)
    with watching(tree) as (found, _):
        found.wait_for("t", SECONDS)
        tree.remove(topic_broker_path("t", 1))
        wait_until("it is noticed", lambda: found.view.assumed)
        assert found.view.partitions == {"t": {1: 4}}


def test_who_is_woken_finds_the_news(tree: FakeZooKeeper) -> None:
    """Woken before they are noted, the thread would look in vain and wait again."""
    made = still(tree)
    noted: list[bool] = []
    made._work = cast(LocklessCondition, SimpleNamespace(notify_all=lambda: noted.append(made._has_news)))
    made._wake()
    assert noted == [True]


def test_a_change_that_cannot_be_followed_ends_nothing(tree: FakeZooKeeper, caplog: pytest.LogCaptureFixture) -> None:
    """It is known all the same, and the next one is told as well."""
    told: list[View] = []

    def fails(view: View) -> None:
        told.append(view)
        raise ZeroDivisionError("of a test")

    made = Discovery(ProducerConfig(zk_connect=CONNECT), Ledger(Quota(100, 10_000), None), fails, opener(tree))
    for port in (1, 2):
        made._publish(View(addresses={1: Address("127.0.0.1", port)}))
        assert made.view is told[-1]
    assert len(told) == 2
    assert caplog.text.count("could not be followed in full") == 2


def test_a_wait_for_a_topic_ends_with_the_producer(tree: FakeZooKeeper) -> None:
    made = still(tree)
    made.stop()
    with pytest.raises(ClosedError, match="the producer was closed"):
        made.wait_for("t", SECONDS)


def test_silence_names_its_cause(tree: FakeZooKeeper) -> None:
    made = still(tree)
    assert str(made._silence(1.5)).splitlines()[0] == f"no ZooKeeper answers at {CONNECT} within 1.5 s"
    made._error = OSError("no route")
    assert str(made._silence(2)).splitlines()[0] == f"no ZooKeeper answers at {CONNECT} within 2 s: no route"
    made._error = CoordinationError("refused")
    assert made._silence(2) is made._error


def test_values_that_make_no_sense(tree: FakeZooKeeper) -> None:
    """A broker without an address counts as gone, one with a strange count as without the topic."""
    show(tree.open(), 1, 9001, t=1)
    for path, value in (
        ("/brokers/ids/2", b"nonsense"),
        ("/brokers/ids/x", b"c:h:1"),
        ("/brokers/topics/t/1x", b"1"),
        ("/brokers/topics/t/3", b"-1"),
    ):
        tree.write(path, value)
    show(tree.open(), 3, 9003)
    with watching(tree) as (found, _):
        view = found.wait_for("t", SECONDS)
        assert list(view.addresses) == [1, 3]
        assert view.partitions == {"t": {1: 1}}


def test_one_watch_for_each_thing(tree: FakeZooKeeper) -> None:
    """However often something changes, no watches pile up, and nothing is read that has not changed."""
    show(tree.open(), 1, 9001, t=1)
    with watching(tree) as (found, views):
        found.wait_for("t", SECONDS)
        watches = tree.watch_count()
        for count in range(2, 30):
            tree.write(topic_broker_path("t", 1), b"%d" % count)
            wait_until("it was seen", lambda count=count: found.view.partitions["t"] == {1: count})  # type: ignore[misc]
        assert tree.watch_count() == watches
        calls = len(tree.calls)
        time.sleep(0.05)
        assert len(tree.calls) == calls
        assert len(views) == 29


# -- sending by it -----------------------------------------------------------------------------------------------------


@pytest.fixture
def make(tree: FakeZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Producer]:
    """Producers that find brokers in the tree."""

    monkeypatch.setattr(producer_module, "make_router", partial(ZooKeeperRouter, open_session=opener(tree)))
    return partial(Producer, zk_connect=CONNECT, zk_sync_time_ms=50, connect_timeout_ms=2000)


def route_of(producer: Producer) -> ZooKeeperRoute:
    found = producer._router._topics["t"]
    assert isinstance(found, ZooKeeperRoute)
    return found


def view_of(producer: Producer) -> View:
    assert isinstance(producer._router, ZooKeeperRouter)
    return producer._router.discovery.view


def count_of(broker: FakeBroker, topic: str = "t") -> int:
    return sum(len(stored(broker, name, partition)) for name, partition in broker.logs if name == topic)


@pytest.mark.parametrize("partitioner", [None, JavaHashPartitioner()])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_keys_choose_from_the_sorted_list(
    tree: FakeZooKeeper, make: Callable[..., Producer], kind: str, partitioner: Any
) -> None:
    """(broker, partition), both by number: broker 10 is behind broker 9, whatever the text says."""
    with FakeBroker(partitions=2) as nine, FakeBroker(partitions=3) as ten:
        show(tree.open(), 10, ten.port, t=3)
        show(tree.open(), 9, nine.port, t=2)
        places = [(nine, 0), (nine, 1), (ten, 0), (ten, 1), (ten, 2)]
        expected: dict[tuple[int, int], list[bytes]] = {}
        with make(producer_type=kind, partitioner=partitioner) as producer:
            for number in range(60):
                key = f"k{number % 20}"
                producer.send("t", b"%d" % number, key=key)
                index = (partitioner or Crc32Partitioner()).partition(key, 5)
                expected.setdefault((places[index][0].port, places[index][1]), []).append(b"%d" % number)
        for broker, partition in places:
            assert stored(broker, "t", partition) == expected.get((broker.port, partition), [])


def test_threads_that_are_the_first_to_send_to_a_topic_share_its_route(
    tree: FakeZooKeeper, make: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled path gets only the route that is kept, never that of the thread that came second."""
    published = []
    publish, wait_for = ZooKeeperRouter._publish, Discovery.wait_for
    both, first_sent = threading.Barrier(2), threading.Event()

    def read_by_both(found: Discovery, topic: str, seconds: float) -> View:
        view = wait_for(found, topic, seconds)
        both.wait(SECONDS)
        if threading.current_thread().name == "second":
            assert first_sent.wait(SECONDS)
        return view

    monkeypatch.setattr(Discovery, "wait_for", read_by_both)
    monkeypatch.setattr(
        ZooKeeperRouter, "_publish", lambda router, route: (published.append(route), publish(router, route))
    )
    with FakeBroker() as broker:
        show(tree.open(), 1, broker.port, t=1)
        with make(producer_type="async") as producer:
            threads = [
                threading.Thread(target=lambda: (producer.send("t", b"x"), first_sent.set()), name=name)
                for name in ("first", "second")
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(SECONDS)
            assert {id(route) for route in published} == {id(route_of(producer))}
        assert count_of(broker) == 2


def test_a_key_while_another_thread_prepares_the_first_one(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    """That keys are used is noted before the table that they choose from is made."""
    with FakeBroker() as broker:
        show(tree.open(), 1, broker.port, t=1)
        with make() as producer:
            producer.send("t", b"x")
            route_of(producer).has_keys = True
            producer.send("t", b"y", key="k")
        assert count_of(broker) == 2


def test_without_a_key_brokers_get_what_their_partitions_are_worth(
    tree: FakeZooKeeper, make: Callable[..., Producer]
) -> None:
    with FakeBroker(partitions=1) as small, FakeBroker(partitions=9) as large:
        show(tree.open(), 1, small.port, t=1)
        show(tree.open(), 2, large.port, t=9)
        with make() as producer:
            producer.send("t", b"first")
            wait_until("both are known", lambda: len(producer._router.links) == 2)
            for _ in range(300):
                producer.send("t", b"x")
        assert 5 <= count_of(small) <= 90
        assert count_of(small) + count_of(large) == 301


def test_a_broker_that_joins_gets_traffic_and_one_that_leaves_gets_none(
    tree: FakeZooKeeper, make: Callable[..., Producer]
) -> None:
    with FakeBroker() as one, FakeBroker() as two:
        first = tree.open()
        show(first, 1, one.port, t=1)
        with make() as producer:
            producer.send("t", b"x")
            show(tree.open(), 2, two.port, t=1)
            wait_until("the new one gets some", lambda: bool(producer.send("t", b"x")) and count_of(two) > 0)
            first.close()
            wait_until("the old one is not used", lambda: 1 not in route_of(producer).counts)
            before = count_of(one)
            for number in range(30):
                assert producer.send("t", b"x", key=f"{number}")[0].broker == 2
                assert producer.send("t", b"x")[0].broker == 2
            assert count_of(one) == before
            wait_until("its connection is let go", lambda: producer._router.links[1]._connection is None)
            show(tree.open(), 1, one.port, t=1)
            wait_until("it is back", lambda: producer.send("t", b"x")[0].broker == 1)


def test_what_a_dead_broker_holds_goes_to_others(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    """Messages without a key move at once when it leaves ZooKeeper; those with one are tried, then reported."""
    with ExitStack() as life, FakeBroker() as two:
        one = life.enter_context(FakeBroker())
        first = tree.open()
        show(first, 1, one.port, t=1)
        told: list[FastlogError | None] = []
        with make(
            producer_type="async",
            queue_time_ms=60_000,
            delivery_timeout_ms=150,
            on_delivery=lambda found: told.append(found.error),
        ) as producer:
            producer.send("t", [b"x"] * 10)
            producer.send("t", b"k", key="k")
            show(tree.open(), 2, two.port, t=1)
            wait_until("both are known", lambda: len(producer._router.links) == 2)
            life.close()
            first.close()
            wait_until("they moved", lambda: stored(two) == [b"x"] * 10)
            wait_until("the other one was given up", lambda: len(told) == 2)
            (error,) = filter(None, told)
            assert "150 ms" in str(error)
            assert producer.stats().failed == 1


def test_a_send_does_not_wait_for_a_silent_broker_that_has_gone(
    tree: FakeZooKeeper, make: Callable[..., Producer]
) -> None:
    """Its connection stands, nothing comes: without a key another broker has the message, with one send() raises."""
    release = threading.Event()
    with FakeBroker(hook=stalled(release)) as silent, FakeBroker() as other:
        second = tree.open()
        show(tree.open(), 1, other.port)
        show(second, 2, silent.port, t=1)
        failures: list[BaseException] = []
        deliveries: list[int] = []

        def send(key: str | None) -> None:
            try:
                deliveries.extend(found.broker for found in producer.send("t", b"x", key=key))
            except TransportError as error:
                failures.append(error)

        with make(connect_timeout_ms=100) as producer:
            threads = [threading.Thread(target=send, args=(key,)) for key in (None, "k")]
            for thread in threads:
                thread.start()
            wait_until("one is on its way", lambda: silent.seen["ProduceAckRequest"] == 1)
            wait_until("both belong to it", lambda: producer.stats().accepted == 2)
            tree.write(topic_broker_path("t", 1), b"1")
            second.close()
            for thread in threads:
                thread.join(SECONDS)
            assert deliveries == [1]
            (failure,) = failures
            assert f"broker 2 at {silent.address} is not in ZooKeeper any more" in str(failure)
        release.set()


def test_a_broker_that_moves_to_another_port(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    with FakeBroker() as old, FakeBroker() as new:
        show(tree.open(), 1, old.port, t=1)
        with make() as producer:
            producer.send("t", b"1")
            tree.write(broker_path(1), BrokerRegistration("c-2", "127.0.0.1", new.port).encode())
            wait_until("it is found", lambda: bool(producer.send("t", b"x")) and count_of(new) > 0)


def test_what_a_broker_that_left_had_refused_is_forgotten(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    """One of the same id that comes later is asked for itself."""
    with FakeBroker() as dead:
        port = dead.port
    with FakeBroker() as alive, FakeBroker() as other, make(connect_timeout_ms=5000) as producer:
        first = tree.open()
        show(tree.open(), 2, other.port)
        show(first, 1, port)
        with pytest.raises(TransportError, match=f"127.0.0.1:{port}"):
            producer.send("t", b"x", partition=(1, 0))
        first.close()
        found = producer._router
        assert isinstance(found, ZooKeeperRouter)
        wait_until("it is not asked any more", lambda: not found._asking)
        assert not found._failures
        show(tree.open(), 1, alive.port)
        producer.send("t", b"y", partition=(1, 0))
        assert stored(alive) == [b"y"]


def test_a_key_for_a_broker_that_cannot_be_reached(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    """R-9: one error, soon; it says what was dialled and where the address comes from. Others are not held up."""
    with FakeBroker() as dead:
        port = dead.port
    with FakeBroker() as alive:
        show(tree.open(), 1, alive.port, t=1)
        second = tree.open()
        show(second, 2, port, t=1)
        with make(connect_timeout_ms=60_000) as producer:
            keys = {Crc32Partitioner().partition(str(number), 2): str(number) for number in range(20)}
            with sooner_than(50):
                with pytest.raises(TransportError) as caught:
                    producer.send("t", b"x", key=keys[1])
                for part in (f"127.0.0.1:{port}", "refused", f"ZooKeeper {CONNECT}", "/brokers/ids/2"):
                    assert part in str(caught.value)
                assert producer.send("t", b"x", key=keys[0])[0].broker == 1
                assert [producer.send("t", b"x")[0].broker for _ in range(10)] == [1] * 10
                second.close()
                wait_until("it has gone", lambda: 2 not in route_of(producer).counts)
                wait_until("keys go elsewhere", lambda: len(route_of(producer).table) == 1)
                assert producer.send("t", b"x", key=keys[1])[0].broker == 1


def test_who_waits_for_a_broker_is_told_of_each_failure(tree: FakeZooKeeper) -> None:
    """At once, and not when it is asked the next time: pauses in between grow to a second."""
    router = ZooKeeperRouter(
        ProducerConfig(zk_connect=CONNECT), Ledger(Quota(100, 10_000), None), None, None, open_session=opener(tree)
    )
    router.discovery.view = View({1: Address("127.0.0.1", 9001)})
    seen: list[str] = []

    class Changes(LocklessCondition):
        def notify_all(self) -> None:
            seen.append("woken: failed" if 1 in router._failures else "woken: usable")

    def ask() -> None:
        seen.append("asked")
        if seen.count("asked") < 3:
            raise TransportError("refused")

    router._changes = Changes()
    directory = SimpleNamespace(broker=SimpleNamespace(id=1), ask=ask, acks=lambda wanted: wanted, offer=object())
    router._ask_until_answered(cast(Directory, directory))
    assert seen == ["asked", "woken: failed"] * 2 + ["asked", "woken: usable"]


def test_by_hand(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    with FakeBroker(partitions=3) as one, FakeBroker(partitions=2) as two:
        show(tree.open(), 1, one.port, t=3)
        show(tree.open(), 2, two.port)
        with make() as producer:
            producer.send("t", b"x", partition=(1, 2))
            producer.send("t", b"y", partition=(2, 1))  # it has not announced the topic
            assert (stored(one, "t", 2), stored(two, "t", 1)) == ([b"x"], [b"y"])
            for partition, said in (((1, 3), "has 3 of"), ((2, 2), "has 2 of"), ((5, 0), "no broker 5 is registered")):
                with pytest.raises(WrongPartitionError, match=said):
                    producer.send("t", b"x", partition=partition)


def test_a_broker_has_time_to_connect_twice_until_it_says_what_it_has(
    tree: FakeZooKeeper, make: Callable[..., Producer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a second for the answer: whoever sends by hand to a broker that has not announced the topic waits so long."""
    given: list[float] = []

    class Noting(Background[Any]):
        def result(self, seconds: float) -> Any:
            given.append(seconds)
            return super().result(seconds)

    monkeypatch.setattr(router, "Background", Noting)
    with FakeBroker(partitions=2) as one, FakeBroker(partitions=2) as two:
        show(tree.open(), 1, one.port, t=2)
        show(tree.open(), 2, two.port)
        with make(connect_timeout_ms=30_000) as producer:
            producer.send("t", b"y", partition=(2, 1))
            assert stored(two, "t", 1) == [b"y"]
    assert given and all(31.0 < seconds <= 61.0 for seconds in given)


def test_no_broker_at_all(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    with make(connect_timeout_ms=500) as producer:
        with pytest.raises(TransportError, match=rf"no broker .* in ZooKeeper {CONNECT}\n/brokers/ids is empty"):
            producer.send("t", b"x")
        with FakeBroker() as broker:
            show(tree.open(), 1, broker.port)
            producer.send("t", b"x")
            assert stored(broker) == [b"x"]


def test_no_zookeeper(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    """An error for the first send; the rest goes on by itself once there is one, also while it is away again."""
    tree.is_silent = True
    with FakeBroker() as broker, make(zk_connection_timeout_ms=50) as producer:
        with pytest.raises(CoordinationError, match="no ZooKeeper answers"):
            producer.send("t", b"x")
        tree.is_silent = False
        show(tree.open(), 1, broker.port)
        wait_until("it is found", lambda: view_of(producer).addresses != {})
        producer.send("t", b"y")
        tree.is_silent = True
        for _ in range(10):
            producer.send("t", b"z", key="k")
        assert Counter(stored(broker)) == {b"y": 1, b"z": 10}


def test_an_event_handler_sends_to_a_broker_that_has_gone(tree: FakeZooKeeper, make: Callable[..., Producer]) -> None:
    """What was assigned when it was queued stays assigned, and arrives when the broker still serves."""
    with FakeBroker() as one, FakeBroker() as two:
        first = tree.open()
        show(first, 1, one.port, t=1)
        with make(producer_type="async", event_handler=DefaultEventHandler(), queue_time_ms=60_000) as producer:
            producer.send("t", b"x", key="k")
            first.close()
            show(tree.open(), 2, two.port, t=1)
            wait_until("it has gone", lambda: list(view_of(producer).addresses) == [2])
        assert (stored(one), stored(two)) == ([b"x"], [])


@pytest.mark.slow
def test_kazoo_is_only_loaded_with_zk_connect() -> None:
    done = script(
        """
        import sys
        import fastlog
        fastlog.Producer("127.0.0.1:1").close()
        assert "kazoo" not in sys.modules
        fastlog.Producer(zk_connect="127.0.0.1:1").close()
        assert "kazoo" in sys.modules
        """
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["kafka.producer.DefaultPartitioner", "fastlog.producer.JavaHashPartitioner"])
def test_a_partitioner_by_name(tree: FakeZooKeeper, name: str) -> None:
    with Producer({"zk.connect": CONNECT, "partitioner.class": name}) as producer:
        assert isinstance(producer._router._partitioner, JavaHashPartitioner)
