"""``python -m perf ab`` on this checkout against itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from perf.figures.results import load
from tests.harness.checkout import ROOT


@pytest.mark.slow
def test_a_checkout_against_itself(tmp_path: Path) -> None:
    """Producers, a consumer, many topics and latencies: a figure of each side, and no file left but the result."""
    out = tmp_path / "ab.json"
    command = [sys.executable, "-m", "perf", "ab", ".", ".", "--pairs", "1", "--messages", "2000", "--no-instructions"]
    only = [word for step in ("produce-list", "topics-100", "consume-files") for word in ("--only", step)]
    run = subprocess.run(
        [*command, *only, "--out", str(out), "--scratch", str(tmp_path / "scratch")],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    result = load(out)
    assert [(series.scenario, series.system) for series in result.series] == [
        (step, side) for step in ("produce-list", "topics-100", "consume-files") for side in "ab"
    ]
    assert all(series.values[0] > 0 for series in result.series)
    assert list((tmp_path / "scratch").iterdir()) == []
