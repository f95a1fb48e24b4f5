"""The flusher process: one compiled loop and a few threads that sync."""

from __future__ import annotations

from fastlog.log._arena import FLUSHER
from fastlog.workers import child
from fastlog.workers._flusher import make_flusher_loop

THREADS_PER_DIRECTORY = 2
MAX_THREADS = 8


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
    threads = min(MAX_THREADS, 1 + THREADS_PER_DIRECTORY * len(config.log_dirs))
    return int(loop.run(threads, shared.supervisor_pid))
