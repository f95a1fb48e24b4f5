"""Appenders that die at any moment while they share one partition: nothing is lost, nothing shown is un-shown."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fault.shared_log import shared_log


@pytest.mark.slow
def test_appenders_that_die_at_any_moment(tmp_path: Path) -> None:
    """The file is exactly the published appends in order; readers below the watermark see whole messages that stay."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = shared_log(25, seed, tmp_path)
    assert outcome.runs == 25
    assert outcome.violations == [], f"seed {seed}"
