"""Topics in Spark: ``spark.read.format("fastlog")`` and ``spark.readStream.format("fastlog")``.

Spark finds the source by itself once the extra ``spark`` is installed. ``session`` makes a Spark session whose workers
run this interpreter; who makes one otherwise calls ``use_this_python`` first. Nothing of Spark is imported before that.
"""

from __future__ import annotations

from fastlog.java import use_spark_java
from fastlog.spark.behind import Behind, behind
from fastlog.spark.duplicates import place_id, without_duplicates
from fastlog.spark.environment import check_java, session, use_this_python

__all__ = [
    "Behind",
    "behind",
    "check_java",
    "place_id",
    "session",
    "use_spark_java",
    "use_this_python",
    "without_duplicates",
]
