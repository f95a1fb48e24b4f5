"""Rows of columns as messages: the same bytes as single sends give, bounded, in order, and followed to their end."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastlog._segment import payloads
from fastlog.errors import ClosedError, DeliveryError, FastlogError, MessageTooLargeError, TransportError
from fastlog.message import deep
from fastlog.producer._rows import hash_rows
from fastlog.producer.config import ProducerConfig
from fastlog.producer.hooks import Delivery
from fastlog.producer.partitioners import Crc32Partitioner
from fastlog.producer.rows import RowSender, Stretch
from fastlog.producer.waiting import LocklessCondition
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.timing import PATIENCE

FIELDS = {"producer_type": "async", "queue_messages": 2**31 - 1, "batch_messages": 2**31 - 1, "acks": "appended"}


def sender_to(broker: FakeBroker, **fields: Any) -> RowSender:
    return RowSender(ProducerConfig.from_fields({"broker_list": f"0:{broker.address}", **FIELDS, **fields}))


def rows_of(values: Sequence[bytes], before: bytes = b"") -> tuple[bytes, np.ndarray[Any, Any]]:
    """Values as Arrow has them; ``before``: bytes that belong to rows that are not looked at."""
    ends = np.cumsum([len(before), *map(len, values)]).astype(np.int32)
    return before + b"".join(values), ends


def test_rows_arrive_in_order_and_are_followed() -> None:
    values = [b"%05d" % number for number in range(1000)] + [b"", b"x" * 70_000]
    with FakeBroker() as broker:
        sender = sender_to(broker, batch_bytes=2000)
        sender.send([sender.anywhere("t")], None, *rows_of(values, b"not these"))
        sender.flush()
        assert stored(broker) == values
        size = len(broker.logs["t", 0])
        assert sender.delivered() == {("t", 0, 0): Stretch(0, size, len(values))}
        assert sender.possible_duplicates == 0
        assert broker.seen["ProduceAckRequest"] > 5
        sender.close(5)


@pytest.mark.parametrize("codec", ["gzip", "snappy"])
def test_compressed_sets(codec: str) -> None:
    """As large as asked for, and every row in one of them."""
    values = [b"%05d" % number for number in range(1000)]
    with FakeBroker() as broker:
        sender = sender_to(broker, compression=codec, batch_messages=100)
        sender.send([sender.anywhere("t")], None, *rows_of(values))
        sender.flush()
        assert [entry.message.payload for entry in deep(broker.logs["t", 0])] == values
        assert len(stored(broker)) == len(broker.sets) == 10
        sender.close(5)


def test_each_row_goes_where_its_destination_is() -> None:
    with FakeBroker(partitions=3) as broker:
        sender = sender_to(broker)
        buffers = [sender.at("t", None, 0), sender.at("t", 0, 2), sender.at("u", None, 1)]
        destinations = np.array([0, 1, 2, 2, 1, 0], np.int32)
        sender.send(buffers, destinations, *rows_of([b"a", b"b", b"c", b"d", b"e", b"f"]))
        sender.flush()
        found = {place: payloads(log) for place, log in broker.logs.items()}
        assert found == {("t", 0): [b"a", b"f"], ("t", 2): [b"b", b"e"], ("u", 1): [b"c", b"d"]}
        assert {place: stretch.messages for place, stretch in sender.delivered().items()} == {
            ("t", 0, 0): 2,
            ("t", 0, 2): 2,
            ("u", 0, 1): 2,
        }
        sender.close(5)


def test_keys_choose_as_they_do_for_single_sends() -> None:
    keys = [b"", b"a", b"key", b"k" * 1000]
    hashes = np.empty(len(keys), np.uint32)
    hash_rows(*rows_of(keys, b"xyz"), hashes)
    assert [number % 7 for number in hashes] == [Crc32Partitioner().partition(key, 7) for key in keys]
    with FakeBroker(partitions=3) as broker:
        sender = sender_to(broker)
        buffers = sender.by_key("t")
        assert buffers is not None
        assert [buffer.partition for buffer in buffers] == [0, 1, 2]
        assert sender.by_key("t") is buffers
        sender.close(5)


def test_waits_while_the_queue_is_full() -> None:
    """No more than the bound is held; everything arrives once the broker takes it."""
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            release.wait(30)
        return None

    values = [b"v" * 1000] * 500
    with FakeBroker(hook=hook) as broker:
        sender = sender_to(broker, queue_bytes=50_000, batch_bytes=10_000, in_flight_bytes=20_000)
        working = threading.Thread(
            target=lambda: sender.send([sender.anywhere("t")], None, *rows_of(values)), daemon=True
        )
        working.start()
        working.join(0.1)
        assert working.is_alive()
        release.set()
        working.join(30)
        assert not working.is_alive()
        sender.flush()
        assert stored(broker) == values
        sender.close(5)


def test_a_break_repeats_but_does_not_lose() -> None:
    """What was written before it may be there twice, which is counted."""
    answered: list[int] = []

    def after(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            answered.append(request.correlation_id)
            if len(answered) == 3:
                raise ConnectionError
        return None

    values = [b"%04d" % number for number in range(500)]
    with FakeBroker(after=after) as broker:
        sender = sender_to(broker, batch_messages=50)
        sender.send([sender.anywhere("t")], None, *rows_of(values))
        sender.flush()
        assert list(dict.fromkeys(stored(broker))) == values
        assert len(stored(broker)) > len(values)
        assert sender.possible_duplicates >= len(stored(broker)) - len(values)
        assert sum(stretch.messages for stretch in sender.delivered().values()) == len(values)
        sender.close(5)


@pytest.mark.parametrize("step", ["flush", "send"])
def test_what_is_not_delivered_is_an_error(step: str) -> None:
    """Of the flush, or of the next send."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            return wire07.encode_produce_ack(rs.ProduceAckAnswer(request.correlation_id, 3, -1, -1, -1))
        return None

    with FakeBroker(hook=hook) as broker:
        sender = sender_to(broker, batch_messages=1)
        sender.send([sender.anywhere("t")], None, *rows_of([b"a", b"b"]))
        if step == "send":
            sender._router.flush(-1)
        action: Callable[[], Any] = (
            sender.flush if step == "flush" else lambda: sender.send([sender.anywhere("t")], None, *rows_of([b"c"]))
        )
        with pytest.raises(DeliveryError, match="2 messages were not delivered"):
            action()
        sender.close(5)


def test_who_waits_for_room_is_woken_with_the_failure_in_place() -> None:
    """Woken before it was noted, a sender would see a queue as full as before, and sleep on."""
    sender = RowSender(ProducerConfig.from_fields({"broker_list": "0:127.0.0.1:1", **FIELDS}))
    noted: list[FastlogError | None] = []

    class Room(LocklessCondition):
        def notify_all(self) -> None:
            noted.append(sender._error)

    sender._ledger.room = Room()
    error = TransportError("gone")
    sender._note(Delivery("t", 0, 0, -1, -1, 1, error))
    assert noted == [error]
    sender.close(5)


def test_a_row_that_is_too_large() -> None:
    with FakeBroker() as broker:
        sender = sender_to(broker, max_message_bytes=10)
        with pytest.raises(MessageTooLargeError, match="a message of 11 bytes for topic 't'"):
            sender.send([sender.anywhere("t")], None, *rows_of([b"a", b"b" * 10, b"c" * 11, b"d"]))
        sender.flush()
        assert stored(broker) == [b"a", b"b" * 10]
        sender.close(5)


def test_no_broker() -> None:
    with FakeBroker() as broker:
        pass
    sender = sender_to(broker, connect_timeout_ms=50)
    with pytest.raises(TransportError):
        sender.anywhere("t")
    sender.close(0)


@pytest.mark.parametrize(
    ("ends", "destinations", "data"),
    [
        ([0, 5, 4], None, b"abcde"),
        ([-1, 2], None, b"abcde"),
        ([0, 6], None, b"abcde"),
        ([], None, b"abcde"),
        ([0, 1, 2], [0], b"abcde"),
        ([0, 1], [1], b"abcde"),
        ([0, 1], [-1], b"abcde"),
    ],
)
def test_what_does_not_fit_is_refused(ends: list[int], destinations: list[int] | None, data: bytes) -> None:
    with FakeBroker() as broker:
        sender = sender_to(broker)
        chosen = None if destinations is None else np.array(destinations, np.int32)
        with pytest.raises(ValueError):
            sender.send([sender.anywhere("t")], chosen, data, np.array(ends, np.int32))
        sender.close(0)


@pytest.mark.slow
@given(st.lists(st.binary(max_size=20), min_size=1, max_size=30))
def test_hashes_are_those_of_zlib(keys: list[bytes]) -> None:
    hashes = np.empty(len(keys), np.uint32)
    hash_rows(*rows_of(keys), hashes)
    assert hashes.tolist() == [zlib.crc32(key) & 0x7FFFFFFF for key in keys]


def test_a_sender_that_is_closed_says_so() -> None:
    """That is no message that could not be delivered."""
    with FakeBroker() as broker:
        sender = sender_to(broker)
        sender._error = ClosedError("the producer was closed")
        with pytest.raises(ClosedError, match="the producer was closed"):
            sender.flush()
        sender.close(PATIENCE)
