"""Streams topics into tables by a lake's own sink, and says which batches it has written."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Any

from fastlog.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

_STARTS = 20


class Stream:
    """The query of one topic. One that fails is started again, so often in all."""

    def __init__(self, spark: SparkSession, told: dict[str, Any], ends: int) -> None:
        """``ends``: how often it is run to the end of the topic; 0: it goes on for ever."""
        self._spark = spark
        self._told = told
        self._ends = ends
        self._trigger: dict[str, Any] = {"availableNow": True} if ends else {"processingTime": "100 milliseconds"}
        self._left = _STARTS
        self._written = -1
        self._query = self._start()

    def _start(self) -> StreamingQuery:
        told = self._told
        rows = self._spark.readStream.format("fastlog").options(**told["source"]).load()
        writer = rows.writeStream.format(told["format"]).option("checkpointLocation", told["checkpoint"])
        writer = writer.trigger(**self._trigger)
        return writer.start(told["table"]) if "/" in told["table"] else writer.toTable(told["table"])

    def has_ended(self) -> bool:
        """Whether it has done all there is; tells of what it has done since it was last asked."""
        for progress in self._query.recentProgress:
            if progress.batchId > self._written and progress.numInputRows:
                self._written = progress.batchId
                print(f"{self._told['source']['subscribe']}: batch {progress.batchId}", flush=True)
        try:
            if not self._query.awaitTermination(0.1):
                return False
        except Exception as error:
            print(f"failed: {str(error)[:500]}", flush=True)
            self._left -= 1
            if not self._left:
                raise
        else:
            self._ends -= 1
            if not self._ends:
                return True
        self._query = self._start()
        return False


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    spark = session("sink", master="local[2,4]", settings=told["settings"])
    streams = [Stream(spark, each, told["ends"]) for each in told["streams"]]
    while streams:
        streams = [stream for stream in streams if not stream.has_ended()]
        time.sleep(0.2)
    print("{}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
