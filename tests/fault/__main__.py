"""Run fault scenarios at a tier: ``python -m tests.fault --tier N --seed 7``; exit code 1 when a promise was broken."""

from __future__ import annotations

import argparse
import contextlib
import logging
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from pathlib import Path

from tests.fault import registry

SHOWN_VIOLATIONS = 20


def main(arguments: list[str] | None = None) -> int:
    """Print a table of faults, runs and violations; return the exit code."""
    scenarios = registry.load()
    parser = argparse.ArgumentParser(prog="python -m tests.fault", description=__doc__)
    parser.add_argument("--tier", choices=registry.TIERS, default="S", help="S smoke, N nightly, R release")
    parser.add_argument("--seed", type=int, help="the same seed makes the same faults; a new one by default")
    parser.add_argument("--only", action="append", choices=sorted(scenarios), metavar="NAME", help="one scenario")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="leave there what broken promises left behind")
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if chosen.seed is None else chosen.seed
    print(f"tier {chosen.tier}, seed {seed}")
    print(f"{'scenario':<20} {'runs':>9} {'violations':>10} {'seconds':>8}  fault")
    broken: list[str] = []
    for name in chosen.only or scenarios:
        item = scenarios[name]
        started = time.monotonic()
        with _directory(chosen.keep, f"{name}-{seed}") as directory:
            outcome = _run(item, chosen.tier, seed, directory)
            if chosen.keep is not None and not outcome.violations:
                shutil.rmtree(directory)
        seconds = time.monotonic() - started
        print(f"{name:<20} {outcome.runs:>9} {len(outcome.violations):>10} {seconds:>8.1f}  {item.fault}", flush=True)
        broken += [f"{name} --seed {seed}: {line}" for line in outcome.violations]
    for line in broken[:SHOWN_VIOLATIONS]:
        print(line)
    if len(broken) > SHOWN_VIOLATIONS:
        print(f"and {len(broken) - SHOWN_VIOLATIONS} more")
    return 1 if broken else 0


def _run(item: registry.Scenario, tier: str, seed: int, directory: Path) -> registry.Outcome:
    """What came of it; a scenario that could not go on, as where a broker did not start, has broken a promise."""
    try:
        return item.run(item.counts[tier], seed, directory)
    except Exception:
        return registry.Outcome(violations=[f"could not go on: {traceback.format_exc()}"])


@contextlib.contextmanager
def _directory(keep: Path | None, name: str) -> Iterator[Path]:
    """Where a scenario works: a new directory, below ``keep`` one that stays."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="fastlog-fault-") as made:
            yield Path(made)
    else:
        keep.mkdir(parents=True, exist_ok=True)
        yield Path(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))


if __name__ == "__main__":
    logging.disable()  # each fault is reported by the code under test; here they are all on purpose
    sys.exit(main())
