"""The memory that the processes of one broker share, and what of it is theirs; ``_arena.h`` has the layout."""

from collections.abc import Sequence
from typing import Final

COUNTERS: Final[tuple[str, ...]]
FLUSH_BUCKETS_US: Final[tuple[int, ...]]
"""Flushes that took up to so many microseconds, and longer than the one before says, have a counter each."""
FLUSHER: Final[int]
KEEPER: Final[int]
ACCEPTOR: Final[int]
COORDINATOR: Final[int]
STAGE_PROCESSORS: Final[int]
STAGE_COORDINATOR: Final[int]
STAGE_FLUSHER: Final[int]
STAGE_KEEPER: Final[int]
FIRST_PROCESSOR: Final[int]
SUPERVISOR: Final[int]
MAX_PROCESSORS: Final[int]
PRODUCER_BLOCKS: Final[int]
PRODUCER_EXPIRY_MS: Final[int]

class SharedMemory:
    """What of the arena belongs to no partition: its pages, how processes wake each other, how far a stop has come."""

    def __init__(
        self,
        log_dirs: Sequence[str],
        processes: int,
        max_partitions: int,
        table_entries: int,
        producer_blocks: int = ...,
        producer_expiry_ms: int = ...,
    ) -> None:
        """Map a new arena; ``table_entries`` is rounded up to a power of two.

        All partitions share ``producer_blocks`` blocks of 16 entries for producers that number their batches; after
        ``producer_expiry_ms`` without a batch such a producer is one that nobody knows.

        Raises:
            LogError: the kernel gives no memory, or the system has no robust mutexes.
        """

    @property
    def log_dirs(self) -> list[str]: ...
    @property
    def processes(self) -> int: ...
    @property
    def other_broker(self) -> int | None:
        """The id of another broker that ZooKeeper shows beside this one; None where it shows none."""

    def set_other_broker(self, broker: int | None) -> None:
        """Say that ZooKeeper shows another broker, by its id, or None; the keeper alone calls it."""

    @property
    def stopping(self) -> int: ...
    def set_stopping(self, stage: int) -> None:
        """Say how far the stop has come: one of the ``STAGE_`` numbers, whose processes finish and leave."""

    @property
    def ending(self) -> bool:
        """Whether the broker stops: True from the first moment on, while ``stopping`` may still be 0."""

    def set_ending(self) -> None:
        """Say that the stop begins (the supervisor, once)."""

    def set_stalled(self, now_ns: int) -> None:
        """Say that a stop waits for a disk, now (the supervisor): the time of the processors' last call begins anew."""

    def eventfd(self, process: int) -> int:
        """The descriptor that becomes readable when ``process`` is woken."""

    def wake(self, process: int) -> None: ...
    def wake_all(self) -> None: ...
    def wake_taken(self, process: int) -> None:
        """Take the wake-ups of ``process`` (itself); call it before looking at the shared words."""

    def clear_cell(self, process: int, pid: int, now_ns: int) -> None:
        """Begin a process's cell afresh (the supervisor before the start, the process at its start); counters go on."""

    def incarnation(self, process: int) -> int:
        """How many processes in this place have died so far; what one of them sent, or was sent, is void."""

    def end_incarnation(self, process: int) -> None:
        """Say that the process in this place has died: the supervisor, before it starts a successor."""

    def beat(self, process: int) -> None:
        """Say that ``process`` (itself) is alive, now."""

    def cell(self, process: int) -> tuple[int, int, int, int, int]:
        """``(pid, heartbeat_ns, busy_permille, connections, holding)`` of one process."""

    def disk_since(self, process: int) -> int:
        """When ``process`` began, in monotonic ns, what it waits for a disk with; 0: it does not, or does not say."""

    def counters(self, process: int) -> dict[str, int]:
        """The counters of one process by name; they survive the process."""

    def count(self, process: int, name: str, by: int = 1) -> None:
        """Add to a counter of ``process`` (itself)."""

    def requests(self, process: int) -> dict[int, int]:
        """How often a process has been asked with each api key of today's protocol, of those that it was asked with."""

    def refusals(self, process: int) -> dict[tuple[int, int] | None, int]:
        """How often a process has answered an error to such a request: by api key and code.

        Those that it had no place for stand under None. A scrape beside it may see an error that is just being counted
        with a count of 0.
        """

    def count_refusal(self, process: int, key: int, code: int) -> None:
        """Count an error that ``process`` (itself) answers to a request of today's protocol."""

    def handed_over(self, process: int) -> int:
        """Connections a processor has received so far."""
