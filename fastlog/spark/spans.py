"""Columns as Arrow has them, seen as numpy arrays. Needs pyarrow; knows no Spark."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from fastlog.errors import ConfigError


class Spans(NamedTuple):
    """A column of bytes: row i lies from ``ends[i]`` to ``ends[i + 1]`` of ``data``; ``valid`` None: no row is null."""

    data: np.ndarray[Any, Any]
    ends: np.ndarray[Any, Any]
    valid: np.ndarray[Any, Any] | None

    @property
    def size_bytes(self) -> int:
        """How many bytes all rows have together."""
        return int(self.ends[-1] - self.ends[0])

    def source(self) -> tuple[Any, Any, Any]:
        """For compiled code: bytes, ends, and a byte for each row or None."""
        return self.data, self.ends, None if self.valid is None else self.valid.view(np.uint8)


def spans_of(column: pa.Array) -> Spans:
    """Where the rows of a column of text or bytes lie; nothing is copied where it has 32-bit offsets."""
    if not len(column):
        return Spans(np.empty(0, np.uint8), np.zeros(1, np.int32), None)  # Arrow lets it have no offsets at all
    if column.type not in (pa.binary(), pa.string()):
        column = column.cast(pa.binary())
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int32)[column.offset : column.offset + len(column) + 1]
    valid = None
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
    return Spans(np.frombuffer(data, np.uint8), ends, valid)  # of another type than bytes


def numbers_of(column: pa.Array) -> np.ndarray[Any, Any]:
    """A column of ids as int64, with -1 for null. Raises ``ConfigError`` for a negative one."""
    found = column.fill_null(-1) if column.null_count else column
    numbers: np.ndarray[Any, Any] = found.to_numpy(zero_copy_only=False).astype(np.int64)
    if (numbers < -1).any():
        raise ConfigError(f"{int(numbers.min())} is no number of a broker or of a partition")
    return numbers


def times_of(column: pa.Array | None, count: int) -> np.ndarray[Any, Any]:
    """Times in ms since 1970; that of now for a row that has none, and for all where there is no column."""
    times = np.full(count, time.time_ns() // 1_000_000, np.int64)
    if column is not None:
        given = column.cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        there = given.is_valid().to_numpy(zero_copy_only=False)
        times[there] = given.fill_null(0).to_numpy()[there] // 1000
    return times
