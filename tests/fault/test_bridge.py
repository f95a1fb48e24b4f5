"""Both worlds meet while processes are killed and logs are removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fault import bridge
from tests.fault.registry import Run

SEED = 20261124


@pytest.mark.slow
@pytest.mark.parametrize(("run", "count"), [(bridge.kill, 8), (bridge.removed, 4)])
def test_each_world_at_the_topics_of_the_other(run: Run, count: int, tmp_path: Path) -> None:
    outcome = run(count, SEED, tmp_path)
    assert outcome.runs >= count
    assert outcome.violations == [], f"seed {SEED}"
