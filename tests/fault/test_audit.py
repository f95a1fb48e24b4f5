"""The audit under faults, scaled down."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fault import audit

pytestmark = pytest.mark.slow


def test_one_of_many_is_found(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = audit.lost_among_many(300_000, seed, tmp_path)
    assert (outcome.runs, outcome.violations) == (2, []), f"seed {seed}"


def test_kills_raise_no_false_alarm(tmp_path: Path) -> None:
    """And nothing that was lost on purpose is overlooked."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = audit.kills(4, seed, tmp_path)
    assert (outcome.runs, outcome.violations) == (4, []), f"seed {seed}"
