"""A processor's loop in a thread of the test's own process, so that a test has both ends of everything it uses."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.workers._engine import Engine
from fastlog.workers._forward import Forward
from fastlog.workers.authorization import Rule
from fastlog.workers.kafka._first_request import FirstRequest
from fastlog.workers.kafka._machine import Kafka
from fastlog.workers.kafka.control import Control as KafkaControl
from fastlog.workers.kafka07._machine import Kafka07
from fastlog.workers.kafka07.control import Control
from fastlog.workers.net._helper import Helper
from fastlog.workers.net._loop import Loop
from fastlog.workers.net._protocol import Protocol
from fastlog.workers.net.handover import HandOver
from fastlog.workers.services import Services
from tests.harness.timing import PATIENCE

LOOPBACK = ("127.0.0.1", 0)
CLUSTER_ID = "abcdefghijklmnopqrstuv"
NOBODY_FLUSHES = {"flush_interval_ms": 10_000_000, "flush_interval_messages": 10**9}


class Processor:
    """The loop of a processor as ``workers/processor.py`` wires it, in a thread of this process, without a flusher.

    Listeners speak what the first request of a connection says; those behind ``advertised`` speak what ``more`` makes,
    and the last one what ``forwarding`` does; then ``coordinator`` is the other end of the socket pair to the
    coordinator. Without ``runs`` nobody runs the loop but the test; one that ``is_alone`` asks no other process.
    ``settings`` are fields of ``BrokerConfig``; processors that share an arena have different numbers.
    """

    def __init__(
        self,
        directory: Path,
        *,
        arena: Arena | None = None,
        number: int = FIRST_PROCESSOR,
        heartbeat_ms: int = 250,
        retry_ms: int = 5,
        connection_limit: int = 100,
        stalled_ms: int = 10_000,
        listeners: tuple[int, ...] = (),
        rule: Rule | None = None,
        advertised: Sequence[tuple[str, int]] = (LOOPBACK,),
        more: Sequence[Callable[[Engine], Protocol]] = (),
        forwarding: Callable[[Forward], Protocol] | None = None,
        runs: bool = True,
        is_alone: bool = False,
        **settings: Any,
    ) -> None:
        self.config = BrokerConfig(log_dirs=(str(directory),), **(NOBODY_FLUSHES | settings))
        self.arena = arena or Arena([str(directory)], FIRST_PROCESSOR + 1, 64, 64)
        self.number = number
        files = SegmentFiles(self.arena, 16)
        helper = Helper(self.arena, files)
        services = Services(self.config, self.arena, number, rule)
        engine = Engine(self.arena, files, helper, number, services)
        kafka07 = Kafka07(
            engine,
            Control(self.config, self.arena, services, advertised),
            self.config.max_message_bytes,
            self.config.max_request_bytes,
            self.config.fetch_max_wait_ms,
        )
        self.coordinator, self.forward = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (self.coordinator, self.forward):
            one.setblocking(False)
        forward = Forward(self.arena, number, self.forward.fileno())
        kafka = Kafka(
            engine,
            forward,
            KafkaControl(self.config, self.arena, services, advertised, CLUSTER_ID),
            self.config.max_request_bytes,
        )
        first = FirstRequest(engine, kafka07, kafka)
        last = [] if forwarding is None else [forwarding(forward)]
        self.receive, self.send = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.receive.setblocking(False)
        self.signal_read, self.signal_write = os.pipe2(os.O_NONBLOCK)
        self.loop = Loop(
            self.arena,
            helper,
            files,
            engine.slot_waits,
            [*[first] * len(advertised), *(make(engine) for make in more), *last],
            number,
            self.receive.fileno(),
            self.signal_read,
            listeners,
            self.config.idle_ms,
            connection_limit,
            self.config.send_buffer_bytes,
            self.config.receive_buffer_bytes,
            self.config.request_memory_bytes,
            self.config.max_connections,
            heartbeat_ms,
            retry_ms,
            stalled_ms,
            remote=None if is_alone else forward,
        )
        self.results: list[int] = []
        self.thread = threading.Thread(target=self._run if runs else lambda: None, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.results.append(self.loop.run(os.getppid()))

    def connect(self) -> socket.socket:
        """Open a connection that the loop serves."""
        ours, theirs = socket.socketpair()
        with theirs:
            self.hand_over(theirs)
        ours.settimeout(PATIENCE)
        return ours

    def hand_over(self, connection: socket.socket) -> None:
        """Give the loop a socket, as the acceptor does; the caller keeps its own copy."""
        try:
            peer = connection.getpeername()
        except OSError:  # it is gone already
            peer = ""
        self.send_record(connection, HandOver.accepted(0, peer))

    def send_record(self, connection: socket.socket, record: HandOver) -> None:
        """Hand a connection over with this record."""
        socket.send_fds(self.send, [record.pack()], [connection.fileno()])

    @property
    def open_connections(self) -> int:
        """How many connections the loop serves now."""
        return self.arena.cell(self.number)[3]

    def close(self) -> None:
        """Stop and wait for the end; may be called twice."""
        if self.receive.fileno() < 0:
            return
        self.arena.set_stopping(1)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        for one in (self.receive, self.send, self.coordinator, self.forward):
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
