"""Where reading can go on behind a damaged message: only where that is sure."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import BrokerError, TransportError, WrongPartitionError
from fastlog.mirror.damage import behind_damage
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId
from tests.harness import raw_format as raw
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker

SOURCE = TopicPartition("t", PartitionId(7, 1))
WHOLE = raw.message_set([b"one", b"two"])
OFFSET = len(WHOLE)


def damaged(payload: bytes = b"damaged") -> bytes:
    """A message whose checksum is wrong."""
    entry = bytearray(raw.entry(payload))
    entry[-1] ^= 1
    return bytes(entry)


def of_length(size: int) -> bytes:
    """What begins with this length, and is not worth it."""
    return size.to_bytes(4, "big", signed=True) + b"x" * 50


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker(partitions=2) as fake:
        yield fake


def found(broker: FakeBroker, log: bytes) -> int | None:
    """Behind the message at ``OFFSET`` of this log."""
    broker.logs["t", 1] = log
    return behind_damage(Address("127.0.0.1", broker.port), SOURCE, OFFSET, 10.0)


@pytest.mark.parametrize(
    "behind",
    [
        b"",
        raw.entry(b"next"),
        raw.message_set([b"a", b"b"], codec=raw.GZIP),
        raw.entry(bytes(200_000)),
        raw.entry(b"", 0),
    ],
    ids=["end", "message", "set", "large", "empty"],
)
def test_behind_it_is_a_whole_message_or_the_end(broker: FakeBroker, behind: bytes) -> None:
    """Also one that is larger than what is looked at."""
    assert found(broker, WHOLE + damaged() + behind) == OFFSET + len(damaged())


@pytest.mark.parametrize("codec", [raw.GZIP, raw.SNAPPY])
def test_damage_in_a_compressed_set(broker: FakeBroker, codec: int) -> None:
    """Its own checksum is right."""
    wrapper = raw.entry(b"what no codec has made", attributes=codec)
    assert found(broker, WHOLE + wrapper + raw.entry(b"next")) == OFFSET + len(wrapper)


@pytest.mark.parametrize("mended", [raw.entry(b"mended!"), raw.message_set([b"x", b"y"], codec=raw.GZIP)])
def test_what_is_whole_by_now_is_not_left_out(broker: FakeBroker, mended: bytes) -> None:
    """At whatever moment of the search it becomes so."""
    hurt = bytearray(mended)
    hurt[-1] ^= 1
    for fetches in range(3):
        done = [0]

        def mend(request: rq.Request, after: int = fetches, done: list[int] = done) -> None:
            if done[0] == after:
                broker.logs["t", 1] = WHOLE + mended + raw.entry(b"next")
            done[0] += isinstance(request, wire07.FetchRequest)

        broker.hook = mend
        assert found(broker, WHOLE + bytes(hurt) + raw.entry(b"next")) is None
        assert done[0] == 3


@pytest.mark.parametrize("behind", [b"\0\0\0\0" * 5, b"\xff" * 20, damaged() + raw.entry(b"x"), of_length(4)])
def test_what_is_behind_it_is_no_message(broker: FakeBroker, behind: bytes) -> None:
    """So its length may be wrong, too."""
    assert found(broker, WHOLE + damaged() + behind) is None


@pytest.mark.parametrize(("size", "is_one"), [(4, False), (5, True), (2**30, False), (2**30 + 1, False), (-1, False)])
def test_a_length_that_can_be(broker: FakeBroker, size: int, is_one: bool) -> None:
    """From the shortest message on; where no message is behind it, it is none."""
    log = WHOLE + size.to_bytes(4, "big", signed=True) + b"x" * 5 + raw.entry(b"next")
    if size == 2**30:
        with pytest.raises(BrokerError):  # it may be: what is behind it is asked for, and this log is not so long
            found(broker, log)
    else:
        assert found(broker, log) == (OFFSET + 9 if is_one else None)


@pytest.mark.parametrize("left", range(4))
def test_too_little_for_a_length(broker: FakeBroker, left: int) -> None:
    assert found(broker, WHOLE + b"\0" * left) is None


def refusing(
    broker: FakeBroker, *offsets: int, points: tuple[int, ...] | None = None, error: int = 0
) -> list[rq.Request]:
    """The broker does not give out what is at these offsets; what it was asked meanwhile."""
    asked: list[rq.Request] = []

    def hook(request: rq.Request) -> bytes | None:
        asked.append(request)
        if isinstance(request, wire07.FetchRequest) and request.offset in offsets:
            return wire07.encode_fetch(2)
        if isinstance(request, rq.CutPointsRequest) and (points is not None or error):
            return rs.encode_cut_points(rs.CutPointsAnswer(request.correlation_id, error, points or ()))
        return None

    broker.hook = hook
    return asked


def test_a_broker_that_gives_no_damage_knows_where_messages_begin(broker: FakeBroker) -> None:
    asked = refusing(broker, OFFSET)
    log = WHOLE + damaged() + raw.entry(b"next")
    assert found(broker, log) == OFFSET + len(damaged())
    (points,) = [request for request in asked if isinstance(request, rq.CutPointsRequest)]
    assert (points.topic, points.partition, points.start, points.end) == ("t", 1, OFFSET + 1, len(log))
    assert (points.step_bytes, points.max_points) == (1, 1)


def test_a_broker_that_gives_no_damage_and_knows_nothing_behind_it(broker: FakeBroker) -> None:
    """No boundary; a second damage at it; an error; nothing at all behind the first byte."""
    log = WHOLE + damaged() + damaged() + raw.entry(b"next")
    refusing(broker, OFFSET, points=())
    assert found(broker, log) is None
    refusing(broker, OFFSET, OFFSET + len(damaged()))
    assert found(broker, log) is None
    refusing(broker, OFFSET, error=3)
    with pytest.raises(WrongPartitionError, match="t"):
        found(broker, log)
    for size, asks in ((0, False), (1, False), (2, True)):
        asked = refusing(broker, OFFSET, points=())
        assert found(broker, WHOLE + b"x" * size) is None
        assert any(isinstance(request, rq.CutPointsRequest) for request in asked) is asks


def test_a_broker_that_refuses_or_is_away(broker: FakeBroker) -> None:
    broker.hook = lambda request: wire07.encode_fetch(3) if isinstance(request, wire07.FetchRequest) else None
    with pytest.raises(WrongPartitionError):
        found(broker, WHOLE + damaged())
    with FakeBroker() as away:
        pass
    with pytest.raises(TransportError):
        found(away, WHOLE)


def test_it_leaves_no_connection(broker: FakeBroker) -> None:
    for _ in range(3):
        found(broker, WHOLE + damaged())
    assert broker.seen["FetchRequest"] == 9
