"""The flusher process: one compiled loop, and threads for each log directory that sync."""

from __future__ import annotations

from fastlog.log._shared_memory import FLUSHER
from fastlog.workers import child
from fastlog.workers._flusher import make_flusher_loop

THREADS_PER_DIRECTORY = 4
"""That are there from the beginning; fewer where there are many directories."""
MAX_FIRST_THREADS = 64
MOST_THREADS_PER_DIRECTORY = 64
"""While many partitions wait: a thousand syncs of 4 ms each take them 70 ms, and four threads a second."""
MAX_THREADS = 512


def run(shared: child.Shared, number: int) -> int:
    """Flush until the broker stops; the exit code of the process."""
    assert number == FLUSHER
    child.begin(shared, number)
    config = shared.config
    loop = make_flusher_loop(
        shared.arena,
        max(16, shared.descriptors // 4),
        config.preallocate_bytes if config.preallocate else 0,
        config.early_writeback_bytes,
        config.flush_min_interval_ms,
        -1 if config.cache_keep_bytes is None else config.cache_keep_bytes,
        child.HEARTBEAT_MS,
    )
    count = len(config.log_dirs)
    threads = max(1, min(THREADS_PER_DIRECTORY, MAX_FIRST_THREADS // count))
    most = max(threads, min(MOST_THREADS_PER_DIRECTORY, MAX_THREADS // count))
    return int(loop.run(threads, most, shared.supervisor_pid))
