"""What the parts of a group's consumer share: names of partitions, what reading one begins with, and the lease."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol

from fastlog.client.addresses import Address
from fastlog.errors import CoordinationError
from fastlog.zkpaths import PartitionId


class TopicPartition(NamedTuple):
    """A partition of a topic on a broker."""

    topic: str
    partition: PartitionId

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}"


class Claim(NamedTuple):
    """A partition that this member owns: which of its threads reads it, from which broker, from which offset.

    ``offset`` is None when nothing was ever committed: the reader asks the broker where to begin. ``log``: when the log
    was made that it is an offset of, in ms since 1970; 0: not known.
    """

    thread: str
    address: Address
    offset: int | None
    log: int = 0


class Lease:
    """Until when this process may act as the owner of its partitions.

    A process cannot know that its session has ended; but it has not ended before the session's time-out has passed
    since a request that the server answered was *sent*. So a process that was stopped, or is cut off, finds its lease
    over before anybody else can own what it owned. Written by one thread, read by any.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until = 0.0
        self.objection: CoordinationError | None = None
        """Why nothing is to be handed out although the lease is valid; None: nothing speaks against it."""

    @staticmethod
    def now() -> float:
        """Seconds on the clock of leases, which also runs while the machine sleeps."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    def extend(self, sent: float, seconds: float | None = None) -> None:
        """Note that the server has answered a request sent at ``sent``: valid for ``seconds`` from then, or as made."""
        self._until = max(self._until, sent + (self._seconds if seconds is None else seconds))

    def drop(self) -> None:
        """End the lease at once: no partition is owned any more."""
        self._until = 0.0

    @property
    def is_valid(self) -> bool:
        """Whether partitions may be acted on as owned at this moment."""
        return self.now() < self._until

    @property
    def seconds_left(self) -> float:
        """For how long something may be handed out if nothing extends it; 0 when it is over."""
        return 0.0 if self.objection is not None else max(0.0, self._until - self.now())


class Readers(Protocol):
    """What reads the partitions that a group owns. Called by the group's worker alone; every call returns soon."""

    def acquire(self, claims: Mapping[TopicPartition, Claim]) -> None:
        """Begin to read and to hand out these partitions."""

    def release(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """Stop; when it returns nothing of them is handed out any more. Gives the offset each has been consumed to."""

    def consumed(self) -> dict[TopicPartition, int]:
        """The offset to which each partition that is read has been consumed."""

    def logs(self) -> dict[TopicPartition, int]:
        """When the log of each partition was made, in ms, 0: not known. ``consumed`` later is of these or newer."""

    def beginning(self) -> Collection[TopicPartition]:
        """The partitions whose first offset is not known yet, although their broker has not failed."""

    def moved(self, addresses: Mapping[int, Address]) -> None:
        """Take the present address of each broker that is alive, by its id."""
