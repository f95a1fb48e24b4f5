"""What a producer asks brokers, what it makes of the answers, and what it does when one of them failed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fastlog.client.addresses import Address
from fastlog.errors import (
    BrokerError,
    ConfigError,
    CoordinationError,
    FastlogError,
    ProtocolError,
    TransportError,
    UnsupportedFeatureError,
    WrongPartitionError,
)
from fastlog.producer import Producer
from fastlog.producer import producer as producer_module
from fastlog.producer.brokers import BrokerAddress, Directory, ProduceOffer, frame_header, parse_broker_list
from fastlog.producer.zookeeper_router import ZooKeeperRouter
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.fake_session import FakeZooKeeper
from tests.harness.timing import PATIENCE
from tests.unit.test_producer_discovery import opener, show, watching

HIGH = 10**6, 10**8


def metadata(request: rq.MetadataRequest, **changes: Any) -> bytes:
    """An answer about topic ``t`` with two partitions."""
    topic = rs.TopicMetadata("t", changes.pop("error_of_topic", 0), changes.pop("partitions", 2), ())
    topics = changes.pop("topics", (topic,))
    fields: dict[str, Any] = {
        "correlation_id": request.correlation_id,
        "error": 0,
        "broker_id": 0,
        "advertised_host": "h",
        "port": 1,
        "max_message_bytes": 10**6,
        "max_request_bytes": 10**8,
        "max_wait_ms": 1000,
        "lowest_own_id": rq.LOWEST_OWN,
        "highest_own_id": rq.HIGHEST_OWN,
        "topics": topics,
    }
    return rs.encode_metadata(rs.MetadataAnswer(**{**fields, **changes}), request.version)


class Metadata:
    """A hook that answers metadata with the changes that are set."""

    def __init__(self, **changes: Any) -> None:
        self.changes = changes
        self.asked = 0

    def __call__(self, request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.MetadataRequest):
            return None
        self.asked += 1
        return metadata(request, **self.changes)


def directory_of(broker: FakeBroker) -> Directory:
    return Directory(BrokerAddress(3, Address("127.0.0.1", broker.port)), PATIENCE, "a hint")


@pytest.mark.parametrize(
    ("low", "high", "own"),
    [
        (rq.PRODUCE_ACK, rq.PRODUCE_ACK, True),
        (rq.PRODUCE_ACK - 1, rq.PRODUCE_ACK + 1, True),
        (rq.PRODUCE_ACK + 1, rq.PRODUCE_ACK + 9, False),
        (0, rq.PRODUCE_ACK - 1, False),
    ],
)
def test_a_broker_acknowledges_when_it_says_that_it_has_the_request(low: int, high: int, own: bool) -> None:
    """One that tells its limits and acknowledges nothing keeps them, is sent 0.7's requests, and asked no more."""
    hook = Metadata(lowest_own_id=low, highest_own_id=high, max_message_bytes=50)
    with FakeBroker(hook=hook) as broker:
        directory = directory_of(broker)
        offer = directory.ask()
        assert offer == (ProduceOffer(True, 50, 10**8) if own else ProduceOffer(False, 50))
        assert directory.ask() is offer
        assert directory.partitions_or_none("t") == (2 if own else None)
        asked = hook.asked
        assert directory.partitions_or_none("t") == (2 if own else None)
        assert hook.asked == asked
        assert directory.acks(None) == (rq.ACKS_APPENDED if own else 0)
        assert directory.acks("none") == 0
        for wanted, code in (("appended", rq.ACKS_APPENDED), ("flushed", rq.ACKS_FLUSHED)):
            if own:
                assert directory.acks(wanted) == code
            else:
                with pytest.raises(UnsupportedFeatureError, match="acknowledges nothing; set acks=none"):
                    directory.acks(wanted)
        with Producer(broker.address) as producer:
            (delivery,) = producer.send("t", b"x" * 50)
            assert delivery.offset == (0 if own else -1)
            with pytest.raises(FastlogError, match="limit of 50"):
                producer.send("t", b"x" * 51)


def test_nothing_is_said_of_acknowledgements_before_it_was_asked() -> None:
    with FakeBroker() as broker, pytest.raises(ValueError, match="not asked"):
        directory_of(broker).acks(None)


@pytest.mark.parametrize(
    ("changes", "count", "error"),
    [
        ({"partitions": 1}, 1, None),
        ({"partitions": 65536}, 65536, None),
        ({"partitions": 65537}, None, ProtocolError),
        ({"partitions": 0}, None, TransportError),
        ({"partitions": -1}, None, TransportError),
        ({"topics": ()}, None, TransportError),
        ({"topics": (rs.TopicMetadata("u", 0, 2, ()),)}, None, TransportError),
        ({"topics": (rs.TopicMetadata("u", 0, 5, ()), rs.TopicMetadata("t", 0, 3, ()))}, 3, None),
        ({"error_of_topic": 3}, None, BrokerError),
        ({"error": -1}, None, BrokerError),
        (
            {"topics": (rs.TopicMetadata("t", 0, 1, tuple(rs.PartitionMetadata(n, 0, 0, 0, 0) for n in range(4))),)},
            4,
            None,
        ),
    ],
)
def test_how_many_partitions_there_are(changes: dict[str, Any], count: int | None, error: Any) -> None:
    """An answer that is none is an error, and the same directory asks again."""
    hook = Metadata(**changes)
    with FakeBroker(hook=hook) as broker:
        directory = directory_of(broker)
        if error is None:
            assert directory.partitions_or_none("t") == count
        else:
            with pytest.raises(error):
                directory.partitions_or_none("t")
        hook.changes = {"partitions": 7}
        assert directory.partitions_or_none("t") == (7 if error is not None else count)


def test_another_address_is_used_from_the_next_question_on() -> None:
    with FakeBroker(hook=Metadata(partitions=1)) as one, FakeBroker(hook=Metadata(partitions=5)) as two:
        directory = directory_of(one)
        assert directory.partitions_or_none("t") == 1
        directory.move(Address("127.0.0.1", two.port))
        assert directory.broker == BrokerAddress(3, Address("127.0.0.1", two.port))
        directory._partitions.clear()
        assert directory.partitions_or_none("t") == 5


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("h", [(0, "h", 9092)]),
        ("h:1,i:2", [(0, "h", 1), (1, "i", 2)]),
        (" 5:h:1 , 2:i:2 ,", [(2, "i", 2), (5, "h", 1)]),
        ("2147483647:h:1", [(2**31 - 1, "h", 1)]),
        ("1:[::1]:5", [(1, "::1", 5)]),
        ("[::1]:5", [(0, "::1", 5)]),
        ("10:20", [(0, "10", 20)]),
        ("10:host", [(10, "host", 9092)]),
    ],
)
def test_lists_of_brokers(text: str, found: list[tuple[int, str, int]]) -> None:
    assert [(each.id, each.address.host, each.address.port) for each in parse_broker_list(text)] == found


@pytest.mark.parametrize("text", ["", ",", "1:h:1,i:2", "1:h:1,1:i:2", "2147483648:h:1", "h:0", "h:65536", "1:h:x"])
def test_lists_of_brokers_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"broker\.list"):
        parse_broker_list(text)


@pytest.mark.parametrize("acks", [0, 1, 2])
def test_frames_begin_as_their_requests_do(acks: int) -> None:
    header = frame_header("tä", 3, acks)
    assert int.from_bytes(header[-4:], "big") == 0
    request = wire07.decode_request(header[4:])
    assert isinstance(request, wire07.ProduceAckRequest if acks else wire07.ProduceRequest)
    assert (request.topic, request.partition, request.message_set) == ("tä", 3, b"")


# --- brokers of a list, one of which fails ---


def fails_for(calls: int) -> Callable[[rq.Request], bytes | None]:
    left = [calls]

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest) and left[0] > 0:
            left[0] -= 1
            return metadata(request, error=-1)
        return None

    return hook


def test_a_topic_whose_brokers_failed_once_is_asked_for_again() -> None:
    """By the next send; the error of the first says which broker."""
    with FakeBroker(hook=fails_for(1)) as broker, Producer(broker.address) as producer:
        with pytest.raises(BrokerError) as caught:
            producer.send("t", b"x")
        assert (caught.value.topic, str(caught.value.broker)) == ("t", broker.address)
        producer.send("t", b"y")
        assert stored(broker) == [b"y"]


def test_a_key_needs_all_brokers_and_works_when_they_answer() -> None:
    """Messages without one go to those that do; a partition of the other can be named once it answers."""
    with FakeBroker() as one, FakeBroker(hook=fails_for(5)) as two:
        with Producer(f"0:{one.address},1:{two.address}") as producer:
            producer.send("t", b"0")
            with pytest.raises(TransportError, match="a key chooses among the partitions of all brokers"):
                producer.send("t", b"x", key="k")
            with pytest.raises(BrokerError):
                producer.send("t", b"x", partition=(1, 0))
            with pytest.raises(WrongPartitionError, match=r"broker\.list has no broker 2"):
                producer.send("t", b"x", partition=(2, 0))
            with pytest.raises(ConfigError, match="of which broker"):
                producer.send("t", b"x", partition=0)

            def works() -> bool:
                try:
                    producer.send("t", b"k", key="k")
                except TransportError:
                    return False
                return True

            wait_until("the other one answers", works)
            assert producer.partitions("t") == [(0, 0), (1, 0)]
            producer.send("t", b"h", partition=(1, 0))
            assert b"h" in stored(two)
            with pytest.raises(WrongPartitionError, match="broker 1 has 1 of topic 't'"):
                producer.send("t", b"x", partition=(1, 1))
            with pytest.raises(WrongPartitionError):
                producer.send("t", b"x", partition=(1, -2))
        assert stored(one).count(b"0") + stored(two).count(b"0") == 1


def test_what_may_go_anywhere_goes_to_brokers_that_seem_to_work() -> None:
    """To all when none does, and of a topic that was there before, too."""
    with FakeBroker() as one, FakeBroker() as two, Producer(f"0:{one.address},1:{two.address}") as producer:
        for broker in (0, 1):  # both are connected from here on
            producer.send("t", b"x", partition=(broker, 0))
        links = producer._router.links
        for broker, is_up, expected in ((0, True, {0, 1}), (0, False, {1}), (1, False, {0, 1}), (1, True, {1})):
            links[broker]._set_up(is_up)
            assert {producer._router.choose("t", None, None).broker for _ in range(100)} == expected


# --- ZooKeeper: any one call fails ---


@pytest.mark.parametrize("way", ["it fails", "the session ends", "something else is wrong"])
def test_after_any_one_failure_of_zookeeper_the_view_is_right_again(way: str) -> None:
    """What was known stays in use meanwhile, and whoever waits for a topic gets it."""
    for number in range(1, 40):
        tree = FakeZooKeeper(timeout=0.5)
        shows = tree.open()
        show(shows, 1, 5001, t=2)
        show(shows, 2, 5002, t=3)
        left, lock = [number], threading.Lock()

        def fail(
            session: Any, name: str, path: str, left: list[int] = left, lock: Any = lock, tree: FakeZooKeeper = tree,
            shows: Any = shows,
        ) -> None:  # fmt: skip
            if session is shows:
                return
            with lock:
                left[0] -= 1
                if left[0] != 0:
                    return
            if way == "the session ends":
                tree.expire(session.id)
            else:
                raise OSError("nobody thought of it") if way != "it fails" else CoordinationFailure("it failed")

        tree.before_call = fail
        with watching(tree) as (discovery, views):
            view = discovery.wait_for("t", PATIENCE)
            assert dict(view.partitions["t"]) == {1: 2, 2: 3}, number
            show(shows, 3, 5003, t=1)
            wait_until("the third is seen", lambda d=discovery: d.view.partitions["t"] == {1: 2, 2: 3, 3: 1})  # type: ignore[misc]
            assert {broker: address.port for broker, address in discovery.view.addresses.items()} == {
                1: 5001, 2: 5002, 3: 5003,
            }  # fmt: skip
            assert discovery.read_again(PATIENCE)
            assert all(dict(each.addresses) for each in views)
            happened = left[0] <= 0
            assert discovery.sessions == (2 if happened and way != "it fails" else 1)
            assert discovery.session_id in tree.sessions
        assert discovery.session_id is None
        assert set(tree.sessions) == {shows.id}, "no session is left"
        if not happened:
            assert number > 5
            return
    raise AssertionError("more calls than there should be")


class CoordinationFailure(CoordinationError):
    """A failure of ours."""


def test_a_broker_that_cannot_be_used_at_first_is_taken_into_use_when_it_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keys of its partitions fail until then, others do not; the error is the broker's own."""
    tree = FakeZooKeeper(timeout=0.5)
    monkeypatch.setattr(producer_module, "make_router", partial(ZooKeeperRouter, open_session=opener(tree)))
    failing = threading.Event()
    failing.set()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest) and failing.is_set():
            return metadata(request, error=-1)
        return None

    with FakeBroker() as one, FakeBroker(hook=hook) as two:
        show(tree.open(), 1, one.port, t=1)
        show(tree.open(), 2, two.port, t=1)
        with Producer(zk_connect="fake:1", zk_sync_time_ms=50, zk_read_retries=0) as producer:
            producer.send("t", b"any")
            assert stored(one) == [b"any"]
            by_place: dict[int, str] = {}
            for number in range(50):
                try:
                    (delivery,) = producer.send("t", b"k", key=f"{number}")
                    by_place.setdefault(delivery.broker, f"{number}")
                except BrokerError:
                    by_place.setdefault(2, f"{number}")
            assert set(by_place) == {1, 2}
            with pytest.raises(BrokerError):
                producer.send("t", b"x", key=by_place[2])
            with pytest.raises(BrokerError):
                producer.send("t", b"x", partition=(2, 0))
            failing.clear()

            def works() -> bool:
                try:
                    producer.send("t", b"now", key=by_place[2])
                except FastlogError:  # it has answered, and is about to be in use
                    return False
                return True

            wait_until("it is in use", works)
            producer.send("t", b"by hand", partition=(2, 0))
            assert stored(two)[-1] == b"by hand"
            assert producer.partitions("t") == [(1, 0), (2, 0)]
