"""How long messages took from a moment that they carry to one that is given: counted exactly, kept in little room."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fastlog.errors import TableUnavailableError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem  # type: ignore[import-untyped]

    from fastlog.spark.entries import NewFile
    from fastlog.spark.storage import TableLocation

_PER_DOUBLING = 64  # 1.1 % between neighbours
_MOST_MS = 2**42


class MessageLatencies:
    """A histogram of milliseconds. Negative ones, from clocks that differ, count as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(42 * _PER_DOUBLING + 1, np.int64)

    def add_table(
        self, location: TableLocation, files: Iterable[NewFile], columns: Sequence[str], now_us: int
    ) -> str | None:
        """Count the rows of files that a table has now, as ``add_files``; if that cannot be, returns why."""
        try:
            with location.reached():
                self.add_files(location.filesystem(), [file.path for file in files], columns, now_us)
        except TableUnavailableError as error:
            return f"how long its messages took is not known: {error}"  # they are in the table all the same
        return None

    def add_files(self, store: FileSystem, paths: Iterable[str], columns: Sequence[str], now_us: int) -> None:
        """Count the rows of Parquet files by the latest time in ``columns``; those where all are null are none."""
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.compute as pc  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        for path in paths if columns else ():
            table = pq.read_table(path, columns=list(columns), partitioning=None, filesystem=store)
            for rows in table.to_batches():
                times = [column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()) for column in rows.columns]
                known = pc.max_element_wise(*times).drop_null()
                self.add(now_us - known.to_numpy(zero_copy_only=False))

    def add(self, microseconds: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Count latencies in microseconds."""
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
        """``p50``, ``p95`` and ``p99`` in milliseconds; None where nothing was counted."""
        found = {name: self.percentile(share) for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))}
        return {name: ms for name, ms in found.items() if ms is not None} or None
