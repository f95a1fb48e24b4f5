"""The loop of a processor: events reach the connection they are for, or nobody."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import resource
import select
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import wait_until
from tests.harness.processor import Processor, answered
from tests.harness.timing import PATIENCE

BAD_FRAME = struct.pack(">i", -5)
QUESTION = raw.offsets_frame("nothing", 0, raw.LATEST, 1)
LONG_MS = 10_000_000
STALLS_SECONDS = 1.0
"""How long a send waits when nobody reads any more."""
HANDOFFS_PER_TURN = 64
LAST_CALL = 2.5
"""How long a stop waits for who waits."""
LARGEST_TAG = 4095
"""Of the descriptors that are no connections."""
WATCHED = re.compile(r"^tfd:\s*(\d+) events:\s*\w+ data:\s*(\w+)", re.MULTILINE)
CTL_ADD, CTL_DEL = 1, 2
_epoll_ctl = ctypes.CDLL(None, use_errno=True).epoll_ctl


class _Event(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("name", ctypes.c_uint64)]


class Epoll:
    """What the loop's epoll watches, as the kernel tells it."""

    def __init__(self, processor: Processor) -> None:
        self.fd = next(
            int(path.name)
            for path in Path("/proc/self/fdinfo").iterdir()
            if processor.receive.fileno() in (int(fd) for fd, _ in WATCHED.findall(self._told(path)))
        )

    @staticmethod
    def _told(path: Path) -> str:
        """What is told of a descriptor; nothing of one that is closed by now, as that which listed them is."""
        try:
            return path.read_text()
        except FileNotFoundError:
            return ""

    def names(self) -> set[int]:
        """The names of all connections it may report something of."""
        found = WATCHED.findall(Path(f"/proc/self/fdinfo/{self.fd}").read_text())
        return {int(name, 16) for _fd, name in found} - set(range(LARGEST_TAG + 1))

    def report(self, name: int) -> None:
        """Have it report a hang-up, once, of the connection with this name."""
        read, write = os.pipe()
        os.close(write)
        event = _Event(select.EPOLLHUP | select.EPOLLET, name)
        assert _epoll_ctl(self.fd, CTL_ADD, read, ctypes.byref(event)) == 0
        self._reported = read

    def taken(self) -> None:
        """After the loop has taken the report: remove what made it."""
        assert _epoll_ctl(self.fd, CTL_DEL, self._reported, ctypes.byref(_Event())) == 0
        os.close(self._reported)


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[Processor]:
    running = Processor(tmp_path)
    yield running
    running.close()


def test_a_closed_connection_is_out_of_epoll_though_another_process_has_its_socket(processor: Processor) -> None:
    """The acceptor closes its copy when it comes to it: until then epoll would report what the loop has freed."""
    epoll = Epoll(processor)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        processor.hand_over(theirs)
        wait_until("it is served", lambda: processor.open_connections == 1)
        assert len(epoll.names()) == 1
        ours.sendall(BAD_FRAME)
        wait_until("the loop has closed it", lambda: processor.open_connections == 0)
        ours.sendall(b"more, which nobody will read")
        with processor.connect() as other:
            assert answered(other, QUESTION)
            assert len(epoll.names()) == 1


def test_a_cell_that_begins_anew_says_nothing_of_the_one_before(processor: Processor) -> None:
    """It had two connections and waited for a disk when it died; whoever deals out new ones goes by the cell."""
    with processor.connect() as first, processor.connect() as second:
        assert answered(second, QUESTION)
        _files.arm("pwrite@1=slow:400", "test")
        first.sendall(raw.produce_frame("t", 0, raw.entry(b"x")))
        arena, number = processor.arena, processor.number
        wait_until("it writes", lambda: arena.disk_since(number))
        assert processor.open_connections == 2
        arena.clear_cell(number, 77, 99)
        assert arena.cell(number)[:4] == (77, 99, 0, 0)
        assert arena.disk_since(number) == 0
        _files.arm("", "test")


def test_an_event_of_a_connection_that_is_gone_reaches_nobody(processor: Processor) -> None:
    """Not even the one that has its descriptor and its memory now."""
    epoll = Epoll(processor)
    with processor.connect() as first:
        assert answered(first, QUESTION)
        (gone,) = epoll.names()
    wait_until("the loop has closed it", lambda: processor.open_connections == 0)
    with processor.connect() as second:
        assert answered(second, QUESTION)
        (name,) = epoll.names()
        assert name != gone
        for stale in (gone, gone + 1, 1 << 62 | name, (1 << 63) - 1):
            epoll.report(stale)
            assert answered(second, QUESTION) == answered(second, QUESTION)
            epoll.taken()
        assert processor.open_connections == 1


# -- listening sockets of its own --------------------------------------------------------------------------------------


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as made:
        made.setblocking(False)
        yield made


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    """Every number below the limit is taken."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_without_descriptors_a_listening_socket_is_left_alone_until_the_next_heartbeat(
    tmp_path: Path, listener: socket.socket
) -> None:
    """It stays readable: a loop that went on looking would do nothing else."""
    running = Processor(tmp_path, listeners=(listener.fileno(),), heartbeat_ms=LONG_MS)
    with contextlib.closing(running), running.connect() as served, socket.socket() as waiting:

        def pauses() -> int:
            return running.arena.counters(running.number)["accept_pauses"]

        assert answered(served, QUESTION)
        with no_more_descriptors():
            waiting.connect(listener.getsockname())
            wait_until("it has none for it", lambda: pauses() > 0)
            for _ in range(5):
                assert answered(served, QUESTION)
        assert pauses() == 1


def test_a_processor_that_accepts_takes_as_many_as_are_allowed(tmp_path: Path, listener: socket.socket) -> None:
    with (
        contextlib.closing(Processor(tmp_path, listeners=(listener.fileno(),), max_connections=2)) as running,
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(socket.create_connection(listener.getsockname())) for _ in range(3)]
        for client in clients[:2]:
            assert answered(client, QUESTION)
        clients[2].settimeout(PATIENCE)
        assert clients[2].recv(1) == b""
        assert running.arena.counters(running.number)["refused_connections"] == 1


# -- wake-ups and the stop ---------------------------------------------------------------------------------------------


def test_a_waker_that_dies_half_way_silences_the_next_ones_for_a_heartbeat_only(tmp_path: Path) -> None:
    """It has left its flag, and nothing in the descriptor."""
    with contextlib.closing(Processor(tmp_path, heartbeat_ms=20)) as running:
        arena, fd = running.arena, running.arena.eventfd(running.number)
        wait_until("what a predecessor left is taken", lambda: running.loop.turns > 0)
        own = os.dup(fd)
        other = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        os.dup2(other, fd)
        try:
            for _ in range(2):
                arena.wake(running.number)
                assert os.eventfd_read(other) == 1
                seen = running.loop.turns
                wait_until("heartbeats", lambda seen=seen: running.loop.turns > seen + 2)
        finally:
            os.dup2(own, fd)
            os.close(own)
            os.close(other)


def test_what_is_handed_over_at_the_stop_is_served_however_much_it_is(tmp_path: Path) -> None:
    """More than a turn takes, each of which is answered and closed at once."""
    running = Processor(tmp_path, runs=False, connection_limit=1000)
    clients = []
    for _ in range(HANDOFFS_PER_TURN + 1):
        ours, theirs = socket.socketpair()
        with theirs:
            ours.sendall(QUESTION)
            running.hand_over(theirs)
        clients.append(ours)
    running.arena.set_stopping(1)
    assert running.loop.run(os.getppid()) == 0
    running.close()
    for client in clients:
        with client:
            assert client.recv(100)


@pytest.mark.slow
@pytest.mark.parametrize("question", [QUESTION, today.request(today.API_VERSIONS, 0, {})], ids=["0.7", "today"])
def test_connections_that_are_left_open_are_closed_when_their_processor_is_garbage(
    tmp_path: Path, question: bytes
) -> None:
    """Part of a cycle, as what a traceback keeps is; its protocols are there until each connection was closed."""
    running = Processor(tmp_path)
    with running.connect() as client:
        client.settimeout(STALLS_SECONDS)
        with pytest.raises(TimeoutError):
            while True:
                client.sendall(question * 100)
        running.close()
        assert running.loop.held["connections"] == 1, "its client takes no answers"
        garbage: list[object] = [running.__dict__.pop("loop")]
        garbage.append(garbage)
        del running, garbage
        gc.collect()
        client.settimeout(PATIENCE)
        with contextlib.suppress(ConnectionResetError):
            while client.recv(1 << 16):
                pass


def test_a_stop_waits_for_who_waits_and_longer_where_a_disk_stalls(tmp_path: Path) -> None:
    """No longer than that, though no heartbeat ends it."""
    with contextlib.closing(Processor(tmp_path, heartbeat_ms=LONG_MS)) as running, running.connect() as client:
        client.sendall(raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("t", 0, raw.entry(b"x"), raw.FLUSHED)))
        wait_until("it is appended", lambda: running.arena.counters(running.number)["appends"] == 1)
        begun = time.monotonic()
        running.arena.set_stalled(time.monotonic_ns() + 300_000_000)
        running.arena.set_stopping(1)
        running.thread.join(PATIENCE)
        assert running.results == [0]
        assert time.monotonic() - begun >= LAST_CALL + 0.3
