"""Which syncs may have failed unseen: ``.fastlog-flushing`` of a log directory.

The kernel reports a failed write-back once and takes the pages for clean, so after one memory may show bytes that the
disk never got. Whoever syncs a segment therefore leaves a mark while the outcome is open: byte 0 is the start's, byte
1 + n that of the partition in slot n, 0 means nothing is open. A broker that was killed in the middle of a sync, or
after one that failed, leaves its mark, and the next start does not believe memory. Without one, memory is what the disk
has, and recovery reads at its speed.

The file is never synced: a mark has to outlive processes, and no power loss, which takes the memory that it warns of.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from fastlog.log.discovery import shown
from fastlog.log.files import FileOps
from fastlog.segment_files import FLUSH_MARKS_NAME

MAX_BYTES = 16 * 1024 * 1024

log = logging.getLogger(__name__)


class FlushMarks:
    """The marks of one log directory during a start, which leaves its own until ``settle``.

    Raises:
        OSError: they cannot be written. Going on would leave a failed sync without a trace.
    """

    def __init__(self, log_directory: Path, files: FileOps) -> None:
        self._path = log_directory / FLUSH_MARKS_NAME
        self._files = files
        self.in_doubt = self._found()
        """Some sync has an unknown end: what memory holds of this directory's segments may be nowhere else."""
        if self.in_doubt:
            log.info("ended in the middle of a flush directory=%s: recovery reads from the disk", shown(log_directory))
        with files.open(self._path, os.O_WRONLY | os.O_CREAT) as fd:
            files.write_all(fd, b"\1", 0)

    def _found(self) -> bool:
        try:
            return any(self._files.read_file(self._path, MAX_BYTES))
        except FileNotFoundError:
            return False
        except OSError as error:
            log.warning(
                "flush marks unreadable path=%s reason=%s: recovery reads from the disk",
                shown(self._path),
                error.strerror,
            )
            return True

    def settle(self, slots: int) -> None:
        """Every sync of this start has succeeded: no mark is left, and there is room for those of ``slots`` partitions.

        Raises:
            OSError: the next start reads from the disk.
        """
        with self._files.open(self._path, os.O_WRONLY) as fd:
            self._files.write_all(fd, bytes(1 + slots), 0)
            self._files.ftruncate(fd, 1 + slots)
