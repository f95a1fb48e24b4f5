"""Spark's own starter of Python workers, which has loaded what each of them would load for itself: they are forked.

For ``spark.python.daemon.module``.
"""

from __future__ import annotations

import contextlib

import pyarrow  # type: ignore[import-untyped]  # noqa: F401
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import fastlog.spark.source  # noqa: F401

with contextlib.suppress(ImportError):
    import pandas  # noqa: F401 - which pyarrow imports for the first array that a worker makes

if __name__ == "__main__":
    manager()
