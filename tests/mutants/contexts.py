"""A plugin for pytest: tells coverage.py which test runs, and writes how long each took."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

SECONDS_VARIABLE = "FASTLOG_MUTANTS_SECONDS"
"""Names the file for the seconds of each test."""

_seconds: dict[str, float] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Puts the lines of a test, its fixtures included, under its name."""
    from coverage import Coverage

    watching = Coverage.current()
    if watching is not None:
        watching.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        if watching is not None:
            watching.switch_context("")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Adds what a phase took."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration


def pytest_sessionfinish() -> None:
    """Writes what was added up."""
    path = os.environ.get(SECONDS_VARIABLE)
    if path:
        Path(path).write_text(json.dumps(_seconds))
