"""A connection to the target: what it believes of a broker's answers, how long it waits, and what it lets go of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.client.addresses import Address
from fastlog.consumer._delivery import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import BrokerError, ClosedError, FastlogError, ProtocolError, StorageError, TransportError
from fastlog.mirror import pipe as pipe_module
from fastlog.mirror.config import TargetConfig
from fastlog.mirror.pieces import MirrorPiece, TargetPartition
from fastlog.mirror.pipe import Pipe
from fastlog.producer.brokers import BrokerAddress, Directory
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.zkpaths import PartitionId
from tests.harness import raw_format as raw
from tests.harness import wire07
from tests.harness.broker import wait_until
from tests.harness.fake_broker import FakeBroker
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE

DATA = raw.message_set([b"one", b"two"])


class Giver:
    """Gives pieces to a pipe; ``settled`` has what became of them, in order."""

    def __init__(self, broker: FakeBroker, **properties: str) -> None:
        names = {name.replace("_", "."): value for name, value in properties.items()}
        given = {"broker.list": f"0:127.0.0.1:{broker.port}", **names}
        directory = Directory(BrokerAddress(0, Address("127.0.0.1", broker.port)), 5.0)
        self.changes = 0
        self.settled: list[tuple[MirrorPiece, FastlogError | None]] = []
        self.pipe = Pipe(directory, TargetConfig.from_properties(given), self._changed)

    def _changed(self) -> None:
        self.changes += 1

    def give(self, data: bytes = DATA, topic: str = "t", partition: int = 0) -> MirrorPiece:
        place = Place(TopicPartition("s", PartitionId(0, 0)), 0, by_hand=True)
        piece = MirrorPiece(
            place,
            topic,
            0,
            memoryview(data),
            2,
            TargetPartition(0, partition),
            lambda *found: self.settled.append(found),
        )
        self.pipe.submit(piece)
        return piece

    def _settle(self, piece: MirrorPiece, error: FastlogError | None) -> None:
        self.settled.append((piece, error))

    def wait_settled(self, count: int) -> list[FastlogError | None]:
        """What became of the first pieces, once there are so many."""
        wait_until(f"{count} are settled, not {len(self.settled)}", lambda: len(self.settled) >= count)
        return [error for _, error in self.settled]

    def wait_connected(self) -> None:
        wait_until("it is connected", lambda: self.pipe.is_connected)


@contextmanager
def giving(broker: FakeBroker, **properties: str) -> Iterator[Giver]:
    """Ends what it started; the thread ends when it is told to."""
    with broker:
        made = Giver(broker, **properties)
        try:
            yield made
        finally:
            made.pipe.stop()
            made.pipe.join(PATIENCE)
            assert not made.pipe._thread.is_alive()


# -- limits ------------------------------------------------------------------------------------------------------------


def offering(broker: FakeBroker, **changes: int) -> FakeBroker:
    """The broker says that it takes so much."""

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest):
            answer = rs.decode_metadata(broker._metadata(request)[4:])
            return rs.encode_metadata(answer._replace(**changes), request.version)
        return None

    broker.hook = hook
    return broker


@pytest.mark.parametrize(
    ("told", "wanted", "limit"),
    [(500, None, 500), (500, "400", 400), (500, "600", 500), (0, "400", 400), (0, None, 1_000_000), (-1, "7", 7)],
)
def test_the_largest_message_is_what_both_allow(told: int, wanted: str | None, limit: int) -> None:
    """What the broker tells, what was set, and 0.7's default where neither is known."""
    fields = {} if wanted is None else {"max_message_size": wanted}
    with giving(offering(FakeBroker(), max_message_bytes=told), **fields) as found:
        found.wait_connected()
        assert found.pipe.max_payload == limit


@pytest.mark.parametrize(
    ("told", "batch", "limit"),
    [
        (200_000, 1000, 1000),
        (65_536 + 1000, 1000, 1000),
        (65_536 + 999, 1000, 999),
        (65_536, 10, 1),
        (5, 10, 1),
        (0, 10, 10),
    ],
)
def test_a_request_is_no_larger_than_the_broker_takes(told: int, batch: int, limit: int) -> None:
    with giving(offering(FakeBroker(), max_request_bytes=told), batch_bytes=str(batch)) as found:
        found.wait_connected()
        assert found.pipe.max_set == limit


def test_a_broker_that_came_back_is_asked_anew() -> None:
    """It may be another version, with other limits."""
    broker = FakeBroker(max_message_bytes=700)
    with giving(broker) as found:
        found.give()
        assert found.wait_settled(1) == [None]
        assert (found.pipe.max_payload, found.pipe.is_acknowledged) == (700, True)
        broker.max_message_bytes = 800
        broker.cut()
        wait_until("it is asked", lambda: found.pipe.max_payload == 800)
        found.wait_connected()
        found.give()
        assert found.wait_settled(2) == [None, None]


def test_a_plain_broker_that_comes_back_as_fastlog_is_asked_for_acknowledgements() -> None:
    broker = FakeBroker(own=False)
    with giving(broker) as found:
        found.give()
        assert found.wait_settled(1) == [None]
        broker.own = True
        broker.cut()
        wait_until("it is known", lambda: found.pipe.is_connected and found.pipe.is_acknowledged)
        found.give()
        assert found.wait_settled(2) == [None, None]
        assert (broker.seen["ProduceRequest"], broker.seen["ProduceAckRequest"]) == (1, 1)


def test_a_plain_broker_tells_no_limits() -> None:
    with giving(FakeBroker(own=False)) as found:
        piece = found.give()
        assert found.wait_settled(1) == [None]
        assert (found.pipe.max_payload, found.pipe.is_acknowledged) == (1_000_000, False)
        assert piece.target_offset == -1


# -- room --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("limit", "is_full"), [(2 * len(DATA) + 1, False), (2 * len(DATA), True), (1, True)])
def test_it_is_full_at_so_many_bytes_and_tells_when_there_is_room(limit: int, is_full: bool) -> None:
    release = threading.Event()

    def hook(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            release.wait(60)

    with giving(FakeBroker(hook=hook), in_flight_bytes=str(limit)) as found:
        found.wait_connected()
        assert not found.pipe.is_full
        found.give()
        found.give()
        assert found.pipe.is_full is is_full
        before = found.changes
        release.set()
        found.wait_settled(2)
        assert not found.pipe.is_full
        wait_until("it was told", lambda: found.changes == before + is_full)


def test_it_tells_each_time_it_is_connected() -> None:
    """Whoever waits for it asks again then, and not by the clock."""
    broker = FakeBroker()
    with giving(broker) as found:
        wait_until("it was told", lambda: found.changes == 1)
        assert found.pipe.is_connected
        found.give(raw.message_set([b"x"]))
        assert found.wait_settled(1) == [None]  # so the broker has accepted what it cuts now
        broker.cut()
        wait_until("it was told again", lambda: found.changes == 2)
        assert found.pipe.is_connected


def test_what_was_given_before_it_is_connected_is_sent_in_order() -> None:
    broker = FakeBroker()
    release = threading.Event()
    broker.hook = lambda request: release.wait(60) and None if isinstance(request, rq.MetadataRequest) else None
    with giving(broker) as found:
        pieces = [found.give(raw.message_set([b"%d" % number])) for number in range(5)]
        assert not found.pipe.is_connected
        release.set()
        assert found.wait_settled(5) == [None] * 5
        assert [piece for piece, _ in found.settled] == pieces
        assert broker.logs["t", 0] == b"".join(bytes(piece.data) for piece in pieces)
        ends = [piece.target_offset for piece in pieces]
        assert ends == [sum(len(piece.data) for piece in pieces[:number]) for number in range(5)]


def test_each_topic_and_partition_has_a_head_of_its_own() -> None:
    """In turn, on one connection; also to a plain broker."""
    for own in (True, False):
        broker = FakeBroker(own=own, partitions=2)
        with giving(broker) as found:
            for _ in range(2):
                for topic in ("t", "a longer topic"):
                    for partition in (0, 1):
                        found.give(raw.message_set([f"{topic} {partition}".encode()]), topic, partition)
            assert found.wait_settled(8) == [None] * 8
            for topic in ("t", "a longer topic"):
                for partition in (0, 1):
                    assert broker.logs[topic, partition] == 2 * raw.message_set([f"{topic} {partition}".encode()])


# -- answers -----------------------------------------------------------------------------------------------------------


def answering(made: Callable[[wire07.ProduceAckRequest, int], bytes]) -> FakeBroker:
    """A broker that stores, and answers something else; the second argument counts its answers."""
    count = [0]

    def after(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.ProduceAckRequest):
            count[0] += 1
            return made(request, count[0] - 1)
        return None

    return FakeBroker(after=after)


def ack(number: int, error: int = 0, base: int = 0) -> bytes:
    return wire07.encode_produce_ack(rs.ProduceAckAnswer(number, error, 0, base, base + len(DATA)))


@pytest.mark.parametrize(
    "made",
    [
        lambda request, count: ack(request.correlation_id + 1),
        lambda request, count: ack(request.correlation_id - 1),
        lambda request, count: ack(request.correlation_id) * 2,
        lambda request, count: b"\0\0\0\2\0\0",
        lambda request, count: ack(request.correlation_id)[:-1],
    ],
    ids=["the next one's", "the one's before", "twice", "too short", "cut"],
)
def test_an_answer_that_makes_no_sense_ends_the_connection(made: Any) -> None:
    """What was on its way may be stored or not: it is said so, and the next one goes on a new connection."""
    seconds = {"socket_timeout_ms": "300"}
    broker = answering(made)
    with giving(broker, **seconds) as found:
        found.give()
        errors = found.wait_settled(1)
        if errors[0] is None:  # the first of two answers was right
            wait_until("it broke", lambda: found.pipe.error is not None or broker.seen["MetadataRequest"] > 1)
        else:
            assert isinstance(errors[0], ProtocolError | TransportError)
        broker.after = None
        found.wait_connected()
        before = len(found.settled)
        found.give()
        wait_until("it goes on", lambda: len(found.settled) > before and found.settled[-1][1] is None)
        assert found.pipe.error is None


def test_an_answer_that_nobody_waits_for_is_named() -> None:
    with giving(FakeBroker()) as found:
        found.wait_connected()
        with pytest.raises(ProtocolError, match="an answer came to nothing"):
            found.pipe._answered(ack(0)[4:])


def test_a_refusal_settles_its_piece_and_nothing_else() -> None:
    broker = answering(lambda request, count: ack(request.correlation_id, 103 if count == 1 else 0, 100 * count))
    with giving(broker) as found:
        for _ in range(3):
            found.give()
        errors = found.wait_settled(3)
        assert [type(error) for error in errors] == [type(None), StorageError, type(None)]
        assert f"127.0.0.1:{broker.port}" in str(errors[1])
        assert [piece.target_offset for piece, _ in found.settled][::2] == [0, 200]
        assert broker.seen["MetadataRequest"] == 1


@pytest.mark.parametrize("code", [1, -1])
def test_a_plain_broker_answers_behind_what_it_has_handled(code: int) -> None:
    """An error in that answer is the piece's."""
    broker = FakeBroker(own=False)
    broker.hook = lambda request: rs.encode_offsets(code, []) if isinstance(request, rq.OffsetsRequest) else None
    with giving(broker) as found:
        found.give()
        (error,) = found.wait_settled(1)
        assert isinstance(error, BrokerError)
        assert not found.pipe.is_acknowledged
        broker.hook = None
        piece = found.give()
        assert found.wait_settled(2)[1] is None
        assert piece.is_sent


def test_numbers_go_round() -> None:
    """Past the highest that a request can have."""
    broker = FakeBroker()
    with giving(broker) as found:
        found.wait_connected()
        found.pipe._next_id = 0x7FFFFFFE
        for _ in range(4):
            found.give()
        assert found.wait_settled(4) == [None] * 4
        assert found.pipe._next_id == 2
        assert broker.seen["MetadataRequest"] == 1


# -- time --------------------------------------------------------------------------------------------------------------


def test_a_broker_that_stands_still_is_given_up_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not before that, and not when something else looks; what was on its way is nobody's then."""
    monkeypatch.setattr(pipe_module, "_IDLE_SECONDS", 1000.0)
    release = threading.Event()

    def hook(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            release.wait(60)

    with giving(FakeBroker(hook=hook), socket_timeout_ms="400") as found:
        found.wait_connected()
        began = time.monotonic()
        found.give()
        found.give()
        errors = found.wait_settled(2)
        took = time.monotonic() - began
        release.set()
    assert all(isinstance(error, TransportError) and "0.4 s" in str(error) for error in errors)
    assert took >= 0.4


def test_silence_is_counted_from_the_last_answer_and_not_while_there_is_nothing_to_wait_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Longer without anything to send than an answer may take; then answers that are late, but none too late."""
    passed, looks, asked = [0.0], [0], [0]

    def monotonic() -> float:
        looks[0] += 1
        return time.monotonic() + passed[0]

    monkeypatch.setattr(pipe_module, "time", SimpleNamespace(monotonic=monotonic))
    monkeypatch.setattr(pipe_module, "_IDLE_SECONDS", 0.001)  # it looks at the clock all the time

    def slow(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            wait_until("the answer before is seen", lambda: len(found.settled) == asked[0])
            asked[0] += 1
            passed[0] += 4000.0
            before = looks[0]
            wait_until("the pipe has seen what time it is", lambda: looks[0] > before + 1)

    broker = FakeBroker(hook=slow)
    with giving(broker, socket_timeout_ms="6000000") as found:
        found.wait_connected()
        passed[0] += 10_000.0
        assert not threading.Event().wait(0.02)
        for count in range(1, 6):
            found.give()
            found.give()
            assert found.wait_settled(2 * count) == [None] * 2 * count
            passed[0] += 10_000.0
            assert not threading.Event().wait(0.02)
        assert broker.seen["MetadataRequest"] == 1


def test_a_target_that_is_away_is_tried_again_with_pauses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Ever longer ones; said once; and it is used as soon as it is back."""
    waits: list[float] = []

    class Away:
        pass

    away: Any = Away()
    away.port = unused_port()
    original = Pipe._wait

    def wait(self: Pipe, connection: Any, seconds: float) -> None:
        if connection is None:
            waits.append(seconds)
            seconds = 0.0 if len(waits) < 12 else 0.01
        original(self, connection, seconds)

    monkeypatch.setattr(Pipe, "_wait", wait)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    made = Giver(away)
    try:
        piece = made.give()
        wait_until("it was tried", lambda: len(waits) >= 12)
        assert waits[:8] == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0]
        assert isinstance(made.pipe.error, TransportError)
        assert not made.pipe.is_connected
        assert made.pipe.is_acknowledged  # nothing was sent there that is not
        (error,) = made.wait_settled(1)
        assert isinstance(error, TransportError)
        assert not piece.is_sent
        (line,) = [record.getMessage() for record in caplog.records if record.name == "fastlog.mirror.pipe"]
        assert line.startswith(f"target broker=0: cannot reach a broker at 127.0.0.1:{away.port} ")
    finally:
        made.pipe.stop()
        made.pipe.join(PATIENCE)


def test_a_target_that_stayed_is_tried_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a connection of a second or longer the pauses begin anew, and not after one that broke at once."""
    passed, pauses = [1000.0], list[float]()
    original = Pipe._wait

    def wait(self: Pipe, connection: Any, seconds: float) -> None:
        if connection is None:
            pauses.append(seconds)
            seconds = 0.0
        original(self, connection, seconds)

    monkeypatch.setattr(pipe_module, "time", SimpleNamespace(monotonic=lambda: passed[0]))
    monkeypatch.setattr(Pipe, "_wait", wait)
    monkeypatch.setattr("random.uniform", lambda low, high: high)
    broker = FakeBroker()
    with giving(broker) as found:
        for number, seconds in enumerate((0.0, 0.0, 0.5, 2.0, 0.0), 1):
            found.give()
            assert found.wait_settled(number) == [None] * number
            passed[0] += seconds
            broker.cut()
            wait_until("it broke", lambda number=number: len(pauses) >= number)  # type: ignore[misc]
    assert pauses[:5] == [0.02, 0.04, 0.08, 0.02, 0.04]


def test_the_end_settles_what_was_given() -> None:
    """What is on its way and what waits; at once, also from a broker that does not answer."""
    release = threading.Event()

    def hook(request: rq.Request) -> None:
        if isinstance(request, wire07.ProduceAckRequest):
            release.wait(60)

    with FakeBroker(hook=hook) as broker:
        found = Giver(broker)
        found.wait_connected()
        found.give()
        wait_until("it is there", lambda: broker.seen["ProduceAckRequest"] == 1)
        found.give()
        found.pipe.stop()
        found.pipe.join(PATIENCE)
        assert [type(error) for _, error in found.settled] == [ClosedError, ClosedError]
        assert not found.pipe.is_connected
        assert found.pipe.error is None
        release.set()
