"""A directory that is made beside the place where it is to stand, and comes there in one step, when all is durable.

    <target>.<word>                  what is being made; ``word`` says by whom: "importing", "exporting"
    <target>.<word>/.fastlog-moving  it is not whole; the last thing that goes before it is put in place

Whoever is killed in between leaves the first, which the next one removes, or finishes where the second has gone. A
broker does not start on it (``log/discovery.py``). Of two at once the second is refused.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fastlog.errors import LogError
from fastlog.log.discovery import shown
from fastlog.log.files import FileOps, open_lock
from fastlog.segment_files import LOCK_NAME, MOVING_NAME

MARKER = b"This directory is being made by fastlog and is not whole: run the same command again.\n"
LINK, COPY = "link", "copy"
WAYS = ("clone", "link", "copy")
"""From the best on; the last one works everywhere, or the disk refuses."""
_NO_LINK = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP, errno.EACCES, errno.ENOSYS)
_NO_CLONE = (errno.EXDEV, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOTTY, errno.EPERM, errno.ENOSYS, errno.EACCES)
COPY_BYTES = 4 << 20


class Staging:
    """The directory while it is made. For one thread; use ``staged``."""

    def __init__(self, target: Path, word: str, files: FileOps, replaced: str | None = None) -> None:
        """``replaced``: the word that the name of what stands there gets, until it goes; None: nothing does."""
        self.target = target
        self.replaced = None if replaced is None else target.with_name(f"{target.name}.{replaced}")
        self.path = target.with_name(f"{target.name}.{word}")
        self._files = files
        self._ways: dict[int, list[str]] = {}  # by device: how files of it may come here

    def clear(self) -> None:
        """Remove what an interrupted one has left.

        Raises:
            LogError: what has the name is something else.
            OSError: it cannot be removed.
        """
        if not os.path.lexists(self.path):
            return
        if self.path.is_symlink() or not self.path.is_dir():
            raise LogError("something else has the name that is needed; move it away", path=str(self.path))
        listing = [item.name for item in self._files.listdir(self.path)]
        if listing and MOVING_NAME not in listing:
            raise LogError(
                "it is whole, and what was interrupted before it could be put in place; rename it, or remove it",
                path=str(self.path),
            )
        # the marker last: what is half removed is no less half than before
        for name in sorted(listing, key=lambda each: each == MOVING_NAME):
            remove_tree(self.path / name, self._files)
        self._files.rmdir(self.path)

    def finish_interrupted(self) -> bool:
        """Put in place what was whole already and had come there but for a step, and whether that was so.

        Between the two steps of a replacement nothing stands in the place.
        """
        if self.replaced is None or os.path.lexists(self.target) or not self.replaced.is_dir():
            return False
        is_whole = self.path.is_dir() and not (self.path / MOVING_NAME).exists()
        self._files.rename(self.path if is_whole else self.replaced, self.target)
        self._files.fsync_dir(self.target.parent)
        if is_whole:
            remove_tree(self.replaced, self._files)
        return is_whole

    def begin(self) -> None:
        """Make the directory, with the marker of a move that is not finished. Raises ``OSError``."""
        self._files.mkdir(self.path)
        self.write(self.path / MOVING_NAME, MARKER)
        self._files.fsync_dir(self.path)

    def finish(self) -> None:
        """Put it in place; an empty directory that stands there goes, and one that is replaced."""
        self._files.fsync_dir(self.path)
        self._files.unlink(self.path / MOVING_NAME)
        self._files.fsync_dir(self.path)
        if self.replaced is not None:
            self._files.rename(self.target, self.replaced)
        self._files.rename(self.path, self.target)
        self._files.fsync_dir(self.target.parent)
        if self.replaced is not None:
            remove_tree(self.replaced, self._files)

    def write(self, path: Path, data: bytes) -> None:
        """A new file with these bytes; durable but for its name."""
        with self._files.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            self._files.write_all(fd, data, 0)
            self._files.fdatasync(fd)

    def take(self, source: Path, target: Path, way: str) -> str:
        """Let a file that is written no more stand here too, byte for byte; durable but for its name.

        ``way`` LINK: sharing its bytes where the file systems can, as a clone (reflink), or as another name of the same
        file. Returns how it was done: "clone", "link" or "copy".
        """
        with self._files.open(source, os.O_RDONLY) as fd:
            status = os.fstat(fd)
            known = self._ways.setdefault(status.st_dev, list(WAYS)) if way == LINK else [WAYS[-1]]
            while not self._try(known[0], fd, source, target, status):
                del known[0]  # nor does it work for others from there
            return known[0]

    def _try(self, way: str, fd: int, source: Path, target: Path, status: os.stat_result) -> bool:
        if way == "link":
            try:
                self._files.fdatasync(fd)
                self._files.link(source, target)
                return True
            except OSError as error:
                if error.errno not in _NO_LINK:
                    raise
                return False
        with self._files.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL) as copy:
            try:
                if way == "clone":
                    self._files.clone(fd, copy)
                else:
                    _copy(self._files, fd, copy)
                self._files.fdatasync(copy)
            except OSError as error:
                self._files.unlink(target)
                if way != "clone" or error.errno not in _NO_CLONE:
                    raise
                return False
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))  # stands for the time of appends
        return True


def _copy(files: FileOps, source: int, target: int) -> None:
    buffer, position = memoryview(bytearray(COPY_BYTES)), 0
    while came := files.read_into(source, buffer, position):
        files.write_all(target, buffer[:came], position)
        position += came


@contextlib.contextmanager
def staged(target: Path, word: str, files: FileOps, replaced: str | None = None) -> Iterator[Staging]:
    """Give a directory that stands in the place of ``target`` when the block ends well, and is removed when it fails.

    ``replaced`` as for ``Staging``.

    Raises:
        LogError: the place is taken, or somebody else is at it.
        OSError: it cannot be made.
    """
    staging = Staging(target, word, files, replaced)
    with _alone(target.parent, target.name):
        staging.clear()
        try:
            staging.begin()
            yield staging
        except BaseException:
            with contextlib.suppress(OSError, LogError):  # what is left is removed by the next one
                staging.clear()
            raise
        staging.finish()


def refuse_taken(target: Path) -> None:
    """Raise ``LogError`` unless nothing stands at ``target``, or an empty directory that can be replaced."""
    if not target.parent.is_dir():
        raise LogError("there is no such directory to make it in", path=str(target.parent))
    if not os.path.lexists(target):
        return
    if target.is_symlink() or not target.is_dir() or any(target.iterdir()):
        raise LogError("something is there already; name a directory that is not", path=str(target))
    if target.is_mount():
        raise LogError("a mount cannot be replaced; name a directory in it that is not there yet", path=str(target))


@contextlib.contextmanager
def _alone(parent: Path, name: str) -> Iterator[None]:
    """Hold the parent's lock, which only this uses: two that make one directory would remove each other's files."""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError(f"something is being moved into this directory, perhaps {name}", path=str(parent)) from None
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def unused_by_fastlog(log_directory: Path) -> Iterator[None]:
    """Keep brokers of fastlog from starting on a log directory.

    Raises:
        LogError: one has it.
    """
    try:
        fd = open_lock(log_directory, os.O_RDONLY)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LogError("a broker has it; stop that first", path=shown(log_directory)) from None
        yield
    finally:
        os.close(fd)


@contextlib.contextmanager
def unused_by_kafka(log_directory: Path) -> Iterator[None]:
    """Keep an Apache Kafka from starting on a log directory, by the lock that Java takes.

    Raises:
        LogError: one has it.
    """
    try:
        fd = os.open(log_directory / LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            raise LogError("a Kafka has it; stop that first", path=shown(log_directory)) from None
        yield
    finally:
        os.close(fd)


def remove_tree(path: Path, files: FileOps) -> None:
    """Remove a file, or a directory with all that is in it; never through a symbolic link."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(mode):
        files.unlink(path)
        return
    for item in files.listdir(path):
        remove_tree(path / item.name, files)
    files.rmdir(path)
