"""Making a damaged partition whole again by keeping one run of its messages; every other byte gets another name.

Only for a person who asked for it, with the lock of the log directory held. A repair that is interrupted leaves a
partition that a broker still names as damaged, and that can be repaired again.
"""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from pathlib import Path

from fastlog.log import quarantine
from fastlog.log.check import Report, Span
from fastlog.log.files import FileOps
from fastlog.log.flush_marks import FlushMarks
from fastlog.log.flushed_mark import remove_flushed_marks
from fastlog.log.formats import LogFormat
from fastlog.log.side_file import write_side_file
from fastlog.segment_files import FLUSH_MARKS_NAME, SIDE_FILE_NAME, SegmentFile, list_segments, segment_name


def quarantine_unexpected_files(report: Report, files: FileOps, now_ms: int) -> list[str]:
    """Take files out of the way that can be no part of a log, and a damaged side file; return what was done."""
    done = []
    for problem in report.problems:
        if problem.kind in ("file", "side-file"):
            path = report.directory / Path(problem.file).name
            done.append(_renamed(files, path, now_ms))
    if done:
        files.fsync_dir(report.directory)
    return done


def keep_span(report: Report, span: Span, files: FileOps, now_ms: int) -> list[str]:
    """Let the partition consist of this span; return what was done, a line each. Durable on return.

    Raises:
        OSError: for example on a full disk. Nothing was removed; the repair can be repeated.
    """
    directory, suffix, done = report.directory, report.log_format.suffix, []
    marks = FlushMarks(directory.parent, files)
    if marks.no_room:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(directory.parent / FLUSH_MARKS_NAME))
    # without it no gap passes for a harmless one, while files leave the log; the next start puts one that is right
    remove_flushed_marks(directory, report.flushed_marks, files)
    files.fsync_dir(directory)
    if report.side is not None and report.side.checkpoint > span.end_offset:
        # first, so that a start after a crash in the middle finds a torn tail above the checkpoint, not missing bytes
        write_side_file(directory, replace(report.side, checkpoint=span.end_offset), files, sync_directory=True)
        done.append(f"{SIDE_FILE_NAME}: flushed end {report.side.checkpoint} is now {span.end_offset}")
    kept = {segment.path for segment, _, _ in span.parts}
    done += [
        _segment_renamed(files, item.path, now_ms) for item in list_segments(directory, suffix) if item.path not in kept
    ]
    files.fsync_dir(directory)
    for segment, start, end in span.parts:
        if start:
            done += _shortened_at_front(report.log_format, segment, start, end, files, now_ms)
        elif end < segment.size:
            done += _cut(segment, end, files, now_ms)
    if not span.parts:
        name = segment_name(span.start_offset, suffix)
        with files.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL):
            done.append(f"{name}: new, empty")
    files.fsync_dir(directory)
    if not marks.in_doubt:
        marks.settle()
    return done


def _renamed(files: FileOps, path: Path, now_ms: int) -> str:
    return f"{path.name}: renamed to {quarantine.quarantine_file(files, path, quarantine.BAD, now_ms).name}"


def _segment_renamed(files: FileOps, path: Path, now_ms: int) -> str:
    """A segment leaves the log; nobody syncs it from here on. A disk that cannot does not keep it in."""
    with contextlib.suppress(OSError), files.open(path, os.O_RDONLY) as fd:
        files.fdatasync(fd)
    return _renamed(files, path, now_ms)


def _cut(segment: SegmentFile, end: int, files: FileOps, now_ms: int) -> list[str]:
    with files.open(segment.path, os.O_RDWR) as fd:
        copy = quarantine.quarantine_span(files, fd, segment.path, end, segment.size, now_ms)
        files.ftruncate(fd, end)
        files.fdatasync(fd)
    return [f"{segment.path.name}: cut at position {end}, {segment.size - end} bytes copied to {copy.name}"]


def _shortened_at_front(
    log_format: LogFormat, segment: SegmentFile, start: int, end: int, files: FileOps, now_ms: int
) -> list[str]:
    """A file of its own for the part that is kept, then the whole old one out of the way."""
    base = log_format.end_offset(segment._replace(size=start))
    target = segment.path.with_name(segment_name(base, log_format.suffix))
    temporary = target.with_name(target.name + ".tmp")
    with (
        files.open(segment.path, os.O_RDONLY) as fd,
        files.open_temporary(temporary) as copy,
    ):
        quarantine.copy_span(files, fd, start, end, copy)
        files.fdatasync(copy)
    files.rename(temporary, target)
    files.fsync_dir(target.parent)
    return [
        f"{target.name}: new, from position {start} of {segment.path.name}",
        _segment_renamed(files, segment.path, now_ms),
    ]
