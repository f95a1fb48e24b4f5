"""A ZooKeeper in memory, for any number of sessions in any number of threads: the same cases hold for both."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from fastlog.coordination.session import (
    ANY_VERSION,
    Node,
    NodeExistsError,
    NoNodeError,
    SessionLostError,
    VersionError,
    Watch,
)
from fastlog.errors import CoordinationError


@dataclass
class Stored:
    """A node of the fake ZooKeeper."""

    data: bytes
    owner: int
    version: int = 0
    created_ms: int = 0
    modified_ms: int = 0


class FakeZooKeeper:
    """The tree, and what can go wrong with it.

    ``latency``: seconds that every call takes. ``is_silent``: calls fail as if no server answered. ``refused``: paths
    for which they fail. ``before_call`` is called with session, name and path before anything is done, and may do
    what others would do at that moment, or raise; ``after_change`` the same once something was changed, and
    ``after_read`` with the path while a value is on its way to whoever read it.
    """

    def __init__(self, latency: float = 0.0, timeout: float = 6.0) -> None:
        self.latency = latency
        self.timeout = timeout
        self.is_silent = False
        self.refused: set[str] = set()
        self.before_call: Callable[[FakeSession, str, str], None] = lambda session, name, path: None
        self.after_change: Callable[[FakeSession, str, str], None] = lambda session, name, path: None
        self.after_read: Callable[[str], None] = lambda path: None
        self.calls: list[tuple[int, str, str]] = []
        self.sessions: dict[int, FakeSession] = {}
        self._nodes: dict[str, Stored] = {"": Stored(b"", 0)}
        self._watches: dict[tuple[str, str], list[tuple[int, Watch]]] = {}
        self._numbers = itertools.count(1)
        self.lock = threading.RLock()

    def open(self, on_change: Watch | None = None) -> FakeSession:
        """A new session. Raises ``CoordinationError`` while it is silent."""
        with self.lock:
            if self.is_silent:
                raise CoordinationError("no ZooKeeper answers")
            session = FakeSession(self, next(self._numbers), on_change or (lambda: None))
            self.sessions[session.id] = session
            return session

    def expire(self, session_id: int) -> None:
        """End a session: its nodes go, then it hears of it."""
        with self.lock:
            self.sessions.pop(session_id).end()

    def shown(self, below: str = "") -> dict[str, bytes]:
        """Every value by its path."""
        with self.lock:
            return {path: node.data for path, node in self._nodes.items() if path.startswith(below) and path}

    def write(self, path: str, data: bytes, owner: int | None = None) -> None:
        """What somebody else does: the node has this value now, and another owner where one is given."""
        with self.lock:
            found = self._nodes.get(path)
            now = int(time.time() * 1000)
            if found is not None:
                found.data, found.version, found.modified_ms = data, found.version + 1, now
                found.owner = found.owner if owner is None else owner
                self._fire("data", path)
                return
            parent = path.rpartition("/")[0]
            if parent not in self._nodes:
                self.write(parent, b"")
            self._nodes[path] = Stored(data, owner or 0, created_ms=now, modified_ms=now)
            self._fire("data", path)
            self._fire("children", parent)

    def remove(self, path: str) -> None:
        """What somebody else does: the node is gone, if it was there."""
        with self.lock:
            if self._nodes.pop(path, None) is not None:
                self._fire("data", path)
                self._fire("children", path)
                self._fire("children", path.rpartition("/")[0])

    def names(self, path: str) -> list[str]:
        """The names of a node's children."""
        with self.lock:
            start = f"{path}/"
            return [
                name[len(start) :] for name in self._nodes if name.startswith(start) and "/" not in name[len(start) :]
            ]

    def watch_count(self) -> int:
        """How many watches have not fired yet."""
        with self.lock:
            return sum(map(len, self._watches.values()))

    def find(self, path: str) -> Stored | None:
        """The node at a path; None where there is none."""
        return self._nodes.get(path)

    def watch(self, kind: str, path: str, session: int, watch: Watch) -> None:
        """Let it be called at the next change."""
        self._watches.setdefault((kind, path), []).append((session, watch))

    def take_watches(self, session: int) -> list[Watch]:
        """Remove and return the watches of a session that is over."""
        found = [watch for waiting in self._watches.values() for owner, watch in waiting if owner == session]
        for key, waiting in self._watches.items():
            self._watches[key] = [(owner, watch) for owner, watch in waiting if owner != session]
        return found

    def ephemerals(self, session: int) -> list[str]:
        """The paths of a session's ephemeral nodes."""
        return [path for path, node in self._nodes.items() if node.owner == session]

    def _fire(self, kind: str, path: str) -> None:
        for _, watch in self._watches.pop((kind, path), []):
            watch()


class FakeSession:
    """A session with a fake ZooKeeper."""

    def __init__(self, tree: FakeZooKeeper, number: int, on_change: Watch) -> None:
        self._tree = tree
        self._id = number
        self._on_change = on_change
        self._is_lost = False

    def __enter__(self) -> FakeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def id(self) -> int:
        return self._id

    @property
    def timeout(self) -> float:
        return self._tree.timeout

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    @property
    def is_connected(self) -> bool:
        return not self._is_lost and not self._tree.is_silent

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        self._begin("create", path)
        with self._tree.lock:
            self._check()
            found = self._tree.find(path)
            owner = self._id if ephemeral else 0
            if found is None:
                self._tree.write(path, data, owner)
            elif (found.data, found.owner) != (data, owner):
                raise NodeExistsError(f"{path} exists with {found.data!r}")
        self._tree.after_change(self, "create", path)

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self._begin("get", path)
        with self._tree.lock:
            self._check()
            found = self._tree.find(path)
            if watch is not None:
                self._tree.watch("data", path, self._id, watch)
            read = found and Node(found.data, found.version, found.owner, found.created_ms, found.modified_ms)
        self._tree.after_read(path)
        return read

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        self._begin("set", path)
        with self._tree.lock:
            self._check()
            found = self._tree.find(path)
            if found is None:
                raise NoNodeError(f"there is no {path}")
            if version not in (ANY_VERSION, found.version):
                raise VersionError(f"{path} was changed since version {version}")
            self._tree.write(path, data)
            made = found.version
        self._tree.after_change(self, "set", path)
        return made

    def put(self, path: str, data: bytes) -> None:
        self._begin("put", path)
        with self._tree.lock:
            self._check()
            self._tree.write(path, data)
        self._tree.after_change(self, "put", path)

    def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        self._begin("delete", path)
        with self._tree.lock:
            self._check()
            found = self._tree.find(path)
            if found is None:
                return False
            if version not in (ANY_VERSION, found.version):
                raise VersionError(f"{path} was changed since version {version}")
            if self._tree.names(path):
                raise CoordinationError(f"the fake refuses {path}: it has children")
            self._tree.remove(path)
        self._tree.after_change(self, "delete", path)
        return True

    def replace(self, path: str, data: bytes, version: int) -> None:
        self._begin("replace", path)
        with self._tree.lock:
            self._check()
            found = self._tree.find(path)
            if found is None or found.version != version:
                raise VersionError(f"{path} was changed since version {version}")
            if self._tree.names(path):
                raise CoordinationError(f"the fake refuses {path}: it has children")
            self._tree.remove(path)
            self._tree.write(path, data, self._id)
        self._tree.after_change(self, "replace", path)

    def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        self._begin("children", path)
        with self._tree.lock:
            self._check()
            is_there = self._tree.find(path) is not None
            if watch is not None:
                self._tree.watch("children" if is_there else "data", path, self._id, watch)
            return self._tree.names(path) if is_there else None

    def close(self) -> None:
        with self._tree.lock:
            if self._tree.is_silent:
                self._is_lost = True  # the server will notice by itself, in its time
            elif self._tree.sessions.pop(self._id, None) is not None:
                self.end()

    def end(self) -> None:
        """Called by the tree when the session is over."""
        self._is_lost = True
        for path in self._tree.ephemerals(self._id):
            self._tree.remove(path)
        for watch in self._tree.take_watches(self._id):
            watch()
        self._on_change()

    def _begin(self, name: str, path: str) -> None:
        if self._tree.latency:
            time.sleep(self._tree.latency)
        self._tree.before_call(self, name, path)
        self._tree.calls.append((self._id, name, path))
        if self._tree.is_silent or path in self._tree.refused:
            raise CoordinationError(f"the fake refuses {path}")

    def _check(self) -> None:
        if self._is_lost:
            raise SessionLostError("the session is over")
