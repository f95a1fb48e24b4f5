"""Bringing partitions back at the start of a broker: what is whole is kept, a torn tail is quarantined and cut.

The rules, for one partition (``docs/crash-safety.md`` says what they rest on):

- The clean marker names this very end, and the files have it: nothing is scanned.
- Else everything above the checkpoint is made durable and read again, message by message. Where a sync may have failed
  unseen (``flush_marks``), it is written again first. The first entry that is not whole and valid, and all behind it,
  is quarantined and cut, without asking.
- Damage at or below the checkpoint, files that end before it, and gaps or overlaps between segments are no accident of
  a crash: nothing is cut. The partition is read-only up to where its bytes are beyond doubt, or offline. The one gap
  that a crash leaves is behind a segment whose roll was never flushed (``flushed_mark``).

A partition never keeps another one from being served. Run by the supervisor alone, before anything else has the files.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import stat
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from fastlog.clock import Clock, SystemClock
from fastlog.errors import LogError, RecoveryError
from fastlog.log import _files, parallel, producer_snapshots, quarantine
from fastlog.log.discovery import FoundPartition, scan_log_dirs, segment_problems, shown
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import NO_ROOM
from fastlog.log.flushed_mark import flushed_marks, put_flushed_mark
from fastlog.log.formats import ANY_OFFSET, FORMATS, FileScan, LogFormat, SearchBudget, format_of_files
from fastlog.log.kafka_files import next_epochs, read_epochs, read_topic_id, write_epochs
from fastlog.log.log_starts import Starts
from fastlog.log.recovered import OFFLINE, OK, READ_ONLY, RecoveredPartition, SegmentInfo
from fastlog.log.side_file import SideFile, read_side_file, write_side_file
from fastlog.log.slots import ProducerState
from fastlog.segment_files import (
    FLUSH_MARKS_NAME,
    KAFKA_0_7,
    MAX_OFFSET,
    SIDE_FILE_NAME,
    SegmentFile,
    parse_segment_name,
    partition_directory_name,
    segment_name,
)

__all__ = [
    "OFFLINE",
    "OK",
    "READ_ONLY",
    "FoundPartition",
    "RecoveredPartition",
    "SegmentInfo",
    "recover_all",
    "recover_partition",
    "scan_log_dirs",
]

COUNT_BUDGET_BYTES = 256 * 1024 * 1024

log = logging.getLogger(__name__)


def recover_all(
    directories: Sequence[Path],
    clean_ends: Sequence[Mapping[str, int]],
    files: FileOps,
    in_doubt: bool = False,
    no_room: Sequence[bool] = (),
    log_starts: Sequence[Starts] = (),
    threads: int = parallel.THREADS_PER_DIRECTORY,
    is_unfinished: Callable[[FoundPartition], bool] = lambda found: False,
) -> tuple[list[tuple[int, RecoveredPartition]], list[str]]:
    """Recover every partition of the log directories; return each with the index of its directory, and the warnings.

    ``clean_ends`` are the ends of each directory's clean marker, ``log_starts`` the starts that it keeps; ``in_doubt``
    and, by directory, ``no_room`` are as for ``recover_partition``. A partition that lies in two log directories is
    offline: which one is right is for a person to say, and nothing in either is touched. One that ``is_unfinished`` is
    left as it is, for who goes on with its creation. Where there are many, up to ``threads`` threads for each directory
    share them.
    """
    found, warnings = scan_log_dirs(directories)
    by_name: dict[tuple[str, int], list[FoundPartition]] = {}
    for one in found:
        if not is_unfinished(one):
            by_name.setdefault((one.topic, one.partition), []).append(one)

    def recover(places: list[FoundPartition]) -> RecoveredPartition:
        index, directory, topic, partition = places[0]
        if len(places) > 1:
            paths = " and ".join(shown(place.directory) for place in places)
            reason = f"{paths} hold the same partition: move one of them out of the log directories"
            return RecoveredPartition(topic, partition, directory, "", OFFLINE, reason)
        return recover_partition(
            directory,
            topic,
            partition,
            clean_end=clean_ends[index].get(partition_directory_name(topic, partition)),
            files=files,
            in_doubt=in_doubt,
            no_room=any(no_room[index : index + 1]),
            log_start=log_starts[index].get((topic, partition), 0) if log_starts else 0,
        )

    work = [(places[0].dir_index, places) for places in by_name.values()]
    recovered = parallel.for_each(work, recover, threads=threads)
    return [(index, result) for (index, _), result in zip(work, recovered, strict=True)], warnings


def recover_partition(
    directory: Path,
    topic: str,
    partition: int,
    *,
    clean_end: int | None,
    files: FileOps,
    clock: Clock | None = None,
    in_doubt: bool = False,
    no_room: bool = False,
    least: int = 0,
    log_start: int = 0,
) -> RecoveredPartition:
    """Return the partition after recovery; its bytes up to ``log_end`` are durable then, and its names too.

    ``clean_end`` is what the clean marker says of this log, None when it says nothing. With ``in_doubt``, what memory
    holds above the checkpoint may be nowhere else and is written again; a result that is ok is beyond doubt then. With
    ``no_room``, a full disk, nothing may be synced. ``least`` is an offset below which everything was flushed, as a
    broker knows that serves it meanwhile. Segments wholly below ``log_start`` do not count: what was in them has been
    deleted, and the keeper removes them. Never raises for anything that is wrong with the files: that is in ``state``
    and ``reason``. What is cut is said in one line of the log.
    """
    work = _Recovery(directory, topic, partition, files, clock or SystemClock(), in_doubt, no_room, least, log_start)
    try:
        return work.run(clean_end)
    except OSError as error:
        place = shown(Path(os.fsdecode(error.filename))) if error.filename else shown(directory)
        reason = f"{place}: {error.strerror or error}"
        return work.without_room(reason) if error.errno in NO_ROOM else work.offline(reason)
    except LogError as error:
        return work.offline(str(error))
    except Exception as error:
        log.exception("recovery failed path=%s", shown(directory))
        return work.offline(f"{shown(directory)}: {error!r}")


class _Recovery:
    """The work on one partition, step by step; ``trusted`` shrinks as bytes are cut."""

    def __init__(
        self,
        directory: Path,
        topic: str,
        partition: int,
        files: FileOps,
        clock: Clock,
        in_doubt: bool,
        no_room: bool,
        least: int,
        log_start: int,
    ) -> None:
        self.directory = directory
        self.files = files
        self.clock = clock
        self.in_doubt = in_doubt
        self.no_room = no_room
        self.least = least
        self.log_start = log_start
        self.format: LogFormat = FORMATS[KAFKA_0_7]
        self.side: SideFile | None = None
        self.checkpoint: int | None = None  # what the side file says, if it is of these files
        self.times: dict[int, int] = {}
        self.inodes: dict[int, int] = {}
        self.marks: list[int] = []
        self.flushed_base: int | None = None
        self.below: list[SegmentFile] = []  # what deleted records leave behind: it tells of producers until it goes
        self.sure: list[SegmentFile] = []  # what is served when there is no room to look further
        self.cut_bytes = 0
        self.cut_messages = 0
        self.blank = RecoveredPartition(topic, partition, directory, KAFKA_0_7, OFFLINE, log_start=log_start)

    def run(self, clean_end: int | None) -> RecoveredPartition:
        self.side = read_side_file(self.directory, self.files)
        if self.side is not None:
            self.blank = replace(self.blank, format=self.side.format)
            if self.side.format not in FORMATS:
                path = self.directory / SIDE_FILE_NAME
                return self.offline(f"{shown(path)} names the log format {self.side.format!r}, unknown to this version")
            self.format = FORMATS[self.side.format]
        else:
            names = [item.name for item in self.files.listdir(self.directory)]
            self.format = format_of_files(names) or self.format
            self.blank = replace(self.blank, format=self.format.name)
        self.blank = replace(self.blank, topic_id=read_topic_id(self.directory, self.files))
        if not self.format.is_dense:
            self.log_start = 0
            self.blank = replace(self.blank, log_start=0)
        segments = self.list_segments()
        self.believe_side_file()
        segments = segments or [self.first_segment(clean_end)]
        begin = sum(one.base < following.base <= self.log_start for one, following in itertools.pairwise(segments))
        self.below, segments = segments[:begin], segments[begin:]
        # an offset alone says nothing of bytes that are none of a message
        clean = (
            clean_end == self.end(segments[-1]) and self.format.position(segments[-1], clean_end) == segments[-1].size
        )
        checkpoint = self.flushed_end()
        behind: Sequence[SegmentFile] = ()
        reason = ""
        problem = next(segment_problems(segments, self.format, self.end), None)
        if problem is not None:
            index, kind, reason = problem
            end = self.end(segments[index])
            if clean or kind != "gap" or not self.never_flushed(segments, index, checkpoint):
                return self.read_only(segments[: index + 1], min(end, segments[index + 1].base), reason)
            segments, behind = segments[: index + 1], segments[index + 1 :]
        newest = segments[-1]
        end = self.end(newest)
        if checkpoint is not None and end < checkpoint:
            reason = f"{shown(newest.path)} ends at offset {end}, expected at least {checkpoint}, which was flushed"
            return self.read_only(segments, end, reason)
        missing = self.missing_segment(segments)
        if missing is not None:
            index, reason = missing
            return self.read_only(segments[:index], self.end(segments[index - 1]), reason)
        if clean:
            with self.files.open(newest.path, os.O_RDWR) as fd:
                self.files.cut_to(fd, newest.size)
            self.put_mark(newest.base)
            if self.marks != [newest.base]:
                self.files.fsync_dir(self.directory)
            return self.ok(segments, is_clean=True)
        if checkpoint is not None:
            self.sure = [item for item in segments if item.base < checkpoint]
            if self.sure and self.end(self.sure[-1]) > checkpoint:
                self.sure[-1] = self.sure[-1]._replace(size=self.format.position(self.sure[-1], checkpoint))
        if self.no_room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.directory.parent / FLUSH_MARKS_NAME))
        start = newest.base if checkpoint is None else max(checkpoint, segments[0].base)
        return self.scan(segments, start, behind, reason)

    def believe_side_file(self) -> None:
        """Take its checkpoint, unless the segment that it lies in is another file than it was.

        A directory that was elsewhere meanwhile has its former side file, and perhaps fewer records than that says.
        """
        if self.side is None:
            return
        base, inode = self.side.inode or (-1, 0)
        if self.inodes.get(base, inode) == inode:
            self.checkpoint = self.side.checkpoint
            return
        log.warning(
            "side file of other files path=%s segment=%s: its checkpoint does not count, more is scanned",
            shown(self.directory),
            self.name(base),
        )
        self.side = SideFile(self.side.created_ms, self.side.format)

    def end(self, segment: SegmentFile) -> int:
        """The offset behind a segment; what the side file says of a sealed one of this size saves opening it."""
        size, end = self.side.sealed.get(segment.base, (-1, 0)) if self.side else (-1, 0)
        return end if segment.size == size else self.format.end_offset(segment)

    def name(self, base: int) -> str:
        """The file name of the segment that begins at this offset."""
        return segment_name(base, self.format.suffix)

    def flushed_end(self) -> int | None:
        """An offset below which everything was flushed; None when nothing says so."""
        known = [] if self.checkpoint is None else [self.checkpoint]
        known += [offset for offset in (self.least, self.log_start) if offset]
        return max([*known, *self.marks], default=None)

    def never_flushed(self, segments: list[SegmentFile], index: int, checkpoint: int | None) -> bool:
        """Whether what a gap behind ``segments[index]`` has torn apart was never visible to anybody.

        The power went between a roll and the flush of what came before it. No flush has passed a segment's base before
        the mark named it. Without a mark that is certain where the end is torn, for a flush begins with the oldest
        segment, and where no byte stands behind the gap.
        """
        segment = segments[index]
        if checkpoint is None or checkpoint > self.end(segment):
            return False
        if self.marks:
            return self.marks[-1] <= segment.base
        if not any(item.size for item in segments[index + 1 :]):
            return True
        with self.files.open(segment.path, os.O_RDONLY) as fd:
            start = self.place(segment, checkpoint)
            return self.format.scan(self.files, fd, start, segment.size).end < segment.size

    def place(self, segment: SegmentFile, checkpoint: int) -> int:
        """Where in a segment's file checking begins: at the checkpoint, or at its start."""
        return max(self.format.position(segment, checkpoint), 0)

    def put_mark(self, base: int) -> None:
        """Everything below ``base`` is durable. A full disk leaves it to the next flush to say so."""
        if base not in self.marks:
            self.files.fsync_dir(self.directory)  # the mark may be durable at once, and names a segment
        try:
            put_flushed_mark(self.directory, self.marks, base, self.files)
            self.flushed_base = base
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            self.flushed_base = self.marks[-1] if self.marks else None
            log.warning("flushed mark not moved path=%s reason=%s", shown(self.directory), error.strerror)

    def missing_segment(self, segments: list[SegmentFile]) -> tuple[int, str] | None:
        """The place of the segment that the mark names, and why it is missed; None when it is there."""
        mark = self.marks[-1] if self.marks else 0
        bases = [segment.base for segment in segments]
        if mark <= bases[0] or mark in bases:
            return None
        path = self.directory / self.name(mark)
        return bisect_right(bases, mark), f"{shown(path)} is missing, a segment whose beginning was flushed"

    def list_segments(self) -> list[SegmentFile]:
        """The partition's segments in order; anything else that has a segment's name is refused."""
        segments: list[SegmentFile] = []
        unexpected = []
        listing = self.files.listdir(self.directory)
        self.marks = flushed_marks(item.name for item in listing)
        for item in listing:
            base = parse_segment_name(item.name, self.format.suffix)
            path = self.directory / item.name
            if base is None:
                if not item.name.startswith((".", SIDE_FILE_NAME)):
                    unexpected.append(item.name)
                continue
            status = item.stat(follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise RecoveryError("not a regular file, though it has a segment's name", path=shown(path))
            if base + status.st_size > MAX_OFFSET:
                raise RecoveryError("its offsets leave 64 bits", path=shown(path))
            segments.append(SegmentFile(base, path, status.st_size))
            self.times[base] = status.st_mtime_ns // 1_000_000
            self.inodes[base] = status.st_ino
        if not segments and unexpected:
            raise RecoveryError(f"no segment, but other files, such as {unexpected[0]!r}", path=shown(self.directory))
        return sorted(segments)

    def first_segment(self, clean_end: int | None) -> SegmentFile:
        """Finish a creation that stopped before its first segment."""
        known_end = max(clean_end or 0, self.flushed_end() or 0)
        if known_end:
            raise RecoveryError("all segments are missing", path=shown(self.directory), found=0, expected=known_end)
        if self.side is None:
            made = SideFile(self.clock.now_ms())
            with contextlib.suppress(OSError):  # without it, the log looks like one made anew
                write_side_file(self.directory, made, self.files)
                self.side = made
        path = self.directory / self.name(0)
        with self.files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            self.times[0] = self.clock.now_ms()
        self.files.fsync_dir(self.directory)
        return SegmentFile(0, path, 0)

    def scan(
        self, segments: list[SegmentFile], checkpoint: int, behind: Sequence[SegmentFile], gap: str
    ) -> RecoveredPartition:
        """Check everything from the checkpoint on, cut where it is not whole, and make the rest durable.

        ``behind`` a ``gap`` are segments that leave the log; last, so that nothing has been touched when something else
        is wrong.
        """
        trusted: list[SegmentFile] = []
        for index, segment in enumerate(segments):
            if self.end(segment) <= checkpoint and segment is not segments[-1]:
                if self.checkpoint is None and not self.marks:
                    self.make_durable(segment)
                trusted.append(segment)
                continue
            with self.files.open(segment.path, os.O_RDWR) as fd:
                start = self.place(segment, checkpoint)
                if self.in_doubt:
                    _files.reach("start.again")
                    self.files.write_again(fd, start)
                self.sync(fd)
                size = self.files.size(fd)
                found = self.format.scan(self.files, fd, start, size, follows=self.follows(segment, start))
                if found.end == start < size:
                    found = self.realigned(fd, segment, start, size, found) if start else found
                    # where an offset is no position, the way to the checkpoint may have ended before it
                    if self.end(segment._replace(size=found.end)) < checkpoint:
                        reason = (
                            f"{shown(segment.path)} has {found.found} at position {found.end}, below the flushed "
                            f"offset {checkpoint}, and no message begins at that offset"
                        )
                        return self.read_only(segments[: index + 1], checkpoint, reason)
                if found.end < size:
                    saved = self.save_tail(fd, segment, found, size)
                    if saved:
                        whole = segment._replace(size=found.end)
                        return self.read_only(segments[: index + 1], self.end(whole), saved)
                    behind = [*segments[index + 1 :], *behind]
                    gap = f"it follows damage in {segment.path.name}"
                    self.quarantine_segments(behind, gap)
                    behind = ()
                if self.files.cut_to(fd, found.end):
                    self.sync(fd)
            trusted.append(segment._replace(size=found.end))
            if found.end < size:
                break
        self.quarantine_segments(behind, gap)
        self.put_mark(trusted[-1].base)
        self.files.fsync_dir(self.directory)
        self.files.fsync_dir(self.directory.parent)
        return self.ok(trusted, is_clean=False)

    def follows(self, segment: SegmentFile, start: int) -> int | None:
        """The offset that the first entry at ``start`` is to have, where every one behind the checkpoint follows its
        predecessor without a gap: nothing else has appended, and checksums do not cover offsets. None: any.
        """
        if self.checkpoint is None or not self.format.is_dense:
            return None
        return segment.base if start == 0 else ANY_OFFSET

    def make_durable(self, segment: SegmentFile) -> None:
        """Sync a segment that is not checked; nothing says what of it has been flushed."""
        with self.files.open(segment.path, os.O_RDWR if self.in_doubt else os.O_RDONLY) as fd:
            if self.in_doubt:
                self.files.write_again(fd, 0)
            self.sync(fd)

    def sync(self, fd: int) -> None:
        """Make a segment durable; a failure is remembered, since the kernel tells it once."""
        try:
            self.files.fdatasync(fd)
        except OSError:
            self.blank = replace(self.blank, sync_failed=True)
            raise

    def realigned(self, fd: int, segment: SegmentFile, start: int, size: int, found: FileScan) -> FileScan:
        """What to believe when no message begins at the checkpoint: torn there, or is the checkpoint itself wrong?

        The result ends below ``start`` when bytes below the checkpoint are damaged.
        """
        below = self.format.scan(self.files, fd, 0, start)
        if below.end == start:
            return found
        whole = self.format.scan(self.files, fd, 0, size)
        if whole.end > start:
            log.warning("checkpoint is inside a message path=%s position=%d", segment.path, start)
        return whole

    def save_tail(self, fd: int, segment: SegmentFile, found: FileScan, size: int) -> str:
        """Quarantine what follows the last whole message, and report it; a reason when that cannot be done."""
        budget = SearchBudget(COUNT_BUDGET_BYTES)
        messages = self.format.count_entries(self.files, fd, found.end, size, budget)
        try:
            copy = quarantine.quarantine_span(self.files, fd, segment.path, found.end, size, self.clock.now_ms())
        except OSError as error:
            self.blank = replace(self.blank, no_room=error.errno in NO_ROOM)
            return (
                f"{shown(segment.path)} has {found.found} at position {found.end}, and the {size - found.end} bytes "
                f"from there cannot be quarantined: {error.strerror}"
            )
        self.cut_bytes += size - found.end
        self.cut_messages += messages
        log.warning(
            "tail cut path=%s position=%d found=%r bytes=%d whole_messages_behind=%s%d copy=%s",
            segment.path,
            found.end,
            found.found,
            size - found.end,
            "at_least_" if budget.exhausted else "",
            messages,
            copy.name,
        )
        return ""

    def quarantine_segments(self, segments: Sequence[SegmentFile], reason: str) -> None:
        """Take segments that follow a cut out of the log, with bytes that are as durable as the cut."""
        for segment in segments:
            self.make_durable(segment)
            with self.files.open(segment.path, os.O_RDONLY) as fd:
                budget = SearchBudget(COUNT_BUDGET_BYTES)
                messages = self.format.count_entries(self.files, fd, 0, segment.size, budget, first_may_be_valid=True)
            copy = quarantine.quarantine_file(self.files, segment.path, quarantine.TRUNCATED, self.clock.now_ms())
            self.cut_bytes += segment.size
            self.cut_messages += messages
            log.warning(
                "segment quarantined path=%s bytes=%d whole_messages=%d copy=%s reason=%s",
                segment.path,
                segment.size,
                messages,
                copy.name,
                reason,
            )
        if segments:
            self.files.fsync_dir(self.directory)

    def ok(self, segments: list[SegmentFile], *, is_clean: bool) -> RecoveredPartition:
        result = replace(self.served(segments, OK, ""), flushed_base=self.flushed_base)
        served = [item._replace(path=self.directory / self.name(item.base)) for item in segments]
        indexes = self.format.settle_indexes(self.files, served, is_clean=is_clean, durable=self.flushed_end() or 0)
        if indexes.largest_ms:  # retention goes by the times of messages where they have them
            newest = result.segments[-1]
            newest = replace(newest, last_ms=_time(indexes.largest_ms - 1))
            result = replace(result, segments=(*result.segments[:-1], newest))
        if self.format.is_sequenced:
            result = replace(result, producers=self.producers(served, result.log_end))
        epoch, failure = self.epoch(result.log_end, is_clean=is_clean)
        result = replace(result, indexes=indexes, epoch=epoch)
        if failure is None:
            return result
        reason = f"its leader epoch cannot be written: {failure.strerror}"
        reason = f"{reason}; what it has can be read; start again when {shown(self.directory)} can be written to"
        return replace(result, state=READ_ONLY, reason=reason, no_room=failure.errno in NO_ROOM)

    def producers(self, segments: list[SegmentFile], log_end: int) -> tuple[ProducerState, ...]:
        """What the log says of its producers; snapshots of more than it has are gone, durably."""
        producer_snapshots.drop_above(self.directory, log_end, self.files)
        unnumbered_below = self.side.checkpoint if self.side is not None and self.side.unnumbered else 0
        now_ms = self.clock.now_ms()
        segments = [*self.below, *segments]
        known = producer_snapshots.learn(
            self.directory, self.format, segments, log_end, min(unnumbered_below, log_end), now_ms, self.files
        )
        return known.table.states(now_ms)

    def epoch(self, log_end: int, *, is_clean: bool) -> tuple[int, OSError | None]:
        """The leader epoch from here on: another one where appended bytes may have been lost; 0 without epochs.

        With what went wrong when that is not durable: the next start gives the same epoch again, so nothing may be
        appended in it.
        """
        if not self.format.has_epochs:
            return 0, None
        epochs = read_epochs(self.directory, self.files)
        if is_clean and epochs:
            return epochs[-1][0], None
        epochs = next_epochs(epochs, log_end)
        try:
            write_epochs(self.directory, epochs, self.files)
            self.files.fsync_dir(self.directory)
        except OSError as error:
            return epochs[-1][0], error
        return epochs[-1][0], None

    def read_only(self, segments: list[SegmentFile], end: int, reason: str) -> RecoveredPartition:
        """Serve what lies below ``end``, as far as a message ends there; offline when that is nothing."""
        last = segments[-1]
        with self.files.open(last.path, os.O_RDONLY) as fd:
            size = self.last_message_end(fd, self.format.position(last, end))
        reason = f"{reason}; nothing was cut; run: fastlog fsck {shown(self.directory)}"
        if self.end(last._replace(size=size)) <= segments[0].base:
            return self.offline(reason)
        return self.served([*segments[:-1], last._replace(size=size)], READ_ONLY, reason)

    def last_message_end(self, fd: int, limit: int) -> int:
        """Where the last whole message below ``limit`` ends, over damage before it, which readers will see and name."""
        budget = SearchBudget(COUNT_BUDGET_BYTES)
        message_end = 0
        position: int | None = 0
        while position is not None:
            found = self.format.scan(self.files, fd, position, limit)
            message_end = found.end if found.count else message_end
            if found.end >= limit:
                break
            position = self.format.find_entry(self.files, fd, found.end, limit, budget)
        return message_end

    def without_room(self, reason: str) -> RecoveredPartition:
        """A disk that is full is no damage: what was flushed for certain is read, and the next start does the rest."""
        reason = f"{reason}: the disk is full; nothing was cut; make room in {shown(self.directory)} and start again"
        try:
            if self.sure:
                return replace(self.served(self.sure, READ_ONLY, reason), no_room=True)
        except (OSError, LogError) as error:
            reason = f"{reason}; {error}"
        return replace(self.blank, state=OFFLINE, reason=reason, no_room=True)

    def offline(self, reason: str) -> RecoveredPartition:
        if "fastlog fsck" not in reason:
            reason = f"{reason}; run: fastlog fsck {shown(self.directory)}"
        return replace(self.blank, state=OFFLINE, reason=reason)

    def served(self, segments: list[SegmentFile], state: Literal["ok", "read-only"], reason: str) -> RecoveredPartition:
        """The result, once each file has the name that the broker looks for: other widths are read, never written."""
        renamed = False
        for segment in segments:
            target = self.directory / self.name(segment.base)
            if segment.path != target:
                if os.path.lexists(target):  # renaming would replace it
                    raise RecoveryError(f"stands beside {target.name}, the same offset", path=shown(segment.path))
                self.files.rename(segment.path, target)
                renamed = True
        if renamed:
            self.files.fsync_dir(self.directory)
        known = self.side.segments if self.side else {}
        infos = []
        for segment in segments:
            at = self.times[segment.base]
            first_ms, last_ms = known.get(segment.base, (at, at))
            if segment.base not in known:
                last_ms = self.format.largest_ms(self.files, segment) or at
            infos.append(SegmentInfo(segment.base, segment.size, _time(first_ms), _time(last_ms)))
        return replace(
            self.blank,
            state=state,
            reason=reason,
            segments=tuple(infos),
            log_end=self.end(segments[-1]),
            truncated_bytes=self.cut_bytes,
            truncated_messages=self.cut_messages,
            created_ms=self.side.created_ms if self.side else 0,
        )


def _time(ms: int) -> int:
    """A time that shared memory has room for, whatever a file says."""
    return min(max(ms, 0), MAX_OFFSET)
