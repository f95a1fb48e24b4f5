"""What the members of a group send and get, what is kept of them, and a member as its group has it.

Times are milliseconds.
"""

from __future__ import annotations

from typing import NamedTuple

from fastlog.kafka_codes import Code
from fastlog.workers.coordinator.promises import Promise

NEVER = 2**62


class Joining(NamedTuple):
    """The fields of a JoinGroup request that the group needs."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_ms: int
    rebalance_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """Names of assignors and the member's metadata for each, the one it likes best first."""
    needs_id: bool = True
    """A new member gets its id, and joins again with it: so that joins whose answers are lost leave no members."""
    skips_assignment: bool = True
    """A static leader that comes back understands that it need not assign anything."""


class JoinedMember(NamedTuple):
    """A member, as its leader gets to see it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(NamedTuple):
    """The answer to a join."""

    code: Code
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    members: tuple[JoinedMember, ...] = ()
    skip_assignment: bool = False


class Synced(NamedTuple):
    """The answer to a sync."""

    code: Code
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


class StoredMember(NamedTuple):
    """A member, as the record of its group has it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_ms: int
    session_ms: int
    metadata: bytes
    """The member's metadata for the protocol that the group chose."""
    assignment: bytes


class Stored(NamedTuple):
    """A group as it is kept: one generation and its assignment."""

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    members: tuple[StoredMember, ...]


class Member:
    """A member of a group: its session, its protocols, and the requests of it that wait."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "expires_at",
        "instance_id",
        "is_new",
        "joining",
        "member_id",
        "protocols",
        "rebalance_ms",
        "session_ms",
        "syncing",
    )

    def __init__(self, member_id: str, asked: Joining) -> None:
        self.member_id = member_id
        self.instance_id = asked.instance_id
        self.client_id = asked.client_id
        self.client_host = asked.client_host
        self.session_ms = asked.session_ms
        self.rebalance_ms = asked.rebalance_ms
        self.protocols = asked.protocols
        self.assignment = b""
        self.expires_at = NEVER
        self.is_new = False
        self.joining: Promise[Joined] | None = None
        self.syncing: Promise[Synced] | None = None

    def metadata(self, protocol: str | None) -> bytes:
        """What it said for an assignor; nothing for one it does not have."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    @property
    def size(self) -> int:
        """Bytes that it makes the coordinator keep, about."""
        return sum(len(name) + len(data) for name, data in self.protocols) + len(self.assignment)

    def answer_join(self, answer: Joined) -> None:
        """Answer the join that waits, if any."""
        waiting, self.joining = self.joining, None
        if waiting is not None:
            waiting.give(answer)

    def answer_sync(self, answer: Synced) -> None:
        """Answer the sync that waits, if any."""
        waiting, self.syncing = self.syncing, None
        if waiting is not None:
            waiting.give(answer)
