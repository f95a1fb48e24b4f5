"""A ZooKeeper of threads and byte strings, for what a real one does not do on request: losing an answer that it has
acted on, refusing, standing still. No Java is needed. Its tree is that of the fake in memory.

A request is ``length | xid | type | body``, an answer ``length | xid | zxid | error | body``; strings and buffers have
their length before them, -1 for none. Source: ``zookeeper.jute`` of ZooKeeper 3.4.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tests.harness.fake_session import FakeZooKeeper, Stored
from tests.harness.server import Server

NO_NODE, BAD_VERSION, NODE_EXISTS, NOT_EMPTY, NO_AUTH, SESSION_MOVED = -101, -103, -110, -111, -102, -118
_NAMES = {1: "create", 2: "delete", 3: "exists", 4: "get", 5: "set", 8: "children", 14: "multi"}
_PING, _CLOSE = 11, -11
_CREATED, _DELETED, _CHANGED, _CHILDREN = 1, 2, 3, 4
_CONNECTED = 3

Hook = Callable[[int, str, str], None]


class RefusedError(Exception):
    """Ends a request with an error code."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Call(NamedTuple):
    """What was asked for, by which session."""

    session: int
    name: str
    path: str


class WireZooKeeper(Server):
    """Serves a tree on a port of its own while the ``with`` block lasts.

    ``before`` and ``after`` run before a request is acted on and between that and its answer: ``ConnectionError`` ends
    the connection there, ``RefusedError`` is the answer. ``stands_still`` while it is set: nothing is answered.
    ``granted_ms``: how long a session may be silent, None: as long as it asks for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.tree = FakeZooKeeper()
        self.before: Hook = lambda session, name, path: None
        self.after: Hook = lambda session, name, path: None
        self.stands_still = threading.Event()
        self.granted_ms: int | None = None
        self.calls: list[Call] = []
        self.greetings: list[int] = []
        """The session that each connection asked for, 0: a new one."""
        self._living: dict[int, socket.socket | None] = {}
        self._released = threading.Event()

    def __exit__(self, *given: object) -> None:
        self._released.set()
        super().__exit__(*given)

    @property
    def connect(self) -> str:
        """The ``zk.connect`` for clients."""
        return self.address

    def names(self, path: str = "") -> list[str]:
        """The calls so far, by name; those about one path where it is given."""
        return [call.name for call in self.calls if not path or call.path == path]

    def expire(self, number: int) -> None:
        """End a session; whoever has it hears of it when it connects again."""
        with self.tree.lock:
            connection = self._living.pop(number, None)
            self._forget(number)
        if connection is not None:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _forget(self, number: int) -> None:
        for path in self.tree.ephemerals(number):
            self.tree.remove(path)

    # -- the wire ------------------------------------------------------------------------------------------------------

    def serve(self, connection: socket.socket) -> None:
        """Greet, then answer until the client leaves."""
        greeting = _frame(connection)
        if greeting is None:
            return
        _, _, asked_ms, number = struct.unpack_from(">iqiq", greeting)
        self._pause()
        self.greetings.append(number)
        with self.tree.lock:
            if not number:
                session = self.tree.open()
                number = session.id
                self._living[number] = None
            is_known = number in self._living
            if is_known:
                self._living[number] = connection
        granted = (asked_ms if self.granted_ms is None else self.granted_ms) if is_known else 0
        _send(connection, struct.pack(">iiq", 0, granted, number if is_known else 0) + _buffer(bytes(16)) + b"\0")
        sending = threading.Lock()
        while is_known and (body := _frame(connection)) is not None:
            xid, kind = struct.unpack_from(">ii", body)
            self._pause()
            if kind == _CLOSE:
                with self.tree.lock:
                    self._living.pop(number, None)
                    self._forget(number)
                _send(connection, struct.pack(">iqi", xid, 0, 0))
                return
            answer = b"" if kind == _PING else self._answer(number, connection, sending, kind, body)
            code = 0
            if isinstance(answer, int):
                code, answer = answer, b""
            with sending:
                _send(connection, struct.pack(">iqi", xid, 0, code) + answer)

    def _pause(self) -> None:
        while self.stands_still.is_set() and not self._released.wait(0.005):
            pass

    def _answer(
        self, number: int, connection: socket.socket, sending: threading.Lock, kind: int, body: bytes
    ) -> bytes | int:
        name = _NAMES[kind]
        path, at = ("", 8) if name == "multi" else _string(body, 8)
        if name == "multi":
            path = _string(body, 8 + 9)[0]
        self.calls.append(Call(number, name, path))
        try:
            self.before(number, name, path)
            with self.tree.lock:
                if number not in self._living:
                    raise ConnectionError
                answer = self._done(number, connection, sending, name, path, body, at)
            self.after(number, name, path)
        except RefusedError as error:
            return error.code
        return answer

    def _done(
        self,
        number: int,
        connection: socket.socket,
        sending: threading.Lock,
        name: str,
        path: str,
        body: bytes,
        at: int,
    ) -> bytes:
        if name in ("exists", "get", "children") and body[at]:
            found = self.tree.find(path)
            if name == "exists" or found is not None:
                kind = "children" if name == "children" else "data"
                self.tree.watch(
                    kind, path, number, lambda: self._event(connection, sending, kind, path, found is not None)
                )
        match name:
            case "create":
                self._create(number, path, body, at)
                return _text(path)
            case "delete":
                self._delete(path, struct.unpack_from(">i", body, at)[0])
                return b""
            case "exists":
                return _stat(self._found(path))
            case "get":
                node = self._found(path)
                return _buffer(node.data) + _stat(node)
            case "set":
                data, at = _bytes(body, at)
                self._check(path, struct.unpack_from(">i", body, at)[0])
                self.tree.write(path, data)
                return _stat(self._found(path))
            case "children":
                self._found(path)
                names = self.tree.names(path)
                return struct.pack(">i", len(names)) + b"".join(map(_text, names))
            case "multi":
                return self._multi(number, body)
        raise AssertionError(name)

    def _multi(self, number: int, body: bytes) -> bytes:
        """A deletion and a creation, both or none."""
        path, at = _string(body, 8 + 9)
        version = struct.unpack_from(">i", body, at)[0]
        new_path, new_at = _string(body, at + 4 + 9)
        code = 0
        try:
            self._check(path, version)
            if self.tree.names(path):
                raise RefusedError(NOT_EMPTY)
        except RefusedError as error:
            code = error.code
        if code:
            failed = struct.pack(">iBi", -1, 0, code) + struct.pack(">i", code)
            rest = struct.pack(">iBi", -1, 0, -2) + struct.pack(">i", -2)
            return failed + rest + struct.pack(">iBi", -1, 1, -1)
        self.tree.remove(path)
        self._create(number, new_path, body, new_at)
        return (
            struct.pack(">iBi", 2, 0, 0)
            + struct.pack(">iBi", 1, 0, 0)
            + _text(new_path)
            + struct.pack(">iBi", -1, 1, -1)
        )

    def _create(self, number: int, path: str, body: bytes, at: int) -> None:
        data, at = _bytes(body, at)
        (count,) = struct.unpack_from(">i", body, at)
        at += 4
        for _ in range(count):
            _, at = _string(body, at + 4)
            _, at = _string(body, at)
        (flags,) = struct.unpack_from(">i", body, at)
        if self.tree.find(path) is not None:
            raise RefusedError(NODE_EXISTS)
        parent = path.rpartition("/")[0]
        if parent and self.tree.find(parent) is None:
            raise RefusedError(NO_NODE)
        self.tree.write(path, data, number if flags & 1 else 0)

    def _delete(self, path: str, version: int) -> None:
        self._check(path, version)
        if self.tree.names(path):
            raise RefusedError(NOT_EMPTY)
        self.tree.remove(path)

    def _found(self, path: str) -> Stored:
        found = self.tree.find("" if path == "/" else path)
        if found is None:
            raise RefusedError(NO_NODE)
        return found

    def _check(self, path: str, version: int) -> None:
        if version not in (-1, self._found(path).version):
            raise RefusedError(BAD_VERSION)

    def _event(self, connection: socket.socket, sending: threading.Lock, kind: str, path: str, was_there: bool) -> None:
        is_there = self.tree.find(path) is not None
        changed = _CHILDREN if kind == "children" else _CHANGED if was_there else _CREATED
        body = struct.pack(">ii", changed if is_there else _DELETED, _CONNECTED) + _text(path)
        with suppress(OSError), sending:
            _send(connection, struct.pack(">iqi", -1, -1, 0) + body)


def _send(connection: socket.socket, body: bytes) -> None:
    connection.sendall(struct.pack(">i", len(body)) + body)


def _frame(connection: socket.socket) -> bytes | None:
    head = _received(connection, 4)
    return None if head is None else _received(connection, int.from_bytes(head, "big"))


def _received(connection: socket.socket, size: int) -> bytes | None:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            return None
        data += more
    return data


def _bytes(body: bytes, at: int) -> tuple[bytes, int]:
    (size,) = struct.unpack_from(">i", body, at)
    end = at + 4 + max(0, size)
    return body[at + 4 : end], end


def _string(body: bytes, at: int) -> tuple[str, int]:
    data, end = _bytes(body, at)
    return data.decode(), end


def _buffer(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def _text(text: str) -> bytes:
    return _buffer(text.encode())


def _stat(node: Stored) -> bytes:
    return struct.pack(
        ">qqqqiiiqiiq", 1, 1, node.created_ms, node.modified_ms, node.version, 0, 0, node.owner, len(node.data), 0, 1
    )
