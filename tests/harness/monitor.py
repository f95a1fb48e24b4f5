"""What a broker answers at its ``monitor.address``, asked as a program in C would: bytes out, bytes in."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from typing import Any, NamedTuple

from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE

_ADDRESS = re.compile(r"fastlog-broker: ready .*?\bmonitor=(\S+):(\d+)")


class Reply(NamedTuple):
    """An HTTP answer of the monitor."""

    status: int
    headers: dict[str, str]
    body: str

    @property
    def lines(self) -> list[str]:
        return self.body.splitlines()


class Monitor:
    """One address; every request is a connection of its own."""

    def __init__(self, host: str, port: int) -> None:
        self.target = (host, port)

    @classmethod
    def of(cls, broker: Broker) -> Monitor:
        """Where a broker says that it answers."""
        found = _ADDRESS.search(broker.log_text())
        assert found, "it has no monitor"
        return cls(found[1], int(found[2]))

    def connect(self) -> socket.socket:
        return socket.create_connection(self.target, timeout=PATIENCE)

    def send(self, data: bytes) -> Reply:
        """Send raw bytes and return the answer."""
        with self.connect() as sock:
            sock.sendall(data)
            return received(sock)

    def get(self, path: str, *headers: str, method: str = "GET") -> Reply:
        """The answer to a request as a client makes it; ``headers`` are lines of their own."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {self.target[0]}:{self.target[1]}", *headers, "", ""]
        return self.send("\r\n".join(lines).encode("latin-1"))

    def health(self) -> dict[str, Any]:
        """The report of ``/health``."""
        reply = self.get("/health")
        assert (reply.status, reply.headers["content-type"]) == (200, "application/json")
        found: dict[str, Any] = json.loads(reply.body)
        return found

    def wait(self, path: str, status: int, says: str = "") -> Reply:
        """The first answer of this status in which ``says`` stands."""
        seen: list[Reply] = []

        def is_so() -> bool:
            with contextlib.suppress(ConnectionError):  # whoever answered may just have been killed
                seen[:] = [self.get(path)]
            return bool(seen) and seen[0].status == status and says in seen[0].body

        wait_until(f"{path} answers {status} {says}", is_so, PATIENCE, 0.02)
        return seen[0]


def received(sock: socket.socket) -> Reply:
    """The answer that comes on a connection; the other side ends it."""
    data = bytearray()
    while part := sock.recv(65536):
        data += part
    if not data:
        raise ConnectionError("it was closed without an answer")
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Reply(int(first.split()[1]), headers, body.decode())
