"""Groups that a broker keeps, at the size of a smoke test; ``python -m tests.fault`` makes large ones."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.fault.broker_groups import broker_group_kill


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_whatever_happens_to_members_and_broker(tmp_path: Path) -> None:
    """Nothing is lost, what comes again was not committed, and nobody acts as the owner of what is another's."""
    seed = random.SystemRandom().randrange(2**31)
    outcome = broker_group_kill(4, seed, tmp_path)
    assert outcome.violations == [], f"seed {seed}"
    assert outcome.runs == 4
