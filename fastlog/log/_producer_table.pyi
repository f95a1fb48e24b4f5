"""The producers of one log, made of a snapshot and the heads of batches."""

from collections.abc import Iterable
from typing import NamedTuple

from fastlog.log.slots import ProducerState

class SnapshotEntry(NamedTuple):
    """A producer in a snapshot: with its last batch alone. ``last_offset`` -1: it has none; times in ms."""

    id: int
    epoch: int
    last_sequence: int
    last_offset: int
    delta: int
    time_ms: int
    coordinator_epoch: int = -1
    open_offset: int = -1

class ProducerTable:
    """The producers of one partition, by id; not thread-safe."""

    def __init__(self, entries: Iterable[SnapshotEntry] = ()) -> None:
        """``entries`` are those of a snapshot."""

    def __len__(self) -> int: ...
    def replay(self, fd: int, format_number: int, start: int, end: int, seen_ms: int) -> int:
        """Take in the batches of an open segment between two positions; the position where that ended: ``end``, or
        before what can be no batch. ``seen_ms`` is when the last of them came.

        Raises:
            OSError: the file cannot be read.
        """

    def update(self, newer: ProducerTable) -> None:
        """What a table says of whole stretches of the log that are at least as new counts instead."""

    def forget_before(self, time_ms: int) -> None:
        """Forget producers that were heard of last at this time or before, but for those with open transactions."""

    def entries(self) -> list[SnapshotEntry]:
        """The entries of a snapshot of this table, by producer id."""

    def states(self, now_ms: int) -> tuple[ProducerState, ...]:
        """The same for shared memory, with the last five batches of each as far as they are known."""

    @property
    def has_open(self) -> bool:
        """Whether a transaction is open."""
