"""What the Spark that is installed can do for a source in Python. Imports nothing of it but to look."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from fastlog.errors import ConfigError, MissingDependencyError
from fastlog.spark.options import SourceOptions

if TYPE_CHECKING:
    import pyarrow  # type: ignore[import-untyped]
    from pyspark.sql.types import StructType

_TOO_NEW_FOR_4_1 = 24


def limits_batches() -> bool:
    """Whether it tells a stream where its next batch begins and how much that may have, as Spark does from 4.2 on.

    In Spark 4.1 a batch has all there is.
    """
    return importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None


def check_limits(options: SourceOptions) -> None:
    """Raise ``ConfigError`` for a limit of batches where Spark knows none."""
    for name, limit in (
        ("maxBytesPerTrigger", options.max_bytes_per_trigger),
        ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
    ):
        if limit is not None and not limits_batches():
            raise ConfigError(
                f"{name}: Spark 4.2 or newer limits batches, and in this one each has all there is: leave it out"
            )


def check_java_version(version: int) -> None:
    """Raise ``MissingDependencyError`` for a Java that is too new: Spark 4.1's Hadoop does not run on 24 or newer."""
    if version >= _TOO_NEW_FOR_4_1 and not limits_batches():
        raise MissingDependencyError(
            f"Spark 4.1 needs Java 17 or 21, and the one that is found is {version}: set JAVA_HOME to one of these, or"
            " install Spark 4.2 or newer"
        )


def arrow_schema_of(schema: StructType) -> pyarrow.Schema:
    """Columns of Spark as Arrow has them, with times in UTC."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC") if limits_batches() else to_arrow_schema(schema)
