"""What is forwarded at once, and the observer that is called for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from fastlog.consumer._delivery import Place
from fastlog.consumer.partitions import TopicPartition
from fastlog.errors import FastlogError


class TargetPartition(NamedTuple):
    """A partition of a broker of the target."""

    broker: int
    partition: int


class MirrorPiece:
    """A run of whole entries on its way to one partition of the target. Settled once, by the pipe that has it."""

    __slots__ = (
        "data",
        "entries",
        "is_sent",
        "is_too_large",
        "next_offset",
        "offset",
        "place",
        "settled",
        "target",
        "target_offset",
        "topic",
    )

    def __init__(
        self,
        place: Place,
        topic: str,
        offset: int,
        data: memoryview,
        entries: int,
        target: TargetPartition,
        settled: Callable[[MirrorPiece, FastlogError | None], None],
        *,
        is_too_large: bool = False,
    ) -> None:
        self.place = place
        self.topic = topic
        self.offset = offset
        self.next_offset = offset + len(data)
        self.data = data
        self.entries = entries
        self.target = target
        self.target_offset = -1
        self.is_sent = False
        """Whether some of its bytes were sent, so that it may be stored."""
        self.is_too_large = is_too_large
        self.settled = settled


class Forwarded(NamedTuple):
    """What the target has acknowledged, or, where ``error`` says why, what was left out."""

    cluster: str
    """The name of the source cluster, by the mirror's configuration."""
    source: TopicPartition
    offset: int
    next_offset: int
    data: memoryview
    """The entries as they lie in both logs, compressed sets closed; nothing of a message that cannot even be read."""
    entries: int
    target: TargetPartition
    target_offset: int
    """Its first offset in the target; -1 where a plain 0.7 broker does not return it."""
    error: FastlogError | None = None


class Observer(Protocol):
    """Called for every run that was forwarded or left out, once the target has acknowledged it and before the source's
    offset moves: what is counted here was stored, and what is reported twice was stored twice.

    Called in the threads of the mirror, for one source partition in order and never twice at once. What it raises
    stops nothing; it is logged.

    One that has a method ``keep()`` is asked to keep what was reported, and the source's offsets move only after that
    has returned; while it raises ``FastlogError`` they stay.
    """

    def __call__(self, run: Forwarded) -> object:
        """Take note of a run; its bytes are valid during the call alone."""
