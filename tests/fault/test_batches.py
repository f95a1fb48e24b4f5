"""Lying and damaged record batches at the smallest tier, and that a wrong verdict or a wrong log is noticed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.fault import batches, registry
from tests.harness import raw_batches

SEED = 20240229


@pytest.mark.slow
@pytest.mark.parametrize("name", ["batches-lying", "batches-packed", "batches-sent"])
def test_scenario_at_the_smallest_tier(name: str, tmp_path: Path) -> None:
    item = registry.load()[name]
    outcome = item.run(item.counts["S"], SEED, tmp_path)
    assert outcome.runs == item.counts["S"]
    assert outcome.violations == [], f"seed {SEED}"


def test_another_seed_makes_other_mutants() -> None:
    def made(seed: int) -> list[bytes]:
        mutants = batches.Mutants(seed)
        return [mutants.one() for _ in range(50)]

    assert made(1) == made(1) != made(2)


WRONG_VERDICTS: list[Callable[[tuple[Any, ...]], tuple[Any, ...]]] = [
    lambda found: (*found[:6], 0),
    lambda found: (*found[:6], 18),
    lambda found: (found[0], found[1] + 1, *found[2:]),
    lambda found: (*found[:4], found[4] + 1, *found[5:]),
    lambda found: (*found[:5], not found[5], found[6]),
]


@pytest.mark.parametrize("wrong", WRONG_VERDICTS)
def test_a_wrong_verdict_is_a_violation(
    wrong: Callable[[tuple[Any, ...]], tuple[Any, ...]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A check that takes everything, refuses everything, miscounts, or is wrong about times."""
    right = batches.validate
    monkeypatch.setattr(batches, "validate", lambda data, most: wrong(right(data, most)))
    assert batches.lying(300, SEED, tmp_path).violations


@pytest.mark.parametrize("verdict", [None, 5])
def test_a_wrong_deep_verdict_is_a_violation(
    verdict: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "checked", lambda data: verdict)
    assert len(batches.packed(300, SEED, tmp_path).violations) > 1


def test_what_is_stored_otherwise_is_a_violation() -> None:
    """A byte that differs, is missing or one too many, a batch that nobody sent, a largest time not put right."""
    mutants = batches.Mutants(SEED)
    taken = [mutants.batch() for _ in range(5)]
    taken[2] = raw_batches.reseal(taken[2][:35] + bytes(8) + taken[2][43:])
    right = registry.Outcome()
    batches.compare_stored(right, stored := as_stored(taken), taken)
    assert right.violations == []
    for wrong in (
        stored[:100] + bytes([stored[100] ^ 1]) + stored[101:],
        stored[:-1],
        stored + b"\0",
        stored + taken[0],
        b"".join(taken),
        stored.replace(as_stored(taken)[len(taken[0] + taken[1]) :][35:43], bytes(8), 1),
    ):
        outcome = registry.Outcome()
        batches.compare_stored(outcome, wrong, taken)
        assert outcome.violations


def as_stored(taken: list[bytes]) -> bytes:
    """What a log is to hold of batches, offsets from 0 on."""
    made, offset = b"", 0
    for data in taken:
        found = batches.judge(data)
        assert found is not None
        changed = (
            offset.to_bytes(8, "big") + data[8:12] + bytes(4) + data[16:35] + found[4].to_bytes(8, "big") + data[43:]
        )
        made += changed if found[4] == int.from_bytes(data[35:43], "big") else raw_batches.reseal(changed)
        offset += found[1]
    return made
