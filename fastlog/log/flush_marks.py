"""Which syncs may have failed unseen: ``.fastlog-flushing`` of a log directory.

The kernel reports a failed write-back once and takes the pages for clean, so after one memory may show bytes that the
disk never got. Whoever syncs a segment therefore leaves a mark while the outcome is open: byte 0 is that of a start or
a repair, byte 1 + n that of the partition in slot n; 0 means that nothing is open, and an empty file is a mark too. A
broker that was killed in the middle of a sync, or after one that failed, leaves its mark, and the next start writes
again what memory holds, so that its own sync speaks of it. Without a mark that sync tells of every failure anyway.

The file is never synced: a mark has to outlive processes, but not a power loss, which takes the memory it warns of.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path

from fastlog.log.discovery import shown
from fastlog.log.files import FileOps
from fastlog.segment_files import FLUSH_MARKS_NAME

MAX_BYTES = 16 * 1024 * 1024
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A disk, a quota or a limit of file sizes (RLIMIT_FSIZE) gives no room; that passes."""

log = logging.getLogger(__name__)


def clear_mark(log_directory: Path, slot: int, files: FileOps) -> None:
    """Take the mark of one slot away, whose partition has been recovered. One that stays costs the next start time."""
    try:
        with files.open(log_directory / FLUSH_MARKS_NAME, os.O_WRONLY) as fd:
            files.write_all(fd, b"\0", 1 + slot)
    except OSError as error:
        log.warning("not written path=%s reason=%s", shown(log_directory / FLUSH_MARKS_NAME), error.strerror)


class FlushMarks:
    """The marks of one log directory while it is recovered or repaired: with one of its own until ``settle``.

    Raises:
        OSError: the mark cannot be left. A sync that fails would leave no trace.
    """

    def __init__(self, log_directory: Path, files: FileOps) -> None:
        self._path = log_directory / FLUSH_MARKS_NAME
        self._files = files
        self.in_doubt = self._found()
        """Some sync has an open end: what memory holds of this directory's segments may be nowhere else."""
        self.no_room = False
        """The disk is too full for the mark, and there was none: nothing of this directory may be synced."""
        self._leave()

    def _found(self) -> bool:
        try:
            found = self._files.read_file(self._path, MAX_BYTES)
        except FileNotFoundError:
            return False
        except IsADirectoryError:
            raise
        except OSError as error:
            log.warning("flush marks unreadable path=%s reason=%s: made anew", shown(self._path), error.strerror)
            self._empty()
            return True
        if any(found) or not found:
            log.info("a flush or a start has an open end path=%s", shown(self._path))
            return True
        return False

    def _leave(self) -> None:
        try:
            with self._files.open(self._path, os.O_WRONLY | os.O_CREAT) as fd:
                self._files.write_all(fd, b"\1", 0)
        except OSError as error:
            if error.errno not in NO_ROOM:
                raise
            try:
                self._empty()
            except OSError as empty_error:
                if empty_error.errno not in NO_ROOM:
                    raise
                self.no_room = not self.in_doubt  # what was found is still there

    def _empty(self) -> None:
        """Put a mark without content in place, which needs no room on the disk."""
        with self._files.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
            pass

    def settle(self, slots: int = 0) -> None:
        """Every sync has succeeded, what was in doubt is durable: no mark stays, and ``slots`` partitions have room.

        Where that cannot be written, the next start does more than it must.
        """
        try:
            with self._files.open(self._path, os.O_WRONLY | os.O_CREAT) as fd:
                self._files.write_all(fd, bytes(1 + slots), 0)
                self._files.ftruncate(fd, 1 + slots)
        except OSError as error:
            log.warning("not written path=%s reason=%s", shown(self._path), error.strerror)
