"""How long messages took from a moment that they carry to one that is given: counted exactly, kept in little room."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

_PER_DOUBLING = 64  # 1.1 % between neighbours
_MOST_MS = 2**42


class Latencies:
    """A histogram of milliseconds. Negative ones, from clocks that differ, count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(42 * _PER_DOUBLING + 1, np.int64)

    def add_files(self, store: FileSystem, paths: Iterable[str], column: str, now_us: int) -> None:
        """Count the rows of Parquet files whose ``column`` holds a time; nulls are none."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for path in paths:
            for times in pq.read_table(path, columns=[column], partitioning=None, filesystem=store).column(0).chunks:
                known = times.drop_null().cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
                self.add(now_us - known.to_numpy(zero_copy_only=False))

    def add(self, microseconds: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Count some."""
        ms = np.clip(microseconds / 1000.0, 1.0, _MOST_MS)
        places = np.floor(np.log2(ms) * _PER_DOUBLING).astype(np.int64)
        self._counts += np.bincount(places, minlength=len(self._counts))

    def percentile(self, share: float) -> float | None:
        """Milliseconds that this share of all did not exceed; None without any."""
        total = int(self._counts.sum())
        if not total:
            return None
        place = int(np.searchsorted(np.cumsum(self._counts), share * total))
        return round(float(2 ** ((place + 1) / _PER_DOUBLING)), 1)

    def to_json(self) -> dict[str, float] | None:
        """For a summary."""
        found = {name: self.percentile(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
        return {name: ms for name, ms in found.items() if ms is not None} or None
