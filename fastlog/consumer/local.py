"""Reading segment files where they lie, below the limit that the broker tells. Asks the broker nothing itself.

A segment is never truncated below that limit and is unlinked when retention drops it, so what is open stays readable;
bytes at or beyond the limit are never touched. A topic may be deleted and made anew under its name: its directory is
another one then, and what the broker says later is of that.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
from bisect import bisect_right
from pathlib import Path
from typing import Any

from fastlog.client.buffers import Buffers
from fastlog.errors import LogError
from fastlog.segment_files import (
    KAFKA_0_7,
    ReadInto,
    SegmentFile,
    list_segments,
    partition_directory_name,
    read_fully,
    read_into,
    segment_name,
)
from fastlog.wire.responses import LocalReadAnswer

MADV_POPULATE_READ = 22
_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class NotLocalError(Exception):
    """The files are not here, not readable, or not those of this log: read through the socket instead."""


class NotThereYetError(Exception):
    """The partition has no files so far."""


class SegmentsChangedError(Exception):
    """The broker's list of segments is out of date: ask for it again."""


class LocalLog:
    """The segment files of one partition, at most one of them open. For one thread at a time.

    ``mapped``: hand out parts of a map, whose pages were read before; else bytes are read into memory.
    """

    def __init__(self, topic: str, partition: int, *, mapped: bool, read: ReadInto = read_into) -> None:
        self.limit = 0
        """Nothing at or beyond this offset is read; it only grows."""
        self.mapped = mapped
        self._name = partition_directory_name(topic, partition)
        self._read = read
        self._directory = Path()
        self._directory_fd = (
            -1
        )  # names one directory for ever, which its path does not: the topic may be deleted and made anew
        self._bases: tuple[int, ...] = ()
        self._path = Path()
        self._fd = -1
        self._base = 0
        self._end: int | None = None
        self._map: mmap.mmap | None = None
        self._buffers = Buffers()

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open; maps live as long as what was handed out of them."""
        self._close_file()
        fd, self._directory_fd = self._directory_fd, -1
        if fd >= 0:
            os.close(fd)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        self._map = None
        if fd >= 0:
            os.close(fd)

    def rest(self) -> None:
        """Free most of the buffers that are kept for later reads; for when little comes."""
        self._buffers.rest()

    def update(self, answer: LocalReadAnswer) -> bool:
        """Take the broker's list of files; whether they are others than those that were read before.

        Raises:
            NotThereYetError: there are none.
            NotLocalError: they cannot be those of this partition, or have a format that is not known here.
        """
        if not answer.directory and not answer.format:
            raise NotThereYetError
        directory = Path(answer.directory)
        if answer.format != KAFKA_0_7:
            raise NotLocalError(f"the log has the format {answer.format!r}")
        if directory.name != self._name or not directory.is_absolute() or "\0" in answer.directory:
            raise NotLocalError(f"{answer.directory!r} is no directory of {self._name}")
        if list(answer.base_offsets) != sorted(set(answer.base_offsets)):
            raise NotLocalError("the list of segments is out of order")
        others = directory != self._directory or not self._is_current()
        if others:
            was_read = self._directory_fd >= 0
            self.close()
            with contextlib.suppress(OSError):  # then no file can be opened either
                self._directory_fd = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            self.limit = 0 if was_read else self.limit
        self._directory = directory
        self._bases = answer.base_offsets
        self.limit = max(self.limit, answer.high_watermark)
        if self._fd >= 0:
            self._end = self._end_of(self._base)
        return others

    def _check_directory(self) -> None:
        if self._directory_fd >= 0 and not self._is_current():
            raise SegmentsChangedError

    def _is_current(self) -> bool:
        """Whether the path still names the directory that is held."""
        if self._directory_fd < 0:
            return False
        try:
            return os.path.samestat(self._directory.stat(), os.fstat(self._directory_fd))
        except OSError:
            return False

    def piece(self, offset: int, max_bytes: int) -> memoryview:
        """Bytes from ``offset`` on, at most ``max_bytes``, all of one segment and below the limit; empty at the limit.

        Raises:
            SegmentsChangedError: the segment is not in the list, or not there any more.
            NotLocalError: the file cannot be opened.
            LogError: it cannot be read, or ends too early; names file and position.
        """
        if offset >= self.limit:
            return memoryview(b"")
        if self._fd < 0 or not self._base <= offset or (self._end is not None and offset >= self._end):
            self._open(offset)
        wanted = min(max_bytes, self.limit - offset)
        if self._end is not None:
            wanted = min(wanted, self._end - offset)
        position = offset - self._base
        found = self._mapped_piece(position, wanted) if self.mapped else self._read_piece(position, wanted)
        if not found:
            if self._end is None:
                raise SegmentsChangedError  # rolled since, or damaged: then the list will say so
            raise self._too_short(position)
        return found

    def too_short(self, offset: int) -> LogError:
        """The error for a newest segment that ends at ``offset``, below the limit, while the list names no next one."""
        return self._too_short(max(0, offset - self._base))

    def same_bytes(self, offset: int, expected: bytes | memoryview) -> bool:
        """Whether the files hold these bytes at ``offset``; the limit does not count, as the broker sent them.

        Raises:
            SegmentsChangedError: as ``piece``, or the files are those of a log that has been deleted.
        """
        self._check_directory()
        buffer = bytearray(len(expected))
        at = 0
        while at < len(buffer):
            if self._fd < 0 or not self._base <= offset + at or (self._end is not None and offset + at >= self._end):
                self._open(offset + at)
            wanted = len(buffer) - at if self._end is None else min(len(buffer) - at, self._end - offset - at)
            came = self._pread(memoryview(buffer)[at : at + wanted], offset + at - self._base)
            if not came:
                if self._end is None:
                    raise SegmentsChangedError
                return False
            at += came
        return bytes(buffer) == bytes(expected)

    def where(self, offset: int) -> dict[str, Any]:
        """File and position of an offset in the open segment, as an error names them."""
        return {"path": str(self._path), "position": offset - self._base}

    def _end_of(self, base: int) -> int | None:
        place = bisect_right(self._bases, base)
        return self._bases[place] if place < len(self._bases) else None

    def _open(self, offset: int) -> None:
        self._close_file()
        self._check_directory()
        place = bisect_right(self._bases, offset) - 1
        if place < 0:
            raise SegmentsChangedError
        base = self._bases[place]
        path = self._directory / segment_name(base)
        try:
            self._fd = self._opened(path)
        except FileNotFoundError:
            # 0.7 reads names of any width, so another name may stand for the same segment.
            named = [item.path for item in self._listed() if item.base == base]
            if not named:
                raise SegmentsChangedError from None
            path = named[0]
            try:
                self._fd = self._opened(path)
            except FileNotFoundError:
                raise SegmentsChangedError from None
        self._path, self._base, self._end = path, base, self._end_of(base)

    def _opened(self, path: Path) -> int:
        if self._directory_fd < 0:
            raise FileNotFoundError
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path.name, flags, dir_fd=self._directory_fd)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise NotLocalError(f"{path}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise NotLocalError(f"{path}: no regular file")
        return fd

    def _listed(self) -> list[SegmentFile]:
        try:
            return list_segments(self._directory)
        except OSError as error:
            raise NotLocalError(f"{self._directory}: {error.strerror}") from error

    def _read_piece(self, position: int, wanted: int) -> memoryview:
        view = memoryview(self._buffers.take(wanted))[:wanted]
        return view[: self._pread(view, position)]

    def _pread(self, view: memoryview, position: int) -> int:
        try:
            return read_fully(self._fd, view, position, self._read)
        except OSError as error:
            raise self._unreadable(error, position) from error

    def _mapped_piece(self, position: int, wanted: int) -> memoryview:
        if self._map is None or position + wanted > len(self._map):
            size = os.fstat(self._fd).st_size
            if size <= position:
                return memoryview(b"")
            self._map = mmap.mmap(self._fd, size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        wanted = min(wanted, len(self._map) - position)
        first = position - position % mmap.PAGESIZE
        try:
            # Pages are read now, where a bad one is an error; touched later, it would be a signal.
            self._map.madvise(MADV_POPULATE_READ, first, position + wanted - first)
        except OSError as error:
            if error.errno in _UNSUPPORTED:  # a kernel before 5.14
                self.mapped = False
                return self._read_piece(position, wanted)
            raise self._unreadable(error, position) from error
        return memoryview(self._map)[position : position + wanted]

    def _unreadable(self, error: OSError, position: int) -> LogError:
        return LogError(f"cannot read a segment: {error.strerror}", path=str(self._path), position=position)

    def _too_short(self, position: int) -> LogError:
        return LogError(
            f"a segment ends before what the broker has made visible, up to offset {self.limit}",
            path=str(self._path),
            position=position,
        )
