"""Reads, writes, streams and loads a topic in the Spark that there is, and prints what came of it."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyspark

from fastlog.spark import session
from fastlog.spark.jobs.load import load

_STARTS = 5


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    spark = session("everything", master="local[2,4]", settings=told["settings"])
    topic, brokers = told["topic"], {"brokers": told["brokers"]}
    source = {**brokers, "subscribe": topic, "startingOffsets": "earliest"}
    lines = spark.read.format("fastlog").options(**source).load()
    found: dict[str, Any] = {"spark": pyspark.__version__, "counted": lines.count()}
    lines.select("value").write.format("fastlog").mode("append").options(**brokers, topic=f"{topic}-copy").save()

    def streamed(**given: str) -> None:
        """To the end of the topic. Spark gives the process of a source ten seconds to start: what fails by that is
        started again."""
        for left in reversed(range(_STARTS)):
            rows = spark.readStream.format("fastlog").options(**source, **given).load().select("value")
            writer = rows.writeStream.format("fastlog").options(**brokers, topic=f"{topic}-stream")
            try:
                writer.option("checkpointLocation", told["checkpoint"]).trigger(
                    availableNow=True
                ).start().awaitTermination()
                return
            except Exception as error:
                if "failed to connect back" not in str(error) or not left:
                    raise

    streamed()
    streamed()
    try:
        streamed(maxBytesPerTrigger="1000")
    except Exception as error:
        found["refused"] = str(error)
    found["loaded"] = load(topic, told["table"], brokers=told["brokers"], columns={"size": "length(value)"})["rows"]
    spark.stop()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
