"""Mirrors that are killed and clusters that fail around them, at a small size; and the comparison of logs."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.fault import mirrors
from tests.fault.registry import Run
from tests.harness.mirrors import compare
from tests.harness.raw_format import GZIP, entry, message_set


@pytest.mark.slow
@pytest.mark.java
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("run", "count"),
    [(mirrors.mirror_kill, 4), (mirrors.mirror_faults, 2)],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_whatever_happens_around_a_mirror(run: Run, count: int, tmp_path: Path) -> None:
    """Nothing is lost, altered or out of order, what comes twice is bounded, and nothing is committed too early."""
    seed = random.SystemRandom().randrange(2**31)
    outcome = run(count, seed, tmp_path)
    assert outcome.violations == [], f"seed {seed}"
    assert outcome.runs == count


ORIGIN = ("one", "a", 0)
ENTRIES = [entry(b"%d" % number) for number in range(5)]
LOG = b"".join(ENTRIES)
SIZE = len(ENTRIES[0])


def test_what_arrived_once_or_again_in_order_passes() -> None:
    found = compare({ORIGIN: LOG, ("two", "a", 0): entry(b"x")}, {("a", 0): LOG[: 2 * SIZE] + LOG[SIZE:] + entry(b"x")})
    assert found.violations == []
    assert found.repeats == {ORIGIN: 1}
    assert found.repeated_bytes == {ORIGIN: len(ENTRIES[1])}
    assert found.places == {ORIGIN: {("a", 0)}, ("two", "a", 0): {("a", 0)}}


@pytest.mark.parametrize(
    ("target", "complaint"),
    [
        (b"".join(ENTRIES[:4]), "1 of 5 entries of .* are lost, the first .4."),
        (LOG + entry(b"9"), "holds an entry that no source has"),
        (b"".join([*ENTRIES[:2], ENTRIES[3], ENTRIES[2], ENTRIES[4]]), "entry 3 of .* before 2"),
        (message_set([b"%d" % number for number in range(5)], codec=GZIP), "holds an entry that no source has"),
    ],
)
def test_what_is_lost_invented_repacked_or_out_of_order_is_noticed(target: bytes, complaint: str) -> None:
    found = compare({ORIGIN: LOG}, {("a", 0): target})
    assert any(re.search(complaint, line) for line in found.violations), found.violations
