"""Partitions of Kafka 0.7 in their segment files, without a broker."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fastlog._segment import SCAN_OK, SCAN_TAIL
from fastlog.consumer.fetched import NumpyBatch, numpy_batch
from fastlog.errors import ArgumentError, CorruptLogError
from fastlog.message import DEFAULT_LIMITS
from fastlog.scanning.parts import COLUMNS, Bounds, Part, arrow_of, schema
from fastlog.segment_files import (
    SEGMENT_SUFFIX,
    SegmentFile,
    first_boundary,
    list_segments,
    split_directory_name,
    windows,
)

_MOST_SKIPPED_BYTES = 2**62


class SegmentFolders:
    """The directories of partitions that a path or a pattern names.

    A file is read as far as whole messages go: of a partition that a broker is writing to, those that are not flushed
    too.
    """

    def __init__(self, path: str | os.PathLike[str], *, window_bytes: int) -> None:
        self._path = os.fspath(path)
        self._window_bytes = window_bytes
        self._files: dict[Part, tuple[SegmentFile, bool]] = {}
        """By part: its segment, and whether it is the newest of its partition."""

    def __repr__(self) -> str:
        return f"files of {self._path}"

    def columns(self) -> Sequence[str]:
        """As of all topics of Kafka 0.7."""
        return COLUMNS

    def schema(self, columns: Sequence[str], topics: Sequence[str]) -> Any:
        """As of all topics of Kafka 0.7."""
        return schema(columns)

    def parts(self, bounds: Bounds) -> list[Part]:
        """One for each segment.

        Raises:
            ArgumentError: the path names no directory of a partition that has segments.
            OSError: a directory cannot be read.
        """
        found: dict[Part, tuple[SegmentFile, bool]] = {}
        any_segment = False
        for folder in self._folders():
            topic, partition = split_directory_name(folder.name) or ("", -1)  # which is why it is one of them
            segments = list_segments(folder)
            any_segment = any_segment or bool(segments)
            written = [int(segment.path.stat().st_mtime * 1000) for segment in segments]
            for number, segment in enumerate(segments):
                part = Part(topic, partition, segment.base, segment.base + segment.size)
                is_old = bounds.since_ms is not None and written[number] < bounds.since_ms
                # what is in a segment came after all that is in the one before it
                is_new = bounds.until_ms is not None and number > 0 and written[number - 1] > bounds.until_ms
                cut = bounds.cut(part) if bounds.has(partition) and not is_old and not is_new else None
                if cut is not None:
                    found[cut] = segment, number == len(segments) - 1
        if not any_segment:
            raise ArgumentError(f"{self._path} names no directory <topic>-<partition> with segments ({SEGMENT_SUFFIX})")
        self._files |= found
        return sorted(found)

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str]
    ) -> Iterator[tuple[int, Any]]:
        """By windows of a few MiB.

        Raises:
            CorruptLogError: a message is damaged; what is before it came first.
        """
        for part in parts:
            yield from arrow_of(self._arrays(part), part, columns, topics)

    def _folders(self) -> list[Path]:
        # Path.glob takes no absolute pattern
        paths = sorted(glob.glob(self._path)) if glob.has_magic(self._path) else [self._path]  # noqa: PTH207
        folders = [Path(path).resolve() for path in paths]
        return [folder for folder in folders if folder.is_dir() and split_directory_name(folder.name)]

    def _arrays(self, part: Part) -> Iterator[NumpyBatch]:
        (base, path, size), is_newest = self._files[part]
        start = first_boundary(path, 0, part.start - base, size, _MOST_SKIPPED_BYTES)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for window in windows(fd, start, size, window_bytes=self._window_bytes):
                at = base + window.position
                end = at + len(window.entries)
                while at < end:
                    data = window.entries[at - base - window.position :]
                    batch = numpy_batch(part.topic, part.partition, at, data, None, DEFAULT_LIMITS)
                    at = batch.next_offset
                    yield batch
                if window.status != SCAN_OK and not (is_newest and window.status == SCAN_TAIL):
                    raise CorruptLogError(
                        f"{path}: no whole and valid message at position {end - base}: fastlog fsck says what is there"
                    )
        finally:
            os.close(fd)
