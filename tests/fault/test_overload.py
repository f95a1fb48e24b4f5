"""R-4, R-26: too much, and too many errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault.overload import error_paths, overload
from tests.harness.sanitizer import about_memory


@pytest.mark.slow
def test_more_than_the_broker_takes(tmp_path: Path) -> None:
    """The default waits: no error, no message too few, memory within the limits of the queue."""
    outcome = overload(1, 4, tmp_path)
    assert outcome.violations == []


@about_memory
@pytest.mark.slow
def test_errors_that_never_end(tmp_path: Path) -> None:
    """Memory, objects, threads and descriptors are as many after a thousand errors as after some hundreds."""
    outcome = error_paths(1000, 26, tmp_path)
    assert outcome.runs > 500
    assert outcome.violations == []
