"""A mirror that is killed, and clusters that fail around it: nothing is lost, and what comes twice is bounded."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness.broker import Broker
from tests.harness.mirrors import BOUND_BYTES, FETCH_BYTES, SESSION_MS, MirrorCell, pause_up_to

PER_KILL_BYTES = BOUND_BYTES + FETCH_BYTES
"""Beyond what is committed a partition is sent so far, and one fetched piece further."""
AT_ONCE = 50
"""Faults on the same clusters."""
AWAY_SECONDS = 0.3


def _rounds(count: int) -> list[int]:
    return [min(AT_ONCE, count - done) for done in range(0, count, AT_ONCE)]


@scenario("mirror-kill", "kill -9 of a mirror of two clusters", small=10, nightly=50, release=500)
def mirror_kill(count: int, seed: int, directory: Path) -> Outcome:
    """Every other one once it forwards; the others wherever they are, beginning or waiting for their partitions."""
    outcome = Outcome()
    for number, kills in enumerate(_rounds(count)):
        with MirrorCell(_made(directory / str(number)), seed + number) as cell:
            try:
                for kill in range(kills):
                    cell.start()
                    if kill % 2 == 0:
                        cell.wait_forwarded()
                        pause_up_to(cell.source, 0.2)
                    else:
                        pause_up_to(cell.source, 2 * SESSION_MS / 1000)
                    cell.kill()
                    outcome.violations += cell.committed_too_early()
                    outcome.runs += 1
                cell.start()
                cell.wait_forwarded()
                outcome.violations += cell.finish(bound=kills * PER_KILL_BYTES)
            except AssertionError as error:
                outcome.violations += [f"round {number}: {error}", cell.said]
    return outcome


@scenario(
    "mirror-faults", "brokers, ZooKeeper and the target's disk fail under a mirror", small=6, nightly=60, release=600
)
def mirror_faults(count: int, seed: int, directory: Path) -> Outcome:
    """In turn: the target killed, a source killed, ZooKeeper stopped, the target's disk full, SIGTERM of the mirror."""
    outcome = Outcome()
    for number, faults in enumerate(_rounds(count)):
        with MirrorCell(_made(directory / str(number)), seed + number) as cell:
            try:
                cell.start()
                cell.wait_forwarded()
                for fault in range(faults):
                    _FAULTS[fault % len(_FAULTS)](cell, outcome)
                    cell.wait_forwarded()
                    outcome.runs += 1
                # a full disk may take a later piece and not the one before; that one comes first when both come again
                outcome.violations += cell.finish(bound=faults * PER_KILL_BYTES, in_order=faults < _DISK + 1)
            except AssertionError as error:
                outcome.violations += [f"round {number}: {error}", cell.said]
    return outcome


def _kill_target(cell: MirrorCell, outcome: Outcome) -> None:
    _kill(cell, "target")


def _kill_source(cell: MirrorCell, outcome: Outcome) -> None:
    _kill(cell, cell.source.choice(["one", "two"]))


def _kill(cell: MirrorCell, name: str) -> None:
    broker = cell.brokers[name]
    broker.kill_all()
    pause_up_to(cell.source, AWAY_SECONDS)
    broker.start()


def _stop_zookeeper(cell: MirrorCell, outcome: Outcome) -> None:
    """For longer than a session lasts: what the mirror owned is owned by nobody meanwhile."""
    cell.zookeeper.kill()
    time.sleep(2 * SESSION_MS / 1000)
    cell.zookeeper.start()


def _fill_target(cell: MirrorCell, outcome: Outcome) -> None:
    broker = cell.brokers["target"]
    limit_files(broker, 0)
    try:
        cell.loads[0].wait_acked(30)
    finally:
        limit_files(broker, None)


def _restart_mirror(cell: MirrorCell, outcome: Outcome) -> None:
    code = cell.stop()
    outcome.expect(code == 0, f"SIGTERM ended the mirror with {code}\n{cell.said}")
    outcome.violations += cell.committed_too_early()
    cell.start()


_FAULTS: list[Callable[[MirrorCell, Outcome], None]] = [
    _kill_target,
    _kill_source,
    _restart_mirror,
    _stop_zookeeper,
    _fill_target,
]
_DISK = _FAULTS.index(_fill_target)


def limit_files(broker: Broker, most_bytes: int | None) -> None:
    """Let every write to a file fail in the processes of a broker, as on a full disk; None undoes it."""
    for pid in broker.pids().values():
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if most_bytes is None else most_bytes, hard))


def _made(directory: Path) -> Path:
    directory.mkdir(parents=True)
    return directory
