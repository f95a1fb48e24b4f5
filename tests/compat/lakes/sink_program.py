"""Streams a topic into a table by Delta's own sink, and says which batches it has written."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from fastlog.spark import session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

_STARTS = 20


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    spark = session("sink", master="local[2,4]", settings=told["settings"])
    trigger: dict[str, Any] = {"availableNow": True} if told["to_the_end"] else {"processingTime": "100 milliseconds"}
    for left in reversed(range(_STARTS)):
        rows = spark.readStream.format("fastlog").options(**told["source"]).load()
        writer = rows.writeStream.format("delta").option("checkpointLocation", told["checkpoint"]).trigger(**trigger)
        try:
            _follow(writer.start(told["table"]))
        except Exception as error:
            print(f"failed: {str(error)[:500]}", flush=True)
            if not left:
                raise
        else:
            break
    print("{}", flush=True)
    spark.stop()


def _follow(query: StreamingQuery) -> None:
    """Until it ends; raises what it raises."""
    written = -1
    while not query.awaitTermination(1):
        for progress in query.recentProgress:
            if progress.batchId > written and progress.numInputRows:
                written = progress.batchId
                print(f"batch {written}: {progress.numInputRows} rows", flush=True)


if __name__ == "__main__":
    main()
