"""What is wrong with a partition's files, and what of it could be kept; reads only, so that it may run at any time.

A check walks every segment from its first byte. What it finds whole is a list of spans: runs of messages without a hole
in their offsets. A sound log is one span. ``repair`` keeps one of them.
"""

from __future__ import annotations

import os
import stat
import time
from dataclasses import dataclass, field
from pathlib import Path

from fastlog.log.discovery import segment_problems, shown
from fastlog.log.files import FileOps
from fastlog.log.flushed_mark import flushed_marks
from fastlog.log.formats import FORMATS, DeepFindings, LogFormat, SearchBudget, format_of_files
from fastlog.log.log_starts import read_log_starts
from fastlog.log.side_file import MAX_BYTES, SideFile, parse_side_file
from fastlog.message import DeepLimits
from fastlog.segment_files import (
    KAFKA_0_7,
    SIDE_FILE_NAME,
    SegmentFile,
    list_segments,
    parse_segment_name,
    segment_name,
    split_directory_name,
)

SEARCH_BUDGET_BYTES = 16 * 1024**3
LOOK_AGAIN_SECONDS = 0.05
FSCK_LIMITS = DeepLimits(max_inflated_bytes=2**31, max_depth=32, max_messages=2**40)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    ``kind``: ``damage`` (whole messages follow), ``tail`` (none do), ``wrapper`` (a compressed set does not open),
    ``gap``, ``overlap``, ``short`` (flushed bytes are missing at the end), ``file`` (a segment's name on something
    else), ``side-file``, ``format``, ``unreadable``.
    """

    kind: str
    file: str
    text: str
    position: int | None = None
    offset: int | None = None
    bytes: int | None = None


@dataclass(slots=True)
class Span:
    """Whole messages without a hole: parts of files as ``(segment, start, end)``, and the offsets they cover."""

    start_offset: int
    end_offset: int
    messages: int = 0
    parts: list[tuple[SegmentFile, int, int]] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The result of one check. ``notes`` are worth reading and no damage."""

    directory: Path
    segments: int = 0
    messages: int = 0
    size: int = 0
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    side: SideFile | None = None
    flushed_marks: list[int] = field(default_factory=list)
    log_format: LogFormat = field(default_factory=lambda: FORMATS[KAFKA_0_7])
    log_start: int = 0
    """Clients have deleted all before this offset; 0: nothing."""

    @property
    def flushed_end(self) -> int:
        """An offset below which everything was flushed, as far as anything says so."""
        return max(self.side.checkpoint if self.side else 0, *self.flushed_marks, self.log_start)

    @property
    def choices(self) -> tuple[Span, ...]:
        """What a repair could keep: nothing to decide with one, before or after the damage with two."""
        if any(problem.kind in ("format", "unreadable") for problem in self.problems) or not self.spans:
            return ()
        return (self.spans[0],) if len(self.spans) == 1 else (self.spans[0], self.spans[-1])


def check_partition(directory: Path, files: FileOps, *, live: bool = False) -> Report:
    """Return what is wrong with a partition. ``live``: a broker may be appending, so an unfinished end is no damage."""
    return _Check(directory, files, live).run()


def log_start_of(directory: Path, log_format: LogFormat, files: FileOps) -> int:
    """The offset that clients have deleted all of a partition before; 0 where they have not.

    Raises:
        OSError: the file that would say so cannot be read.
    """
    name = split_directory_name(directory.name)
    if name is None or not log_format.is_dense:
        return 0
    return read_log_starts(directory.parent, files).get(name, 0)


class _Check:
    def __init__(self, directory: Path, files: FileOps, live: bool) -> None:
        self.files = files
        self.live = live
        self.report = Report(directory)
        self.format = self.report.log_format

    def run(self) -> Report:
        report = self.report
        try:
            if not self.read_side_file():
                return report
            self.find_unexpected_files()
            segments = self.settled(list_segments(report.directory, self.format.suffix))
            report.log_start = log_start_of(report.directory, self.format, self.files)
        except OSError as error:
            self.problem("unreadable", Path(error.filename or report.directory), str(error.strerror))
            return report
        if report.log_start:
            report.notes.append(f"what was before offset {report.log_start} has been deleted")
            segments = segments[sum(following.base <= report.log_start for following in segments[1:]) :]
        report.segments = len(segments)
        for index, kind, text in segment_problems(segments, self.format):
            self.problem(kind, segments[index].path, text)
        for segment in segments:
            try:
                self.check_segment(segment, newest=segment is segments[-1])
            except FileNotFoundError:
                report.notes.append(f"{segment.path.name} is gone since it was listed")
            except OSError as error:
                self.problem("unreadable", segment.path, str(error.strerror))
        self.compare_with_checkpoint(segments)
        return report

    def read_side_file(self) -> bool:
        """Whether the partition's format is known: its side file says it, or where that is lost the segments' names."""
        path = self.report.directory / SIDE_FILE_NAME
        found = format_of_files(item.name for item in self.files.listdir(self.report.directory))
        self.format = self.report.log_format = found or self.format
        try:
            self.report.side = parse_side_file(self.files.read_file(path, MAX_BYTES))
        except FileNotFoundError:
            return True
        if self.report.side is None:
            self.problem(
                "side-file", path, "damaged: flushed end and append times are lost, the files' times replace them"
            )
        elif self.report.side.format not in FORMATS:
            self.problem("format", path, f"names the log format {self.report.side.format!r}, unknown to this version")
            return False
        else:
            self.format = self.report.log_format = FORMATS[self.report.side.format]
        return True

    def find_unexpected_files(self) -> None:
        listing = self.files.listdir(self.report.directory)
        self.report.flushed_marks = flushed_marks(item.name for item in listing)
        for item in listing:
            if parse_segment_name(item.name, self.format.suffix) is None:
                continue
            if not stat.S_ISREG(item.stat(follow_symlinks=False).st_mode):
                self.problem(
                    "file", self.report.directory / item.name, "not a regular file, though it has a segment's name"
                )

    def settled(self, segments: list[SegmentFile]) -> list[SegmentFile]:
        """The sizes again: a segment that was growing when it was listed stands still once there is a next one."""
        return [item._replace(size=item.path.stat().st_size) for item in segments if item.path.exists()]

    def check_segment(self, segment: SegmentFile, *, newest: bool) -> None:
        if segment.size == 0 and not newest:
            return  # it cannot be part of a log, whatever stands around it
        looks_left = 2 if newest and self.live else 1
        with self.files.open(segment.path, os.O_RDONLY) as fd:
            size = self.files.size(fd)
            self.report.size += size
            position: int | None = 0
            while position is not None:
                deep = DeepFindings(FSCK_LIMITS)
                found = self.format.scan(self.files, fd, position, size, deep)
                self.add_span(segment, position, found.end, found.count)
                self.report.messages += deep.messages
                for at, text in deep.damaged_wrappers:
                    self.problem("wrapper", segment.path, f"a compressed set that does not open: {text}", at, segment)
                for at in deep.suspicious:
                    self.report.notes.append(
                        f"{segment.path.name} position {at}: an uncompressed message that begins like compressed data; "
                        "a codec bit may be lost, which no checksum covers"
                    )
                if found.end >= size:
                    return
                looks_left -= 1
                if looks_left > 0:
                    # a broker that cuts back a failed write may have written other bytes there meanwhile
                    time.sleep(LOOK_AGAIN_SECONDS)
                    position, size = found.end, self.files.size(fd)
                    continue
                budget = SearchBudget(SEARCH_BUDGET_BYTES)
                position = self.format.find_entry(self.files, fd, found.end, size, budget)
                if budget.exhausted:
                    self.report.notes.append(
                        f"{segment.path.name} position {found.end}: gave up looking for whole messages behind it"
                    )
                if position is None and newest and self.live:
                    self.report.notes.append(
                        f"{segment.path.name} position {found.end}: {size - found.end} bytes not whole yet; a broker "
                        "is running"
                    )
                    return
                bad = (size if position is None else position) - found.end
                kind = "damage" if position is not None or not newest else "tail"
                text = f"{found.found}, {bad} bytes"
                if kind == "tail" and self.offset(segment, found.end) >= self.report.flushed_end:
                    text += "; a broker sets them aside when it starts"
                self.problem(kind, segment.path, text, found.end, segment, bad)

    def add_span(self, segment: SegmentFile, start: int, end: int, messages: int) -> None:
        """Put a run of whole messages behind the last span, or begin another one."""
        spans = self.report.spans
        first, last = self.offset(segment, start), self.offset(segment, end)
        continues = bool(spans) and spans[-1].end_offset == first
        if start == end and not continues and (start > 0 or (spans and first < spans[-1].end_offset)):
            return
        if not continues:
            spans.append(Span(first, first))
        spans[-1].end_offset = last
        spans[-1].messages += messages
        spans[-1].parts.append((segment, start, end))

    def compare_with_checkpoint(self, segments: list[SegmentFile]) -> None:
        report = self.report
        end = self.format.end_offset(segments[-1]) if segments else 0
        flushed = report.flushed_end
        mark = report.flushed_marks[-1] if report.flushed_marks else 0
        if segments and segments[0].base < mark <= end and all(item.base != mark for item in segments):
            path = report.directory / segment_name(mark, self.format.suffix)
            self.problem("short", path, "this segment is missing, whose beginning was flushed")
        if flushed <= end:
            return
        text = f"the log ends at offset {end}, expected at least {flushed}, which was flushed"
        self.problem("short", segments[-1].path if segments else report.directory, text)
        # what a repair may choose instead: an empty log that goes on with the numbers that readers already know
        report.spans.append(Span(flushed, flushed))

    def offset(self, segment: SegmentFile, position: int) -> int:
        """The offset at a position of a segment's file."""
        return self.format.end_offset(segment._replace(size=position))

    def problem(
        self,
        kind: str,
        path: Path,
        text: str,
        position: int | None = None,
        segment: SegmentFile | None = None,
        size: int | None = None,
    ) -> None:
        offset = self.offset(segment, position) if segment is not None and position is not None else None
        self.report.problems.append(Problem(kind, shown(path), text, position, offset, size))
