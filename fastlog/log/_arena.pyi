"""The arena: the shared memory of one broker with the slots of its partitions; see ``_arena.h`` for the layout."""

from typing import Final

from fastlog.log._shared_memory import SharedMemory
from fastlog.log.slots import Leaving, ProducerState, Segment, SlotSettings, SlotSpec, SlotView

STATE_READ_ONLY: Final[int]
STATE_OFFLINE: Final[int]
STATE_NO_FLUSH: Final[int]
WHY_START: Final[int]
WHY_NAME: Final[int]
WHY_ROOM: Final[int]

class Arena(SharedMemory):
    """The shared memory of one broker. Made once by the supervisor; every child inherits it through fork."""

    @property
    def max_partitions(self) -> int: ...
    @property
    def slots(self) -> int:
        """Of all partitions there may be, and some for those that are recovered."""

    @property
    def table_entries(self) -> int: ...
    @property
    def slot_count(self) -> int: ...
    @property
    def retention_generation(self) -> int: ...
    def create_lock(self) -> bool:
        """Try for the lock of partition creation; True when held. A dead owner's lock is taken over."""

    def create_unlock(self) -> None: ...
    def wake_creators(self) -> None:
        """Wake whoever waits for a partition to appear or to go."""

    def wait_for_creation(self, process: int) -> None:
        """Ask to be woken when the creation lock is released or a partition appears; look again afterwards."""

    @property
    def room(self) -> int:
        """How many partitions more there are slots for, at most; the creation lock makes it exact."""

    def add(self, spec: SlotSpec, spare: bool = False, like: int | None = None) -> int:
        """Write a partition into a slot and publish it; the caller holds the creation lock. Returns the slot's index.

        ``spare``: one of the spare slots may be taken, for a partition whose own slot is free soon. ``like``: the slot
        whose settings hold, instead of those of ``spec``.

        Raises:
            LogError: every slot is taken, or the partition has more segments than a table holds.
        """

    @property
    def producer_blocks_taken(self) -> int:
        """How many blocks of the pool are some slot's."""

    @property
    def largest_producer(self) -> int:
        """The largest producer id that was met in a log which was recovered; -1: none."""

    def meet_producer(self, producer: int) -> None:
        """Such an id was met; by the supervisor before it forks, then by the keeper alone."""

    def producers(self, index: int) -> list[ProducerState]:
        """What one slot says of producers, by id; for tests, while nobody appends."""

    def producer_ends(self, index: int) -> dict[int, list[int]]:
        """The positions behind the batches that ``producers`` tells of, by producer; for tests."""

    def sequenced(self, index: int) -> bool:
        """Whether the log of a slot has batches of producers that number them, as far as that is known."""

    @property
    def change_count(self) -> int:
        """How many lives of slots have begun or ended so far."""

    def changed(self, seen: int) -> tuple[int, list[int] | None]:
        """``(change_count, slots whose lives began or ended since)`` it was ``seen``; None: any slot may have."""

    def see(self, process: int, change_count: int) -> None:
        """Say that ``process`` (itself) looks with none of its threads at a slot as it was before these changes."""

    def seen(self, process: int) -> int:
        """The changes that ``process`` is past with all its threads."""

    def see_all(self, process: int) -> None:
        """Say that nobody is in the place of ``process`` (the supervisor, before it starts somebody there)."""

    def want_deletion(self) -> None:
        """Have the keeper look for deletion markers."""

    def want_start(self, index: int, offset: int) -> None:
        """Let a partition begin at an offset that is visible, for readers at once.

        The keeper writes it down and drops what is before it. For a process that is not past the partition's life.
        """

    def change_settings(self, index: int, life: int, settings: SlotSettings) -> None:
        """Give a partition other settings, unless it has gone. Under the creation lock: no slot is taken meanwhile."""

    def settle(self, index: int) -> None:
        """Show a partition to clients of today: it is written down that it is there. The coordinator alone calls it."""

    @property
    def starts_wanted(self) -> int:
        """How often somebody has wanted a partition to begin later."""

    def unkept_starts(self) -> list[int]:
        """The slots whose partitions are to begin at an offset that is not written down yet."""

    def publish_start(self, index: int, start: int) -> None:
        """Say that the start of one slot is written down, and let its log begin there; the keeper alone calls it.

        Raises:
            LogError: it would go back, or pass what is flushed and visible.
        """

    @property
    def deletions_wanted(self) -> int:
        """How often somebody has wanted a topic to be deleted."""

    def leaving(self) -> list[Leaving]:
        """The partitions that have gone and whose slots are not free yet."""

    def returning(self) -> list[Leaving]:
        """The partitions whose lives have ended to be recovered."""

    def succeed(self, index: int) -> None:
        """Let a partition that was to return leave this slot, because it lives in another one; under the creation lock.

        Raises:
            LogError: none was to return here.
        """

    def revive(self, index: int) -> None:
        """Let a partition live on in this slot as it was, because it could not be recovered; under the creation lock.

        Raises:
            LogError: none was to return here.
        """

    def is_past(self, index: int) -> bool:
        """Whether every process is past the end of this slot's life."""

    def free(self, index: int) -> None:
        """Let a slot be used again whose partition has gone; the caller holds the creation lock, and all are past it.

        Raises:
            LogError: it is free, or a partition.
        """

    def shown_view(self, index: int) -> SlotView | None:
        """The words of one slot, read in the order that keeps visible ≤ flushed ≤ log end; None: it is no partition.

        One that is to return is one: until then it is read as it was, and its life is even.
        """

    def live_view(self, index: int) -> SlotView | None:
        """The same, None also for one that is to return."""

    def view(self, index: int) -> SlotView:
        """The same for a partition that is there.

        Raises:
            PartitionGoneError: it is not any more.
        """

    def views(self) -> list[SlotView]:
        """A view of each slot that is alive."""

    def segments(self, index: int) -> list[Segment]:
        """The segments of one slot that are still held, oldest first.

        For who is not past the slot's life: of a slot that is used again meanwhile they would be another partition's.
        """

    def describe_state(self, state: int) -> str:
        """A slot's state word in words, for messages."""

    def publish_retention(self, index: int, new_head: int, new_start: int) -> None:
        """Move the log start of one slot up; the keeper alone calls it, before it unlinks a file.

        Raises:
            LogError: the start would go back, or pass what is flushed and visible.
        """

    def retention_done(self) -> None:
        """Tell every process to close descriptors of segments that are gone."""

    def wait_for_end(self, index: int, process: int) -> None:
        """Have ``process`` woken when the flushed or visible end or the state of a slot moves; look again then."""

    def demand_flush(self, index: int) -> None:
        """Ask the flusher to flush one partition soon."""
