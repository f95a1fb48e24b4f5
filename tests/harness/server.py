"""What test servers have in common: a port of their own, a thread for each connection, an end without traces."""

from __future__ import annotations

import contextlib
import socket
import threading
from abc import ABC, abstractmethod
from typing import Self

LEAVE_SECONDS = 30.0


class Server(ABC):
    """Listens on loopback while the ``with`` block lasts; ``serve`` runs in a thread for each connection.

    ``port`` is the system's choice unless one is set before.
    """

    port: int = 0
    address: str

    def __init__(self) -> None:
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._ending = False

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", self.port), backlog=128)
        self.port = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._acceptor.join(LEAVE_SECONDS)
        self._ending = True  # before the cut: what is opened while it goes on ends in one place or in the other
        self.cut()
        for thread in [self._acceptor, *self._threads]:
            thread.join(LEAVE_SECONDS)
            assert not thread.is_alive()

    def cut(self) -> None:
        """End the connections that are open."""
        for item in list(self._sockets):
            _end(item)

    @abstractmethod
    def serve(self, connection: socket.socket) -> None:
        """What a server does with a connection, which is closed when this returns; an ``OSError`` ends it as well."""

    def opened(self, other: socket.socket) -> socket.socket:
        """Let ``cut`` and the end of the server end this socket too; whoever opened it closes it."""
        self._sockets.append(other)
        if self._ending:
            _end(other)
        return other

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.opened(connection)
            thread = threading.Thread(target=self._served, args=(connection,), daemon=True)
            thread.start()
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]

    def _served(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            self.serve(connection)
        self._sockets.remove(connection)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
