"""The loop of a processor: events reach the connection they are for, or nobody."""

from __future__ import annotations

import ctypes
import os
import re
import select
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from fastlog.log import _files
from tests.harness import raw_client as raw
from tests.harness.broker import wait_until
from tests.harness.processor import Processor, answered

BAD_FRAME = struct.pack(">i", -5)
QUESTION = raw.offsets_frame("nothing", 0, raw.LATEST, 1)
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
