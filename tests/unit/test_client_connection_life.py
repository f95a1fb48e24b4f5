"""A client's connection and the broker behind it: answers cut short at every byte, and life after each error."""

from __future__ import annotations

import contextlib
import gc
import itertools
import resource
import socket
import struct
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fastlog.client import connection as connection_module
from fastlog.client.addresses import Address
from fastlog.client.connection import BoundedBackoff, Broker, Connection, ConnectionEnded, ConnectionRefused
from fastlog.errors import FastlogError, ProtocolError, TransportError, UnsupportedVersionError
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from fastlog.wire.fields import frame
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker
from tests.harness.proxy import BreakingProxy
from tests.harness.timing import PATIENCE, patch_time, sooner_than

BODY = b"an answer of some bytes"
ANSWER = frame(BODY)


@contextmanager
def connected(timeout: float = PATIENCE) -> Iterator[tuple[Connection, socket.socket]]:
    """A connection, and the broker's end of it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
        with theirs, Connection(ours, timeout) as connection:
            theirs.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            yield connection, theirs


def reset(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("cut", range(len(ANSWER)))
@pytest.mark.parametrize("end", [socket.socket.close, reset], ids=["closed", "reset"])
def test_an_answer_that_is_cut_is_the_end_of_the_connection(cut: int, end: Callable[[socket.socket], None]) -> None:
    """At every byte; said again however often it is asked, and what came whole before it is there."""
    with connected() as (connection, theirs):
        theirs.sendall(ANSWER + ANSWER[:cut])
        assert connection.receive() == BODY
        end(theirs)
        for _ in range(3):
            with pytest.raises(ConnectionEnded):
                connection.receive()
            with pytest.raises(ConnectionEnded):
                connection.receive_available()
        assert not connection.is_quiet()


def test_a_wait_for_an_answer_costs_no_processor_time() -> None:
    """It sleeps until something comes, or its time is over, rather than ask again and again."""
    with connected(0.5) as (connection, _):
        before = time.thread_time()
        with pytest.raises(TransportError, match="did not answer"):
            connection.receive()
        assert time.thread_time() - before < 0.1


@pytest.mark.parametrize("cut", range(len(ANSWER)))
def test_an_answer_that_is_late_is_kept_as_far_as_it_came(cut: int) -> None:
    """Silent after every byte: the time-out says so, and the rest makes it whole."""
    with connected(0.002) as (connection, theirs):
        if cut:
            theirs.sendall(ANSWER[:cut])
        with pytest.raises(TransportError, match=r"did not answer within 0\.002 s"):
            connection.receive()
        with pytest.raises(TransportError, match=r"did not answer within 0\.003 s"):
            connection.receive(extra_wait=0.001)
        assert connection.receive_soon(100, 0.001) is None
        assert connection.is_quiet() == (cut == 0)
        theirs.sendall(ANSWER[cut:] + ANSWER[:1])
        wait_until("it is whole", lambda: (found := connection.receive_available()) is not None and found == BODY)
        assert not connection.is_quiet()
        theirs.sendall(ANSWER[1:])
        assert bytes(connection.receive_soon(100, PATIENCE) or b"") == BODY


@pytest.mark.parametrize("size", [1, 65_531, 65_532, 65_533, 1 << 20, (1 << 20) + 1, 2_300_000])
@pytest.mark.parametrize("trusted", [False, True])
def test_an_answer_larger_than_any_buffer(size: int, trusted: bool) -> None:
    """Larger than the socket's, the scratch and the first piece of a body; the next one is not touched by it."""
    body = bytes(range(251)) * (size // 251 + 1)
    body = body[: max(size, 2)]
    with connected() as (connection, theirs):
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 40_000)
        thread = threading.Thread(target=theirs.sendall, args=(frame(body) + ANSWER + frame(body),))
        thread.start()
        for expected in (body, BODY, body):
            found = connection.receive_view(len(body) + 100) if trusted else connection.receive_view()
            assert found == expected
            del found
        thread.join(PATIENCE)
        assert connection.is_quiet()


@pytest.mark.parametrize(("limit", "is_taken"), [(len(BODY) - 1, False), (len(BODY), True), (len(BODY) + 1, True)])
def test_no_more_is_taken_than_was_asked_for(limit: int, is_taken: bool) -> None:
    with connected() as (connection, theirs):
        theirs.sendall(ANSWER)
        if is_taken:
            assert connection.receive_view(limit) == BODY
        else:
            with pytest.raises(ProtocolError, match="23 bytes, allowed are 2 to 22"):
                connection.receive_view(limit)


def test_the_whole_answer_has_its_time_and_no_byte_of_its_own() -> None:
    """One that comes byte by byte holds nobody for longer than the time-out."""
    with connected(0.2) as (connection, theirs):
        over = threading.Event()

        def drip() -> None:
            theirs.sendall(struct.pack(">i", 10_000))
            with contextlib.suppress(OSError):
                while not over.wait(0.01):
                    theirs.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with sooner_than(PATIENCE), pytest.raises(TransportError, match="did not answer"):
                connection.receive()
        finally:
            over.set()
            thread.join(PATIENCE)


def test_an_end_that_is_put_off_byte_by_byte_is_late_all_the_same() -> None:
    with connected(0.2) as (connection, theirs):
        over = threading.Event()

        def drip() -> None:
            with contextlib.suppress(OSError):
                while not over.wait(0.01):
                    theirs.sendall(b"x")

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            with sooner_than(PATIENCE), pytest.raises(TransportError, match="did not answer"):
                connection.finish()
            assert connection.fileno() == -1
        finally:
            over.set()
            thread.join(PATIENCE)


def test_a_connection_that_broke_at_once_is_none() -> None:
    with socket.socket() as sock, pytest.raises(ConnectionEnded, match=r"broke at once: .+ is not connected"):
        Connection(sock, PATIENCE)


def test_a_finish_waits_for_the_brokers_end_and_drops_what_it_says() -> None:
    with connected() as (connection, theirs):
        theirs.sendall(b"x" * 1000)
        ended = threading.Event()

        def end() -> None:
            assert theirs.recv(1) == b""
            threading.Event().wait(0.05)  # longer than a look
            ended.set()
            theirs.close()

        thread = threading.Thread(target=end)
        thread.start()
        connection.finish()
        assert ended.is_set()
        assert connection.fileno() == -1
        thread.join()
        with pytest.raises(TransportError):
            connection.finish()


def test_a_large_frame_is_sent_whole_in_parts_though_the_other_side_is_slow() -> None:
    """Each part as it is, none twice; a broker that takes nothing is given up, and the connection is torn."""
    parts = [b"head", b"", bytes(range(256)) * 20_000, bytearray(b"tail"), memoryview(b"end")]
    expected = b"".join(parts)
    with connected() as (connection, theirs):
        assert not connection.torn
        found = bytearray()
        thread = threading.Thread(
            target=lambda: [found.extend(theirs.recv(70_000)) for _ in iter(lambda: len(found) < len(expected), False)]
        )
        thread.start()
        connection.send(*parts)
        thread.join(PATIENCE)
        assert found == expected
        assert not connection.torn
    with connected(0.05) as (connection, theirs):
        with pytest.raises(TransportError, match="did not answer within"):
            connection.send(bytes(50_000_000))
        assert connection.torn


def test_errors_of_a_send_say_whether_the_connection_is_over() -> None:
    with connected() as (connection, theirs):
        reset(theirs)
        with pytest.raises(ConnectionEnded):
            for _ in range(1000):
                connection.send(b"x" * 100)
        assert connection.torn
    with connected() as (connection, theirs):
        connection.close()
        connection.close()
        for call in (lambda: connection.send(b"x"), connection.receive, connection.half_close):
            with pytest.raises(ConnectionEnded):
                call()
        connection.interrupt()
        assert connection.fileno() == -1


def test_an_interrupted_connection_ends_for_whoever_waits_on_it() -> None:
    with connected() as (connection, _):
        threading.Timer(0.02, connection.interrupt).start()
        with sooner_than(PATIENCE), pytest.raises(ConnectionEnded):
            connection.receive()
        assert connection.fileno() >= 0
        connection.interrupt()


def test_a_process_without_descriptors_is_told_and_connects_later() -> None:
    with FakeBroker() as fake:
        broker = Broker(fake.address, PATIENCE)
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
        try:
            with pytest.raises(TransportError, match="Too many open files"):
                broker.connect()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
        broker.connect().close()


@pytest.mark.parametrize("size", [30_000, 60_000])
def test_the_buffers_of_the_socket_are_those_that_were_asked_for(size: int) -> None:
    """The system doubles what it is told."""
    with FakeBroker() as fake:
        broker = Broker(fake.address, PATIENCE)
        with broker.connect(receive_buffer_bytes=size) as connection:
            assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 2 * size
            assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        with broker.connect(send_buffer_bytes=size) as connection:
            assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 2 * size


def test_addresses_are_tried_in_their_order_and_each_reason_is_named() -> None:
    with FakeBroker() as one, FakeBroker() as two, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{unused.getsockname()[1]}"
        for listed, port in ((f"{dead},{one.address}", one.port), (f"{two.address},{one.address}", two.port)):
            before = count_descriptors()
            with Broker(listed, PATIENCE).connect() as connection:
                assert connection.peer == f"127.0.0.1:{port}"
                assert connection.same_host
            wait_until("none is left", lambda n=before: count_descriptors() <= n + 1)  # type: ignore[misc]
        broker = Broker(f"{dead},no-such-host.invalid:1", PATIENCE)
        broker.hint = "a hint"
        with pytest.raises(ConnectionRefused) as caught:
            broker.connect()
        lines = str(caught.value).splitlines()
        assert lines[0] == f"cannot reach a broker at {dead}, no-such-host.invalid:1"
        assert f"{dead}: Connection refused" in lines[1]
        assert "no-such-host.invalid:1: " in lines[1]
        assert lines[2] == "a hint"
        assert caught.value.broker == f"{dead}, no-such-host.invalid:1"
        with pytest.raises(TransportError) as unknown:
            Broker("no-such-host.invalid:1", PATIENCE).connect()
        assert not isinstance(unknown.value, ConnectionRefused)


# --- metadata ---


def metadata_answer(request: rq.MetadataRequest, error: int = 0, correlation_id: int | None = None) -> bytes:
    answer = rs.MetadataAnswer(
        request.correlation_id if correlation_id is None else correlation_id,
        error, 5, "h", 1, 10**6, 10**8, 1000, rq.LOWEST_OWN, rq.HIGHEST_OWN, (),
    )  # fmt: skip
    return rs.encode_metadata(answer, request.version)


class Asked:
    """A broker that does the next of ``acts`` at each question; then it answers as it should."""

    def __init__(self, *acts: Callable[[rq.MetadataRequest], bytes | None]) -> None:
        self.acts = list(acts)
        self.versions: list[int] = []

    def __call__(self, request: rq.Request) -> bytes | None:
        assert isinstance(request, rq.MetadataRequest)
        self.versions.append(request.version)
        return self.acts.pop(0)(request) if self.acts else metadata_answer(request)


def closes(request: rq.MetadataRequest) -> bytes | None:
    raise ConnectionError


def test_a_broker_that_closes_twice_is_a_plain_one_and_is_asked_no_more() -> None:
    asked = Asked(closes, closes)
    with FakeBroker(hook=asked) as fake:
        broker = Broker(fake.address, PATIENCE)
        assert broker.metadata_or_none() is None
        assert broker.metadata_or_none() is None
        assert len(asked.versions) == 2


def test_a_broker_that_closes_once_is_asked_again() -> None:
    asked = Asked(closes)
    with FakeBroker(hook=asked) as fake:
        answer = Broker(fake.address, PATIENCE).metadata_or_none()
        assert answer is not None
        assert answer.broker_id == 5


@pytest.mark.parametrize("how", ["reset", "half"])
def test_a_connection_that_breaks_in_another_way_than_kafka_07_ends_one_says_nothing_of_the_broker(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(connection_module, "pause", lambda seconds, waiting: pauses.append(seconds))
    with FakeBroker(hook=Asked()) as fake, BreakingProxy([fake.port], [how] * 5) as proxy:
        broker = Broker(proxy.address, PATIENCE)
        with pytest.raises(ConnectionEnded):
            broker.metadata_or_none()
        assert (proxy.connections, pauses, broker.is_plain) == (3, [0.1, 0.1], False)
        assert broker.metadata_or_none() is not None
        assert proxy.connections == 6


def test_what_was_taken_for_a_plain_broker_is_asked_once_more_after_each_new_connection() -> None:
    """Through a proxy that closes what it cannot carry; a plain broker itself does the same for ever."""
    with FakeBroker(hook=Asked()) as fake, BreakingProxy([fake.port], ["closed"] * 2) as proxy:
        broker = Broker(proxy.address, PATIENCE)
        assert broker.metadata_or_none() is None
        assert broker.metadata_or_none() is None
        assert (proxy.connections, broker.is_plain) == (2, True)
        proxy.breaks = []
        connect_and_ask(broker)
        assert not broker.is_plain
        proxy.breaks = ["closed"]
        assert broker.metadata_or_none() is None
        assert (proxy.connections, broker.is_plain) == (4, True)
        connect_and_ask(broker)
        assert broker.metadata_or_none() is not None
        proxy.breaks = ["closed"] * 3  # what has answered is no plain one
        with pytest.raises(ConnectionEnded):
            broker.metadata_or_none()


def connect_and_ask(broker: Broker) -> None:
    """A connection of somebody else, which the server is sure to have met."""
    with broker.connect() as connection:
        assert connection.request(rq.encode_metadata(1, (), rq.METADATA_VERSION))


def test_a_broker_that_closes_at_the_second_form_of_the_question_is_no_plain_one() -> None:
    """It has answered the first."""

    def other_version(request: rq.MetadataRequest) -> bytes:
        found = rs.MetadataAnswer(request.correlation_id, UnsupportedVersionError.code, 0, "", -1, 0, 0, 0, 0, 0, ())
        return rs.encode_metadata(found, request.version)

    with FakeBroker(hook=Asked(*(other_version, closes) * 3)) as fake:
        broker = Broker(fake.address, PATIENCE)
        with pytest.raises(ConnectionEnded):
            broker.metadata_or_none()
        assert not broker.is_plain


@pytest.mark.parametrize(("times", "is_answered"), [(1, True), (2, True), (3, False)])
def test_a_broker_that_has_answered_is_no_plain_one_later(
    times: int, is_answered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three ends in a row are an error, after which it is asked again as before."""
    pauses: list[float] = []
    monkeypatch.setattr(connection_module, "pause", lambda seconds, waiting: pauses.append(seconds))
    asked = Asked()
    with FakeBroker(hook=asked) as fake:
        broker = Broker(fake.address, PATIENCE)
        assert broker.metadata_or_none() is not None
        asked.acts = [closes] * times
        if is_answered:
            assert broker.metadata_or_none() is not None
        else:
            with pytest.raises(ConnectionEnded):
                broker.metadata_or_none()
            assert broker.metadata_or_none() is not None
        assert pauses == [0.1] * min(times, 2)


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda request: metadata_answer(request, error=-1), FastlogError),
        (lambda request: metadata_answer(request, correlation_id=1), ProtocolError),
        (lambda request: struct.pack(">i", 7) + b"garbage", ProtocolError),
        (lambda request: struct.pack(">i", 65 * 2**20), ProtocolError),
        (lambda request: struct.pack(">i", -1), ProtocolError),
        (lambda request: struct.pack(">i", 20) + b"half", TransportError),
    ],
    ids=["an error", "another id", "garbage", "too large", "a negative size", "half of it"],
)
def test_after_an_answer_that_is_none_the_same_broker_is_asked_again(
    act: Callable[[rq.MetadataRequest], bytes], error: type[FastlogError]
) -> None:
    with FakeBroker(hook=Asked(act)) as fake:
        before = count_descriptors()
        broker = Broker(fake.address, 0.3)
        with pytest.raises(error):
            broker.metadata_or_none()
        broker.timeout = PATIENCE
        answer = broker.metadata_or_none()
        assert answer is not None
        wait_until("no descriptor is left", lambda: count_descriptors() <= before)


def test_an_answer_about_as_many_partitions_as_one_describes_is_taken() -> None:
    """A broker may have 131,072 of them in its answer, which is larger than any set of messages by default."""
    partitions = tuple(rs.PartitionMetadata(number, 0, 0, 0, 0, 1) for number in range(131_072))

    def answer(request: rq.MetadataRequest) -> bytes:
        topics = (rs.TopicMetadata("t", 0, len(partitions), partitions),)
        found = rs.MetadataAnswer(request.correlation_id, 0, 5, "h", 1, 10**6, 10**8, 1000, 1000, 1006, topics)
        return rs.encode_metadata(found, request.version)

    with FakeBroker(hook=Asked(answer)) as fake:
        found = Broker(fake.address, PATIENCE).metadata_or_none()
        assert found is not None
        assert found.topics[0].partitions == partitions


def test_a_broker_of_an_earlier_state_is_asked_as_it_understands() -> None:
    """The second question comes on the same connection; an error of that answer is raised."""

    def answer(request: rq.MetadataRequest) -> bytes:
        found = rs.MetadataAnswer(request.correlation_id, UnsupportedVersionError.code, 0, "", -1, 0, 0, 0, 0, 0, ())
        return rs.encode_metadata(found, request.version)

    asked = Asked(answer)
    with FakeBroker(hook=asked) as fake:
        found = Broker(fake.address, PATIENCE).metadata_or_none()
        assert found is not None
        assert found.broker_id == 5
        assert asked.versions == [rq.METADATA_VERSION, rq.OWN_VERSION]


# --- bounded backoff ---


def test_a_bounded_backoff_ends_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses double up to a second; the last one that fits the time is waited, none beyond it; success begins anew."""
    now = [1000.0]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(connection_module, "pause", pause)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    error = TransportError("away")
    backoff = BoundedBackoff(0.0625)
    backoff.failed(error)
    backoff.failed(error)
    with pytest.raises(TransportError):
        backoff.failed(error)
    assert pauses == [0.02, 0.04]
    backoff.worked()
    pauses.clear()
    backoff = BoundedBackoff(5.0)
    with pytest.raises(TransportError):
        for _ in range(100):
            backoff.failed(error)
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 1.0]
    backoff.worked()
    pauses.clear()
    backoff.failed(error)
    assert pauses == [0.02]


def test_an_address_as_it_is_shown() -> None:
    assert str(Address("::1", 9092)) == "[::1]:9092"
    assert str(Address("host", 1)) == "host:1"


def test_a_connection_at_rest_keeps_no_memory_for_many_large_answers() -> None:
    size = 2**20
    with connected() as (connection, theirs):
        tracemalloc.start()
        try:
            sender = threading.Thread(target=theirs.sendall, args=(frame(bytes(size)) * 6,))
            sender.start()
            held = [connection.receive_soon(size, PATIENCE) for _ in range(6)]
            sender.join()
            assert None not in held
            held.clear()
            before = tracemalloc.get_traced_memory()[0]
            connection.rest()
            freed = before - tracemalloc.get_traced_memory()[0]
            assert freed >= 4 * size - 2**16  # a tracer of lines, where there is one, keeps some of its own meanwhile
        finally:
            tracemalloc.stop()


def test_a_wait_that_is_given_up_leaves_no_socket_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner of the connection may end the wait with an error of its own."""
    made: list[socket.socket] = []

    class Noted(socket.socket):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            made.append(self)

    waits = itertools.count(1)

    @contextlib.contextmanager
    def waiting() -> Iterator[None]:
        if next(waits) == 2:
            raise TransportError("the producer was closed")
        yield

    with socket.create_server(("127.0.0.1", 0)) as server:
        broker = Broker([Address("127.0.0.1", server.getsockname()[1])], 5.0, waiting)
        monkeypatch.setattr(socket, "socket", Noted)
        with pytest.raises(TransportError, match="the producer was closed"):
            broker.connect()
        monkeypatch.undo()
        assert [each.fileno() for each in made] == [-1]


@pytest.mark.parametrize("is_there", [True, False], ids=["closed", "refused"])
def test_an_error_is_gone_with_its_frames(is_there: bool) -> None:
    """Without a garbage collection: what the callers hold, as sockets, is freed when the error has been handled."""

    class Held:
        pass

    def fail(held: Held) -> None:
        with pytest.raises(TransportError):
            if is_there:
                connection.receive()
            else:
                Broker([Address("127.0.0.1", 1)], PATIENCE).connect()

    with connected() as (connection, theirs):
        theirs.close()
        gc.disable()
        try:
            held = Held()
            gone = weakref.ref(held)
            fail(held)
            del held
            assert gone() is None
        finally:
            gc.enable()


def test_whoever_takes_a_frame_bit_by_bit_is_not_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time for a send begins anew with each part that went out: here each look at the clock takes most of it."""
    moments = itertools.count(step=0.6 * PATIENCE)
    with connected() as (connection, theirs):
        data = bytes(16 * 2**20)

        def take() -> None:
            left = len(data)
            while left:
                time.sleep(0.005)
                left -= len(theirs.recv(2**20))

        taking = threading.Thread(target=take, daemon=True)
        taking.start()
        patch_time(monkeypatch, connection_module, monotonic=lambda: next(moments))
        connection.send(data)
        taking.join(PATIENCE)
        assert not taking.is_alive()
