"""``python -m tests.harness.object_proxy FD TARGET``: an HTTP proxy on loopback that makes the faults it is told.

A fault happens to whole requests: it knows where one begins and ends, and nothing of what it means.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.harness.object_store import CONTROL, UNDER_WAY

_OF_A_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class Faults:
    """The faults that are planned, and those that have happened."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rules: list[dict[str, Any]] = []
        self._under_way = 0
        self.done: list[str] = []

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Around each, whatever happens to it."""
        with self._lock:
            self._under_way += 1
        try:
            yield
        finally:
            with self._lock:
                self._under_way -= 1

    @property
    def under_way(self) -> int:
        """How many requests have not ended, whether anybody waits for their answers or not."""
        with self._lock:
            return self._under_way

    def add(self, rule: dict[str, Any]) -> None:
        with self._lock:
            self._rules.append(rule)

    def end(self) -> list[str]:
        with self._lock:
            found, self.done, self._rules = self.done, [], []
            return found

    def of(self, method: str, path: str) -> tuple[str, float]:
        """What happens to this request, and for how long."""
        with self._lock:
            for rule in self._rules:
                if rule["method"] != method or not re.search(rule["path"], path) or not rule["count"]:
                    continue
                if rule["skip"]:
                    rule["skip"] -= 1
                    continue
                rule["count"] -= 1
                self.done.append(f"{rule['fault']} {method} {path}")
                return rule["fault"], rule["seconds"]
        return "", 0.0


class Handler(BaseHTTPRequestHandler):
    """Serves one connection of a client."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes
    faults = Faults()
    target = 0

    def _handle(self) -> None:
        if self.path == UNDER_WAY:
            self._answer(200, {}, json.dumps(self.faults.under_way).encode())
            return
        body = self._body()
        if self.path == CONTROL:
            if self.command == "PUT":
                self.faults.add(json.loads(body))
            found = self.faults.end() if self.command == "DELETE" else self.faults.done
            self._answer(200, {}, json.dumps(found).encode())
            return
        with self.faults.request():
            self._meet(body)

    def _meet(self, body: bytes) -> None:
        fault, seconds = self.faults.of(self.command, self.path)
        time.sleep(seconds)
        if fault == "refuse":
            self._answer(503, {}, b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>busy</Message></Error>")
        elif fault == "forbid":
            told = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message></Error>"
            self._answer(403, {}, told)
        elif fault == "cut":
            self._forward_half(body)
            self._end()
        else:
            status, headers, found = self._forward(body)
            if fault == "lose":
                self._end()
            elif fault == "halve":
                self._answer(status, headers, found, len(found) // 2)
                self._end()
            else:
                self._answer(status, headers, found)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _handle

    def _body(self) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("content-length") or 0))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():  # what may come behind the chunks
            pass
        return found

    def _forward(self, body: bytes) -> tuple[int, dict[str, str], bytes]:
        connection = HTTPConnection("127.0.0.1", self.target, timeout=60)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OF_A_HOP}
            connection.connect()
            # moto's head and body are two writes, too, and the second one waits until the first has been acknowledged.
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            connection.request(self.command, self.path, body or None, headers)
            answer = connection.getresponse()
            kept = {name: value for name, value in answer.getheaders() if name.lower() not in _OF_A_HOP}
            if self.command == "HEAD":
                kept["content-length"] = answer.getheader("content-length") or "0"
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def _forward_half(self, body: bytes) -> None:
        lines = [f"{self.command} {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in self.headers.items())]
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.target)) as target:
            target.sendall("\r\n".join([*lines, "", ""]).encode() + body[: len(body) // 2])

    def _answer(self, status: int, headers: dict[str, str], body: bytes, count: int | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "content-length" not in headers:
            self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:count])

    def _end(self) -> None:
        self.close_connection = True
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def handle(self) -> None:
        with contextlib.suppress(OSError, HTTPException):
            super().handle()

    def log_message(self, *_: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve on the socket with the first argument's descriptor, which listens, before the port of the second one."""
    listening, Handler.target = map(int, sys.argv[1:])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = socket.socket(fileno=listening)
    server.serve_forever()


if __name__ == "__main__":
    main()
