"""The life of a simple consumer: connections that break, interrupts, close from anywhere, forks, threads."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog._segment import pack
from fastlog.client.addresses import Address
from fastlog.client.connection import Broker
from fastlog.consumer.simple import LATEST, SimpleConsumer
from fastlog.errors import (
    ClosedError,
    ForkedError,
    NotAuthorizedError,
    ProtocolError,
    TransportError,
)
from fastlog.wire import requests as rq
from fastlog.wire import responses as rs
from tests.harness import wire07
from tests.harness.consumers import PAYLOADS, consumer_of, with_log
from tests.harness.descriptors import count_descriptors
from tests.harness.fake_broker import FakeBroker
from tests.harness.proxy import BreakingProxy
from tests.harness.reading import wait_until
from tests.harness.timing import PATIENCE, sooner_than

# -- connections -----------------------------------------------------------------------------------------------------


def test_a_broken_connection_is_made_again_once(own: bool) -> None:
    deaths = 1

    def hook(request: rq.Request) -> bytes | None:
        nonlocal deaths
        if isinstance(request, wire07.FetchRequest | wire07.HeldFetchRequest | rq.OffsetsRequest) and deaths:
            deaths -= 1
            raise ConnectionError
        return None

    with with_log(pack(PAYLOADS), own=own, hook=hook) as fake, consumer_of(fake, local="off") as consumer:
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        deaths = 1
        assert consumer.get_offsets_before("t", 0, LATEST) == [len(fake.logs["t", 0])]
        deaths = 1
        assert len(list(consumer.messages("t", 0, fetch_bytes=200))) == len(PAYLOADS)
        for number in (2, 100):
            deaths = number
            with pytest.raises(TransportError, match="closed the connection"):
                consumer.fetch("t", 0, 0)
        deaths = 0
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS


def test_nobody_there_names_every_address_and_reason() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with SimpleConsumer("127.0.0.1", port, timeout=2) as consumer:
        for call in (
            lambda: consumer.fetch("t", 0, 0),
            lambda: consumer.get_offsets_before("t", 0, LATEST),
            lambda: next(consumer.messages("t", 0)),
            lambda: consumer.multifetch([("t", 0, 0)]),
            lambda: consumer.metadata(),
        ):
            with pytest.raises(TransportError, match=f"127.0.0.1:{port}: Connection refused"):
                call()
    broker = Broker([Address("127.0.0.1", port), Address("no-such-host.invalid", 1), Address("a" * 70, 1)], 5)
    with pytest.raises(TransportError) as caught:
        broker.connect()
    for part in (f"127.0.0.1:{port}: ", "no-such-host.invalid:1: ", f"{'a' * 70}:1: ", "fastlog-broker"):
        assert part in str(caught.value)


def test_silence_is_a_time_out_that_names_the_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with (
            SimpleConsumer("127.0.0.1", port, timeout=0.1) as consumer,
            pytest.raises(TransportError, match=rf"127.0.0.1:{port} did not answer within 0.1 s"),
        ):
            consumer.get_offsets_before("t", 0, LATEST)


def test_an_interrupt_ends_a_call_at_once() -> None:
    """SIGINT while waiting for an answer or inside an iteration; the next call works on a fresh connection."""
    release = threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.OffsetsRequest | wire07.HeldFetchRequest):
            release.wait(60)
        return None

    with with_log(pack([b"a"]), hook=hook) as fake, consumer_of(fake, timeout=60, local="off") as consumer:
        for call in (
            lambda: consumer.get_offsets_before("t", 0, LATEST),
            lambda: consumer.fetch("t", 0, 0, wait=50),
            lambda: next(consumer.messages("t", 0, 0, wait=None)),
        ):
            timer = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))
            with sooner_than(50), pytest.raises(KeyboardInterrupt):
                timer.start()
                call()
            timer.join()
        release.set()
        fake.hook = None
        assert consumer.fetch("t", 0, 0).payloads() == [b"a"]


# -- life ------------------------------------------------------------------------------------------------------------


def test_every_call_on_a_closed_consumer_says_so() -> None:
    with with_log(pack(PAYLOADS)) as fake:
        consumer = consumer_of(fake, fetch_bytes=100, local="off")
        running = consumer.messages("t", 0)
        next(running)
        consumer.fetch("t", 0, 0)
        consumer.close()
        consumer.close()
        for call in (
            lambda: consumer.fetch("t", 0, 0),
            lambda: consumer.fetch_numpy("t", 0, 0),
            lambda: consumer.fetch_arrow("t", 0, 0),
            lambda: consumer.multifetch([("t", 0, 0)]),
            lambda: consumer.multifetch([]),
            lambda: consumer.get_offsets_before("t", 0, LATEST),
            lambda: consumer.metadata(),
            lambda: next(consumer.messages("t", 0)),
            lambda: next(consumer.batches("t", 0)),
            lambda: next(consumer.numpy_batches("t", 0)),
            lambda: consumer.__enter__(),
            lambda: list(running),
        ):
            with pytest.raises(ClosedError, match="SimpleConsumer is closed"):
                call()
        assert "closed" in repr(consumer)


@pytest.mark.parametrize("how", ["another thread", "a signal handler"])
def test_close_ends_a_call_that_waits(how: str) -> None:
    """Also when the closing code interrupts the very thread that holds the consumer's lock."""
    arrived, release = threading.Event(), threading.Event()

    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            arrived.set()
            release.wait(60)
        return None

    with with_log(b"", hook=hook) as fake:
        consumer = consumer_of(fake, timeout=60, local="off")
        before = signal.signal(signal.SIGUSR1, lambda *_: consumer.close())

        def close() -> None:
            arrived.wait(PATIENCE)
            if how == "another thread":
                consumer.close()
            else:
                os.kill(os.getpid(), signal.SIGUSR1)

        thread = threading.Thread(target=close)
        thread.start()
        try:
            with sooner_than(50), pytest.raises(ClosedError):
                consumer.fetch("t", 0, 0, wait=55)
        finally:
            signal.signal(signal.SIGUSR1, before)
            release.set()
            thread.join()


def test_no_descriptor_is_left(own: bool) -> None:
    """Neither by close, nor by letting go of consumer and iterations without it."""

    def sockets() -> int:
        return sum("socket:" in _target(fd) for fd in Path("/proc/self/fd").iterdir())

    with with_log(pack(PAYLOADS), own=own) as fake:
        gc.collect()
        connections = len(fake._sockets)
        base = sockets() - connections
        for tidy in (True, False):
            consumer = consumer_of(fake, fetch_bytes=100)
            consumer.fetch("t", 0, 0)
            found = consumer.messages("t", 0)
            next(found)
            if tidy:
                consumer.close()
            del consumer, found
            gc.collect()
            deadline = time.monotonic() + 5
            while (held := sockets() - sum(c.fileno() >= 0 for c in fake._sockets)) != base:
                assert time.monotonic() < deadline, (held, base)
                time.sleep(0.01)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""  # the descriptor that the listing itself had


def test_a_forked_child_is_told_and_leaves_the_parent_alone(own: bool) -> None:
    with with_log(pack(PAYLOADS), own=own) as fake, consumer_of(fake) as consumer:
        consumer.fetch("t", 0, 0)
        running = consumer.messages("t", 0, fetch_bytes=100)
        next(running)

        def in_child() -> list[str]:
            said = []
            for call in (lambda: consumer.fetch("t", 0, 0), lambda: list(running), consumer.metadata):
                try:
                    call()
                    said.append("no error")
                except ForkedError:
                    said.append("forked")
            consumer.close()
            return said

        assert run_in_child(in_child) == "['forked', 'forked', 'forked']"
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        assert len(list(running)) == len(PAYLOADS) - 1


def test_a_child_that_closes_it_leaves_the_parents_connection(own: bool) -> None:
    """It is the same one afterwards; a new one would hide that it was cut. The child does not keep it open either."""

    def left() -> int:
        before = count_descriptors()
        consumer.close()
        return before - count_descriptors()

    with with_log(pack(PAYLOADS), own=own) as fake, consumer_of(fake, local="off") as consumer:
        consumer.fetch("t", 0, 0)
        (before,) = _settled(fake)
        assert run_in_child(left) == "1"
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        assert _settled(fake) == [before]


def _settled(fake: FakeBroker) -> list[socket.socket]:
    """The broker's connections once there is one: another on which it was asked what it offers is over soon."""
    wait_until(lambda: len(fake._sockets) == 1)
    return list(fake._sockets)


def run_in_child(call: Callable[[], object]) -> str:
    """What the call returns in a forked child, as text."""
    receive, send = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.write(send, repr(call()).encode())
            code = 0
        finally:
            os._exit(code)
    os.close(send)
    with open(receive, "rb") as answer:  # noqa: PTH123 - a descriptor has no path
        text = answer.read().decode()
    assert os.waitpid(pid, 0)[1] == 0
    return text


def test_threads_share_one_consumer() -> None:
    """Answers reach the thread that asked, however the calls of many threads mix."""
    with FakeBroker() as fake:
        for number in range(8):
            fake.logs["t", number] = pack([b"%d" % number] * 50)
        failures: list[BaseException] = []
        with consumer_of(fake, local="off") as consumer:

            def work(number: int) -> None:
                try:
                    for turn in range(20):
                        if turn % 5 == 0:
                            end = len(fake.logs["t", number])
                            assert consumer.get_offsets_before("t", number, LATEST) == [end]
                        assert set(consumer.fetch("t", number, 0).payloads()) == {b"%d" % number}
                except BaseException as error:
                    failures.append(error)

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        assert failures == []


def test_an_answer_to_something_else_is_noticed() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.HeldFetchRequest):
            return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id + 1, 0, 0, 0))
        return None

    with with_log(pack([b"a"]), hook=hook) as fake, consumer_of(fake, local="off") as consumer:
        with pytest.raises(ProtocolError, match="says it is for"):
            consumer.fetch("t", 0, 0)
        fake.hook = None
        assert consumer.fetch("t", 0, 0).payloads() == [b"a"]


def test_refusals_of_one_request_do_not_break_the_connection() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.LocalReadRequest):
            return rs.encode_own_error(request.correlation_id, NotAuthorizedError.code)
        return None

    with with_log(pack([b"a"]), hook=hook) as fake, consumer_of(fake) as consumer:
        assert consumer.fetch("t", 0, 0).payloads() == [b"a"]
        source, reason = consumer.source_of("t", 0)
        assert source == "socket"
        assert "principal" in reason


def test_a_broker_behind_a_proxy_that_breaks_off_is_not_taken_for_one_of_kafka_07_for_ever() -> None:
    """Neither what the consumer knows of topics nor how it reads stays as it was in the first minute."""
    with (
        with_log(pack(PAYLOADS)) as fake,
        BreakingProxy([fake.port], ["closed"] * 3) as proxy,
        SimpleConsumer("127.0.0.1", proxy.port, timeout=PATIENCE, local="off") as consumer,
    ):
        assert consumer.metadata() is None
        assert proxy.breaks == ["closed"]
        proxy.breaks = []
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS  # as of a plain broker, on a new connection
        assert fake.seen["HeldFetchRequest"] == 0
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        assert fake.seen["HeldFetchRequest"] == 1
        asked = fake.seen["MetadataRequest"]
        assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        assert (fake.seen["HeldFetchRequest"], fake.seen["MetadataRequest"]) == (2, asked)


def test_a_plain_broker_is_asked_once_in_an_iteration_and_not_by_calls_on_the_same_connection() -> None:
    with with_log(pack(PAYLOADS), own=False) as fake, consumer_of(fake, local="off") as consumer:
        asked = []
        for _ in range(3):
            assert list(consumer.payloads("t", 0)) == PAYLOADS
            asked.append(fake.seen["MetadataRequest"])
        assert [later - sooner for sooner, later in itertools.pairwise(asked)] == [1, 1]
        for _ in range(5):
            assert consumer.fetch("t", 0, 0).payloads() == PAYLOADS
        assert fake.seen["MetadataRequest"] == asked[-1]


def test_what_comes_unasked_is_not_taken_for_the_next_answer() -> None:
    """0.7's answers say nothing of what they answer: one too many would move all that follow by one."""

    def twice(request: rq.Request) -> bytes | None:
        if isinstance(request, wire07.FetchRequest) and request.offset == 0:
            return 2 * wire07.encode_fetch(0, pack([b"first"]))
        return None

    entry = len(pack([b"first"]))
    with with_log(pack([b"first", b"later"]), own=False, hook=twice) as fake, consumer_of(fake) as consumer:
        for _ in range(3):
            assert consumer.fetch("t", 0, 0).payloads() == [b"first"]
            assert consumer.fetch("t", 0, entry).payloads() == [b"later"]


@pytest.mark.parametrize("offsets", [[7, 5], [-1]])
def test_offsets_that_were_not_asked_for_are_refused(offsets: list[int]) -> None:
    def hook(request: rq.Request) -> bytes | None:
        return rs.encode_offsets(0, offsets) if isinstance(request, rq.OffsetsRequest) else None

    with with_log(b"", hook=hook) as fake, consumer_of(fake) as consumer:
        with pytest.raises(ProtocolError, match="1 offsets were asked for"):
            consumer.get_offsets_before("t", 0, LATEST)
        with pytest.raises(ProtocolError):
            next(consumer.messages("t", 0))


def test_bytes_beyond_the_largest_offset_are_refused(own: bool) -> None:
    last = 2**63 - 1

    def hook(request: rq.Request) -> bytes | None:
        match request:
            case wire07.FetchRequest():
                return wire07.encode_fetch(0, pack([b"a"]))
            case wire07.HeldFetchRequest():
                return wire07.encode_held_fetch(rs.HeldFetchAnswer(request.correlation_id, 0, last, 0, pack([b"a"])))
            case wire07.MultiFetchRequest():
                return wire07.encode_multifetch([wire07.FetchAnswer(0, pack([b"a"]))])
        return None

    with with_log(b"", own=own, hook=hook) as fake, consumer_of(fake) as consumer:
        for call in (
            lambda: consumer.fetch("t", 0, last),
            lambda: next(consumer.messages("t", 0, last)),
            lambda: consumer.multifetch([("t", 0, last)]),
        ):
            with pytest.raises(ProtocolError, match="where no log goes on"):
                call()


def test_metadata_for_somebody_else_is_refused() -> None:
    def hook(request: rq.Request) -> bytes | None:
        if isinstance(request, rq.MetadataRequest):
            return rs.encode_metadata(rs.MetadataAnswer(request.correlation_id + 1, 0))
        return None

    with with_log(b"", hook=hook) as fake, consumer_of(fake) as consumer:
        with pytest.raises(ProtocolError, match="is answered as"):
            consumer.metadata()
        with pytest.raises(ProtocolError, match="is answered as"):
            consumer.fetch("t", 0, 0)
