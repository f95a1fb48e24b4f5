"""After each error that a producer can meet, the same producer goes on: a table of what fails, one of who is used then.

What comes next arrives once and in its order, everybody is told once, ``flush`` returns, ``close`` ends, the counts add
up, and threads and descriptors are what they were before.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from fastlog.errors import ArgumentError, DeliveryError, FastlogError, MessageTooLargeError, WrongPartitionError
from fastlog.message import deep
from fastlog.producer import Delivery, Producer, StringEncoder
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker
from tests.harness.timing import PATIENCE

THREE = [b"1", b"2", b"3"]
Produce = wire07.ProduceAckRequest | wire07.ProduceRequest


class Troubled(FakeBroker):
    """Does ``trouble`` with the first so many produce requests; what the others bring is stored and acknowledged."""

    def __init__(self, trouble: Trouble | None, own: bool = True) -> None:
        super().__init__(own=own, partitions=2, hook=self._hook, after=self._after)
        self.release = threading.Event()
        self._trouble = trouble
        self._here = threading.local()
        self._seen = 0
        self._handled = super()._handled  # type: ignore[method-assign]

    def serve(self, connection: socket.socket) -> None:
        self._here.connection = connection
        super().serve(connection)

    def __exit__(self, *_: object) -> None:
        self.release.set()
        super().__exit__()

    def say(self, data: bytes) -> None:
        """Send bytes on the connection of the request that is looked at."""
        self._here.connection.sendall(data)

    def reset(self) -> None:
        """End that connection with a reset."""
        self._here.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._here.connection.close()

    def _hook(self, request: rq.Request) -> bytes | None:
        return self._do(request, stored=False)

    def _after(self, request: rq.Request) -> bytes | None:
        return self._do(request, stored=True)

    def _do(self, request: rq.Request, stored: bool) -> bytes | None:
        trouble = self._trouble
        if trouble is None or trouble.stored != stored or not isinstance(request, Produce):
            return None
        self._seen += 1
        return trouble.act(self, request) if self._seen <= trouble.times else None


@dataclass(frozen=True)
class Trouble:
    """What the broker does; ``stored``: once it has stored the messages. ``fails``: the message is given up then."""

    act: Callable[[Troubled, Produce], bytes | None]
    stored: bool = False
    fails: bool = False
    times: int = 1
    fields: dict[str, Any] = field(default_factory=dict)


def right(request: Produce, code: int = 0) -> bytes:
    """An answer to it."""
    correlation_id = getattr(request, "correlation_id", 0)
    base = -1 if code else 0
    return wire07.encode_produce_ack(rs.ProduceAckAnswer(correlation_id, code, max(request.partition, 0), base, base))


def closes(broker: Troubled, request: Produce) -> None:
    raise ConnectionError


def resets(broker: Troubled, request: Produce) -> None:
    broker.reset()
    raise ConnectionError


def is_silent(broker: Troubled, request: Produce) -> None:
    broker.release.wait(PATIENCE)
    raise ConnectionError


def says(part: Callable[[bytes], bytes], then: Callable[[Troubled, Produce], None] = closes) -> Any:
    """Part of the right answer, or something else instead."""

    def act(broker: Troubled, request: Produce) -> None:
        broker.say(part(right(request)))
        then(broker, request)

    return act


def refuses(code: int) -> Callable[[Troubled, Produce], bytes]:
    return lambda broker, request: right(request, code)


TROUBLES = {
    "closes before it is stored": Trouble(closes),
    "closes when it is stored": Trouble(closes, stored=True),
    "closes four times": Trouble(closes, times=4),
    "resets": Trouble(resets),
    "closes in the size": Trouble(says(lambda answer: answer[:3]), stored=True),
    "closes in the answer": Trouble(says(lambda answer: answer[:17]), stored=True),
    "closes before the last byte": Trouble(says(lambda answer: answer[:-1]), stored=True),
    "resets in the answer": Trouble(says(lambda answer: answer[:29], resets)),
    "says another's answer": Trouble(says(lambda answer: answer[:4] + b"\0\0\x77\x77" + answer[8:], is_silent)),
    "says a huge size": Trouble(says(lambda answer: b"\x7f\xff\xff\xff" + answer, is_silent)),
    "says a size of nothing": Trouble(says(lambda answer: bytes(4), is_silent)),
    "is silent": Trouble(is_silent, fields={"socket_timeout_ms": 50}),
    "is silent in the answer": Trouble(says(lambda answer: answer[:20], is_silent), fields={"socket_timeout_ms": 50}),
    "gives up with the time": Trouble(is_silent, fails=True, fields={"delivery_timeout_ms": 400}),
    "gives up with the tries": Trouble(closes, fails=True, fields={"num_retries": 0}),
    "disk full for a while": Trouble(refuses(103), times=3),
    "disk full, no tries": Trouble(refuses(103), fails=True, fields={"num_retries": 0}),
    "disk full for too long": Trouble(refuses(103), fails=True, times=3, fields={"num_retries": 2}),
    "flush failed": Trouble(refuses(101), fails=True),
    "does not know": Trouble(refuses(-1), fails=True),
    "wrong partition": Trouble(refuses(3), fails=True),
    "a code that nobody knows": Trouble(refuses(999), fails=True),
}


class User:
    """Sends with one producer and keeps what it is told of each value."""

    fields: dict[str, Any] = {"producer_type": "async", "queue_time_ms": 0}  # noqa: RUF012
    how: dict[str, Any] = {}  # noqa: RUF012

    def __init__(self) -> None:
        self.told: dict[bytes, list[FastlogError | None]] = {}

    def note(self, value: bytes, error: FastlogError | None) -> None:
        self.told.setdefault(value, []).append(error)

    def more(self) -> dict[str, Any]:
        """Other arguments of the producer."""
        return {}

    def send(self, producer: Producer, values: list[bytes]) -> None:
        """Send them and wait until it is known what became of them."""
        for value in values:
            producer.send("t", value, on_delivery=lambda told, value=value: self.note(value, told.error), **self.how)
        producer.flush(PATIENCE)


class Sync(User):
    fields = {"producer_type": "sync"}  # noqa: RUF012

    def send(self, producer: Producer, values: list[bytes]) -> None:
        for value in values:
            try:
                (delivery,) = producer.send("t", value, **self.how)
                assert delivery.messages == 1
                self.note(value, None)
            except FastlogError as error:
                self.note(value, error)


class SyncKey(Sync):
    how = {"key": "k"}  # noqa: RUF012


class ByHand(User):
    how = {"partition": 1}  # noqa: RUF012


class Batched(User):
    """One request, and a flush that tells."""

    fields = {"producer_type": "async", "queue_time_ms": 60_000}  # noqa: RUF012

    def send(self, producer: Producer, values: list[bytes]) -> None:
        producer.send("t", values, key="k")
        error: FastlogError | None = None
        try:
            producer.flush(PATIENCE)
        except DeliveryError as failed:
            assert failed.messages == len(values)
            error = failed
        for value in values:
            self.note(value, error)


class Compressed(User):
    fields = {"producer_type": "async", "queue_time_ms": 0, "compression": "gzip"}  # noqa: RUF012
    how = {"partition": 0}  # noqa: RUF012


class Told(User):
    """The producer's own callback hears of every request; here each has one message."""

    fields = {"producer_type": "async", "queue_time_ms": 0, "batch_messages": 1}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._deliveries: list[Delivery] = []

    def more(self) -> dict[str, Any]:
        return {"on_delivery": self._deliveries.append}

    def send(self, producer: Producer, values: list[bytes]) -> None:
        for value in values:
            producer.send("t", value, partition=1)
            producer.flush(PATIENCE)
            (delivery,) = self._deliveries
            self._deliveries.clear()
            self.note(value, delivery.error)


class Submits(User):
    def send(self, producer: Producer, values: list[bytes]) -> None:
        futures = [(value, producer.submit("t", value, **self.how)) for value in values]
        for value, future in futures:
            error = future.exception(PATIENCE)
            assert error is None or isinstance(error, FastlogError)
            self.note(value, error)


USERS = [Sync, SyncKey, User, ByHand, Batched, Compressed, Told, Submits]


def payloads_of(broker: FakeBroker) -> list[bytes]:
    """What is stored, in whatever partition."""
    return [each.message.payload for data in broker.logs.values() for each in deep(data)]


def traces() -> tuple[int, int]:
    """Threads of producers, and descriptors of this process."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("fastlog-producer")]
    return len(threads), count_descriptors()


@contextmanager
def leaves_nothing() -> Iterator[None]:
    before = traces()
    yield
    wait_until("nothing is left", lambda: traces() <= before)


def goes_on(producer: Producer, user: User, broker: FakeBroker, delivered: int, failed: int) -> None:
    """Three messages more; ``delivered`` and ``failed`` of the ones before."""
    before = payloads_of(broker)
    user.send(producer, THREE)
    producer.flush(PATIENCE)
    assert payloads_of(broker)[len(before) :] == THREE
    assert [user.told[value] for value in THREE] == [[None]] * 3
    stats = producer.stats()
    assert (stats.delivered, stats.failed, stats.dropped) == (delivered + 3, failed, 0)
    assert (stats.queued, stats.in_flight, stats.accepted) == (0, 0, delivered + failed + 3)
    quota = producer._ledger.quota
    assert (quota.messages, quota.bytes) == (0, 0)
    producer.close()
    assert producer.stats().in_flight == 0


@pytest.mark.parametrize("kind", USERS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", TROUBLES)
def test_the_same_producer_goes_on(kind: type[User], name: str) -> None:
    trouble, user = TROUBLES[name], kind()
    with leaves_nothing(), Troubled(trouble) as broker:
        producer = Producer(broker.address, **{**user.fields, **trouble.fields, **user.more()})
        user.send(producer, [b"first"])
        (error,) = user.told[b"first"]
        assert (error is not None) == trouble.fails
        copies = payloads_of(broker).count(b"first")
        assert copies == (0 if trouble.fails else 2 if trouble.stored else 1)
        stats = producer.stats()
        assert stats.possible_duplicates >= copies - 1
        if "disk full" in name or name in ("flush failed", "does not know", "wrong partition"):
            assert (stats.possible_duplicates, stats.connections) == (0, 1)
        goes_on(producer, user, broker, not trouble.fails, trouble.fails)


@pytest.mark.parametrize("kind", [Sync, User, Batched, Submits], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("name", ["closes before it is stored", "resets", "closes four times"])
def test_the_same_producer_of_a_07_broker_goes_on(kind: type[User], name: str) -> None:
    """It acknowledges nothing: what was handed over before the break may be lost; what comes later comes once."""
    trouble, user = TROUBLES[name], kind()
    with leaves_nothing(), Troubled(trouble, own=False) as broker:
        producer = Producer(broker.address, **user.fields)
        user.send(producer, [b"first"])
        assert user.told[b"first"] == [None]

        def has_come() -> bool:
            user.told.pop(b"probe", None)
            user.send(producer, [b"probe"])
            return b"probe" in payloads_of(broker)

        wait_until("the producer has another connection", has_come)
        producer.flush(PATIENCE)
        sent = producer.stats().accepted
        user.send(producer, THREE)
        wait_until("all have come", lambda: payloads_of(broker)[-3:] == THREE)
        assert all(payloads_of(broker).count(value) == 1 for value in THREE)
        stats = producer.stats()
        assert (stats.delivered, stats.failed, stats.in_flight, stats.accepted) == (sent + 3, 0, 0, sent + 3)
        producer.close()


# --- errors of the program's own ---


class Wild:
    """An encoder, a partitioner and a callback that fail when they are told to."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.calls = 0

    def __call__(self, *_: object) -> None:
        self.calls += 1
        if self.error is not None:
            raise self.error

    def encode(self, event: object) -> bytes:
        self()
        assert isinstance(event, bytes)
        return event

    def partition(self, key: object, count: int) -> int:
        self()
        return 1


class OtherError(Exception):
    """The program's."""


@pytest.mark.parametrize("kind", [Sync, SyncKey, User, ByHand, Batched, Submits], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("error", [OtherError("of the program"), SystemExit(3), KeyboardInterrupt()], ids=repr)
def test_an_encoder_that_raises_harms_one_message(kind: type[User], error: BaseException) -> None:
    wild, user = Wild(), kind()
    with leaves_nothing(), Troubled(None) as broker:
        producer = Producer(broker.address, encoder=wild, **user.fields)
        for _ in range(2):
            wild.error = error
            with pytest.raises(type(error)):
                user.send(producer, [b"first"])
        wild.error = None
        goes_on(producer, user, broker, 0, 0)


@pytest.mark.parametrize("kind", [SyncKey, Batched], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("error", [OtherError("of the program"), SystemExit(3)], ids=repr)
def test_a_partitioner_that_raises_harms_one_message(kind: type[User], error: BaseException) -> None:
    wild, user = Wild(), kind()
    with leaves_nothing(), Troubled(None) as broker:
        producer = Producer(broker.address, partitioner=wild, **user.fields)
        for _ in range(2):
            wild.error = error
            with pytest.raises(type(error)):
                user.send(producer, [b"first"])
        wild.error = None
        goes_on(producer, user, broker, 0, 0)
        assert set(broker.logs) == {("t", 1)}


def test_a_partitioner_that_raises_fails_the_future() -> None:
    wild = Wild()
    with leaves_nothing(), Troubled(None) as broker:
        producer = Producer(broker.address, partitioner=wild, producer_type="async", queue_time_ms=0)
        for known in (False, True):
            wild.error = OtherError("of the program")
            if known:
                with pytest.raises(OtherError):
                    producer.submit("t", b"x", key="k")
            else:
                assert isinstance(producer.submit("t", b"x", key="k").exception(PATIENCE), OtherError)
            wild.error = None
            assert producer.submit("t", b"y", key="k").result(PATIENCE).partition == 1
        producer.close()
        assert payloads_of(broker) == [b"y", b"y"]


@pytest.mark.parametrize("error", [OtherError("of the program"), SystemExit(3), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("whose", ["the message's", "the producer's", "the future's", "a slow message's"])
def test_a_callback_that_raises_is_logged_and_the_next_ones_are_called(
    whose: str, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it raises: the sending thread is not the callback's to end."""
    wild, told = Wild(), []
    wild.error = error
    fields: dict[str, Any] = {"producer_type": "async", "batch_messages": 3, "queue_time_ms": 60_000}
    with leaves_nothing(), Troubled(None) as broker:
        producer = Producer(broker.address, **fields, on_delivery=wild if whose == "the producer's" else None)
        for number in range(9):
            if whose == "the message's":
                producer.send("t", b"%d" % number, on_delivery=wild if number == 4 else told.append)
            elif whose == "a slow message's":
                producer.send("t", [b"%d" % number], on_delivery=wild if number == 4 else told.append)
            elif whose == "the future's":
                producer.submit("t", b"%d" % number).add_done_callback(wild if number == 4 else told.append)
            else:
                producer.send("t", b"%d" % number)
        producer.flush(PATIENCE)
        assert wild.calls == (3 if whose == "the producer's" else 1)
        assert len(told) == (0 if whose == "the producer's" else 8)
        producer.send("t", b"9", on_delivery=told.append)
        producer.flush(PATIENCE)
        stats = producer.stats()
        assert (stats.delivered, stats.failed, stats.in_flight) == (10, 0, 0)
        producer.close()
        assert payloads_of(broker) == [b"%d" % number for number in range(10)]
    assert "callback failed" in caplog.text or "exception calling callback" in caplog.text


@pytest.mark.parametrize("kind", [Sync, User, ByHand, Batched, Submits], ids=lambda kind: kind.__name__)
def test_what_cannot_be_sent_is_refused_and_counts_nowhere(kind: type[User]) -> None:
    user = kind()
    with leaves_nothing(), Troubled(None) as broker:
        producer = Producer(broker.address, max_message_bytes=100, **user.fields)
        for call, error in (
            (lambda: producer.send("t", bytes(101)), MessageTooLargeError),
            (lambda: producer.send("t", [b"x", bytes(101)]), MessageTooLargeError),
            (lambda: producer.send("t", "text"), ArgumentError),
            (lambda: producer.send("t", [b"x", "text"]), ArgumentError),
            (lambda: producer.send("a/b", b"x"), FastlogError),
            (lambda: producer.send("t", b"x", partition=2), WrongPartitionError),
            (lambda: producer.send("t", b"x", on_delivery=3), ArgumentError),  # type: ignore[arg-type]
        ):
            for _ in range(2):
                with pytest.raises(error):
                    call()
        assert producer.stats().accepted == 0
        goes_on(producer, user, broker, 0, 0)
        assert all(value in THREE for value in payloads_of(broker))


def test_text_that_has_no_bytes_harms_one_message() -> None:
    with leaves_nothing(), Troubled(None) as broker, Producer(broker.address, encoder=StringEncoder()) as producer:
        with pytest.raises(UnicodeEncodeError):
            producer.send("t", "\ud800")
        with pytest.raises(ArgumentError):
            producer.send("t", "x", key="\ud800")
        producer.send("t", "ä")
        assert payloads_of(broker) == ["ä".encode()]
