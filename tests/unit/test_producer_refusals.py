"""A producer whose broker refuses requests for a while: they are sent again in their place, up to the limits."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fastlog.errors import CLASS_BY_CODE, DeliveryError, StorageError, TransportError
from fastlog.producer import Delivery, Producer
from fastlog.producer import refusals as refusals_module
from fastlog.producer._frames import Chunk
from fastlog.producer.refusals import RETRIED, RETRIED_BY_CODE, Refusals
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker, stored

Hook = Callable[[rq.Request], bytes | None]


def refusal(request: wire07.ProduceAckRequest, code: int = StorageError.code) -> bytes:
    """The answer of a broker whose disk is full."""
    return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, code, request.partition, -1, -1))


def refusing(numbers: Collection[int]) -> Hook:
    """A hook that refuses the produce requests with these numbers, counted from 1."""
    counted = [0]

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest):
            return None
        counted[0] += 1
        return refusal(request) if counted[0] in numbers else None

    return hook


def full_for(seconds: float, after: int) -> Hook:
    """A hook that refuses all produce requests for a time that begins with the one behind the first ``after``."""
    counted = [0]
    start: list[float] = []

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest):
            return None
        counted[0] += 1
        if counted[0] <= after:
            return None
        start.append(time.monotonic())
        return refusal(request) if time.monotonic() < start[0] + seconds else None

    return hook


def numbers_in(broker: FakeBroker, partition: int = 0) -> list[int]:
    """The numbers that a partition's messages are."""
    return list(map(int, stored(broker, partition=partition)))


class _ByDigit:
    """Has keys that are numbers choose the partition with that number."""

    def partition(self, key: object, count: int) -> int:
        assert isinstance(key, bytes)
        return int(key)


def test_every_code_is_decided_about() -> None:
    """The table has each code that a broker may answer, and retries what stored nothing and ends by itself."""
    assert set(RETRIED_BY_CODE) == set(CLASS_BY_CODE)
    assert {StorageError.code} == RETRIED


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_refused_requests_are_sent_again_in_their_place(kind: str) -> None:
    """A disk that is full for a while loses nothing, doubles nothing and changes no order."""
    with FakeBroker(hook=full_for(0.15, 4)) as broker:
        with Producer(broker.address, producer_type=kind, batch_messages=3) as producer:
            for number in range(60):
                producer.send("t", b"%d" % number, partition=0)
            if kind == "async":
                producer.flush(30)
            stats = producer.stats()
        assert numbers_in(broker) == list(range(60))
        assert (stats.delivered, stats.failed, stats.in_flight, stats.possible_duplicates) == (60, 0, 0, 0)


def test_deliveries_and_callbacks_come_once_with_the_final_offsets() -> None:
    """Whoever follows a message hears of its success alone."""
    seen: list[Delivery] = []
    with FakeBroker(hook=full_for(0.05, 0)) as broker:
        with Producer(broker.address, producer_type="async", batch_messages=2, on_delivery=seen.append) as producer:
            futures = [producer.submit("t", b"%d" % number, partition=0) for number in range(5)]
            producer.flush(30)
            assert [future.result(30).offset for future in futures] == [0, 11, 22, 33, 44]
        assert [(each.offset, each.messages) for each in seen] == [(0, 2), (22, 2), (44, 1)]
        assert all(each.error is None for each in seen)


def test_other_partitions_go_on_meanwhile() -> None:
    """Only the refused partition waits, and flush() with it."""
    full = threading.Event()
    full.set()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest) and request.partition == 0 and full.is_set():
            return refusal(request)
        return None

    with (
        FakeBroker(partitions=2, hook=hook) as broker,
        Producer(broker.address, producer_type="async", batch_messages=2, queue_time_ms=5) as producer,
    ):
        for number in range(40):
            producer.send("t", b"%d" % number, partition=number % 2)
        wait_until("the other partition", lambda: numbers_in(broker, 1) == list(range(1, 40, 2)))
        assert numbers_in(broker) == []
        wait_until("the rest waits", lambda: producer.stats().in_flight == 20)
        with pytest.raises(TransportError, match="20 messages were not delivered within"):
            producer.flush(0.05)
        full.clear()
        producer.flush(30)
        assert numbers_in(broker) == list(range(0, 40, 2))


@pytest.mark.parametrize("partition", [0, -1])
def test_what_was_overtaken_is_not_sent_again(partition: int) -> None:
    """A later request was on its way and stored: in a partition the refused one fails, said with its reason, and order
    holds; where the broker chooses the partition there is no order, and it is sent again."""
    ready = threading.Event()
    refuse = refusing([3])

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            ready.wait(30)
        return refuse(request)

    with (
        FakeBroker(hook=hook) as broker,
        Producer(broker.address, producer_type="async", batch_messages=1) as producer,
    ):
        for number in range(1, 7):
            producer.send("t", b"%d" % number, partition=partition)
        (link,) = producer._router.links.values()
        wait_until("all are written", lambda: link._flight.written_frames == 6)
        ready.set()
        if partition == 0:
            with pytest.raises(DeliveryError, match="stored meanwhile") as caught:
                producer.flush(30)
            assert isinstance(caught.value.__cause__, StorageError)
            assert numbers_in(broker) == [1, 2, 4, 5, 6]
        else:
            producer.flush(30)
            assert sorted(numbers_in(broker)) == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("keys", [None, [b"0", b"1"] * 6])
def test_deliveries_of_a_call_say_which_of_its_messages_they_are_of(keys: list[bytes] | None) -> None:
    """What is refused, and then overtaken, is told behind the others; keys may give each partition some of a call."""
    seen: list[Delivery] = []
    waiting: list[wire07.ProduceAckRequest] = []

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest) or request.partition == 1:
            return None
        waiting.append(request)
        if len(waiting) < 3:
            return b""
        answers = [rs.ProduceAckAnswer(one.correlation_id, 0, 0, 0, 9) for one in waiting]
        return refusal(waiting[0]) + b"".join(map(wire07.encode_produce_ack, answers[1:]))

    with FakeBroker(partitions=2, hook=hook) as broker:
        with Producer(broker.address, producer_type="async", batch_messages=2, partitioner=_ByDigit()) as producer:
            values = [b"%d" % number for number in range(12 if keys else 6)]
            producer.send("t", values, partition=None if keys else 0, keys=keys, on_delivery=seen.append)
        told = [(each.partition, each.first, each.messages, each.error_code) for each in seen]
    assert [each for each in told if not each[0]] == [(0, 2, 2, 0), (0, 4, 2, 0), (0, 0, 2, StorageError.code)]
    assert [each for each in told if each[0]] == ([(1, 0, 2, 0), (1, 2, 2, 0), (1, 4, 2, 0)] if keys else [])


def test_a_delivery_of_a_request_is_of_no_call() -> None:
    """As the callback of a producer gets it; that of a single message is of the whole call."""
    of_requests: list[Delivery] = []
    of_calls: list[Delivery] = []
    with (
        FakeBroker() as broker,
        Producer(broker.address, producer_type="async", on_delivery=of_requests.append) as producer,
    ):
        producer.send("t", [b"1", b"2"], on_delivery=of_calls.append)
        producer.send("t", b"3", on_delivery=of_calls.append)
        producer.flush(30)
    assert [(each.messages, each.first) for each in of_calls] == [(2, 0), (1, 0)]
    assert sum(each.messages for each in of_requests) == 3 and {each.first for each in of_requests} == {-1}


def test_retries_are_used_up() -> None:
    """After num.retries further tries the request fails with the broker's error, and the next ones have their own."""
    with FakeBroker(hook=refusing(range(1, 4))) as broker:
        producer = Producer(broker.address, producer_type="async", batch_messages=1, num_retries=2, queue_time_ms=0)
        producer.send("t", b"1", partition=0)
        with pytest.raises(DeliveryError, match="refused 3 times"):
            producer.flush(30)
        producer.send("t", b"2", partition=0)
        producer.close()
        assert numbers_in(broker) == [2]
        assert broker.seen["ProduceAckRequest"] == 4
    with FakeBroker(hook=refusing([1])) as broker, Producer(broker.address, num_retries=0) as sync:
        with pytest.raises(StorageError):
            sync.send("t", b"1")
        sync.send("t", b"2")
        assert numbers_in(broker) == [2]


def test_the_delivery_time_ends() -> None:
    """A disk that stays full fails what was tried for too long; close() then has nothing left."""
    with FakeBroker(hook=refusing(range(1000))) as broker:
        producer = Producer(broker.address, producer_type="async", delivery_timeout_ms=150, batch_messages=2)
        for number in range(7):
            producer.send("t", b"%d" % number, partition=0)
        with pytest.raises(DeliveryError, match=r"^7 messages .*: not delivered within 150 ms") as caught:
            producer.flush(30)
        assert isinstance(caught.value.__cause__, StorageError)
        producer.close()
        assert producer.stats().failed == 7


def test_close_gives_up_in_time() -> None:
    """What waits for its next try is counted when there is no more time."""
    with FakeBroker(hook=refusing(range(1000))) as broker:
        producer = Producer(broker.address, producer_type="async", batch_messages=2)
        producer.send("t", [b"x"] * 9, partition=0)
        with pytest.raises(DeliveryError, match="9 messages"):
            producer.close(0.2)


def test_memory_stays_bounded() -> None:
    """What waits counts as on its way, so the queue fills up and send() waits."""
    full = threading.Event()
    full.set()
    refused: Counter[bytes] = Counter()

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest) or not full.is_set():
            return None
        refused[bytes(request.message_set)] += 1
        return refusal(request)

    with (
        FakeBroker(hook=hook) as broker,
        Producer(
            broker.address,
            producer_type="async",
            batch_messages=5,
            queue_messages=50,
            in_flight_bytes=2000,
            queue_full="drop",
        ) as producer,
    ):
        for number in range(60):
            producer.send("t", [b"%090d" % number] * 5, partition=0)
            time.sleep(0.001)
        assert producer.stats().dropped > 0
        assert producer.stats().in_flight < 80  # 2000 bytes, and all that was queued when there was room for one more
        wait_until("one is tried again, with none on its way behind it", lambda: max(refused.values(), default=0) > 1)
        full.clear()
        producer.flush(30)
        assert len(stored(broker)) == producer.stats().accepted


@pytest.mark.parametrize("breaks", [0, 0.05])
@pytest.mark.parametrize("seed", range(3))
def test_refusals_and_breaks_mixed(seed: int, breaks: float) -> None:
    """Whatever is refused or broken: what counts as delivered is stored, what failed was refused, and without breaks
    nothing is stored twice or out of its order."""
    chooser = random.Random(seed)
    outcome: Counter[int] = Counter()

    def hook(request: rq.Request) -> bytes | None:
        if not isinstance(request, wire07.ProduceAckRequest):
            return None
        turn = chooser.random()
        if turn < breaks:
            raise ConnectionError
        if turn < 0.35 and request.partition != 2:
            return refusal(request)
        return None

    def note(delivery: Delivery) -> None:
        outcome[delivery.error_code] += delivery.messages

    with FakeBroker(partitions=3, hook=hook) as broker:
        with Producer(
            broker.address,
            producer_type="async",
            batch_messages=2,
            queue_time_ms=1,
            on_delivery=note,
            in_flight_bytes=300,
        ) as producer:
            for number in range(300):
                producer.send("t", b"%d" % number, partition=number % 3)
            producer.flush(30)
            stats = producer.stats()
        assert stats.in_flight == stats.queued == 0
        assert outcome == Counter({0: stats.delivered, StorageError.code: stats.failed})
        found = [numbers_in(broker, partition) for partition in range(3)]
        assert stats.delivered + stats.failed == 300
        assert sum(len(set(each)) for each in found) >= stats.delivered
        assert sum(len(each) - len(set(each)) for each in found) <= stats.possible_duplicates
        assert set(found[2]) == set(range(2, 300, 3))
        if not breaks:
            assert found == [sorted(set(each)) for each in found]
            assert sum(map(len, found)) == stats.delivered


@pytest.mark.parametrize("is_tried", [False, True])
@pytest.mark.parametrize("is_under_way", [False, True])
def test_the_next_try_is_waited_for_when_nothing_of_the_partition_is_under_way(
    is_tried: bool, is_under_way: bool
) -> None:
    """Else its answer comes first: waking for a moment that is over would be a busy loop."""
    flight: Any = SimpleNamespace(retried=None, has_any=lambda topic, partition: is_under_way)
    refusals = Refusals(flight, None, 1000)
    hold = refusals_module.Hold()
    hold.next_try, hold.probe = 5.0, cast(Chunk, object()) if is_tried else None
    refusals._holds["t", 0] = hold
    assert refusals.moments() == ([] if is_tried or is_under_way else [5.0])
