"""What the worker of a group's member and other threads exchange: the member's status, and requests to the worker."""

from __future__ import annotations

import enum
import queue
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from fastlog.client.addresses import Address
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import CoordinationError, FastlogError
from fastlog.zkpaths import PartitionId


class GroupState(enum.Enum):
    """The phase that a member of a group is in."""

    JOINING = "joining"
    ASSIGNED = "assigned"
    NOTHING = "nothing to own"
    NO_ZOOKEEPER = "no ZooKeeper"
    NO_COORDINATOR = "no coordinator"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass
class MemberStatus:
    """The status of a member. Written by the worker alone, each field replaced as a whole; read by any thread."""

    state: GroupState = GroupState.JOINING
    error: Exception | None = None
    is_member: bool = False
    knows_topics: bool = False
    """Whether it is known of every topic if it can be read here."""
    refused: Mapping[str, FastlogError] = field(default_factory=dict)
    """Topics that were asked for by name and cannot be read, with the reason."""
    owned: Mapping[TopicPartition, str] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    unsaved: frozenset[TopicPartition] = frozenset()
    """Partitions taken away since the last commit that had been consumed further than was saved."""
    partitions: Mapping[str, list[PartitionId]] = field(default_factory=dict)
    """All announced partitions of the topics it reads, by topic; as they were read last."""
    addresses: Mapping[int, Address] = field(default_factory=dict)
    """Addresses of the brokers that are alive, by id; as they were read last."""
    failed_commits: int = 0
    rebalances: int = 0
    sessions: int = 0


class CommitRequest:
    """A request to save ``offsets``; None: of every partition that is owned, how far it was consumed."""

    __slots__ = ("_done", "is_waited_for", "offsets")

    def __init__(self, offsets: Mapping[TopicPartition, int] | None, is_waited_for: bool) -> None:
        self.offsets = offsets
        self.is_waited_for = is_waited_for
        self._done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def answer(self, error: Exception | None) -> None:
        """End ``wait``: the offsets were saved (None), or were not, for this reason."""
        self._done.put(error)

    def wait(self, seconds: float) -> None:
        """Wait up to ``seconds`` for the answer.

        Raises:
            CoordinationError: there was none in time. Else the error that it was answered with.
        """
        try:
            error = self._done.get(timeout=seconds)
        except queue.Empty:
            raise CoordinationError(f"no answer within {seconds:g} s; whether it was committed is not known") from None
        if error is not None:
            raise error


class WorkerInbox:
    """Requests to the worker. Safe in every thread, and in signal handlers: nothing here takes a lock."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.commits: deque[CommitRequest] = deque()
        self.jumps: dict[TopicPartition, tuple[int, int]] = {}
        self.begun: dict[TopicPartition, None] = {}
        self._is_commit_asked = False
        self._is_awake = False
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        """End the worker's ``wait``, so that it looks at every kind of request."""
        if not self._is_awake:
            self._is_awake = True
            self._alarm.put(None)

    def wait(self, seconds: float) -> None:
        """For the worker: return when ``wake`` is called, at the latest after ``seconds``."""
        try:
            self._alarm.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return
        self._is_awake = False  # before it looks at what it was woken for

    def stop(self) -> None:
        """Have the worker leave the group and end."""
        self.is_stopping = True
        self.wake()

    def ask(self, offsets: Mapping[TopicPartition, int] | None, is_waited_for: bool) -> CommitRequest:
        """Ask for a commit; of those of everything that nobody waits for, one at a time is enough."""
        request = CommitRequest(offsets, is_waited_for)
        is_any = offsets is None and not is_waited_for
        if not (is_any and self._is_commit_asked):
            self._is_commit_asked |= is_any
            self.commits.append(request)
            self.wake()
        return request

    def next_commit(self) -> CommitRequest | None:
        """For the worker: the oldest commit not answered yet."""
        if not self.commits:
            return None
        request = self.commits.popleft()
        if request.offsets is None and not request.is_waited_for:
            self._is_commit_asked = False
        return request
