"""A TCP proxy in a thread: delays, swallows answers, cuts connections."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from types import TracebackType

_RECEIVE_BYTES = 64 * 1024
_MOST_HELD_BYTES = 8 * 2**20
_STEP_SECONDS = 0.5


class Proxy:
    """Passes connections on to ``target`` (host, port) until it is closed. Settings may change at any time.

    ``delay`` seconds are added in each direction. While ``answers`` is False, what comes from the target is thrown
    away: requests arrive, and nobody hears of it.
    """

    def __init__(self, target: tuple[str, int], *, delay: float = 0.0, host: str = "127.0.0.1") -> None:
        self.delay = delay
        self.answers = True
        self._target = target
        self._listener = socket.create_server((host, 0))
        self.host, self.port = self._listener.getsockname()[:2]
        self._wake_receive, self._wake_send = socket.socketpair()
        self._pipes: dict[socket.socket, _Pipe] = {}
        self._cut = False
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="fastlog-proxy", daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """The proxy's own address as ``host:port``, for clients."""
        return f"{self.host}:{self.port}"

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def on_data(self, data: bytes, from_server: bool) -> bytes:
        """What goes on of what was received; a test may put another function in its place. Called in the thread."""
        return data if self.answers or not from_server else b""

    def cut(self) -> None:
        """Reset every connection there is now; what was on its way is lost."""
        self._cut = True
        self._wake_send.send(b"c")

    def close(self) -> None:
        """End every connection and the thread; may be called again."""
        if self._closed:
            return
        self._closed = True
        self._wake_send.send(b"c")
        self._thread.join()
        for sock in (*self._pipes, self._listener, self._wake_receive, self._wake_send):
            sock.close()

    def _run(self) -> None:
        while not self._closed:
            if self._cut:
                self._cut = False
                for sock in list(self._pipes):
                    self._reset(sock)
            now = time.monotonic()
            waits = [pipe.due for pipe in self._pipes.values() if pipe.held]
            timeout = max(0.0, min([_STEP_SECONDS, *(due - now for due in waits if due > now)]))
            readable, writable, _ = select.select(
                [self._listener, self._wake_receive, *(s for s, pipe in self._pipes.items() if pipe.wants_more)],
                [pipe.out for pipe in self._pipes.values() if pipe.held and pipe.due <= now],
                [],
                timeout,
            )
            if self._wake_receive in readable:
                self._wake_receive.recv(64)
            if self._listener in readable:
                self._accept()
            for sock in readable:
                if sock in self._pipes:
                    self._take(sock)
            for sock, pipe in list(self._pipes.items()):
                if pipe.out in writable and sock in self._pipes:
                    self._give(sock, pipe)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._target, timeout=5)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pipes[client] = _Pipe(server, from_server=False)
        self._pipes[server] = _Pipe(client, from_server=True)

    def _take(self, sock: socket.socket) -> None:
        pipe = self._pipes[sock]
        try:
            data = sock.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self._reset(sock)
            return
        pipe.ended = not data
        if data:
            data = self.on_data(data, pipe.from_server)
            if not data:
                return
        pipe.held.append((time.monotonic() + self.delay, data))

    def _give(self, sock: socket.socket, pipe: _Pipe) -> None:
        now = time.monotonic()
        try:
            while pipe.held and pipe.held[0][0] <= now:
                due, data = pipe.held.popleft()
                if not data:
                    pipe.finished = True
                    pipe.out.shutdown(socket.SHUT_WR)
                    break
                sent = pipe.out.send(data)
                if sent < len(data):
                    pipe.held.appendleft((due, data[sent:]))
                    break
        except BlockingIOError:
            pipe.held.appendleft((due, data))
        except OSError:
            self._reset(sock)
            return
        back = self._pipes.get(pipe.out)
        if pipe.finished and (back is None or back.finished):
            self._drop(sock)

    def _reset(self, sock: socket.socket) -> None:
        for one in (sock, self._pipes[sock].out) if sock in self._pipes else ():
            with contextlib.suppress(OSError):
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        pipe = self._pipes.pop(sock, None)
        if pipe is not None:
            self._pipes.pop(pipe.out, None)
            pipe.out.close()
        sock.close()


class _Pipe:
    """One direction of a connection: what was received, with the time it goes on to ``out``."""

    __slots__ = ("ended", "finished", "from_server", "held", "out")

    def __init__(self, out: socket.socket, *, from_server: bool) -> None:
        self.out = out
        self.from_server = from_server
        self.held: deque[tuple[float, bytes]] = deque()
        self.ended = False
        self.finished = False

    @property
    def due(self) -> float:
        return self.held[0][0]

    @property
    def wants_more(self) -> bool:
        return not self.ended and len(self.held) * _RECEIVE_BYTES < _MOST_HELD_BYTES
