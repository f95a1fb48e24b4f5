"""The few file calls of the broker's Python side, in one place, so that tests can make any of them fail.

The hot paths use the compiled twin, ``_files``. Every call names its kind to ``_begin``, which a subclass may replace:
it can raise, or let a ``read`` or ``write`` move less than it could.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from fastlog.log import _files
from fastlog.segment_files import LOCK_NAME

FILE_MODE = 0o644  # less the umask, which says who may read: fastlog.log.access
DIRECTORY_MODE = 0o755
AGAIN_BYTES = 4 * 1024 * 1024
BLOCK_BYTES = 512  # the unit of st_blocks, whatever the file system
FICLONE = 0x40049409  # the number of an ioctl of Linux
ROUNDING_BYTES = 128 * 1024  # more bytes of blocks than this are a reservation


@contextlib.contextmanager
def _times_kept(fd: int) -> Iterator[None]:
    status = os.fstat(fd)
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):  # a file of somebody else that we may write
            os.utime(fd, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Give errors the name that a person needs, which calls on a descriptor do not know."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(path)
        raise


def open_no_link(path: Path, flags: int, mode: int = FILE_MODE) -> int:
    """Open a file, never through a symbolic link, and return its descriptor, which no new program inherits.

    Raises:
        OSError: it cannot be opened, or (ELOOP) is a symbolic link.
    """
    try:
        return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "a symbolic link, which is not followed", str(path)) from None
        raise


def open_lock(directory: Path, flags: int, mode: int = FILE_MODE) -> int:
    """Open the lock file of a log directory, and return its descriptor.

    Raises:
        OSError: it cannot be opened, or is no regular file: whoever follows a link may lock, and write, another one.
    """
    path = directory / LOCK_NAME
    fd = open_no_link(path, flags | os.O_NONBLOCK, mode)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return fd


class FileOps:
    """The calls as they are. Safe from any thread and process; holds nothing."""

    def _begin(self, kind: str, path: Path | None) -> bool:
        """Called before each call; True asks for a short read or write."""
        return False

    @contextlib.contextmanager
    def open(self, path: Path, flags: int, mode: int = FILE_MODE) -> Iterator[int]:
        """Give an open descriptor for the length of a ``with`` block; never inherited by a new program.

        Never through a symbolic link: whoever may write in a log directory may not choose another file for us.
        """
        self._begin("open", path)
        # a fifo in a segment's place must not stop the start for ever
        fd = open_no_link(path, flags | os.O_NONBLOCK, mode)
        with _named(path):
            try:
                yield fd
            finally:
                os.close(fd)

    @contextlib.contextmanager
    def open_temporary(self, path: Path) -> Iterator[int]:
        """Give an open descriptor of a new, empty file; one of that name is a write that was interrupted, and goes."""
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
        if os.path.lexists(path):
            self.unlink(path)
        with self.open(path, flags) as fd:
            yield fd

    def read_into(self, fd: int, view: memoryview, position: int) -> int:
        """Read into ``view`` from a place of the file; return the bytes that came, which may be fewer, 0 at the end."""
        if self._begin("read", None) and len(view) > 1:
            view = view[: len(view) // 2]
        return os.preadv(fd, [view], position)

    def write_all(self, fd: int, data: bytes | memoryview, position: int) -> None:
        """Write all of ``data`` at a place of the file, going on after a short write from where it stopped."""
        view = memoryview(data)
        written = 0
        while written < len(view):
            part = view[written:]
            if self._begin("write", None) and len(part) > 1:
                part = part[: len(part) // 2]
            count = os.pwrite(fd, part, position + written)
            if count == 0:
                raise OSError(errno.ENOSPC, "nothing could be written")
            written += count

    def fdatasync(self, fd: int) -> None:
        """Return once the file's bytes and size are on the disk."""
        self._begin("fdatasync", None)
        os.fdatasync(fd)

    def fsync_dir(self, path: Path) -> None:
        """Return once the names in a directory are on the disk."""
        self._begin("fsync_dir", path)
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with _named(path):
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def ftruncate(self, fd: int, size: int) -> None:
        """Cut the file to ``size``, which also gives back space reserved behind it; the file's times stay as they are.

        They stand for append times where no side file tells them: a restart must not make old messages young.
        """
        self._begin("ftruncate", None)
        with _times_kept(fd):
            os.ftruncate(fd, size)

    def cut_to(self, fd: int, size: int) -> bool:
        """As ``ftruncate`` where that changes anything, and whether it does: on a full disk that copies on write there
        may be no room for it.
        """
        status = os.fstat(fd)
        if status.st_size == size and status.st_blocks * BLOCK_BYTES <= size + ROUNDING_BYTES:
            return False
        self.ftruncate(fd, size)
        return True

    def write_again(self, fd: int, position: int) -> None:
        """Write what the file holds from ``position`` on in its own place, so that the next sync speaks of it.

        The file's times stay as they are.
        """
        window = memoryview(bytearray(AGAIN_BYTES))
        with _times_kept(fd):
            while came := self.read_into(fd, window, position):
                self.write_all(fd, window[:came], position)
                position += came

    def rename(self, old: Path, new: Path) -> None:
        """Give a file another name; a file of that name is replaced in one step."""
        self._begin("rename", old)
        old.rename(new)

    def link(self, old: Path, new: Path) -> None:
        """Give a file a second name; it is no symbolic link."""
        self._begin("link", old)
        os.link(old, new, follow_symlinks=False)

    def clone(self, source: int, target: int) -> None:
        """Let an open file hold what another one holds, sharing its blocks until one of them is written."""
        self._begin("clone", None)
        fcntl.ioctl(target, FICLONE, source)

    def unlink(self, path: Path) -> None:
        """Remove a file's name (unlink)."""
        self._begin("unlink", path)
        path.unlink()

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        self._begin("rmdir", path)
        path.rmdir()

    def mkdir(self, path: Path) -> None:
        """Make a directory."""
        self._begin("mkdir", path)
        path.mkdir(DIRECTORY_MODE)

    def listdir(self, path: Path) -> list[os.DirEntry[str]]:
        """Return what is in a directory, by name."""
        self._begin("listdir", path)
        with os.scandir(path) as listing:
            return sorted(listing, key=lambda item: item.name)

    def size(self, fd: int) -> int:
        """Return the length of an open file."""
        self._begin("stat", None)
        return os.fstat(fd).st_size

    def read_file(self, path: Path, limit: int) -> bytes:
        """Return a whole small file.

        Raises:
            OSError: it cannot be read, or (EFBIG) holds more than ``limit`` bytes.
        """
        with self.open(path, os.O_RDONLY) as fd:
            parts: list[bytes] = []
            position = 0
            while True:
                part = memoryview(bytearray(min(65536, limit + 1 - position)))
                came = self.read_into(fd, part, position)
                if came == 0:
                    return b"".join(parts)
                position += came
                if position > limit:
                    raise OSError(errno.EFBIG, f"holds more than {limit} bytes", str(path))
                parts.append(bytes(part[:came]))

    def replace_file(self, path: Path, data: bytes, point: str) -> None:
        """Put ``data`` in place of a file so that readers see the old or the new, also after power loss.

        The name itself is durable only after ``fsync_dir``. ``point`` names the place where a test may stop it.
        """
        temporary = path.with_name(path.name + ".tmp")
        with self.open_temporary(temporary) as fd:
            self.write_all(fd, data, 0)
            self.fdatasync(fd)
        _files.reach(point)
        self.rename(temporary, path)


def make_directory(path: Path, files: FileOps) -> None:
    """Have a directory, with those above it; the names of new ones are durable on return.

    One without a lock file counts as new: it may have been made by somebody whom the power stopped.

    Raises:
        OSError: it cannot be made, or made durable.
    """
    missing = [each for each in (path, *path.parents) if not each.exists()]
    for each in reversed(missing):
        with contextlib.suppress(FileExistsError):
            files.mkdir(each)
    if not (path / LOCK_NAME).exists():
        for each in missing or [path]:
            with contextlib.suppress(PermissionError):  # a directory above that we may pass through and not read
                files.fsync_dir(each.parent)
