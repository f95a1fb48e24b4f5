"""What a group's worker and everybody else tell one another: the worker's findings, and what is asked of it."""

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
    """What a member is about."""

    JOINING = "joining"
    ASSIGNED = "assigned"
    NOTHING = "nothing to own"
    NO_ZOOKEEPER = "no ZooKeeper"
    NO_COORDINATOR = "no coordinator"
    FAILING = "failing"
    STOPPED = "stopped"


@dataclass
class Standing:
    """How things stand. Written by the worker alone, each field replaced as a whole; read by anybody."""

    state: GroupState = GroupState.JOINING
    error: Exception | None = None
    is_member: bool = False
    knows_topics: bool = False
    """It was found out of every topic whether it can be read here."""
    refused: Mapping[str, FastlogError] = field(default_factory=dict)
    """Why topics that were asked for by name cannot be."""
    owned: Mapping[TopicPartition, str] = field(default_factory=dict)
    committed: Mapping[TopicPartition, int] = field(default_factory=dict)
    unsaved: frozenset[TopicPartition] = frozenset()
    """Taken away since the last commit, though they had been consumed further than was saved."""
    partitions: Mapping[str, list[PartitionId]] = field(default_factory=dict)
    """All that is shown of the topics it reads, by topic; as it was read last."""
    addresses: Mapping[int, Address] = field(default_factory=dict)
    """Of the brokers that live, by id; as it was read last."""
    failed_commits: int = 0
    rebalances: int = 0
    sessions: int = 0


class CommitRequest:
    """Somebody wants offsets saved: these, or those of all that is owned."""

    __slots__ = ("_done", "is_waited_for", "offsets")

    def __init__(self, offsets: Mapping[TopicPartition, int] | None, is_waited_for: bool) -> None:
        self.offsets = offsets
        self.is_waited_for = is_waited_for
        self._done: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()

    def answer(self, error: Exception | None) -> None:
        """It is saved, or not."""
        self._done.put(error)

    def wait(self, seconds: float) -> None:
        """Raises what it was answered, and ``CoordinationError`` without an answer in time."""
        try:
            error = self._done.get(timeout=seconds)
        except queue.Empty:
            raise CoordinationError(f"no answer within {seconds:g} s; whether it was committed is not known") from None
        if error is not None:
            raise error


class Inbox:
    """What is asked of the worker. Safe in every thread, and in signal handlers: nothing here takes a lock."""

    def __init__(self) -> None:
        self.is_stopping = False
        self.commits: deque[CommitRequest] = deque()
        self.jumps: dict[TopicPartition, tuple[int, int]] = {}
        self.begun: dict[TopicPartition, None] = {}
        self._is_commit_asked = False
        self._is_awake = False
        self._alarm: queue.SimpleQueue[None] = queue.SimpleQueue()

    def wake(self) -> None:
        """Let the worker look at everything."""
        if not self._is_awake:
            self._is_awake = True
            self._alarm.put(None)

    def wait(self, seconds: float) -> None:
        """For the worker: until somebody wakes it, or the time has passed."""
        try:
            self._alarm.get(timeout=max(0.0, seconds))
        except queue.Empty:
            return
        self._is_awake = False  # before it looks at what it was woken for

    def stop(self) -> None:
        """The end."""
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
