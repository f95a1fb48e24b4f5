"""Partitions that forked processes share without a broker: an arena, files, appenders, and a flusher."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastlog.log import _files
from fastlog.log._append import Appender, append_bytes
from fastlog.log._arena import Arena
from fastlog.log._flush import PartitionFlusher, flush_now, make_partition_flusher
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.slots import Segment, SlotSpec, SlotView
from fastlog.workers._flusher import make_flusher_loop
from tests.harness import raw_format
from tests.harness.timing import PATIENCE

DONE, BUSY, FULL, FAILED, OFFLINE = range(5)
HOUR_MS = 3_600_000
LIMITS: dict[str, int] = {
    "segment_bytes": 1 << 30,
    "roll_ms": 168 * HOUR_MS,
    "flush_messages": 1_000_000,
    "flush_bytes": 1 << 28,
    "flush_ns": 60 * 10**9,
}


def message(size: int = 14, fill: bytes = b"x") -> bytes:
    """One magic-0 entry of exactly so many bytes on disk, at least 9."""
    return raw_format.entry((fill * size)[: size - 9], magic=0)


class SharedLog:
    """An arena and some partitions of topic ``t`` below a directory; ``limits`` replace those of ``LIMITS``.

    With several log directories, which are made below it, partitions lie in them by turns.
    """

    def __init__(
        self,
        directory: Path,
        *,
        partitions: int = 1,
        directories: int = 1,
        table_entries: int = 64,
        base: int = 0,
        durable: bool = True,
        capacity: int = 64,
        **limits: int,
    ) -> None:
        self.directory = directory
        self.roots = [directory] if directories == 1 else [directory / str(number) for number in range(directories)]
        for root in self.roots:
            root.mkdir(exist_ok=True)
        self.arena = Arena([str(root) for root in self.roots], FIRST_PROCESSOR + 8, max(partitions, 1), table_entries)
        for partition in range(partitions):
            self.folder(partition).mkdir()
            self.path(base, partition).touch()
            spec = SlotSpec(
                topic="t",
                partition=partition,
                directory=partition % directories,
                format=0,
                created_ms=1,
                segments=[(base, 1, 0)],
                log_end=base,
                durable=durable,
                **(LIMITS | limits),
            )
            self.arena.add(spec)
        self._open(capacity)

    @classmethod
    def over(cls, arena: Arena) -> SharedLog:
        """The partitions that an arena has, or will have, in its first log directory."""
        log = cls.__new__(cls)
        log.directory, log.arena = Path(arena.log_dirs[0]), arena
        log.roots = [log.directory]
        log._open(64)
        return log

    def _open(self, capacity: int) -> None:
        self.files = SegmentFiles(self.arena, capacity)
        self.appender = Appender(self.arena, self.files, FIRST_PROCESSOR)
        self.flusher: PartitionFlusher = make_partition_flusher(self.arena, 64, 0, 0)

    def folder(self, slot: int = 0) -> Path:
        return self.roots[slot % len(self.roots)] / f"t-{slot}"

    def path(self, base: int, slot: int = 0) -> Path:
        return self.folder(slot) / f"{base:020}.kafka"

    def append(self, data: bytes, count: int = 1, slot: int = 0) -> int:
        """Append one set; returns the status."""
        return self.try_append(data, count, slot)[0]

    def try_append(self, data: bytes, count: int = 1, slot: int = 0) -> tuple[int, int, int, int]:
        return append_bytes(self.appender, slot, data, count)

    def flush(self, slot: int = 0) -> int:
        return flush_now(self.flusher, slot)

    def view(self, slot: int = 0) -> SlotView:
        return self.arena.view(slot)

    def segments(self, slot: int = 0) -> list[Segment]:
        return self.arena.segments(slot)

    def bases(self, slot: int = 0) -> list[int]:
        return [item.base for item in self.segments(slot)]

    def stored(self, slot: int = 0) -> bytes:
        """The bytes of all segment files in order."""
        return b"".join(path.read_bytes() for path in sorted(self.folder(slot).glob("*.kafka")))

    def counter(self, name: str, process: int = FIRST_PROCESSOR) -> int:
        return self.arena.counters(process)[name]


def start(work: Callable[[], Any], faults: str = "") -> int:
    """Do something in a forked process with these faults; its pid. It ends with 0 after the work, 1 after an error."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _files.arm(faults, "test")
        result = work()
        code = result if isinstance(result, int) else 0
    finally:
        os._exit(code)


def wait(pid: int, seconds: float = PATIENCE) -> int:
    """The exit code of a child, -9 after SIGKILL; a child that stays longer is killed and fails the test."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    raise AssertionError(f"pid {pid} did not end in {seconds} s")


def in_child(work: Callable[[], Any], faults: str = "") -> int:
    """Do something in a forked process and wait for its end; the exit code, -9 when a fault killed it."""
    return wait(start(work, faults))


def start_flusher(
    arena: Arena,
    faults: str = "",
    descriptors: int = 64,
    prepare: Callable[[], None] | None = None,
    heartbeat_ms: int = 250,
    threads: tuple[int, int] = (2, 2),
) -> int:
    """The flusher's own loop in a forked process; its pid. At each heartbeat it looks at what nobody told it of.

    ``threads`` are those of each log directory: from the beginning, and at most.
    """
    parent = os.getpid()

    def work() -> int:
        if prepare is not None:
            prepare()
        return make_flusher_loop(arena, descriptors, 0, 0, 5, -1, heartbeat_ms).run(*threads, parent)

    return start(work, faults)


def stop(pid: int) -> None:
    """Kill a child and wait for its end."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def wait_until(holds: Callable[[], bool], seconds: float = PATIENCE, what: str = "") -> float:
    """Wait for something to hold; the seconds it took."""
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > seconds:
            raise AssertionError(f"not in {seconds} s: {what}")
        time.sleep(0.002)
    return time.monotonic() - started
