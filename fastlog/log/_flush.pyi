"""Flushing: the one place that decides when an offset becomes visible. Only the flusher process runs it."""

from fastlog.log._arena import Arena

class PartitionFlusher:
    """Flushes partitions; made by ``make_partition_flusher``."""

def make_partition_flusher(
    arena: Arena, descriptors: int, preallocate_bytes: int, writeback_bytes: int, keep_bytes: int = -1
) -> PartitionFlusher:
    """What flushes in the flusher process; it keeps about ``descriptors`` segments open."""

def flush_now(flusher: PartitionFlusher, slot: int) -> int:
    """Flush one partition in the calling thread: 0 or an errno; for tools and tests, where no flusher runs."""

def run_ahead_now(flusher: PartitionFlusher, slot: int, least_free_percent: int = 0) -> None:
    """Preallocate and start write-back for one partition as under load, where so much of its file system is free.

    For tools and tests.
    """

def release_now(flusher: PartitionFlusher, slot: int) -> None:
    """Close and give back what is kept of one idle partition; for tools and tests."""
