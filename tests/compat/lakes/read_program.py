"""Prints what Spark's own Iceberg finds in a table of a catalog: its rows, how many are of a day, and its history."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession


def main() -> None:
    told: dict[str, Any] = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("read").master("local[2]")
    for name, value in told["settings"].items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    table = told["table"]
    rows = spark.table(table).select("topic", "date", "partition", "offset", "value").collect()
    found: dict[str, Any] = {
        "rows": [[row.topic, str(row.date), row.partition, row.offset, bytes(row.value).decode()] for row in rows],
        "of_a_day": spark.table(table).where(f"date = DATE '{told['day']}'").count(),
        "operations": [row.operation for row in spark.sql(f"SELECT operation FROM {table}.snapshots").collect()],
    }
    if told["rewrite"]:
        name = f"table => '{table.partition('.')[2]}'"
        spark.sql(f"CALL lake.system.rewrite_data_files({name}, options => map('rewrite-all', 'true'))")
        spark.sql(f"CALL lake.system.expire_snapshots({name}, older_than => now(), retain_last => 1)")
    print(json.dumps(found), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
