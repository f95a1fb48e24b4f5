"""Jobs run as a user runs them, but in this process, with the session that is there; and what tables hold."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner


def run_job(name: str, *arguments: object) -> dict[str, Any]:
    """The summary of a job, with its exit code as ``code`` and its other lines as ``lines``; raises what it raises."""
    # Spark waits ten seconds for a Python process to begin, which a busy machine may not keep.
    if "--attempts" not in arguments:
        arguments = (*arguments, "--attempts", 20)
    command = getattr(importlib.import_module(f"fastlog.spark.jobs.{name}"), f"{name}_command")
    run = CliRunner().invoke(command, [str(item) for item in arguments], standalone_mode=False)
    if run.exception is not None:
        raise run.exception
    *lines, summary = map(json.loads, run.stdout.splitlines())
    return {**summary, "code": run.return_value, "lines": lines}


def rows_of(table: Path) -> list[dict[str, Any]]:
    """Every row of a table, as delta-rs and pyarrow read it."""
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows
