"""Consumers that are killed or stopped anywhere between a message and its commit."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest

from tests.fault import exactly_once


@pytest.mark.slow
def test_every_message_counts_once(tmp_path: Path) -> None:
    """T-36: 20 kills, some of consumers that wake when others have their partitions."""
    seed = random.SystemRandom().randrange(2**31)
    print(f"seed {seed}")
    outcome = exactly_once.exactly_once(20, seed, tmp_path)
    assert outcome.runs == 20
    assert outcome.violations == [], f"seed {seed}"


def test_a_message_that_counts_twice_or_never_is_found(tmp_path: Path) -> None:
    """The check can fail."""
    path = tmp_path / "x.db"
    with contextlib.closing(exactly_once.connect(path)) as database:
        database.execute("CREATE TABLE seen (partition TEXT, number INT)")
        database.execute("CREATE TABLE fastlog_offsets (broker_partition TEXT, next_offset INT)")
        database.executemany("INSERT INTO fastlog_offsets VALUES (?, ?)", [("0-0", 3), ("0-1", 2)])
        numbers = [("t/0-0", 0), ("t/0-0", 0), ("t/0-0", 2), ("t/0-0", 3), ("t/0-1", 0), ("t/0-1", 1)]
        database.executemany("INSERT INTO seen VALUES (?, ?)", numbers)
        database.commit()
    assert exactly_once.check(path) == ["t/0-0 up to 3: 1 twice, 1 missing, 1 beyond"]
