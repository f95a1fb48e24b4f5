"""A ZooKeeper in memory: sessions as ``fastlog.coordination.session`` describes them, without threads or sockets."""

from __future__ import annotations

import itertools
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
class _Stored:
    data: bytes
    owner: int
    version: int = 0


class FakeZooKeeper:
    """The tree. ``refused``: paths for which every call fails; ``calls``: what was asked, as (name, path)."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Stored] = {}
        self.refused: set[str] = set()
        self.silent = False
        self.calls: list[tuple[str, str]] = []
        self.after_read: Callable[[str], None] = lambda path: None
        self._watches: dict[str, list[tuple[FakeSession, Watch]]] = {}
        self._ids = itertools.count(1)

    def open(self, on_change: Watch | None = None) -> FakeSession:
        """A new session."""
        return FakeSession(self, next(self._ids), on_change)

    def write(self, path: str, data: bytes, owner: int = 0) -> None:
        """What somebody else does: the node has this value now, and belongs to ``owner``."""
        old = self.nodes.get(path)
        self.nodes[path] = _Stored(data, owner, 0 if old is None else old.version + 1)
        self.fire(path)

    def remove(self, path: str) -> None:
        """What somebody else does: the node is gone."""
        if self.nodes.pop(path, None) is not None:
            self.fire(path)

    def shown(self) -> dict[str, bytes]:
        """Every value by its path."""
        return {path: stored.data for path, stored in self.nodes.items()}

    def watch_count(self) -> int:
        """Watches that wait."""
        return sum(map(len, self._watches.values()))

    def fire(self, path: str) -> None:
        """Call what waits for a change of the path."""
        for _, watch in self._watches.pop(path, []):
            watch()

    def watch(self, path: str, session: FakeSession, watch: Watch) -> None:
        """Wait for a change of the path."""
        self._watches.setdefault(path, []).append((session, watch))


class FakeSession:
    """One session of it."""

    def __init__(self, tree: FakeZooKeeper, number: int, on_change: Watch | None) -> None:
        self._tree = tree
        self._id = number
        self._lost = False
        self._on_change = on_change or (lambda: None)
        self.closed = False

    @property
    def id(self) -> int:
        return self._id

    @property
    def is_lost(self) -> bool:
        return self._lost

    @property
    def is_connected(self) -> bool:
        return not self._lost and not self._tree.silent

    def expire(self) -> None:
        """The server ends it."""
        self._lost = True
        for path in [path for path, stored in self._tree.nodes.items() if stored.owner == self._id]:
            self._tree.remove(path)
        self._on_change()

    def replace(self, path: str, data: bytes, version: int) -> None:
        self._begin("replace", path)
        found = self._tree.nodes.get(path)
        if found is None or found.version != version:
            raise VersionError(path)
        del self._tree.nodes[path]
        self._tree.write(path, data, self._id)

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        self._begin("create", path)
        found = self._tree.nodes.get(path)
        owner = self._id if ephemeral else 0
        if found is None:
            self._tree.write(path, data, owner)
        elif (found.data, found.owner) != (data, owner):
            raise NodeExistsError(path)

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        self._begin("get", path)
        found = self._tree.nodes.get(path)
        node = None if found is None else Node(found.data, found.version, found.owner, 0, 0)
        if watch is not None:
            self._tree.watch(path, self, watch)
        self._tree.after_read(path)
        return node

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        self._begin("set", path)
        found = self._found(path, version)
        if found is None:
            raise NoNodeError(path)
        self._tree.write(path, data, found.owner)
        return found.version + 1

    def put(self, path: str, data: bytes) -> None:
        self._begin("put", path)
        self._tree.write(path, data)

    def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        self._begin("delete", path)
        found = self._found(path, version)
        self._tree.remove(path)
        return found is not None

    def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        self._begin("children", path)
        names = {item[len(path) + 1 :].split("/")[0] for item in self._tree.nodes if item.startswith(f"{path}/")}
        return sorted(names) if names or path in self._tree.nodes else None

    def close(self) -> None:
        self.closed = True
        if not self._lost:
            self.expire()

    def _begin(self, name: str, path: str) -> None:
        if self._lost:
            raise SessionLostError("over")
        self._tree.calls.append((name, path))
        if self._tree.silent:
            raise CoordinationError(f"no answer ({path})")
        if path in self._tree.refused:
            raise CoordinationError(f"refuses {path}")

    def _found(self, path: str, version: int) -> _Stored | None:
        found = self._tree.nodes.get(path)
        if found is not None and version not in (ANY_VERSION, found.version):
            raise VersionError(path)
        return found
