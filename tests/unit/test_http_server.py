"""The server behind ``monitor.address``: what it takes for a request, and that nobody can hold it up or fill it."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastlog.workers import http_server
from fastlog.workers.http_server import Answer, BadRequestError, HttpServer, Request, encode_answer, parse_head
from tests.harness.broker import wait_until
from tests.harness.monitor import Monitor, received
from tests.harness.timing import PATIENCE

GET = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"


class Served:
    """A server whose turns the test takes, or a thread of its own."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=300)
        self.listener.setblocking(False)
        self.seen: list[Request] = []
        self.body = "hello\n"
        self.server = HttpServer(self.listener, self.answer)
        self.client = Monitor(*self.listener.getsockname())
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._turn)

    def answer(self, request: Request) -> Answer:
        self.seen.append(request)
        if request.path == "/broken":
            raise ValueError("no")
        return Answer(200, self.body)

    def start(self) -> None:
        self._thread.start()

    def _turn(self) -> None:
        while not self._ends.is_set():
            self.server.turn(0.05)

    @property
    def held(self) -> int:
        return len(self.server._connections)

    def close(self) -> None:
        self._ends.set()
        if self._thread.is_alive():
            self._thread.join()
        for connection in list(self.server._connections.values()):
            self.server._close(connection)
        self.listener.close()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


@pytest.fixture
def running(served: Served) -> Served:
    served.start()
    return served


@pytest.mark.parametrize(
    ("head", "method", "path", "headers"),
    [
        (b"GET / HTTP/1.1\r\nHost: a:1", "GET", "/", {"host": "a:1"}),
        (b"HEAD /live?verbose=1 HTTP/1.0", "HEAD", "/live", {}),
        (b"GET http://a:1/ready?x HTTP/1.1\nhOST:a\nX-Y: \t b c \t", "GET", "/ready", {"host": "a", "x-y": "b c"}),
        (b"GET http://a HTTP/1.1\r\nHost: a", "GET", "/", {"host": "a"}),
        (b"GET / HTTP/1.9\r\nHost: \r\nAuthorization: Bearer \xe9", "GET", "/", {"authorization": "Bearer \xe9"}),
    ],
)
def test_requests(head: bytes, method: str, path: str, headers: dict[str, str]) -> None:
    found = parse_head(head)
    assert (found.method, found.path) == (method, path)
    assert headers.items() <= found.headers.items()


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"", 400),
        (b"GET /", 400),
        (b"GET  / HTTP/1.1\r\nHost: a", 400),
        (b"G(T / HTTP/1.1\r\nHost: a", 400),
        (b"GET / HTTP/2.0\r\nHost: a", 505),
        (b"GET / HTTP/1.1", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: a\r\nauthorization: b", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\n folded: b", 400),
        (b"GET / HTTP/1.1\r\nHost : a", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nnothing", 400),
        (b"\x00\x00\x00\x10\x00\x01\x00\x04test", 400),
    ],
)
def test_what_is_no_request(head: bytes, status: int) -> None:
    with pytest.raises(BadRequestError) as raised:
        parse_head(head)
    assert raised.value.status == status


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_head_is_a_request_or_refused(head: bytes) -> None:
    with contextlib.suppress(BadRequestError):
        parse_head(head)


def test_an_answer_says_what_it_is() -> None:
    data = encode_answer(Answer(405, "no ü\n", headers={"Allow": "GET"}))
    head, _, body = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 405 Method Not Allowed\r\nDate: ")
    assert b"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 6\r\n" in head
    assert b"\r\nAllow: GET\r\n" in head and head.endswith(b"\r\nConnection: close")
    assert body == "no ü\n".encode()
    assert encode_answer(Answer(405, "no ü\n"), with_body=False).endswith(b"\r\n\r\n")


def test_one_request_a_connection(running: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes behind the head is thrown away: a body, or another request. Too much of it ends the connection."""
    monkeypatch.setattr(http_server, "LINGER_SECONDS", 2 * PATIENCE)
    for more in (b"", b"x" * 5000, GET, b"x" * 100_000):
        with running.client.connect() as sock:
            with contextlib.suppress(ConnectionError):
                sock.sendall(GET + more)
            if len(more) <= 5000:
                assert received(sock).body == "hello\n"
            else:
                wait_until("it is let go", lambda: len(running.seen) == 4 and not running.held)
    wait_until("four were asked, and no more", lambda: len(running.seen) == 4 and not running.held)


def test_a_head_in_pieces_and_after_empty_lines(running: Served) -> None:
    with running.client.connect() as sock:
        for byte in b"\r\n\r\n" + GET:
            sock.sendall(bytes([byte]))
        assert received(sock).status == 200


@pytest.mark.parametrize("method", ["HEAD", "GET"])
def test_an_answer_that_does_not_fit_the_socket_comes_whole(running: Served, method: str) -> None:
    running.body = "x" * 10_000_000
    reply = running.client.get("/", method=method)
    assert reply.headers["content-length"] == "10000000"
    assert len(reply.body) == (10_000_000 if method == "GET" else 0)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * http_server.MAX_HEAD_BYTES, 431),
        (b"x" * http_server.MAX_HEAD_BYTES, 431),
        (b"nonsense\r\n\r\n", 400),
        (b"GET /broken HTTP/1.0\r\n\r\n", 500),
    ],
)
def test_refusals(running: Served, data: bytes, status: int) -> None:
    assert running.client.send(data).status == status
    assert running.client.get("/").status == 200


def test_a_request_that_does_not_come_is_not_waited_for(served: Served) -> None:
    """With a part of it: 408; without anything: closed."""
    server: Any = served.server
    with served.client.connect() as slow, served.client.connect() as idle:
        slow.sendall(b"GET / HT")
        wait_until(
            "both are there and one has begun",
            lambda: (
                server.turn(0.01)
                or (served.held == 2 and any(connection.head for connection in server._connections.values()))
            ),
        )
        for connection in server._connections.values():
            assert time.monotonic() < connection.deadline <= time.monotonic() + http_server.REQUEST_SECONDS
            connection.deadline = 0.0
        server.turn(0.01)
        assert received(slow).status == 408
        assert idle.recv(1) == b""
    wait_until("all are gone", lambda: server.turn(0.01) or not served.held)


@pytest.mark.parametrize("limit", ["ANSWER_SECONDS", "LINGER_SECONDS"])
def test_who_does_not_take_the_answer_or_does_not_leave_goes(
    running: Served, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    for name in ("REQUEST_SECONDS", "ANSWER_SECONDS", "LINGER_SECONDS"):
        monkeypatch.setattr(http_server, name, 0.05 if name == limit else 2 * PATIENCE)
    running.body = "x" * (10_000_000 if limit == "ANSWER_SECONDS" else 10)
    with running.client.connect() as sock:
        sock.sendall(GET)
        wait_until("it was asked", lambda: running.seen)
        wait_until("it is gone", lambda: not running.held)


def test_idle_clients_keep_nobody_out(running: Served) -> None:
    """The oldest go; none of them waits for its time-out, which is longer than this test may take."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(running.client.connect()) for _ in range(200)]
        for number, sock in enumerate(idle):
            if number % 2:
                with contextlib.suppress(ConnectionError):
                    sock.sendall(b"GET / HT")
        for _ in range(20):
            assert running.client.get("/").status == 200
        assert running.held <= http_server.MAX_CONNECTIONS
        assert idle[0].recv(1) == b"", "the oldest one was kept"


def test_without_descriptors_it_pauses_and_goes_on(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "PAUSE_SECONDS", 0.05)
    server: Any = served.server
    taken = server._listener

    class Exhausted:
        tries = 0

        def accept(self) -> None:
            self.tries += 1
            raise OSError(errno.EMFILE, "no descriptors")

        def fileno(self) -> int:
            return int(taken.fileno())

    exhausted = Exhausted()
    server._listener = exhausted
    with served.client.connect() as sock:
        sock.sendall(GET)
        server.turn(5.0)
        assert exhausted.tries == 1
        begun = time.monotonic()
        server.turn(5.0)
        assert exhausted.tries == 1, "it tried again without a pause"
        assert time.monotonic() - begun < 5.0
        server._listener = taken
        wait_until("it answers", lambda: server.turn(0.05) or served.seen)
        for _ in range(3):
            server.turn(0.05)
        assert received(sock).status == 200
