"""Members, time and dying coordinators against the protocol of one group, without any I/O: millions of steps."""

from __future__ import annotations

import random
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness.group_model import Simulation, Violation

STEPS = 1000


@scenario(
    "group-model",
    "members that die, sleep, lie about who they are, and a coordinator that is killed, in a model of a group",
    small=500,
    nightly=20_000,
    release=200_000,
)
def group_model(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` groups with so many steps each; a violation names the seed that makes it again."""
    outcome = Outcome()
    source = random.Random(seed)
    for _ in range(count):
        one = source.randrange(2**31)
        outcome.runs += 1
        try:
            Simulation(one).run(STEPS)
        except Violation as broken:
            outcome.violations.append(f"Simulation({one}): {broken}")
    return outcome
