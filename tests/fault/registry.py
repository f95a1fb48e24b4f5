"""The fault scenarios, by name, with how often each tier runs them.

A module with scenarios is named in ``MODULES`` and marks each of them with ``scenario``. A scenario is a function
``(count, seed, directory) -> Outcome``: it makes ``count`` faults from the seed below the directory, and reports what
broke a promise. Tests call it with a small count, ``python -m tests.fault`` with larger ones.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

MODULES = (
    "tests.fault.damage",
    "tests.fault.foreign_files",
    "tests.fault.lock_holder",
    "tests.fault.shared_log",
    "tests.fault.kills",
    "tests.fault.access_log",
    "tests.fault.disk_errors",
    "tests.fault.every_call",
    "tests.fault.registration",
    "tests.fault.groups",
    "tests.fault.hostile_broker",
    "tests.fault.stalls",
    "tests.fault.connects",
    "tests.fault.deletions",
    "tests.fault.interrupts",
    "tests.fault.exits",
    "tests.fault.overload",
    "tests.fault.side_by_side",
    "tests.fault.cycles",
    "tests.fault.exactly_once",
    "tests.fault.mirrors",
    "tests.fault.record_mirrors",
    "tests.fault.spark_load",
    "tests.fault.spark_cluster",
    "tests.fault.upkeep",
    "tests.fault.audit",
    "tests.fault.batches",
    "tests.fault.batch_kills",
    "tests.fault.today_requests",
    "tests.fault.coordinators",
    "tests.fault.idempotent",
    "tests.fault.group_model",
    "tests.fault.coordinator_groups",
    "tests.fault.group_members",
    "tests.fault.broker_groups",
    "tests.fault.member_storm",
    "tests.fault.delete_records",
    "tests.fault.bridge",
    "tests.fault.day",
)
TIERS = ("S", "N", "R")


@dataclass
class Outcome:
    """How many faults were made, and a line for each broken promise."""

    runs: int = 0
    violations: list[str] = field(default_factory=list)

    def expect(self, holds: bool, what: str) -> None:
        """Note a violation unless the promise holds."""
        if not holds:
            self.violations.append(what)


Run = Callable[[int, int, Path], Outcome]


@dataclass(frozen=True)
class Scenario:
    """A kind of fault: ``fault`` says which, ``counts`` how many by tier."""

    name: str
    fault: str
    counts: dict[str, int]
    run: Run


SCENARIOS: dict[str, Scenario] = {}


def scenario(name: str, fault: str, *, small: int, nightly: int, release: int) -> Callable[[Run], Run]:
    """Register the function below under this name."""

    def register(run: Run) -> Run:
        SCENARIOS[name] = Scenario(name, fault, dict(zip(TIERS, (small, nightly, release), strict=True)), run)
        return run

    return register


def load() -> dict[str, Scenario]:
    """Every scenario of every module."""
    for module in MODULES:
        importlib.import_module(module)
    return SCENARIOS
