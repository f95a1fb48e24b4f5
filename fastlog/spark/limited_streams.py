"""Streams of ``format("fastlog")`` where Spark says how much of them a batch may have. Needs pyspark 4.2 or newer."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from fastlog.errors import ConfigError
from fastlog.spark.stream_reader import FastlogStreamReader


class LimitedStreamReader(FastlogStreamReader, SupportsTriggerAvailableNow):
    """A streaming query whose batches Spark limits, and which it asks for how far behind it is."""

    def getDefaultReadLimit(self) -> ReadLimit:
        """What ``maxBytesPerTrigger`` or ``maxOffsetsPerTrigger`` says."""
        options = self.options
        if options.max_offsets_per_trigger is not None:
            return ReadMaxRows(options.max_offsets_per_trigger)
        most = options.max_bytes_per_trigger
        return ReadAllAvailable() if most is None else ReadMaxBytes(most)

    def prepareForTriggerAvailableNow(self) -> None:
        """See ``StreamPlan.prepare``."""
        self.plan.prepare()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # type: ignore[override]
        """See ``StreamPlan.latest``."""
        of_rows = isinstance(limit, ReadMaxRows) and self.options.max_offsets_per_trigger is not None
        if not (of_rows or isinstance(limit, ReadAllAvailable | ReadMaxBytes)):
            raise ConfigError(f"this source cannot limit a batch by {type(limit).__name__}")
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        # Spark asks for the next batch when the one before is written down as done, and this is the only sign of the
        # last one: commit() for it comes with the next batch, or never.
        self.show(start)
        found: dict[str, Any] = self.plan.latest(start, most) if rows is None else self.plan.latest(start, None, rows)
        return found

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """See ``StreamPlan.report``."""
        return self.plan.report()
