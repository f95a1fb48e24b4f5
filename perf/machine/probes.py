"""Programs of a few lines that do one thing of what a broker does, to see what the machine gives for it.

Each is a context that has made what its probes need, and gives them; files are gone after it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from perf import interrupts
from perf.figures.results import Better, Run
from perf.replay.stage import warm_memory
from perf.replay.streams import percentiles

PIECE_BYTES = 1 << 20
SET_BYTES = 10_500
"""What 50 messages of 200 bytes take in a log."""

TOPIC_FILES = 400
READERS = ((1, False), (4, False), (1, True), (2, True), (8, True))
"""How many read at once, and whether past the page cache."""

WRITES = ((1, PIECE_BYTES), (1, SET_BYTES), (TOPIC_FILES, SET_BYTES))
"""Into how many files in turn, and the bytes of each write."""

SLEEP_SECONDS = 0.001
_IDLE_SECONDS = 0.0005


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One figure: its name, what it is, and a function that measures it once, in ``unit``."""

    name: str
    title: str
    unit: str
    measure: Callable[[], Run]
    better: Better = "higher"
    parameters: Mapping[str, Any] = field(default_factory=dict)


# --- reading ---


@contextlib.contextmanager
def disk_read(directory: Path, size: int) -> Iterator[list[Probe]]:
    """Reading a file of ``size`` bytes from the disk, in pieces of 1 MiB, nothing of it in the page cache before."""
    path = directory / "read"
    size = max(1, size // PIECE_BYTES) * PIECE_BYTES
    piece = os.urandom(PIECE_BYTES)
    with path.open("wb") as out:
        for _ in range(size // PIECE_BYTES):
            out.write(piece)
        out.flush()
        os.fsync(out.fileno())  # what is not written yet cannot be dropped from the page cache
    try:
        yield [
            Probe(
                name=f"disk-read-{'direct' if direct else 'cached'}-{readers}",
                title=f"Reading {'past' if direct else 'through'} the page cache, {readers} at once",
                unit="MB/s",
                measure=lambda readers=readers, direct=direct: _read(path, size, readers, direct),  # type: ignore[misc]
                parameters={"bytes": size, "piece_bytes": PIECE_BYTES, "readers": readers, "direct": direct},
            )
            for readers, direct in READERS
        ]
    finally:
        path.unlink()


def _read(path: Path, size: int, readers: int, direct: bool) -> Run:
    file = os.open(path, os.O_RDONLY | (os.O_DIRECT if direct else 0))
    errors: list[OSError] = []

    def read(number: int) -> None:
        try:
            with mmap.mmap(-1, PIECE_BYTES) as piece:  # direct reads want whole pages
                for offset in range(number * PIECE_BYTES, size, readers * PIECE_BYTES):
                    if os.preadv(file, [piece], offset) != PIECE_BYTES:
                        raise OSError(f"{path}: a short read at {offset}")
        except OSError as error:
            errors.append(error)

    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        threads = [threading.Thread(target=read, args=(number,)) for number in range(readers)]
        started = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        seconds = time.monotonic() - started
    finally:
        os.close(file)
    if errors:
        raise errors[0]
    return Run(value=size / seconds / 1e6, detail={"seconds": seconds})


# --- writing ---


@contextlib.contextmanager
def small_writes(directory: Path, size: int) -> Iterator[list[Probe]]:
    """Writing ``size`` bytes into the page cache: large pieces and message sets, into one file and into many."""
    yield [
        Probe(
            name=f"write-{piece}-into-{files}",
            title=f"Writing {piece:,} bytes at a time into {files} preallocated file{'s' * (files > 1)} in turn",
            unit="MB/s",
            measure=lambda files=files, piece=piece: _write(directory, size, files, piece),  # type: ignore[misc]
            parameters={"bytes": size, "piece_bytes": piece, "files": files},
        )
        for files, piece in WRITES
    ]


def _write(directory: Path, size: int, count: int, piece: int) -> Run:
    data = os.urandom(piece)
    writes = max(1, size // piece)
    warm_memory(size * 5 // 4)
    with contextlib.ExitStack() as stack:
        files = []
        for number in range(count):
            path = directory / f"write-{number}"
            files.append(_made(path, -(-writes // count) * piece))
            stack.callback(path.unlink)
            stack.callback(os.close, files[-1])
        started = time.monotonic()
        for number in range(writes):
            turn, place = divmod(number, count)
            os.pwrite(files[place], data, turn * piece)
        seconds = time.monotonic() - started
    per_write = seconds / writes * 1e6
    per_set = per_write * SET_BYTES / piece
    return Run(value=writes * piece / seconds / 1e6, detail={"write_us": per_write, "of_10500_bytes_us": per_set})


def _made(path: Path, size: int) -> int:
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(file, 0, size)
    except BaseException:
        os.close(file)
        path.unlink()
        raise
    return file


# --- flushing ---


@contextlib.contextmanager
def flushes(
    directory: Path, *, rate: int, interval_ms: float, seconds: float, busy: Sequence[int]
) -> Iterator[list[Probe]]:
    """Writing ``rate`` bytes a second, made every ``interval_ms``; whatever is there is written and flushed at once.

    A piece counts from when it was meant to be made until it is on the disk; beside ``busy`` loops that only burn time.
    """
    yield [
        Probe(
            name=f"flush-lag-beside-{loops}",
            title=f"p99.9 of the wait until a piece is flushed, {interval_ms:g} ms apart, beside {loops} busy loops",
            unit="ms",
            better="lower",
            measure=lambda loops=loops: _flush(directory, rate, interval_ms / 1e3, seconds, loops),  # type: ignore[misc]
            parameters={"bytes_per_second": rate, "interval_ms": interval_ms, "seconds": seconds, "busy_loops": loops},
        )
        for loops in busy
    ]


def _flush(directory: Path, rate: int, interval: float, seconds: float, loops: int) -> Run:
    piece = os.urandom(max(1, int(rate * interval)))
    count = max(1, int(seconds / interval))
    path = directory / "flush"
    waits, flushed = np.zeros(count), []
    with contextlib.ExitStack() as stack:
        file = _made(path, count * len(piece))
        stack.callback(path.unlink)
        stack.callback(os.close, file)
        for _ in range(loops):
            stack.enter_context(_busy_loop())
        began = time.monotonic()
        done = 0
        while done < count:
            due = min(count, int((time.monotonic() - began) / interval))
            if due == done:
                time.sleep(_IDLE_SECONDS)
                continue
            for number in range(done, due):
                os.pwrite(file, piece, number * len(piece))
            before = time.monotonic()
            os.fdatasync(file)
            after = time.monotonic()
            flushed.append(after - before)
            waits[done:due] = after - began - np.arange(done + 1, due + 1) * interval
            done = due
    found = percentiles(waits * 1e9)
    detail = {**found, "flushes": len(flushed), "fdatasync_p99_ms": float(np.percentile(flushed, 99)) * 1e3}
    return Run(value=found["p99_9_ms"], detail=detail)


@contextlib.contextmanager
def _busy_loop() -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-S", "-c", "print(flush=True)\nwhile True: pass"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=interrupts.die_with_parent,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield
    finally:
        process.kill()
        process.communicate()


# --- sleeping ---


@contextlib.contextmanager
def sleeps(count: int) -> Iterator[list[Probe]]:
    """A process that does nothing but sleep for 1 ms, ``count`` times."""

    def measure() -> Run:
        found = percentiles(late_ns(count))
        return Run(value=found["p99_ms"], detail=found)

    yield [
        Probe(
            name="sleep-late",
            title="p99 of how much later than asked for a sleep of 1 ms ends",
            unit="ms",
            better="lower",
            measure=measure,
            parameters={"sleeps": count, "sleep_ms": SLEEP_SECONDS * 1e3},
        )
    ]


def late_ns(count: int) -> np.ndarray[Any, Any]:
    """How much longer than asked for each sleep of 1 ms took: what this machine alone adds to any wait."""
    late = np.zeros(count)
    for number in range(count):
        started = time.monotonic_ns()
        time.sleep(SLEEP_SECONDS)
        late[number] = time.monotonic_ns() - started - SLEEP_SECONDS * 1e9
    return late
