"""A processor's loop in a thread of the test's own process, so that a test has both ends of everything it uses."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

from fastlog.config import BrokerConfig
from fastlog.log._arena import FIRST_PROCESSOR, Arena
from fastlog.log._segments import SegmentFiles
from fastlog.workers._loop import Loop
from fastlog.workers._requests import Requests
from fastlog.workers.control import Control
from tests.harness.timing import PATIENCE


class Processor:
    """The loop of a processor as ``workers/processor.py`` wires it, in a thread of this process, without a flusher."""

    def __init__(self, directory: Path) -> None:
        self.config = BrokerConfig(
            log_dirs=(str(directory),), flush_interval_ms=10_000_000, flush_interval_messages=10**9
        )
        self.arena = Arena([str(directory)], FIRST_PROCESSOR + 1, 64, 64)
        files = SegmentFiles(self.arena, 16)
        control = Control(self.config, self.arena, FIRST_PROCESSOR, ("127.0.0.1", 0))
        requests = Requests(
            self.arena,
            files,
            FIRST_PROCESSOR,
            control,
            self.config.max_message_bytes,
            self.config.max_request_bytes,
            self.config.fetch_max_wait_ms,
            self.config.request_memory_bytes,
            False,
        )
        self.receive, self.send = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.receive.setblocking(False)
        self.signal_read, self.signal_write = os.pipe2(os.O_NONBLOCK)
        self.loop = Loop(
            self.arena,
            requests,
            files,
            control,
            FIRST_PROCESSOR,
            self.receive.fileno(),
            self.signal_read,
            [],
            self.config.idle_ms,
            100,
            None,
            None,
        )
        self.thread = threading.Thread(target=self.loop.run, args=(os.getppid(),), daemon=True)
        self.thread.start()

    def connect(self) -> socket.socket:
        """A connection that the loop serves."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.hand_over(theirs)
        ours.settimeout(PATIENCE)
        return ours

    def hand_over(self, connection: socket.socket) -> None:
        """Give the loop a socket, as the acceptor does; the caller keeps its own copy."""
        socket.send_fds(self.send, [b"c"], [connection.fileno()])

    @property
    def open_connections(self) -> int:
        """How many connections the loop has."""
        return self.arena.cell(FIRST_PROCESSOR)[3]

    def close(self) -> None:
        self.arena.set_stopping(1)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        for one in (self.receive, self.send):
            one.close()
        os.close(self.signal_read)
        os.close(self.signal_write)


def answered(connection: socket.socket, request: bytes) -> bytes:
    """The answer to one request, whole."""
    connection.sendall(request)
    data = connection.recv(65536)
    while len(data) < 4 + int.from_bytes(data[:4], "big"):
        data += connection.recv(65536)
    return data
