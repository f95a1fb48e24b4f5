"""Recovery of many partitions, by several threads of each log directory: as if one had done it, whatever goes wrong."""

from __future__ import annotations

import errno
import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.log.parallel import ITEMS_PER_THREAD
from fastlog.log.recovery import RecoveredPartition, recover_all
from tests.harness import logs, raw_format
from tests.harness.shared_log import in_child

MANY = 5 * ITEMS_PER_THREAD
WHOLE = b"".join(raw_format.entry(b"message %d" % number) for number in range(5))
TORN = raw_format.entry(b"damaged")[:-1] + b"!"
MARKS = ".fastlog-flushing"


@pytest.fixture
def directories(memory: Path) -> list[Path]:
    """Two log directories: of every ten partitions one is torn, one damaged below its checkpoint, one empty."""
    found = [memory / "a", memory / "b"]
    for number in range(2 * MANY):
        directory = found[number % 2] / f"t-{number}"
        parts = {3: [WHOLE, WHOLE + TORN], 5: [WHOLE[:-1]], 7: [b""]}.get(number % 10, [WHOLE, WHOLE])
        logs.write_segments(directory, parts)
        if number % 10 == 5:
            logs.write_side_file(directory, len(WHOLE))
    return found


def recovered(directories: list[Path], threads: int, files: FileOps | None = None) -> list[RecoveredPartition]:
    found, warnings = recover_all(directories, [{}, {}], files or FileOps(), threads=threads)
    assert warnings == []
    assert [index for index, _ in found] == [directories.index(item.directory.parent) for _, item in found]
    return [item for _, item in found]


class CountingFiles(FileOps):
    """Counts calls of one kind over all threads, and lets something happen at one of them."""

    def __init__(self, kind: str, nth: int, error: int = 0) -> None:
        self._kind, self._nth, self._error = kind, nth, error
        self._count = 0
        self._lock = threading.Lock()

    def _begin(self, kind: str, path: Path | None) -> bool:
        if kind == self._kind:
            with self._lock:
                self._count += 1
                is_it = self._count == self._nth
            if is_it and not self._error:
                os.kill(os.getpid(), signal.SIGKILL)
            if is_it:
                raise OSError(self._error, os.strerror(self._error))
        return False


class SegmentSyncs(CountingFiles):
    """The same for syncs of segments alone, not of the copies of what is cut."""

    def __init__(self, nth: int, error: int) -> None:
        super().__init__("sync of a segment", nth, error)

    def fdatasync(self, fd: int) -> None:
        if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".kafka":
            self._begin("sync of a segment", None)
        super().fdatasync(fd)


def test_threads_make_no_difference_to_what_is_found(directories: list[Path], memory: Path) -> None:
    """In the order of the directories and of the names in them, each with its state, its end and its reason."""
    first = recovered(directories, threads=8)
    assert [item.state for item in first].count("ok") == 2 * MANY * 9 // 10
    assert {item.truncated_bytes for item in first if item.partition % 10 == 3} == {len(TORN)}
    again = recovered(directories, threads=1)
    assert [replace(item, truncated_bytes=0, truncated_messages=0) for item in first] == again


@pytest.mark.parametrize("nth", [1, MANY // 2, MANY + 7])
def test_a_sync_that_fails_takes_one_partition_out_and_leaves_the_mark(directories: list[Path], nth: int) -> None:
    """The next start writes again what memory holds of every partition of the directory."""
    arena = Arena([str(path) for path in directories], FIRST_PROCESSOR + 1, 2 * MANY, 8)
    config = BrokerConfig(log_dirs=tuple(map(str, directories)))
    report = LogManager(config, arena, SegmentSyncs(nth, errno.EIO)).load([{}, {}])
    (failed,) = [item for item in report.partitions if item.sync_failed]
    assert failed.state != "ok"
    for directory in directories:
        assert any((directory / MARKS).read_bytes()) == (directory == failed.directory.parent)
    again = LogManager(config, Arena([str(path) for path in directories], FIRST_PROCESSOR + 1, 2 * MANY, 8))
    assert not [item for item in again.load([{}, {}]).partitions if item.sync_failed]


@pytest.mark.parametrize("kind", ["fdatasync", "write", "ftruncate", "fsync_dir", "rename"])
@pytest.mark.parametrize("nth", [1, MANY // 8])
def test_a_start_that_is_killed_anywhere_is_made_good_by_the_next(directories: list[Path], kind: str, nth: int) -> None:
    """Nothing whole is missing then, and every byte that was cut is in a copy."""
    if kind == "rename":
        for directory in directories:
            for item in directory.iterdir():
                (item / f"{0:020}.kafka").rename(item / "0.kafka")
    assert in_child(lambda: recovered(directories, 8, CountingFiles(kind, nth))) == -9
    found = recovered(directories, threads=8)
    for item in found:
        stored = b"".join(path.read_bytes() for path in sorted(item.directory.glob("*.kafka")))
        copies = {path.read_bytes() for path in item.directory.glob("*.truncated")}
        expected = {3: WHOLE * 2, 5: WHOLE[:-1], 7: b""}.get(item.partition % 10, WHOLE * 2)
        assert stored == expected, item.directory
        assert (item.partition % 10 == 3) == (TORN in copies), item.directory


def test_a_directory_that_does_not_answer_holds_no_other_up(directories: list[Path]) -> None:
    """All of the other one is done before the first sync of this one comes back."""
    slow, other = directories
    whole = sum(int(item.name.rpartition("-")[2]) % 10 != 5 for item in other.iterdir())
    done, all_done = threading.Semaphore(whole - 1), threading.Event()

    class Files(FileOps):
        def fsync_dir(self, path: Path) -> None:
            super().fsync_dir(path)
            if path == other and not done.acquire(blocking=False):  # the last step of each
                all_done.set()

        def fdatasync(self, fd: int) -> None:
            if Path(f"/proc/self/fd/{fd}").readlink().parent.parent == slow:
                assert all_done.wait(300.0)
            super().fdatasync(fd)

    assert len(recovered(directories, 8, Files())) == 2 * MANY
