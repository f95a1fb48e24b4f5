"""One of those who work on a table at once, for ever: it loads, joins files, lets days go or removes files, and says
when it has done something."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from datetime import date
from functools import partial
from types import SimpleNamespace
from typing import Any

from fastlog.errors import FastlogError
from fastlog.spark.iceberg import AnyLake, opened
from fastlog.spark.jobs.loader import Loader
from fastlog.spark.lake import Lake
from fastlog.spark.upkeep import JoinOptions, expire, join_files
from tests.harness.small_loads import Context, load_options


def loader_of(lake: AnyLake, port: int, **fields: Any) -> Loader:
    """A load whose tasks this process runs itself."""
    spark: Any = SimpleNamespace(context=Context(), has_ended=False)
    return Loader(lake, load_options(SimpleNamespace(port=port), **fields), spark)  # type: ignore[arg-type]


def _load(table: str, port: int) -> int:
    loader = loader_of(opened(table), port, max_bytes=2000, attempts=1000)
    loader.run()
    return loader.totals.rows


def _optimize(table: str) -> int:
    lake = opened(table)
    return join_files(lake, JoinOptions()).transactions if lake.exists else 0


def _expire(table: str, before: date) -> int:
    lake = opened(table)
    return expire(lake, before).files if lake.exists else 0


def _vacuum(table: str) -> int:
    lake = Lake(table)
    return len(lake.vacuum(1, dry_run=False)) if lake.exists else 0


def main() -> None:
    told = json.loads(sys.argv[1])
    table = told["table"]
    steps: dict[str, Callable[[], int]] = {
        "load": lambda: _load(table, told["port"]),
        "optimize": partial(_optimize, table),
        "expire": lambda: _expire(table, date.fromisoformat(told["before"])),
        "vacuum": partial(_vacuum, table),
    }
    step = steps[told["job"]]
    print("begun", flush=True)
    while True:
        try:
            done = step()
        except (FastlogError, OSError) as error:
            print(f"failed: {error}", flush=True)
        else:
            if done:
                print(f"done: {done}", flush=True)
        time.sleep(0.05)


if __name__ == "__main__":
    main()
