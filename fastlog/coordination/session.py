"""The interface: a tree of small values, some of which live as long as the session that made them.

A session is one session for good. Once it is lost every call raises ``SessionLostError``, and nothing that was asked
for through it happens any more; whoever wants to go on opens another one and looks again at what is there. So a
process that was stopped, lost what it owned and woke up cannot write as if it still did.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from fastlog.errors import CoordinationError

Watch = Callable[[], None]
"""Called once, from a thread of the session, when what was read has changed or the session is lost. May only set a
flag: while it runs, the session hears nothing."""

ANY_VERSION = -1


def session_name(session_id: int) -> str:
    """The id as ZooKeeper's own tools and logs write it: its 64 bits in hexadecimal digits, without a sign."""
    return f"0x{session_id & 2**64 - 1:x}"


class SessionLostError(CoordinationError):
    """The session is over. Its ephemeral nodes are gone or will be, and nothing can be done through it any more."""


class UnknownHostError(CoordinationError):
    """Nobody knows the name of any server: before a first session that is a mistake, which does not pass by waiting."""


class NodeExistsError(CoordinationError):
    """There is a node of that name, and another session or another writer made it."""


class NoNodeError(CoordinationError):
    """The node that was to be read, changed or deleted does not exist."""


class VersionError(CoordinationError):
    """The node was changed since the version that was given."""


class Node(NamedTuple):
    """A node's value, its version, and the session that owns it."""

    data: bytes
    version: int
    """Grows with every change; 0 when just made."""
    owner: int
    """The session whose end removes the node; 0 when it stays."""
    created_ms: int
    """When the node was made, by the server's clock, in ms since 1970."""
    modified_ms: int


class Session(Protocol):
    """Safe in several threads, but not in a watch. Every call may wait for the server, up to the session's time-out.

    Raises (every call):
        SessionLostError: the session is over.
        CoordinationError: the server did not answer in time; whether the call took effect is not known.
    """

    @property
    def id(self) -> int:
        """The session's id, which is the ``Node.owner`` of its ephemeral nodes."""

    @property
    def timeout(self) -> float:
        """Seconds of silence after which the server ends it: what was asked for, within the server's bounds."""

    @property
    def is_lost(self) -> bool:
        """Whether the session has ended. Never becomes False again."""

    @property
    def is_connected(self) -> bool:
        """Whether a server answers. While False, the session may have ended without this process knowing yet."""

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False) -> None:
        """Make a node; parents are made as needed, persistent and empty.

        That it exists already, made by this session with the same data, is success: the first answer may have been
        lost. Raises ``NodeExistsError`` otherwise.
        """

    def get(self, path: str, watch: Watch | None = None) -> Node | None:
        """The node, or None where there is none; the watch then waits for it to be made."""

    def set(self, path: str, data: bytes, version: int = ANY_VERSION) -> int:
        """Change a node and return its new version. Raises ``NoNodeError``, ``VersionError``."""

    def put(self, path: str, data: bytes) -> None:
        """Make or change a persistent node, whatever is there."""

    def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        """Remove a node without children; False where there was none. Raises ``VersionError``."""

    def replace(self, path: str, data: bytes, version: int) -> None:
        """Put an ephemeral node of this session in the place of a node without children, in one step.

        Who lists the nodes there never sees one missing. Raises ``VersionError``: it was changed since, or is gone.
        """

    def children(self, path: str, watch: Watch | None = None) -> list[str] | None:
        """The names below a node, unordered; None where there is no node: the watch then waits for it to be made."""

    def close(self) -> None:
        """End the session: its ephemeral nodes vanish at once. May be called again."""


def remove_tree(session: Session, path: str) -> None:
    """Remove a node and all below it. Raises as the session's calls."""
    for name in session.children(path) or []:
        remove_tree(session, f"{path}/{name}")
    session.delete(path)
