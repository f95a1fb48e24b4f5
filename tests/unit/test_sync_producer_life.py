"""0.7's plain producer after each error that it can meet, and its settings to the unit."""

from __future__ import annotations

import os
import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from fastlog.errors import (
    ArgumentError,
    ClosedError,
    ConfigError,
    FastlogError,
    ForkedError,
    MessageTooLargeError,
    StateError,
    TransportError,
)
from fastlog.message import deep
from fastlog.producer import SyncProducer
from fastlog.producer import sync as sync_module
from fastlog.wire import requests as rq
from tests.harness.broker import wait_until
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker, stored
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE, sooner_than


def produce(broker: FakeBroker, *expected: bytes) -> None:
    wait_until(f"{expected} came", lambda: stored(broker) == list(expected))


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda it: it.send("t", b"x" * 101), MessageTooLargeError),
        (lambda it: it.send("t", [b"x", b"x" * 101]), MessageTooLargeError),
        (lambda it: it.send("t", os.urandom(101), codec=1), MessageTooLargeError),
        (lambda it: it.send("t", "text"), ArgumentError),
        (lambda it: it.send("a/b", b"x"), FastlogError),
        (lambda it: it.send("t", b"x", -2), ConfigError),
        (lambda it: it.send("t", b"x", codec=3), ConfigError),
        (lambda it: it.multi_send([("t", 0)]), ArgumentError),
        (lambda it: it.multi_send(5), ArgumentError),
        (lambda it: it.multi_send([("t", 0, b"x"), ("t", -2, b"x")]), ConfigError),
        (lambda it: it.multi_send([("t", 0, b"x"), ("t", 0, b"x" * 101)]), MessageTooLargeError),
    ],
)
def test_what_cannot_be_sent_is_refused_whole_and_harms_nothing(call: Any, error: type[Exception]) -> None:
    with FakeBroker() as broker, SyncProducer("127.0.0.1", broker.port, max_message_bytes=100) as producer:
        for _ in range(2):
            with pytest.raises(error):
                call(producer)
        producer.send("t", b"y" * 100)
        produce(broker, b"y" * 100)
        assert broker.seen.total() == 1


@pytest.mark.parametrize(("size", "fits"), [(139, True), (140, True), (141, False)])
def test_a_compressed_set_may_be_as_large_as_a_message(size: int, fits: bool) -> None:
    """What counts is its payload: the set of one message that does not shrink, in the codec's clothes."""
    payload = os.urandom(size)
    with FakeBroker() as broker:
        from fastlog import codecs
        from fastlog._segment import pack

        limit = len(codecs.compress(codecs.SNAPPY, pack([payload]))) + (0 if fits else -1)
        with SyncProducer("127.0.0.1", broker.port, max_message_bytes=limit) as producer:
            if not fits:
                with pytest.raises(MessageTooLargeError, match=f"a compressed set of {limit + 1} bytes"):
                    producer.send("t", payload, codec=codecs.SNAPPY)
                return
            producer.send("t", payload, codec=codecs.SNAPPY)
        wait_until("it came", lambda: bool(broker.sets))
        assert [each.message.payload for each in deep(broker.sets[0])] == [payload]


@pytest.mark.parametrize("way", ["closed", "reset"])
def test_a_connection_that_broke_is_told_by_the_next_send_and_replaced_by_the_one_after(way: str) -> None:
    """Nothing is sent by the call that raises; several times in a row."""
    here = threading.local()

    class Breaking(FakeBroker):
        def serve(self, connection: socket.socket) -> None:
            here.connection = connection
            super().serve(connection)

    def hook(request: rq.Request) -> bytes | None:
        if b"last" in getattr(request, "message_set", b""):
            if way == "reset":
                here.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                here.connection.close()
            raise ConnectionError
        return None

    with Breaking(hook=hook) as broker:
        before = count_descriptors()
        producer = SyncProducer("127.0.0.1", broker.port)
        for number in range(3):
            producer.send("t", b"last")
            connection = producer._connection
            assert connection is not None
            wait_until("the end is seen", lambda c=connection: not producer._is_open(c))  # type: ignore[misc]
            with pytest.raises(TransportError, match="what was sent last may be lost"):
                producer.send("t", b"nothing")
            producer.send("t", b"%d" % number)
            produce(broker, *[b"%d" % each for each in range(number + 1)])
        producer.close()
        wait_until("no descriptor is left", lambda: count_descriptors() <= before)


def test_a_broker_that_says_something_is_no_broker_of_07() -> None:
    said = []

    def hook(request: rq.Request) -> bytes | None:
        return b"unasked" if not said and not said.append(1) else None  # type: ignore[func-returns-value]

    with FakeBroker(hook=hook) as broker, SyncProducer("127.0.0.1", broker.port) as producer:
        producer.send("t", b"0")
        connection = producer._connection
        assert connection is not None
        wait_until("it is seen", lambda: not producer._is_open(connection))
        with pytest.raises(TransportError):
            producer.send("t", b"1")
        producer.send("t", b"2")
        produce(broker, b"2")


def test_no_broker_is_tried_for_as_long_as_a_connection_may_take(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses of 1, 10, 100 ms and then whole seconds; the first that would go beyond the time is the end."""
    now, pauses = [100.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        now[0] += seconds

    monkeypatch.setattr(sync_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sync_module, "sleep", sleep)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        producer = SyncProducer("127.0.0.1", unused.getsockname()[1], connect_timeout_ms=2500)
        for _ in range(2):
            pauses.clear()
            with pytest.raises(TransportError, match="Connection refused"):
                producer.send("t", b"x")
            assert pauses == [0.001, 0.01, 0.1, 1.0, 1.0]
    producer.close()


def test_it_connects_when_the_broker_comes() -> None:
    port = unused_port()
    server: list[socket.socket] = []
    threading.Timer(0.05, lambda: server.append(socket.create_server(("127.0.0.1", port)))).start()
    producer = SyncProducer("127.0.0.1", port, connect_timeout_ms=int(PATIENCE * 1000))
    producer.send("t", b"x")
    connection, _ = server[0].accept()
    with connection, server[0]:
        connection.settimeout(PATIENCE)
        assert connection.recv(1000).endswith(b"x")
        producer._drop()
    producer.close()


@pytest.mark.parametrize(("chance", "sends"), [(1.0, [4, 4]), (0.75, [3, 3, 2])])
def test_a_connection_is_changed_after_so_many_sends(
    chance: float, sends: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_module, "random", SimpleNamespace(uniform=lambda low, high: max(low, chance)))
    counts: list[int] = []

    class Counting(FakeBroker):
        def serve(self, connection: socket.socket) -> None:
            before = self.seen.total()
            super().serve(connection)
            counts.append(self.seen.total() - before)

    with Counting() as broker:
        with SyncProducer("127.0.0.1", broker.port, reconnect_interval_sends=4) as producer:
            for number in range(8):
                producer.send("t", b"%d" % number)
        wait_until("all are over", lambda: sum(counts) == 8)
        assert counts == sends
        produce(broker, *[b"%d" % number for number in range(8)])


@pytest.mark.parametrize("chance", [0.75, 1.0])
def test_a_connection_is_changed_when_it_is_so_old(chance: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first send that comes then, behind it; not before, and not for ever without the setting."""
    now = [1000.0]
    monkeypatch.setattr(sync_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(sync_module, "random", SimpleNamespace(uniform=lambda low, high: max(low, chance)))
    with FakeBroker() as broker:
        with SyncProducer("127.0.0.1", broker.port, reconnect_time_interval_ms=1000) as producer:
            producer.send("t", b"0")
            first = producer._connection
            now[0] += chance - 0.125
            producer.send("t", b"1")
            assert producer._connection is first is not None
            now[0] += 0.125
            producer.send("t", b"2")
            assert producer._connection is None
            assert first.fileno() == -1
            producer.send("t", b"3")
            now[0] += 0.125
            producer.send("t", b"4")
            assert producer._connection is not None
        with SyncProducer(
            "127.0.0.1", broker.port, reconnect_time_interval_ms=None, reconnect_interval_sends=None
        ) as producer:
            for number in range(5, 9):
                producer.send("t", b"%d" % number)
                now[0] += 10**9
                assert producer._connection is not None
        produce(broker, *[b"%d" % number for number in range(9)])


def test_the_child_of_a_fork_lets_go_of_the_parents_connection() -> None:
    """Its calls raise ForkedError, its close() ends nothing that the parent has, and its descriptor is closed."""
    with FakeBroker() as broker, SyncProducer("127.0.0.1", broker.port) as producer:
        producer.send("t", b"before")
        connection = producer._connection
        assert connection is not None
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for call in (lambda: producer.send("t", b"child"), lambda: producer.multi_send([("t", 0, b"child")])):
                    try:
                        call()
                        os._exit(2)
                    except ForkedError:
                        pass
                producer.close()
                status = 0 if connection.fileno() == -1 else 3
                producer.close()
                if status == 0:
                    try:
                        producer.send("t", b"child")
                        os._exit(4)
                    except ForkedError:
                        pass
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        producer.send("t", b"after")
        assert producer._connection is connection
        produce(broker, b"before", b"after")


def test_a_close_waits_until_the_broker_has_handled_everything() -> None:
    """And can be repeated; whoever forgets it gets it from the collector."""
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        release.wait(PATIENCE)
        return None

    with FakeBroker(hook=hook) as broker:
        producer = SyncProducer("127.0.0.1", broker.port)
        producer.send("t", b"0")
        threading.Timer(0.05, release.set).start()
        producer.close()
        assert stored(broker) == [b"0"]
        producer.close()
        for call in (lambda: producer.send("t", b"x"), lambda: producer.multi_send([("t", 0, b"x")])):
            with pytest.raises(ClosedError):
                call()
        forgotten = SyncProducer("127.0.0.1", broker.port)
        forgotten.send("t", b"1")
        connection = forgotten._connection
        assert connection is not None
        del forgotten
        assert connection.fileno() == -1
        assert stored(broker) == [b"0", b"1"]
        SyncProducer("127.0.0.1", broker.port).close()


def test_a_close_that_the_broker_does_not_answer_says_so_and_is_over() -> None:
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        release.wait(PATIENCE)
        return None

    with FakeBroker(hook=hook) as broker:
        producer = SyncProducer("127.0.0.1", broker.port, connect_timeout_ms=50)
        producer.send("t", b"0")
        with sooner_than(PATIENCE / 2), pytest.raises(TransportError, match="did not answer"):
            producer.close()
        producer.close()
        release.set()


def test_a_signal_handler_that_sends_is_told_and_one_that_closes_waits_for_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both in the middle of a send, which goes to its end; the connection is closed behind it."""
    with FakeBroker() as broker:
        producer = SyncProducer("127.0.0.1", broker.port)
        producer.send("t", b"0")
        connection = producer._connection
        assert connection is not None
        really = connection.send
        inside: list[str] = []

        def send(frame: bytes) -> None:
            with pytest.raises(StateError):
                producer.send("t", b"handler")
            producer.close()
            inside.append("open" if connection.fileno() >= 0 else "closed")
            really(frame)

        monkeypatch.setattr(connection, "send", send)
        producer.send("t", b"1")
        assert inside == ["open"]
        assert connection.fileno() == -1
        produce(broker, b"0", b"1")
        with pytest.raises(ClosedError):
            producer.send("t", b"2")


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TransportError("late")], ids=repr)
def test_what_follows_half_a_request_goes_out_on_another_connection(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeBroker() as broker, SyncProducer("127.0.0.1", broker.port) as producer:
        producer.send("t", b"0")
        produce(broker, b"0")  # what comes by another connection may overtake it
        connection = producer._connection
        assert connection is not None
        really = connection.send

        def half(frame: bytes) -> None:
            really(frame[: len(frame) // 2])
            raise error

        monkeypatch.setattr(connection, "send", half)
        with pytest.raises(type(error)):
            producer.send("t", b"1")
        assert connection.fileno() == -1
        producer.send("t", b"2")
        produce(broker, b"0", b"2")


def test_threads_share_it_without_mixing_their_requests() -> None:
    with FakeBroker() as broker:
        with SyncProducer("127.0.0.1", broker.port, reconnect_interval_sends=7) as producer:
            threads = [
                threading.Thread(target=lambda n=n: [producer.send(f"t{n}", b"%d" % each) for each in range(30)])
                for n in range(4)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(PATIENCE)
        for n in range(4):
            wait_until("all came", lambda n=n: stored(broker, f"t{n}") == [b"%d" % each for each in range(30)])  # type: ignore[misc]


def test_settings_that_are_not_for_it() -> None:
    for fields in ({"envelope": True}, {"audit_topic": "a"}):
        with pytest.raises(ConfigError, match="payloads are sent as they are"):
            SyncProducer("h", 1, **fields)  # type: ignore[arg-type]
    for port in (0, 65536, "1"):
        with pytest.raises(FastlogError):
            SyncProducer("h", port)  # type: ignore[arg-type]
    SyncProducer("h", 65535).close()


def test_a_close_ends_a_send_that_finds_no_broker() -> None:
    """Whatever time there is left for another try."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    producer = SyncProducer("127.0.0.1", port, connect_timeout_ms=10**6, socket_timeout_ms=int(PATIENCE) * 1000)
    failures: list[FastlogError] = []

    def send() -> None:
        try:
            producer.send("t", b"x")
        except FastlogError as error:
            failures.append(error)

    sending = threading.Thread(target=send, daemon=True)
    sending.start()
    wait_until("it tries", lambda: producer._busy)
    with sooner_than(PATIENCE):
        producer.close()
    sending.join(PATIENCE)
    assert len(failures) == 1
