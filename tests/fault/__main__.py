"""Run fault scenarios at a tier: ``python -m tests.fault --tier N --seed 7``; exit code 1 when a promise was broken."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import tempfile
import time
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
    chosen = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**31) if chosen.seed is None else chosen.seed
    print(f"tier {chosen.tier}, seed {seed}")
    print(f"{'scenario':<20} {'runs':>9} {'violations':>10} {'seconds':>8}  fault")
    broken: list[str] = []
    for name in chosen.only or scenarios:
        item = scenarios[name]
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="fastlog-fault-") as directory:
            outcome = item.run(item.counts[chosen.tier], seed, Path(directory))
        seconds = time.monotonic() - started
        print(f"{name:<20} {outcome.runs:>9} {len(outcome.violations):>10} {seconds:>8.1f}  {item.fault}", flush=True)
        broken += [f"{name} --seed {seed}: {line}" for line in outcome.violations]
    for line in broken[:SHOWN_VIOLATIONS]:
        print(line)
    if len(broken) > SHOWN_VIOLATIONS:
        print(f"and {len(broken) - SHOWN_VIOLATIONS} more")
    return 1 if broken else 0


if __name__ == "__main__":
    logging.disable()  # each fault is reported by the code under test; here they are all on purpose
    sys.exit(main())
