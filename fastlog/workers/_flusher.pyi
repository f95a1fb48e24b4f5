"""The flusher's loop: which partition is due, and threads for each log directory that flush."""

from fastlog.log._arena import Arena

class FlusherLoop:
    """The flusher process; made by ``make_flusher_loop``."""

    @property
    def turns(self) -> int:
        """How often its loop has turned."""

    def run(self, threads: int, most_threads: int, parent: int) -> int:
        """Flush until the final flush of the stop is done (0) or the supervisor is gone (1).

        Each log directory has ``threads``, and up to ``most_threads`` once many of its partitions wait.
        """

    def work(self, directory: int, number: int) -> None:
        """Flush what the loop hands out of one log directory until it closes; the target of its threads."""

def make_flusher_loop(
    arena: Arena,
    descriptors: int,
    preallocate_bytes: int,
    writeback_bytes: int,
    min_interval_ms: int,
    keep_bytes: int = -1,
    heartbeat_ms: int = 250,
) -> FlusherLoop:
    """The loop of the flusher process. It turns every ``heartbeat_ms`` and keeps about ``descriptors`` segments
    open.
    """
