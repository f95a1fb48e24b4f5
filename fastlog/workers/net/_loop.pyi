"""The event loop of a processor: sockets, wake-ups, timers."""

from collections.abc import Sequence

from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.workers.net._helper import Helper
from fastlog.workers.net._protocol import Protocol
from fastlog.workers.net._remote import Remote
from fastlog.workers.net._slot_waits import SlotWaits

class Loop:
    """Serves connections until the supervisor says stop; one thread."""

    def __init__(
        self,
        arena: Arena,
        helper: Helper,
        files: SegmentFiles,
        slot_waits: SlotWaits,
        protocols: Sequence[Protocol],
        process: int,
        handoff: int,
        signal_fd: int,
        listeners: Sequence[int],
        idle_ms: int,
        connection_limit: int,
        send_buffer: int | None,
        receive_buffer: int | None,
        memory_bytes: int,
        max_connections: int = 1 << 40,
        heartbeat_ms: int = 250,
        retry_ms: int = 5,
        stalled_ms: int = 10_000,
        turn_ms: int = 2,
        remote: Remote | None = None,
    ) -> None:
        """``protocols`` are what the listeners speak, by their place; ``memory_bytes`` is the budget for requests, and
        for answers. ``heartbeat_ms`` and, for locks, ``retry_ms`` heal what a dead process left: nothing else relies
        on them. A connection is served for ``turn_ms`` at a time. ``remote`` does the jobs that are
        for another process.
        """

    @property
    def turns(self) -> int:
        """How often the loop has turned."""

    @property
    def held(self) -> dict[str, int]:
        """What is taken and not given back, by name: connections, memory for requests, pinned descriptors, jobs."""

    @property
    def answer_bytes(self) -> int:
        """Memory for answers, in bytes: of those that are made, owed or not sent yet, and what is kept for the next."""

    @property
    def job_steps(self) -> int:
        """How often a thread took up work that is not the loop's, a step of a long job counted as one."""

    def run(self, parent: int) -> int:
        """Serve; 0 when the stop finished every connection or its time was over, 1 when the supervisor is gone."""
