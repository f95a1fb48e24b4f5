"""Files, as a table has them or will have them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"
"""The directory name that stands for a null value, as Hive has it."""


class NewFile(NamedTuple):
    """A Parquet file below the table's place that is not part of the table yet."""

    path: str
    """Relative to the table's place, as the file system or the store has it."""
    size_bytes: int
    values: Mapping[str, str | None]
    """Of the columns that the table is partitioned by."""
    rows: int
    stats: str
    """Delta's statistics of the file, as JSON."""


class ActiveFile(NamedTuple):
    """A Parquet file that is part of the table's current version."""

    path: str
    size_bytes: int
    values: Mapping[str, str | None]
    modified_ms: int = 0
    """When it was made part of the table, since 1970."""
    rows: int | None = None
    """How many rows it has; None where the table's log does not say."""


def stats_of(rows: int) -> str:
    """Delta's statistics of a file: the number of rows alone.

    Bounds of some columns and not of others would be worse than none: delta-rs 1.6 tells Arrow then that the others
    are nowhere larger than null, and a filter on one of them finds nothing.
    """
    return json.dumps({"numRecords": rows})
