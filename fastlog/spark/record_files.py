"""Reads the batches of one partition of record batches from its segment files, where they are on this machine.

Only offsets that the broker has shown are asked for: what is below them is in the files, whole, and stays so. A
segment is unlinked when retention drops it, so what is open stays readable; a topic that is made anew under its name
has another directory, and the one that is open is that of the topic whose id was given.

Positions come out of a segment's ``.index``, which is a help alone: what it leads to is looked at.

Source: Apache Kafka 4.2 (LogSegment).
"""

from __future__ import annotations

import os
import stat
from base64 import urlsafe_b64encode
from bisect import bisect_right
from pathlib import Path

from fastlog._record_batch import BATCHES_OK, BATCHES_TAIL, scan_batches
from fastlog.client.buffers import Buffers
from fastlog.consumer.record_index import indexed_position
from fastlog.errors import CorruptLogError, LogError
from fastlog.record_batches import HEAD, HEADER_BYTES, LENGTH_COUNTS_FROM
from fastlog.segment_files import parse_segment_name, partition_directory_name, read_fully, segment_name

_SUFFIX, _INDEX_SUFFIX = ".log", ".index"
_METADATA_NAME = "partition.metadata"
_MOST_METADATA_BYTES = 4096
_WINDOW_BYTES = 1 << 20
_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class NotHereError(Exception):
    """The files are not here, not readable, or not those of this topic: read through the socket instead."""


class RecordFiles:
    """The segment files of one partition, at most one of them open. For one thread."""

    def __init__(self, directory: str, topic: str, partition: int, topic_id: bytes) -> None:
        """``directory``: the broker's log directory. Raises ``NotHereError``."""
        self.path = Path(directory) / partition_directory_name(topic, partition)
        self._buffers = Buffers()
        self._fd = -1
        self._base = self._position = 0
        if not self.path.is_absolute():
            raise NotHereError(f"{directory!r} is no absolute path")
        try:
            self._directory = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise NotHereError(f"{self.path}: {error.strerror}") from error
        try:
            self._check_id(topic_id)
        except BaseException:
            self.close()
            raise

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open; may be called again."""
        self._close_segment()
        fd, self._directory = getattr(self, "_directory", -1), -1
        if fd >= 0:
            os.close(fd)

    def seek(self, offset: int) -> None:
        """Go to the batch that has an offset, which is in the log. Raises as ``read``."""
        self._open(offset)
        self._position = self._indexed(offset)
        while True:
            base, last, size = self._head()
            if base > offset and self._position:
                self._position = 0  # the index is not one of this file
            elif last >= offset:
                return
            else:
                self._position += size

    def read(self, next_offset: int) -> memoryview:
        """The batches in turn, up to about a MiB: one whole batch in any case. ``next_offset`` is that of the first.

        What was read before is forgotten once nobody looks at it.

        Raises:
            NotHereError: the segment is not there any more.
            LogError: it cannot be read, or ends before that offset, which the broker has shown.
            CorruptLogError: a batch is damaged; names the file and the position.
        """
        if self._at_end():
            self._open(next_offset)
        data = self._window(_WINDOW_BYTES)
        scan = scan_batches(data, next_offset)
        if not scan.valid_bytes and scan.status == BATCHES_TAIL:
            data = self._window(self._head()[2])
            scan = scan_batches(data, next_offset)
        if not scan.valid_bytes:
            reason = "it ends inside a batch" if scan.status == BATCHES_TAIL else "the batch there is damaged"
            raise CorruptLogError(reason, path=str(self._file), position=self._position)
        if scan.status not in (BATCHES_OK, BATCHES_TAIL):
            # What is before the damage is as good as ever; the next call finds it first.
            data = data[: scan.valid_bytes]
        self._position += scan.valid_bytes
        return data[: scan.valid_bytes]

    # -- inside --------------------------------------------------------------------------------------------------------

    def _check_id(self, topic_id: bytes) -> None:
        """That this is the directory of the topic that the broker has, and not of one of its name from before."""
        try:
            fd = os.open(_METADATA_NAME, _FLAGS, dir_fd=self._directory)
        except OSError as error:
            raise NotHereError(f"{self.path / _METADATA_NAME}: {error.strerror}") from error
        try:
            text = os.read(fd, _MOST_METADATA_BYTES).decode(errors="replace")
        finally:
            os.close(fd)
        wanted = urlsafe_b64encode(topic_id).decode().rstrip("=")
        if f"topic_id: {wanted}" not in text.splitlines():
            raise NotHereError(f"{self.path} is not the directory of the topic with the id {wanted}")

    def _open(self, offset: int) -> None:
        """Open the segment that has an offset, at its beginning."""
        self._close_segment()
        with os.scandir(self._directory) as listing:  # of what is open, whatever its path names by now
            found = [parse_segment_name(item.name, _SUFFIX) for item in listing]
        bases = sorted(base for base in found if base is not None)
        place = bisect_right(bases, offset) - 1
        if place < 0:
            raise NotHereError(f"{self.path} begins behind offset {offset}")
        self._base, self._position = bases[place], 0
        self._file = self.path / segment_name(self._base, _SUFFIX)
        try:
            self._fd = os.open(self._file.name, _FLAGS, dir_fd=self._directory)
        except OSError as error:
            raise NotHereError(f"{self._file}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(self._fd).st_mode):
            self._close_segment()
            raise NotHereError(f"{self._file}: no regular file")

    def _close_segment(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _indexed(self, offset: int) -> int:
        """Where to begin to look for an offset in the open segment."""
        try:
            fd = os.open(segment_name(self._base, _INDEX_SUFFIX), _FLAGS, dir_fd=self._directory)
        except OSError:
            return 0
        try:
            data = bytearray(os.fstat(fd).st_size // 8 * 8)
            came = read_fully(fd, memoryview(data), 0)
        except OSError:
            return 0
        finally:
            os.close(fd)
        return indexed_position(memoryview(data)[:came], self._base, offset)

    def _at_end(self) -> bool:
        return self._fd < 0 or self._position >= os.fstat(self._fd).st_size

    def _head(self) -> tuple[int, int, int]:
        """The first and the last offset of the batch in turn, and its size."""
        head = bytearray(HEAD.size)
        if self._pread(memoryview(head)) < len(head):
            raise LogError(
                "a segment ends before what the broker has shown", path=str(self._file), position=self._position
            )
        base, length, _, _, delta, _ = HEAD.unpack(head)
        if length < HEADER_BYTES - LENGTH_COUNTS_FROM:
            raise CorruptLogError("no batch begins there", path=str(self._file), position=self._position)
        return base, base + delta, LENGTH_COUNTS_FROM + length

    def _window(self, size: int) -> memoryview:
        view = memoryview(self._buffers.take(size))[:size]
        came = self._pread(view)
        if not came:
            raise LogError(
                "a segment ends before what the broker has shown", path=str(self._file), position=self._position
            )
        return view[:came]

    def _pread(self, view: memoryview) -> int:
        try:
            return read_fully(self._fd, view, self._position)
        except OSError as error:
            raise LogError(
                f"cannot read a segment: {error.strerror}", path=str(self._file), position=self._position
            ) from error
