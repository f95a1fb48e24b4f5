"""A plain TCP proxy between a client and brokers: deals connections out in turn, stands still or cuts on request.

It knows nothing of the protocol. A half-close of one side reaches the other, as through any load balancer.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Sequence
from typing import Self

_PIECE_BYTES = 16 * 1024


class Proxy:
    """Listens on a port of its own while the ``with`` block lasts; each connection goes to the next target.

    ``stall_after(count)``: each connection that is open or comes later carries so many more bytes to the broker, then
    stands still, until ``go_on()``.
    """

    def __init__(self, targets: Sequence[int]) -> None:
        self.targets = list(targets)
        self.connections = 0
        """How many came."""
        self._lock = threading.Condition()
        self._left: int | None = None
        self._closed = False
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(5)
            assert not thread.is_alive()

    def stall_after(self, count: int) -> None:
        """Let ``count`` bytes more to the brokers, over all connections, then none."""
        with self._lock:
            self._left = count

    def go_on(self) -> None:
        """Carry everything again."""
        with self._lock:
            self._left = None
            self._lock.notify_all()

    def cut(self) -> None:
        """Reset the connections that are open."""
        for item in list(self._sockets):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            target = self.targets[self.connections % len(self.targets)]
            self.connections += 1
            try:
                broker = socket.create_connection(("127.0.0.1", target))
            except OSError:
                client.close()
                continue
            self._sockets += (client, broker)
            self._start(self._carry_both, client, broker)

    def _carry_both(self, client: socket.socket, broker: socket.socket) -> None:
        back = threading.Thread(target=self._carry, args=(broker, client, False), daemon=True)
        back.start()
        self._carry(client, broker, True)
        back.join()
        for item in (client, broker):
            self._sockets.remove(item)
            item.close()

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
