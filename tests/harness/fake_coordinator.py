"""A coordinator of groups that says what a test wants, in the bytes of the broker's own library."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import Any

from fastlog.workers.coordinator import codec
from tests.harness.server import Server

Fields = dict[str, Any]
Script = Callable[[codec.Request], Fields | None]
KEYS = (3, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 42, 47)


class FakeCoordinator(Server):
    """Serves a cluster of one. ``scripts`` has what is said to a key's requests; None there ends the connection.

    ``held`` keeps answers back while it is clear; ``extra`` is sent behind the next answer.
    """

    def __init__(self, cluster: str = "c") -> None:
        super().__init__()
        codec._load_library()
        self.cluster = cluster
        self.keys = list(KEYS)
        self.node = 7
        self.told: tuple[str, int] | None = None
        """The address that it tells; its own without one."""
        self.scripts: dict[int, Script] = {}
        self.seen: list[int] = []
        self.clients: set[str] = set()
        self.connections = 0
        self.held = threading.Event()
        self.held.set()
        self.extra = b""

    def serve(self, connection: socket.socket) -> None:
        self.connections += 1
        while head := connection.recv(4, socket.MSG_WAITALL):
            frame = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
            request = codec.decode(frame)
            self.seen.append(request.key)
            self.clients.add(request.client_id)
            script = self.scripts.get(request.key)
            answer = script(request) if script is not None else self._usual(request)
            self.held.wait()
            if answer is None:
                return
            extra, self.extra = self.extra, b""
            connection.sendall(codec.encode(request, answer) + extra)

    def count(self, key: int) -> int:
        """How many requests of a kind there have been."""
        return self.seen.count(key)

    def _usual(self, request: codec.Request) -> Fields | None:
        host, port = self.told or ("127.0.0.1", self.port)
        match request.key:
            case 18:
                keys = [{"api_key": key, "min_version": 0, "max_version": 9} for key in self.keys]
                return {"error_code": 0, "api_keys": keys}
            case 3:
                brokers = [{"node_id": self.node, "host": host, "port": port, "rack": None}]
                return {
                    "throttle_time": 0, "cluster_id": self.cluster, "controller_id": self.node, "topics": [],
                    "brokers": brokers,
                }  # fmt: skip
            case 10:
                return {
                    "throttle_time": 0, "error_code": 0, "error_message": None, "node_id": self.node, "host": host,
                    "port": port,
                }  # fmt: skip
            case 12:
                return {"throttle_time": 0, "error_code": 0}
        return None
