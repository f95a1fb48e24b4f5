"""Whether the log directories take a write: tried, because a full or broken disk says nothing by itself."""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections.abc import Sequence

log = logging.getLogger(__name__)

FRESH_SECONDS = 1.0
"""A result is that old at most; however often it is asked for, a directory is written to that often."""
WAIT_SECONDS = 0.2
SLOW_SECONDS = 2.0
PROBE_BYTES = 4096
_UNNAMED_IS_IMPOSSIBLE = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)


class _Directory:
    """One directory, and what the last try said."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.problem = ""
        self.tried_at = -FRESH_SECONDS
        self.begun_at = 0.0
        self.done = threading.Event()
        self.done.set()

    def begin(self) -> None:
        """Try in a thread of its own: a disk that hangs holds up whoever asks it, and nobody else."""
        self.done.clear()
        self.begun_at = time.monotonic()
        threading.Thread(target=self._try, name="fastlog-disk-probe", daemon=True).start()

    def _try(self) -> None:
        try:
            write_unnamed(self.path)
            self.problem = ""
        except OSError as error:
            self.problem = error.strerror or str(error)
        except Exception as error:
            log.exception("cannot try to write path=%s", self.path)
            self.problem = repr(error)
        self.tried_at = time.monotonic()
        self.done.set()


class DiskProbe:
    """Says which log directories take no write. For one thread, which waits a fifth of a second for it at most."""

    def __init__(self, directories: Sequence[str]) -> None:
        self._directories = [_Directory(path) for path in directories]

    def problems(self) -> list[str]:
        """A line for each directory that refuses writes or does not answer."""
        now = time.monotonic()
        begun = [item for item in self._directories if item.done.is_set() and now - item.tried_at >= FRESH_SECONDS]
        for item in begun:
            item.begin()
        deadline = time.monotonic() + WAIT_SECONDS
        for item in begun:
            item.done.wait(max(0.0, deadline - time.monotonic()))
        found = []
        for item in self._directories:
            waited = time.monotonic() - item.begun_at
            if not item.done.is_set() and waited >= SLOW_SECONDS:
                found.append(f"log directory {item.path}: a write has not come back for {waited:.1f} s")
            elif item.problem:
                found.append(f"log directory {item.path}: {item.problem}")
        return found


def write_unnamed(directory: str) -> None:
    """Write a page into a file that has no name and is gone at once. Raises ``OSError`` as the disk does."""
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _UNNAMED_IS_IMPOSSIBLE:
            raise
        _ask_file_system(directory)
        return
    try:
        if os.pwrite(fd, bytes(PROBE_BYTES), 0) < PROBE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    finally:
        os.close(fd)


def _ask_file_system(directory: str) -> None:
    """What can be known where every file has a name: one that a crash leaves would lie in the log directory."""
    status = os.statvfs(directory)
    if status.f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))
    if not status.f_bavail:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
