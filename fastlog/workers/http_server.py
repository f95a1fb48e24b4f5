"""A small HTTP/1.1 server for a thread beside other work: one request a connection, everything bounded.

Not ``http.server``: that takes a thread for each connection, reads headers of up to 6 MiB, and waits for ever.
Here one thread polls, a connection has limits on bytes and seconds, and with too many of them the oldest goes,
because who behaves is answered in milliseconds and is never the oldest.

Source: RFC 9112 (messages), RFC 9110 (methods, status codes).
"""

from __future__ import annotations

import errno
import logging
import re
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 64
MAX_HEAD_BYTES = 8192
MAX_DISCARDED_BYTES = 65536
REQUEST_SECONDS = 5.0
ANSWER_SECONDS = 5.0
LINGER_SECONDS = 1.0
PAUSE_SECONDS = 0.2
TEXT, JSON = "text/plain; charset=utf-8", "application/json"

_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    501: "Not Implemented",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+) (\S+) HTTP/([0-9])\.([0-9])")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ONCE = ("host", "authorization")


class Request(NamedTuple):
    """What was asked: the method, the path without what follows ``?``, and headers by name in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    peer: str


class Answer(NamedTuple):
    """What goes back; ``headers`` besides those that every answer has. A ``body`` of text is sent as UTF-8."""

    status: int
    body: str | bytes
    content_type: str = TEXT
    headers: Mapping[str, str] = {}


Handler = Callable[[Request], Answer]


class BadRequestError(Exception):
    """Not a request that can be answered with what was asked for; ``status`` says what it is answered with."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_head(head: bytes, peer: str = "") -> Request:
    """Read the request line and the headers, without the empty line behind them.

    Raises:
        BadRequestError: it is malformed, or of another version than 1.x.
    """
    lines = head.decode("latin-1").split("\n")
    lines = [line.removesuffix("\r") for line in lines]
    found = _REQUEST_LINE.fullmatch(lines[0])
    if found is None:
        raise BadRequestError(400, "the first line is no request of HTTP")
    method, target, major, minor = found.groups()
    if major != "1":
        raise BadRequestError(505, "HTTP/1.1 is spoken here")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon or _NAME.fullmatch(name) is None:
            raise BadRequestError(400, "a header is malformed")
        name = name.lower()
        if name in _ONCE and name in headers:
            raise BadRequestError(400, f"the header {name} is there twice")
        headers[name] = value.strip(" \t")
    if minor != "0" and "host" not in headers:
        raise BadRequestError(400, "a request of HTTP/1.1 needs the header Host")
    if target.lower().startswith("http://"):
        target = "/" + target[7:].partition("/")[2]
    return Request(method, target.partition("?")[0], headers, peer)


def encode_answer(answer: Answer, *, with_body: bool = True) -> bytes:
    """The bytes of an answer, after which the connection ends; ``with_body`` is False for HEAD."""
    body = answer.body.encode() if isinstance(answer.body, str) else answer.body
    lines = [
        f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
        f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}",
        f"Content-Type: {answer.content_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "X-Content-Type-Options: nosniff",
        *(f"{name}: {value}" for name, value in answer.headers.items()),
        "Connection: close",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + (body if with_body else b"")


class _Connection:
    """One client: its request is collected, then its answer is sent, then what it still sends is thrown away."""

    def __init__(self, sock: socket.socket, peer: str) -> None:
        self.sock = sock
        self.peer = peer
        self.head = bytearray()
        self.answer: memoryview | None = None
        self.discarded = 0
        self.deadline = time.monotonic() + REQUEST_SECONDS

    @property
    def lingers(self) -> bool:
        """Everything is sent: closing while bytes of the client are unread would take the answer from it again."""
        return self.answer is not None and not self.answer


class HttpServer:
    """Answers on a listening socket, in the thread that calls ``run``."""

    def __init__(self, listener: socket.socket, handler: Handler) -> None:
        """``listener`` is non-blocking and listens; ``handler`` answers and may raise, which is status 500."""
        self._listener = listener
        self._handler = handler
        self._poll = select.poll()
        self._connections: dict[int, _Connection] = {}  # oldest first
        self._resume_at = 0.0
        self._poll.register(listener, select.POLLIN)

    def run(self) -> None:
        """Answer for ever: the thread ends with its process."""
        while True:
            try:
                self.turn()
            except Exception:
                log.exception("HTTP: unexpected error")
                time.sleep(PAUSE_SECONDS)

    def turn(self, most_seconds: float | None = None) -> None:
        """Wait for something to do, at most so long, and do it."""
        for fd, event in self._poll.poll(self._pause_ms(most_seconds)):
            if fd == self._listener.fileno():
                self._accept()
                continue
            connection = self._connections.get(fd)
            if connection is None:
                continue  # it had to go for a newer one, in this turn
            try:
                goes_on = self._serve(connection, event)
            except BlockingIOError:
                goes_on = True
            except OSError:
                goes_on = False
            except Exception:
                log.exception("HTTP: unexpected error peer=%s", connection.peer)
                goes_on = False
            if not goes_on:
                self._close(connection)
        now = time.monotonic()
        for connection in [item for item in self._connections.values() if now >= item.deadline]:
            self._expire(connection)
        if self._resume_at and now >= self._resume_at:
            self._resume_at = 0.0
            self._poll.register(self._listener, select.POLLIN)

    def _pause_ms(self, most_seconds: float | None) -> float | None:
        times = [item.deadline for item in self._connections.values()]
        if self._resume_at:
            times.append(self._resume_at)
        if most_seconds is not None:
            times.append(time.monotonic() + most_seconds)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _accept(self) -> None:
        """Take one connection in; the others wait until those that are here had their turn."""
        try:
            sock, address = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                log.warning("HTTP: cannot accept: %s", error)
            # what waits stays readable: without a pause this would be a busy loop
            self._poll.unregister(self._listener)
            self._resume_at = time.monotonic() + PAUSE_SECONDS
            return
        sock.setblocking(False)
        if len(self._connections) >= MAX_CONNECTIONS:
            self._close(next(iter(self._connections.values())))
        self._connections[sock.fileno()] = _Connection(sock, str(address[0]))
        self._poll.register(sock, select.POLLIN)

    def _serve(self, connection: _Connection, event: int) -> bool:
        """Go on with a connection; False when it is to be closed."""
        if connection.answer is None:
            return self._collect(connection)
        if not connection.lingers:
            return not event & (select.POLLERR | select.POLLHUP) and self._send(connection)
        part = connection.sock.recv(MAX_HEAD_BYTES)
        connection.discarded += len(part)
        return bool(part) and connection.discarded <= MAX_DISCARDED_BYTES

    def _collect(self, connection: _Connection) -> bool:
        part = connection.sock.recv(MAX_HEAD_BYTES + 4 - len(connection.head))
        if not part:
            return False
        connection.head += part
        if connection.head[0] in b"\r\n":
            connection.head = connection.head.lstrip(b"\r\n")  # as RFC 9112 2.2 asks for
        end = _END_OF_HEAD.search(connection.head)
        if end is None and len(connection.head) < MAX_HEAD_BYTES:
            return True
        method = ""
        try:
            if end is None:
                raise BadRequestError(431, f"the head of a request has {MAX_HEAD_BYTES} bytes at most")
            request = parse_head(bytes(connection.head[: end.start()]), connection.peer)
            method = request.method
            answer = self._handler(request)
        except BadRequestError as error:
            answer = Answer(error.status, f"{error}\n")
        except Exception:
            log.exception("HTTP: no answer peer=%s", connection.peer)
            answer = Answer(500, "an error that nobody expected: see the log of the broker\n")
        return self._begin_answer(connection, encode_answer(answer, with_body=method != "HEAD"))

    def _begin_answer(self, connection: _Connection, data: bytes) -> bool:
        connection.head.clear()
        connection.answer = memoryview(data)
        connection.deadline = time.monotonic() + ANSWER_SECONDS
        self._poll.modify(connection.sock, select.POLLOUT)
        return self._send(connection)

    def _send(self, connection: _Connection) -> bool:
        assert connection.answer is not None
        connection.answer = connection.answer[connection.sock.send(connection.answer) :]
        if connection.lingers:
            connection.sock.shutdown(socket.SHUT_WR)
            connection.deadline = time.monotonic() + LINGER_SECONDS
            self._poll.modify(connection.sock, select.POLLIN)
        return True

    def _expire(self, connection: _Connection) -> None:
        if connection.answer is None and connection.head:
            try:
                self._begin_answer(connection, encode_answer(Answer(408, "the request did not come in time\n")))
                return
            except OSError:
                pass  # it is gone
        self._close(connection)

    def _close(self, connection: _Connection) -> None:
        fd = connection.sock.fileno()
        if self._connections.pop(fd, None) is not None:
            self._poll.unregister(fd)
            connection.sock.close()
