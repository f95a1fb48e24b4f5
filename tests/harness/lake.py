"""Jobs run as a user runs them, but in this process, with the session that is there; and what tables hold."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner


def run_job(name: str, *arguments: object) -> dict[str, Any]:
    """The summary of a job; raises what it raises. Its exit code, when that is not 0, is ``code`` in the summary."""
    command = getattr(importlib.import_module(f"fastlog.spark.jobs.{name}"), f"{name}_command")
    run = CliRunner().invoke(command, [str(item) for item in arguments], standalone_mode=False)
    if run.exception is not None:
        raise run.exception
    summary: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return {**summary, "code": run.return_value} if run.return_value else summary


def rows_of(table: Path) -> list[dict[str, Any]]:
    """Every row of a table, as delta-rs and pyarrow read it."""
    from deltalake import DeltaTable

    rows: list[dict[str, Any]] = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    return rows
