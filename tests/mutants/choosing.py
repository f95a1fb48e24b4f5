"""Which mutants are tried: every area and every kind of bug has a part in a sample."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from tests.mutants.areas import area_of
from tests.mutants.operators import Mutant

EQUIVALENT_FILE = Path(__file__).with_name("equivalent.txt")

WEIGHTS = {
    "constant": 0.5,
    "arithmetic": 0.5,
    "equality": 0.5,
    "exchange": 2.0,
    "fence": 2.0,
    "call": 2.0,
    "check": 1.5,
}
"""How often an operator is drawn, against 1: the many mutants of constants say less than one dropped sync."""


def equivalents(path: Path = EQUIVALENT_FILE) -> dict[str, str]:
    """Return the argument for each mutant that changes nothing anybody can see, by its name.

    A line is a name and the argument; lines that begin with ``#`` are comments.

    Raises:
        ValueError: a line without an argument.
    """
    found = {}
    for line in path.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        name, _, reason = line.partition(" ")
        if len(reason.split()) < 3:
            raise ValueError(f"{path.name}: {name} has no argument beside it")
        found[name] = reason.strip()
    return found


def sample(
    mutants: list[Mutant], count: int, seed: int, fits: Callable[[Mutant], bool] = lambda mutant: True
) -> list[Mutant]:
    """Return ``count`` that fit: areas take turns, within an area an operator is drawn, then one of its mutants."""
    drawn = random.Random(seed)
    by_area: dict[str, dict[str, list[Mutant]]] = defaultdict(lambda: defaultdict(list))
    for mutant in mutants:
        area = area_of(mutant.path)
        if area is not None:
            by_area[area.name][mutant.operator].append(mutant)
    for operators in by_area.values():
        for found in operators.values():
            drawn.shuffle(found)
    chosen: list[Mutant] = []
    while by_area and len(chosen) < count:
        for name in list(by_area):
            operators = by_area[name]
            operator = drawn.choices(list(operators), [WEIGHTS.get(word, 1.0) for word in operators])[0]
            drawn_one = operators[operator].pop()
            chosen += [drawn_one] if fits(drawn_one) else []
            if not operators[operator]:
                del operators[operator]
            if not operators:
                del by_area[name]
    return chosen[:count]
