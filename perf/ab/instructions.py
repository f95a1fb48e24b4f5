"""Instructions per message of the broker's processes, counted on a simulated processor (Valgrind).

Virtual machines often have no counters of their own, and simulated ones count the same whatever else the machine
does. Each count is the difference of two runs, one with twice the messages, so that starting and stopping fall out of
it. What is left of chance is how the stream was cut into reads.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from perf.ab.checkouts import Checkout, CheckoutError
from perf.ab.steps import STEPS, Step, broker_of

COUNTED_MESSAGES = 1_000_000
COUNTED = ("produce-list", "produce-1", "produce-flushed", "consume-payloads")
_TOTAL = re.compile(r"Total instructions: (\d+)")
COUNTING = ("valgrind", "--tool=exp-bbv", "--instr-count-only=yes", "--log-file=%p.counts")
"""Callgrind would count as well, but writes for seconds at its end, and a broker gives its processes less to stop."""

SETTINGS = {
    # by count alone: how long the simulation takes must not decide how often it flushes
    "log.flush.interval": 20_000,
    "log.default.flush.interval.ms": 3_600_000,
    "flush.max.unflushed.bytes": 1 << 40,
}


@dataclass(frozen=True)
class Counts:
    """Instructions per message of one step, of all processors together and of the flusher."""

    processors: float
    flusher: float


def missing() -> str | None:
    """Why nothing can be counted, None when it can."""
    return None if shutil.which("valgrind") else "valgrind is not installed"


def counted_steps() -> list[Step]:
    """The steps whose instructions are counted."""
    return [step for step in STEPS if step.name in COUNTED]


def count(step: Step, side: Checkout, scratch: Path, messages: int = COUNTED_MESSAGES) -> Counts:
    """Count one step of one side.

    Raises:
        CheckoutError: a process left no count.
    """
    step = replace(step, settings=SETTINGS)
    once, twice = (_totals(step, side, scratch, n) for n in (messages, 2 * messages))
    return Counts(*((more - less) / messages for less, more in zip(once, twice, strict=True)))


def _totals(step: Step, side: Checkout, scratch: Path, messages: int) -> tuple[int, int]:
    """Instructions of the processors and of the flusher over one life of a broker."""
    with broker_of(side, scratch, step.settings, COUNTING) as broker:
        step.drive(side, broker, messages)
        pids = broker.pids()
        broker.stop(300.0)
        found = {role: _total(broker.directory / f"{pid}.counts", role) for role, pid in pids.items()}
    processors = sum(total for role, total in found.items() if role.startswith("processor"))
    return processors, found["flusher"]


def instructions_in(path: Path) -> int:
    """What ``COUNTING`` left of a process in its file, all threads together; 0 where it left nothing."""
    return sum(map(int, _TOTAL.findall(path.read_text()))) if path.exists() else 0


def _total(path: Path, role: str) -> int:
    found = instructions_in(path)
    if not found:
        raise CheckoutError(f"valgrind counted nothing of the {role}")
    return found
