"""Life after an error: whatever a broker did to one call or piece, the same object then gives exactly what is next.

A table of ways to fail, each of them followed by every use: calls and iterations of a simple consumer, and a stream of
a group in the middle of its partition.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest

from fastlog._segment import pack
from fastlog.codecs import GZIP, compress
from fastlog.consumer._delivery import GroupMessage
from fastlog.consumer.feed import Phase
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.consumer.stream import NoMessage
from fastlog.errors import FastlogError, error_for
from fastlog.wire import requests as rq
from tests.harness import wire07
from tests.harness.consumers import consumer_of
from tests.harness.fake_broker import FakeBroker
from tests.harness.hostile_answers import CODES, Reply
from tests.harness.ports import unused_port
from tests.harness.reading import Reading, fetching_threads, served, take, wait_until

MESSAGES = [b"message %d" % number for number in range(12)]
SET = pack([compress(GZIP, pack(MESSAGES[4:7]))], GZIP)  # three of them in one compressed set
LOG = pack(MESSAGES[:4]) + SET + pack(MESSAGES[7:])
ONE = len(pack(MESSAGES[:1]))
READS = (
    wire07.FetchRequest | wire07.HeldFetchRequest | wire07.MultiFetchRequest | rq.OffsetsRequest | rq.CutPointsRequest
)
OWN_READS = wire07.HeldFetchRequest | rq.CutPointsRequest

Way = Callable[[rq.Request, bytes], Reply]


def _frame(body: bytes, size: int | None = None) -> bytes:
    return struct.pack(">i", len(body) if size is None else size) + body


def _code(code: int) -> Way:
    def answer(request: rq.Request, honest: bytes) -> Reply:
        head = honest[4:8] if isinstance(request, OWN_READS) else b""
        rest = bytes(16) if isinstance(request, wire07.HeldFetchRequest) else b""
        return Reply(((0.0, _frame(head + struct.pack(">h", code) + rest)),))

    return answer


def _other_id(request: rq.Request, honest: bytes) -> Reply:
    if not isinstance(request, OWN_READS):
        return Reply(stays=False)
    return Reply(((0.0, honest[:4] + struct.pack(">i", request.correlation_id + 1) + honest[8:]),))


def _damaged(request: rq.Request, honest: bytes) -> Reply:
    """A checksum that is wrong, in the first message of the answer or in the last bytes of any other answer."""
    at = honest.find(b"message ")
    at = at if at > 0 else len(honest) - 1
    return Reply(((0.0, honest[:at] + bytes([honest[at] ^ 1]) + honest[at + 1 :]),))


def _endless(request: rq.Request, honest: bytes) -> Reply:
    """The first message claims to be longer than any may be; an answer without one is honest."""
    at = honest.find(b"message ") - 10
    return Reply(((0.0, honest[:at] + struct.pack(">i", 2**30) + honest[at + 4 :] if at > 3 else honest),))


WAYS: dict[str, Way] = {
    "closed before the answer": lambda request, honest: Reply(stays=False),
    "closed in the length": lambda request, honest: Reply(((0.0, honest[:2]),), stays=False),
    "closed in the middle": lambda request, honest: Reply(((0.0, honest[: len(honest) // 2]),), stays=False),
    "closed before the last byte": lambda request, honest: Reply(((0.0, honest[:-1]),), stays=False),
    "a length below 0": lambda request, honest: Reply(((0.0, _frame(honest[4:], -1)),)),
    "a length too large": lambda request, honest: Reply(((0.0, _frame(honest[4:], 2**31 - 1)),)),
    "no body": lambda request, honest: Reply(((0.0, _frame(b"")),)),
    "a body of one byte": lambda request, honest: Reply(((0.0, _frame(b"\0")),)),
    "a web server": lambda request, honest: Reply(((0.0, b"HTTP/1.1 400 Bad Request\r\n\r\n"),), stays=False),
    "somebody else's answer": _other_id,
    "damaged messages": _damaged,
    "an endless message": _endless,
    **{f"error {code}": _code(code) for code in CODES},
}


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    fake = FakeBroker(max_message_bytes=1000)
    fake.port = unused_port()
    with fake:
        fake.logs["t", 0] = LOG
        yield fake


def spoil(fake: FakeBroker, way: Way, times: int) -> list[int]:
    """Answer so many reads in this way; gives how many are left."""
    left = [times]

    def pieces(request: rq.Request, honest: bytes) -> Reply | None:
        if not isinstance(request, READS) or not left[0]:
            return None
        left[0] -= 1
        return way(request, honest)

    fake.pieces = pieces
    return left


USES: dict[str, tuple[Callable[[SimpleConsumer], Any], Any]] = {
    "fetch": (lambda consumer: consumer.fetch("t", 0, ONE, 1000).payloads(), MESSAGES[1:]),
    "fetch and wait": (lambda consumer: consumer.fetch("t", 0, 0, wait=5).payloads(), MESSAGES),
    "a small fetch": (lambda consumer: consumer.fetch("t", 0, 0, 5).payloads(), MESSAGES[:1]),
    "arrays": (lambda consumer: len(consumer.fetch_numpy("t", 0, 0)), 12),
    "unchecked": (lambda consumer: consumer.fetch_unchecked("t", 0, 3, 9), LOG[3:12]),
    "multifetch": (
        lambda consumer: [part.payloads() for part in consumer.multifetch([("t", 0, 0), ("t", 0, ONE, 19)])],
        [MESSAGES, MESSAGES[1:2]],
    ),
    "offsets": (lambda consumer: consumer.get_offsets_before("t", 0, LATEST, 5), [len(LOG), 0]),
    "cut points": (lambda consumer: consumer.cut_points("t", 0, 1, 3 * ONE, 1), [ONE, 2 * ONE, 3 * ONE]),
    "messages": (
        lambda consumer: [found.payload for found in consumer.messages("t", 0, EARLIEST, fetch_bytes=ONE * 2)],
        MESSAGES,
    ),
    "batches": (
        lambda consumer: [payload for batch in consumer.batches("t", 0, fetch_bytes=50) for payload in batch],
        MESSAGES,
    ),
    "numpy batches": (lambda consumer: sum(map(len, consumer.numpy_batches("t", 0, 0, fetch_bytes=50))), 12),
}


def works(consumer: SimpleConsumer, uses: list[str]) -> None:
    """Each of these gives what it is to give, and says how it was read."""
    for name in uses:
        call, expected = USES[name]
        assert call(consumer) == expected, name


@pytest.mark.parametrize("way", list(WAYS))
@pytest.mark.parametrize("plain", [False, True], ids=["fastlog", "plain 0.7"])
def test_a_call_that_failed_leaves_a_consumer_that_works(broker: FakeBroker, way: str, plain: bool) -> None:
    """One bad answer and two in a row, since a connection that breaks is made again once."""
    broker.own = not plain
    uses = [name for name in USES if not (plain and name == "cut points")]
    with consumer_of(broker, local="off", timeout=30.0) as consumer:
        works(consumer, uses)
        for use in uses:
            for times in (1, 2):
                call, expected = USES[use]
                left = spoil(broker, WAYS[way], times)
                error: FastlogError | None = None
                try:
                    found = call(consumer)
                except FastlogError as failure:
                    error = failure
                else:
                    # What came is right, or what nobody can see: bytes that are not looked at.
                    assert found == expected or way in ("damaged messages", "an endless message"), (use, found)
                assert left[0] < times, "the way was not gone"
                if way.startswith("error ") and use != "multifetch":
                    assert type(error) is type(error_for(int(way.split()[1]))), use
                if way.startswith("closed") and times == 1:
                    assert error is None, (use, "one break is made good")
                broker.pieces = None
                call, expected = USES[use]
                assert call(consumer) == expected, (use, times)
                works(consumer, ["offsets", "a small fetch"])
        works(consumer, uses)
        # the connection of the calls and, of iterations that ended, none
        wait_until(lambda: len(broker._sockets) <= 1)


@pytest.mark.parametrize("way", ["closed before the answer", "a body of one byte", "error 2", "damaged messages"])
def test_an_iteration_that_failed_goes_on_from_where_it_came_to(broker: FakeBroker, way: str) -> None:
    """From the ``next_offset`` of its last message, with nothing missing or twice, wherever it failed."""
    with consumer_of(broker, local="off") as consumer:
        for number in range(12):
            broker.pieces = None
            found: list[bytes] = []
            at = 0
            running = consumer.messages("t", 0, 0, fetch_bytes=ONE)
            for message in running:
                found.append(message.payload)
                at = message.next_offset
                if len(found) == number + 1:
                    spoil(broker, WAYS[way], 3)
                    break
            with suppress(FastlogError):
                for message in running:
                    found.append(message.payload)
                    at = message.next_offset
            broker.pieces = None
            inside = 4 < len(found) < 7  # of a set that is gone on at from its start
            expected = MESSAGES[4:] if inside else MESSAGES[len(found) :]
            assert [message.payload for message in consumer.messages("t", 0, at, fetch_bytes=ONE)] == expected


def test_a_broker_that_is_refused_and_back_and_older_and_back(broker: FakeBroker) -> None:
    """At the same port: nobody listens for a while, then a plain 0.7 broker does, then the first one again."""
    with consumer_of(broker, local="off") as consumer:
        works(consumer, list(USES))
        port = broker.port
        broker.__exit__()
        for _ in range(2):
            for use in ("fetch", "multifetch", "offsets", "messages"):
                with pytest.raises(FastlogError, match="Connection refused"):
                    USES[use][0](consumer)
        again = FakeBroker(max_message_bytes=1000)
        again.port = port
        again.logs["t", 0] = LOG
        with again:
            works(consumer, list(USES))
            again.own = False
            again.cut()
            for use in USES:
                with suppress(FastlogError):  # it was offered before, and no answer says that it is not any more
                    USES[use][0](consumer)
            again.own = True
            works(consumer, list(USES))
    broker.__enter__()


# -- streams ---------------------------------------------------------------------------------------------------------

STREAM_WAYS = [way for way in WAYS if way != "error 1"]  # that one is a jump, which is reported


@pytest.mark.parametrize("way", STREAM_WAYS)
@pytest.mark.parametrize("plain", [False, True], ids=["fastlog", "plain 0.7"])
def test_a_stream_gives_what_is_next_after_each_failure(way: str, plain: bool) -> None:
    """Failures in a row, in the middle of the partition; what is consumed is what was handed out; it says what it does
    meanwhile, and nothing of the failure when it is over.
    """
    with (
        served(LOG, own=not plain, max_message_bytes=1000) as fake,
        Reading(fetch_bytes=ONE, fetcher_backoff_ms=1, queued_chunks=1) as reading,
    ):
        source = reading.own(fake.port)
        stream = reading.stream()
        found = take(stream, 2)
        left = spoil(fake, WAYS[way], 5)
        raised: list[FastlogError] = []
        consumed = reading.fetchers.consumed()[source]
        while len(found) < len(MESSAGES):
            try:
                message = stream.poll(30)
            except FastlogError as error:
                raised.append(error)
                continue
            assert isinstance(message, GroupMessage), message
            found.append(message.payload)
            assert consumed <= reading.fetchers.consumed()[source] <= message.offset
            consumed = reading.fetchers.consumed()[source]
        assert found == MESSAGES
        assert left == [0]
        wait_until(lambda: stream.poll(0.01) is NoMessage.AT_END)
        assert reading.fetchers.consumed() == {source: len(LOG)}
        state = reading.state(source)
        assert (state.phase, state.error, state.failures, state.failing_since, state.gaps) == (
            Phase.AT_END, None, 0, None, 0,
        )  # fmt: skip
        assert state.position == state.consumed == len(LOG) and state.queued == 0
        assert reading.jumps == []
        # what no second try makes better is raised, once for each place and reason
        of_the_data = way in ("damaged messages", "an endless message", "error 2", "error 4")
        assert (0 < len(raised) <= 2) if of_the_data else raised == [], raised
        fake.logs["t", 0] += pack([b"later"])
        assert take(stream, 1) == [b"later"]
        wait_until(lambda: len(fake._sockets) == 1)
    wait_until(lambda: not fetching_threads())


@pytest.mark.parametrize("plain", [False, True], ids=["fastlog", "plain 0.7"])
def test_error_after_error_is_told_with_when_it_began(plain: bool) -> None:
    with served(LOG, own=not plain) as fake, Reading(fetch_bytes=ONE, fetcher_backoff_ms=1) as reading:
        source = reading.own(fake.port)
        take(reading.stream(), 1)
        spoil(fake, _code(-1), 10**6)
        fake.cut()
        wait_until(lambda: reading.state(source).failures >= 3)
        first = reading.state(source).failing_since
        wait_until(lambda: reading.state(source).failures >= 6)
        state = reading.state(source)
        assert state.failing_since == first and first is not None
        assert state.phase is Phase.FAILING and "unknown error" in str(state.error).lower()
        found = []
        while len(found) < 11 and isinstance(message := reading.stream().poll(0), GroupMessage):
            found.append(message.payload)
        fake.pieces = None
        assert found + take(reading.stream(), 11 - len(found)) == MESSAGES[1:]
