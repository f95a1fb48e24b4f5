"""A proxy that loses what it can between clients and a broker of today's protocol, at random and from a seed.

It knows frames and no more: it ends connections before a request, in the middle of one, and instead of an answer; it
delays; and it has some connections doubled, so that the broker gets all of their requests twice, at the same time.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from tests.harness.server import Server

DROP, CUT, LOSE, DELAY = "dropped", "cut", "lost", "delayed"
DOUBLE = "doubled"
LONGEST_DELAY = 0.02


class LossyProxy(Server):
    """Listens while the ``with`` block lasts; ``port_of`` says where the broker is. ``faults`` counts what it did."""

    def __init__(self, port_of: Callable[[], int], *, rate: float = 0.01, seed: int = 1) -> None:
        """``rate``: how probable a fault of one kind is for one request; it may be changed."""
        super().__init__()
        self.faults: Counter[str] = Counter()
        self._port_of = port_of
        self.rate = rate
        self._source = random.Random(seed)
        self._lock = threading.Lock()

    def _happens(self, kind: str, probability: float) -> bool:
        with self._lock:
            found = self._source.random() < probability
            self.faults[kind] += found
            return found

    def serve(self, connection: socket.socket) -> None:
        """Carry one connection's frames, until either side or chance ends it."""
        with contextlib.ExitStack() as stack:
            brokers = []
            for _ in range(2 if self._happens(DOUBLE, 0.2) else 1):
                broker = stack.enter_context(socket.create_connection(("127.0.0.1", self._port_of())))
                brokers.append(self.opened(broker))
                stack.callback(self._sockets.remove, broker)
            carriers = [
                threading.Thread(target=self._answers, args=(broker, connection if not number else None), daemon=True)
                for number, broker in enumerate(brokers)
            ]
            for carrier in carriers:
                carrier.start()
            with contextlib.suppress(OSError, EOFError):
                self._requests(connection, brokers)
            for one in [connection, *brokers]:
                _end(one)
            for carrier in carriers:
                carrier.join()

    def _requests(self, connection: socket.socket, brokers: list[socket.socket]) -> None:
        while True:
            frame = _frame(connection)
            if self._happens(DELAY, self.rate):
                time.sleep(self._source.random() * LONGEST_DELAY)
            if self._happens(DROP, self.rate):
                return
            if self._happens(CUT, self.rate):
                brokers[0].sendall(frame[: len(frame) // 2])
                return
            # the copy first or last, so that each is the original now and then
            for broker in brokers if len(frame) % 2 else reversed(brokers):
                broker.sendall(frame)

    def _answers(self, broker: socket.socket, connection: socket.socket | None) -> None:
        """Carry answers back; those to a copy are for nobody."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                frame = _frame(broker)
                if connection is None:
                    continue
                if self._happens(LOSE, self.rate):
                    break
                connection.sendall(frame)
        if connection is not None:
            _end(connection)


def _frame(connection: socket.socket) -> bytes:
    size = _exactly(connection, 4)
    return size + _exactly(connection, int.from_bytes(size, "big"))


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = connection.recv(count - len(data))
        if not piece:
            raise EOFError
        data += piece
    return bytes(data)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
