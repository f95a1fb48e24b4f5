"""A plain TCP proxy between a client and brokers: deals connections out in turn, stands still or cuts on request.

It knows nothing of the protocol. A half-close of one side reaches the other, as through any load balancer.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Self

from tests.harness.server import Server

_PIECE_BYTES = 16 * 1024


class Proxy(Server):
    """Listens on a port of its own while the ``with`` block lasts; each connection goes to the next target.

    ``stall_after(count)``: each connection that is open or comes later carries so many more bytes to the broker, then
    stands still, until ``go_on()``. ``receive_buffer_bytes``: about so many more bytes than that leave a client.
    """

    def __init__(self, targets: Sequence[int], receive_buffer_bytes: int | None = None) -> None:
        super().__init__()
        self.targets = list(targets)
        self._receive_buffer_bytes = receive_buffer_bytes
        self.connections = 0
        """How many connections were made so far."""
        self._lock = threading.Condition()
        self._left: int | None = None
        self._closed = False

    def __enter__(self) -> Self:
        super().__enter__()
        if self._receive_buffer_bytes is not None:  # connections have what the listener has
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer_bytes)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        super().__exit__()

    def stall_after(self, count: int) -> None:
        """Let ``count`` bytes more to the brokers, over all connections, then none."""
        with self._lock:
            self._left = count

    def go_on(self) -> None:
        """Let stalled connections, and new ones, carry everything again."""
        with self._lock:
            self._left = None
            self._lock.notify_all()

    def serve(self, connection: socket.socket) -> None:
        """Carry both ways between the client and the broker whose turn it is."""
        with self._lock:
            target = self.targets[self.connections % len(self.targets)]
            self.connections += 1
        with socket.create_connection(("127.0.0.1", target)) as broker:
            self.opened(broker)
            back = threading.Thread(target=self._carry, args=(broker, connection, False), daemon=True)
            back.start()
            self._carry(connection, broker, True)
            back.join()
            self._sockets.remove(broker)

    def _carry(self, source: socket.socket, target: socket.socket, to_broker: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_PIECE_BYTES):
                view = memoryview(data)
                while view:
                    count = self._allowed(len(view)) if to_broker else len(view)
                    if not count:
                        return
                    target.sendall(view[:count])
                    view = view[count:]
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def _allowed(self, wanted: int) -> int:
        """How many bytes may go now; waits while none may; 0 at the end."""
        with self._lock:
            self._lock.wait_for(lambda: self._closed or self._left is None or self._left > 0)
            if self._closed:
                return 0
            if self._left is None:
                return wanted
            count = min(wanted, self._left)
            self._left -= count
            return count


class BreakingProxy(Proxy):
    """Breaks the next connections off, each as the next of ``breaks`` says, once it has carried a request.

    ``reset``; ``closed``, in order, and without a byte of an answer; or ``half``, in order, in the midst of the answer.
    """

    def __init__(self, targets: Sequence[int], breaks: Sequence[str]) -> None:
        super().__init__(targets)
        self.breaks = list(breaks)

    def serve(self, connection: socket.socket) -> None:
        """Carry bytes in both directions, or break the connection off as asked."""
        if not self.breaks:
            super().serve(connection)
            return
        how = self.breaks.pop(0)
        self.connections += 1
        request = connection.recv(_PIECE_BYTES)
        if how == "half":
            with socket.create_connection(("127.0.0.1", self.targets[0])) as broker:
                broker.sendall(request)
                connection.sendall(broker.recv(_PIECE_BYTES)[:6])
        elif how == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
