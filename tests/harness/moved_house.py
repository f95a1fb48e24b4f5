"""Log directories that were made by an import: served without processes, compared with what they were made of."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fastlog.config import BrokerConfig
from fastlog.log._arena import Arena
from fastlog.log._shared_memory import FIRST_PROCESSOR
from fastlog.log.clean_marker import consume_clean_marker
from fastlog.log.discovery import refuse_unfinished
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.log.metadata import Metadata, read_metadata
from fastlog.log.slots import SlotView

FILES = FileOps()


class Served(NamedTuple):
    """What a broker would serve of a log directory."""

    metadata: Metadata
    views: dict[str, SlotView]
    """By the name of the partition's directory."""
    arena: Arena


def serve(directory: Path) -> Served:
    """Start on it as a broker does, with not a warning."""
    refuse_unfinished(directory)
    arena = Arena([str(directory)], FIRST_PROCESSOR + 2, 64, 64)
    manager = LogManager(BrokerConfig.from_properties({"log.dir": str(directory)}), arena, FILES)
    known = read_metadata([directory], FILES)
    report = manager.load([consume_clean_marker(directory, FILES)], known.topics.values())
    assert report.warnings == ()
    assert {each.state for each in report.partitions} <= {"ok"}, report
    views = {f"{view.topic}-{view.partition}": view for topic in manager.topics() for view in manager.partitions(topic)}
    return Served(known, views, arena)


def contents(directory: Path) -> dict[str, bytes]:
    """The contents of each file below a directory, by relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def records_in(directory: Path) -> bytes:
    """The bytes of a partition's segments, one behind the other."""
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


class Stopping(FileOps):
    """File calls of which the n-th does something else first: raises, or ends the process. Nothing is synced."""

    def __init__(self, number: int, act: Callable[[], object]) -> None:
        self.number = number
        self.calls = 0
        self._act = act

    def _begin(self, kind: str, path: Path | None) -> bool:
        self.calls += 1
        if self.calls == self.number:
            self._act()
        return False

    def fdatasync(self, fd: int) -> None:
        self._begin("fdatasync", None)

    def fsync_dir(self, path: Path) -> None:
        self._begin("fsync_dir", path)


def killed_at(number: int, work: Callable[[FileOps], object]) -> bool:
    """Do it in a child that ends, as by SIGKILL, before its n-th file call; False: it came to its end."""
    child = os.fork()
    if not child:
        try:
            work(Stopping(number, lambda: os._exit(9)))
            os._exit(0)
        except BaseException:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 9), code
    return code == 9
