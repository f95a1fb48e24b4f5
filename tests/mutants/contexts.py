"""A plugin for pytest: tells coverage.py which test runs, and writes how long each took."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

SECONDS_VARIABLE = "FASTLOG_MUTANTS_SECONDS"
"""Names the file for the seconds of each test."""

_seconds: dict[str, float] = {}
_exit_code = 0


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


def pytest_sessionfinish(exitstatus: int) -> None:
    """Writes what was added up."""
    global _exit_code
    _exit_code = int(exitstatus)
    path = os.environ.get(SECONDS_VARIABLE)
    if path:
        Path(path).write_text(json.dumps(_seconds))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """Leaves at once, where what is reached is counted: loops that run as threads do not live through more.

    Python would take down the modules under them, and the process would end before its counters are written.
    """
    if os.environ.get(SECONDS_VARIABLE):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(_exit_code)
