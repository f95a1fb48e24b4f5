"""Partitions of Kafka 0.7 in their segment files, without a broker."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from fastlog._segment import SCAN_OK, SCAN_TAIL
from fastlog.consumer.fetched import NumpyBatch, numpy_batch
from fastlog.errors import CorruptLogError
from fastlog.message import DEFAULT_LIMITS
from fastlog.scanning.bases import FolderSource
from fastlog.scanning.columns import arrow_of
from fastlog.scanning.parts import Bounds, Part
from fastlog.segment_files import (
    SegmentFile,
    first_boundary,
    list_segments,
    split_directory_name,
    windows,
)

_MOST_SKIPPED_BYTES = 2**62


class SegmentFolders(FolderSource[SegmentFile]):
    """The directories of partitions that a path or a pattern names.

    A file is read as far as whole messages go: of a partition that a broker is writing to, those that are not flushed
    too.
    """

    of_records = False

    def parts(self, bounds: Bounds) -> list[Part]:
        """One for each segment.

        Raises:
            OSError: a directory cannot be read.
        """
        found = []
        for folder in self._folders:
            topic, partition = split_directory_name(folder.name) or ("", -1)  # which is why it is one of them
            segments = self._segments[topic, partition] = list_segments(folder)
            written = [int(segment.path.stat().st_mtime * 1000) for segment in segments]
            for number, segment in enumerate(segments):
                part = Part(topic, partition, segment.base, segment.base + segment.size)
                is_old = bounds.since_ms is not None and written[number] < bounds.since_ms
                # what is in a segment came after all that is in the one before it
                is_new = bounds.until_ms is not None and number > 0 and written[number - 1] > bounds.until_ms
                cut = bounds.cut(part) if bounds.has(partition) and not is_old and not is_new else None
                if cut is not None:
                    found.append(cut)
        return sorted(found)

    def batches(
        self, parts: Sequence[Part], columns: Sequence[str], topics: Sequence[str], *, window_bytes: int | None = None
    ) -> Generator[tuple[int, Any]]:
        """By windows of a few MiB.

        Raises:
            CorruptLogError: a message is damaged; what is before it came first.
        """
        for part in parts:
            yield from arrow_of(self._arrays(part, window_bytes), part, self.schema(columns, topics), topics)

    def _arrays(self, part: Part, window_bytes: int | None) -> Iterator[NumpyBatch]:
        segments = self._segments[part.topic, part.partition]
        place = bisect_right(segments, part.start, key=lambda segment: segment.base) - 1
        (base, path, size), is_newest = segments[place], place == len(segments) - 1
        start = first_boundary(path, 0, part.start - base, size, _MOST_SKIPPED_BYTES)
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for window in windows(fd, start, size, window_bytes=window_bytes or self._window_bytes):
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
