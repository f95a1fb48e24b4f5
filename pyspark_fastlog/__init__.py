"""Makes ``format("fastlog")`` known: Spark imports every top-level module whose name begins with ``pyspark_`` and takes
its ``DefaultSource``.

What goes wrong while it does so Spark swallows, and says that there is no such source: so the reason is kept here for
whoever uses it.
"""

from __future__ import annotations

from collections.abc import MutableMapping

from pyspark.sql.datasource import DataSource

__all__ = ["DefaultSource"]

try:
    from fastlog.spark.source import FastlogDataSource as DefaultSource
except ImportError as error:
    _REASON = f"fastlog's source needs pyspark 4.1 or newer, and fastlog with its extensions built: {error}"

    class DefaultSource(DataSource):  # type: ignore[no-redef]
        """Says why the source cannot be used."""

        def __init__(self, options: MutableMapping[str, str]) -> None:
            raise ImportError(_REASON)

        @classmethod
        def name(cls) -> str:
            """What stands in ``format``."""
            return "fastlog"
