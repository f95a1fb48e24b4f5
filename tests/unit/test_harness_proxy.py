"""The proxy of the tests leaves no thread behind, whatever it was doing."""

from __future__ import annotations

import socket
import threading

from tests.harness.broker import wait_until
from tests.harness.proxy import Proxy
from tests.harness.timing import PATIENCE


class LateProxy(Proxy):
    """Has its connections to the broker only when those that there are were cut at its end."""

    def __init__(self, target: int) -> None:
        super().__init__([target])
        self.was_cut = threading.Event()

    def opened(self, other: socket.socket) -> socket.socket:
        if self._sockets:
            assert self.was_cut.wait(PATIENCE)
        return super().opened(other)

    def cut(self) -> None:
        super().cut()
        self.was_cut.set()


def test_a_proxy_ends_while_it_connects_to_a_broker_that_says_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with LateProxy(silent.getsockname()[1]) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port))
            client.sendall(b"x")
            wait_until("it came", lambda: proxy.connections == 1)
        client.close()
