"""The flusher process: one compiled loop, and a few threads for each log directory that sync."""

from __future__ import annotations

from fastlog.log._arena import FLUSHER
from fastlog.workers import child
from fastlog.workers._flusher import make_flusher_loop

THREADS_PER_DIRECTORY = 4
"""As many syncs of one disk at a time: of a thousand files they take a fifth of the time that one thread takes."""
MAX_THREADS = 64


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
    threads = max(1, min(THREADS_PER_DIRECTORY, MAX_THREADS // len(config.log_dirs)))
    return int(loop.run(threads, shared.supervisor_pid))
