"""The CPU time of processes: what waits takes none, and what spins takes all it can get."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import psutil

from tests.harness.timing import PATIENCE

CALM_SECONDS = 1.0


def wait_calm(pids: Mapping[str, int], share: float) -> None:
    """Return once none of the processes took more than ``share`` of a processor for a second.

    What spins is never calm; what was still busy with something, or paid for the noise of others, is calm later.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        begun = time.monotonic()
        used = spent(pids, lambda: time.sleep(CALM_SECONDS))
        seconds = time.monotonic() - begun
        shares = {role: found / seconds for role, found in used.items()}
        if max(shares.values()) <= share:
            return
        assert time.monotonic() < deadline, f"more than {share} of a processor is spent on nothing: {shares}"


def spent(pids: Mapping[str, int], work: Callable[[], object]) -> dict[str, float]:
    """The seconds of CPU that each process takes while the work is done."""
    before = {role: cpu_seconds(pid) for role, pid in pids.items()}
    work()
    return {role: cpu_seconds(pid) - before[role] for role, pid in pids.items()}


def cpu_seconds(pid: int) -> float:
    """The CPU time of a process until now, its user's and the system's."""
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)
