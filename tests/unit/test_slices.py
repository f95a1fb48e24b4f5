"""R-1: a signal is not overlooked that comes before a call blocks, which is when it does not interrupt the call."""

from __future__ import annotations

import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from fastlog.client import slices
from fastlog.client.connection import Broker, Connection, pause
from fastlog.client.slices import sleep, slice_of, wait_ready
from fastlog.errors import TransportError
from fastlog.producer.waiting import LocklessCondition, OneShotEvent
from tests.harness.timing import sooner_than

LONG = 60.0


def receive_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sock = socket.create_connection(listener.getsockname())
        with Connection(sock, LONG) as connection:
            connection.receive()


def connect_to_nobody() -> None:
    """A full backlog neither takes nor refuses."""
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for stuffing in (first, second):
            stuffing.setblocking(False)
            stuffing.connect_ex(listener.getsockname())
        Broker(f"127.0.0.1:{listener.getsockname()[1]}", LONG).connect()


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        lambda: OneShotEvent().wait(),
        lambda: OneShotEvent().wait(LONG),
        lambda: LocklessCondition().wait_for(lambda: False),
        lambda: pause(LONG),
        receive_nothing,
        connect_to_nobody,
    ],
    ids=["event", "event with a limit", "condition", "pause", "receive", "connect"],
)
def test_a_signal_that_interrupts_nothing_is_still_seen(call: Callable[[], object]) -> None:
    """Another thread takes the signal from the system; the main one, which is blocked, has to handle it."""

    def take_it() -> None:
        time.sleep(0.05)
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)

    thread = threading.Thread(target=take_it)
    with sooner_than(LONG / 2), pytest.raises(KeyboardInterrupt):
        thread.start()  # from here on, for the signal may come before the call
        call()
    thread.join()


def test_only_the_main_thread_wakes_up_in_between() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.extend((slice_of(LONG), slice_of(-1.0))))
    thread.start()
    thread.join()
    assert found == [LONG, -1.0]
    assert 0 < slice_of(-1.0) == slice_of(LONG) < 0.2
    assert slice_of(0.01) == 0.01


@pytest.mark.slow
def test_slices_add_up() -> None:
    """The whole time is waited, and no further slice."""
    left, right = socket.socketpair()
    with left, right:
        for call in (
            lambda: wait_ready(left, select.POLLIN, 0.25),
            lambda: OneShotEvent().wait(0.25),
            lambda: sleep(0.25),
        ):
            started = time.monotonic()
            assert not call()
            assert time.monotonic() - started > 0.24
        right.send(b"x")
        assert wait_ready(left, select.POLLIN, 0.25)


def test_a_wait_is_of_its_whole_time_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """``poll`` takes milliseconds."""
    waited: list[float] = []
    poll = SimpleNamespace(register=lambda *_: None, poll=waited.append)
    monkeypatch.setattr(slices, "select", SimpleNamespace(poll=lambda: poll))
    monkeypatch.setattr(slices, "time", SimpleNamespace(monotonic=lambda: 0.0))
    left, right = socket.socketpair()
    with left, right:
        assert not wait_ready(left, select.POLLIN, 0.03125)
    assert waited == [31.25]


def test_a_refused_connection_says_why() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(TransportError, match="Connection refused"):
            Broker(f"127.0.0.1:{unused.getsockname()[1]}", 1).connect()
