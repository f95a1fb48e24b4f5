"""Log directories with a topic that is to go and two that stay, and a keeper that is turned by hand."""

from __future__ import annotations

from pathlib import Path

from fastlog.config import BrokerConfig
from fastlog.log._append import Appender, append_bytes
from fastlog.log._arena import Arena
from fastlog.log._segments import SegmentFiles
from fastlog.log._shared_memory import FIRST_PROCESSOR, KEEPER
from fastlog.log.deletion import (
    leave_marker,
)
from fastlog.log.files import FileOps
from fastlog.log.manager import LogManager
from fastlog.segment_files import FLUSH_MARKS_NAME, split_directory_name
from fastlog.workers.deletions import Deletions
from fastlog.workers.log_starts import LogStarts
from tests.harness import logs, raw_format

COUNT = 3
"""Partitions of the topic that goes; one of each two lies in the second log directory."""
SLOTS = 8
SEGMENT = f"{0:020}.kafka"
NEW = raw_format.entry(b"of the next life")


def held(topic: str, partition: int) -> bytes:
    """What a partition holds."""
    return raw_format.entry(f"{topic} {partition} ".encode() * 3)


class Site:
    """Two log directories with topic ``t``, which is to go, and ``t-0`` and ``u``, which stay; served from an arena."""

    def __init__(self, root: Path) -> None:
        self.roots = [root / "0", root / "1"]
        for place in self.roots:
            place.mkdir(parents=True)
        self.config = BrokerConfig(log_dirs=tuple(map(str, self.roots)), partitions=COUNT, max_partitions=SLOTS)
        self.arena = Arena(list(map(str, self.roots)), FIRST_PROCESSOR + 1, SLOTS, 16)
        self.files = SegmentFiles(self.arena, 16)
        self.appender = Appender(self.arena, self.files, KEEPER)
        manager = self.manager()
        for topic, partitions in (("t", COUNT), ("t-0", 1), ("u", 2)):
            for partition in range(partitions):
                slot = manager.create_partition(topic, partition)
                assert append_bytes(self.appender, slot, held(topic, partition), 1)[0] == 0
        self.files.close_unused()

    def manager(self) -> LogManager:
        return LogManager(self.config, self.arena, logs.QuickFiles())

    def mark(self, topic: str = "t") -> None:
        """What a processor does for who asks."""
        leave_marker(topic, self.roots, logs.QuickFiles())
        self.arena.want_deletion()

    def keeper(self, files: FileOps | None = None) -> Deletions:
        """The part of a keeper that is about deletions."""
        files = files or logs.QuickFiles()
        return Deletions(self.arena, self.appender, files, LogStarts(self.arena, self.manager(), files))

    def run(self, files: FileOps | None = None, turns: int = 20) -> None:
        """A keeper until it has nothing to do; one processor looks after each of its turns."""
        keeper = self.keeper(files)
        for _ in range(turns):
            if keeper.turn() is None:
                return
            self.look()
        raise AssertionError(f"not done in {turns} turns")

    def look(self) -> None:
        """The processor is past all that has been told."""
        self.arena.see(FIRST_PROCESSOR, self.arena.change_count)

    def names(self) -> list[str]:
        """What lies in the log directories beside what is always there."""
        found = {item.name for place in self.roots for item in place.iterdir()}
        return sorted(found - {FLUSH_MARKS_NAME})

    def expect_gone(self, topic: str = "t") -> None:
        """The topic and all of it, and nothing else; its slots and its name can be used."""
        others = {"t": COUNT, "t-0": 1, "u": 2}
        count = others.pop(topic)
        assert stored(self.roots) == {
            f"{other}-{partition}": held(other, partition) for other in others for partition in range(others[other])
        }
        assert self.names() == sorted(stored(self.roots))
        assert self.arena.leaving() == []
        assert self.arena.room == SLOTS - sum(others.values())
        manager = self.manager()
        assert manager.topics() == sorted(others)
        for partition in range(count):
            slot = manager.create_partition(topic, partition)
            assert self.arena.view(slot).log_offset == 0
            assert append_bytes(self.appender, slot, NEW, 1)[:2] == (0, 0)


def stored(roots: list[Path]) -> dict[str, bytes]:
    """The bytes of each partition's directory."""
    return {
        item.name: (item / SEGMENT).read_bytes()
        for place in roots
        for item in place.iterdir()
        if split_directory_name(item.name) is not None
    }
