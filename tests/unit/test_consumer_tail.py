"""Where the last messages of a partition begin, against a slow count of the whole log."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from fastlog import message
from fastlog.consumer import tail
from fastlog.consumer.simple import SimpleConsumer
from fastlog.consumer.tail import find_last
from fastlog.errors import BrokerError, InvalidMessageError, UnsupportedFeatureError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.fake_broker import FakeBroker, cut_points


def mixed_log(seed: int, sets: int = 40) -> tuple[bytes, list[bytes]]:
    """A log of plain messages, compressed sets, sets in sets and empty payloads; and its messages."""
    source = random.Random(seed)
    log = b""
    sent: list[bytes] = []
    for _ in range(sets):
        payloads = [b"%d %s" % (len(sent) + n, b"x" * source.randrange(60)) for n in range(source.randrange(1, 9))]
        if source.random() < 0.1:
            payloads[0] = b""
        sent += payloads
        codec = source.choice([0, 0, 1, 2])
        inner = message.encode_set(payloads, codec)
        if codec and source.random() < 0.3:
            inner = message.Message(message.codecs.compress(1, inner), 1, 1).encode()
        log += inner
    return log, sent


def read_from(consumer: SimpleConsumer, found: tail.Tail) -> list[bytes]:
    return [item.payload for item in consumer.messages("t", 0, found.offset)][found.skip :]


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tail, "_STEP_BYTES", 200)
    monkeypatch.setattr(tail, "_FETCH_BYTES", 300)


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_the_last_of_mixed_sets(own: bool, seed: int, small_steps: None) -> None:
    """Every count from none to more than there are: exactly the last ones, messages in sets counted one by one."""
    log, sent = mixed_log(seed)
    with FakeBroker(own=own) as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = log
        for count in [0, 1, 2, 3, 7, 20, len(sent) // 2, len(sent) - 1, len(sent), len(sent) + 5]:
            found = find_last(consumer, "t", 0, count)
            assert read_from(consumer, found) == sent[max(0, len(sent) - count) :], count


def test_it_begins_at_the_message_itself(small_steps: None) -> None:
    """Among plain messages nothing is passed over; inside a compressed set only what comes before in it."""
    plain = message.encode_set([b"a", b"b", b"c"])
    wrapper = message.encode_set([b"d", b"e", b"f"], codec=1)
    with FakeBroker() as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = plain + wrapper
        found = [find_last(consumer, "t", 0, count) for count in range(7)]
    at = len(plain)
    assert found[:5] == [(at + len(wrapper), 0), (at, 2), (at, 1), (at, 0), (22, 0)]
    assert found[5:] == [(11, 0), (0, 0)]


def test_before_an_end_and_in_an_empty_log(small_steps: None) -> None:
    log = message.encode_set([b"%d" % number for number in range(10)])
    with FakeBroker() as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        assert find_last(consumer, "t", 0, 3) == (0, 0)
        fake.logs["t", 0] = log
        assert find_last(consumer, "t", 0, 3, end=55) == (22, 0)
        with pytest.raises(ValueError, match="negative"):
            find_last(consumer, "t", 0, -1)


def test_the_log_is_not_read_whole() -> None:
    """The last ten of 8 MiB: a piece at the end is read, and what the ten are in."""
    log = message.encode_set([b"x" * 1014] * 8192)
    asked: list[int] = []

    def note(request: rq.Request) -> None:
        if isinstance(request, wire07.HeldFetchRequest):
            asked.append(min(request.max_bytes, len(log) - request.offset))

    with FakeBroker(hook=note) as fake, SimpleConsumer("127.0.0.1", fake.port, local="off") as consumer:
        fake.logs["t", 0] = log
        assert find_last(consumer, "t", 0, 10) == (len(log) - 10 * 1024, 0)
        assert 0 < sum(asked) < 2 * 2**20
        asked.clear()
        assert find_last(consumer, "t", 0, 2048) == (len(log) - 2048 * 1024, 0)
        assert sum(asked) < 6 * 2**20


def test_a_broker_that_walks_a_little_at_a_time(small_steps: None) -> None:
    """It names what it reached, and then the end of the range: the gap between them is asked for again."""
    log, sent = mixed_log(9, 200)

    def walk(request: rq.Request) -> bytes | None:
        if not isinstance(request, rq.CutPointsRequest):
            return None
        points = [point for point in cut_points(log, request) if point < request.start + 1000]
        return rs.encode_cut_points(rs.CutPointsAnswer(request.correlation_id, 0, (*points, request.end)))

    with FakeBroker(hook=walk) as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = log
        assert read_from(consumer, find_last(consumer, "t", 0, 11)) == sent[-11:]
        assert fake.seen["CutPointsRequest"] > 5


def test_several_segments(small_steps: None) -> None:
    """Segment borders are boundaries; older segments are looked at only when they are needed."""
    log, sent = mixed_log(3)
    bases = [0, *cut_points(log, rq.CutPointsRequest(0, "t", 0, 1, len(log), len(log) // 3, 2))]
    starts: list[int] = []

    def tell(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.CutPointsRequest):
            starts.append(request.start)
        if isinstance(request, rq.OffsetsRequest) and request.max_count > 1:
            return rs.encode_offsets(0, [len(log), *reversed(bases)])
        return None

    with FakeBroker(hook=tell) as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = log
        assert read_from(consumer, find_last(consumer, "t", 0, 3)) == sent[-3:]
        assert min(starts) >= bases[-1]
        assert read_from(consumer, find_last(consumer, "t", 0, len(sent) - 2)) == sent[2:]


def test_retention_meanwhile_is_a_shorter_log(small_steps: None) -> None:
    """What was about to be read is gone: the answer is that of the log as it is then."""
    refusals = iter([1, 1])

    def gone(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.CutPointsRequest) and next(refusals, 0):
            return rs.encode_cut_points(rs.CutPointsAnswer(request.correlation_id, 1))
        return None

    with FakeBroker(hook=gone) as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = message.encode_set([b"a", b"b"])
        assert find_last(consumer, "t", 0, 1) == (11, 0)
    refusals = iter([1] * 100)
    with FakeBroker(hook=gone) as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = message.encode_set([b"a", b"b"])
        with pytest.raises(BrokerError):
            find_last(consumer, "t", 0, 1)


def test_damage_among_them_is_an_error() -> None:
    log = bytearray(message.encode_set([b"a", b"b", b"c"]))
    log[-12] ^= 1
    with FakeBroker() as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = bytes(log)
        with pytest.raises(InvalidMessageError, match=r"(byte|offset) 11"):
            find_last(consumer, "t", 0, 1)


@pytest.fixture
def plain() -> Iterator[FakeBroker]:
    with FakeBroker(own=False) as fake:
        yield fake


def test_cut_points(plain: FakeBroker) -> None:
    """The boundaries, or a clear word that the broker does not tell them."""
    log = message.encode_set([b"x"] * 10)
    with FakeBroker() as fake, SimpleConsumer("127.0.0.1", fake.port) as consumer:
        fake.logs["t", 0] = log
        assert consumer.cut_points("t", 0, 5, 110, 30) == [11, 44, 77, 110]
        assert consumer.cut_points("t", 0, 0, 110, 30, max_points=2) == [0, 33]
    with SimpleConsumer("127.0.0.1", plain.port) as consumer, pytest.raises(UnsupportedFeatureError, match=":"):
        consumer.cut_points("t", 0, 0, 1, 1)
