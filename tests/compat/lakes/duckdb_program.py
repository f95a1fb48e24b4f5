"""Prints the rows that DuckDB's own extension for Iceberg finds in a table, by the file with the table's metadata."""

from __future__ import annotations

import json
import sys

import duckdb
import duckdb_ext  # type: ignore[import-not-found]


def main() -> None:
    path, day = sys.argv[1:]
    connection = duckdb.connect(config={"extension_directory": str(duckdb_ext.get_extension_dir())})
    for extension in ("avro", "iceberg"):
        connection.execute(f"LOAD {extension}")
    names = 'topic, CAST("date" AS VARCHAR), "partition", "offset", decode("value")'
    rows = connection.execute(f"SELECT {names} FROM iceberg_scan(?)", [path]).fetchall()
    (of_a_day,) = connection.execute('SELECT count(*) FROM iceberg_scan(?) WHERE "date" = ?', [path, day]).fetchall()[0]
    print(json.dumps({"rows": rows, "of_a_day": of_a_day}))


if __name__ == "__main__":
    main()
