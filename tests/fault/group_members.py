"""Members of groups of client libraries are killed, stopped and started at random: every record at least once.

Whatever happens to members and the coordinator, every record is read by somebody, and nobody begins a partition below
what had been committed, and answered, before it was assigned.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness.broker import Broker, wait_until
from tests.harness.today_members import KINDS, Members, produce

PARTITIONS = 4
MOST_MEMBERS = 4
STEP_RECORDS = 30
"""Of each partition, between two faults."""
SETTINGS = {"num.partitions": PARTITIONS, "group.initial.rebalance.delay.ms": 0}


@scenario(
    "group-members",
    "members of confluent-kafka, kafka-python and aiokafka killed, stopped and started at random, and the coordinator",
    small=8,
    nightly=400,
    release=5000,
)
def group_members(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` faults, eight to a group, each kind of client in turn."""
    outcome = Outcome()
    source = random.Random(seed)
    for number in range(max(1, count // 8)):
        kind = KINDS[(number + seed) % len(KINDS)]
        _round(min(count, 8), source, directory / f"{number}", kind, outcome)
    return outcome


def _round(count: int, source: random.Random, directory: Path, kind: str, outcome: Outcome) -> None:
    with Broker(directory, processors=2, settings=SETTINGS) as broker:
        address = f"127.0.0.1:{broker.port}"
        produce(address, "t", PARTITIONS, STEP_RECORDS)
        produced = STEP_RECORDS
        with Members(address, kind, "t", directory / "members") as members:
            for _ in range(2):
                members.start()
            wait_until("somebody reads", lambda: bool(members.seen()))
            stopped: list[subprocess.Popen[bytes]] = []
            for _ in range(count):
                _fault(source, broker, members, stopped)
                outcome.runs += 1
                writing = threading.Thread(target=produce, args=(address, "t", PARTITIONS, STEP_RECORDS))
                writing.start()
                time.sleep(source.uniform(0, 2))
                writing.join()
                produced += STEP_RECORDS
            for member in stopped:
                os.kill(member.pid, signal.SIGCONT)
            if not members.running:
                members.start()
            expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(produced)}
            try:
                wait_until("all is read", lambda: members.seen() == expected)
            except AssertionError:
                missing = sorted(expected - members.seen())
                outcome.violations.append(
                    f"{kind}: {len(missing)} records were read by nobody, the first {missing[:3]}"
                )
            for member in list(members.running):
                code = members.end(member)
                outcome.expect(code == 0, f"{kind}: a member ended with {code}: {members.errors()[-500:]}")
            outcome.violations += [f"{kind}: {line}" for line in members.wrong()]
        code = broker.stop()
        outcome.expect(code == 0, f"the stop ended with {code}")


def _fault(source: random.Random, broker: Broker, members: Members, stopped: list[subprocess.Popen[bytes]]) -> None:
    """One of those that can be, at this moment."""
    kinds = ["coordinator", "start"] if len(members.running) < MOST_MEMBERS else ["coordinator"]
    if members.running:
        kinds += ["kill", "kill", "stop", "leave"]
    if stopped:
        kinds += ["continue", "continue"]
    match source.choice(kinds):
        case "coordinator":
            pid = broker.pids()["coordinator"]
            broker.kill("coordinator")
            broker.wait_replaced("coordinator", pid)
        case "start":
            members.start()
        case "kill":
            member = source.choice(members.running)
            members.kill(member)
            if member in stopped:
                stopped.remove(member)
        case "stop":
            member = source.choice(members.running)
            os.kill(member.pid, signal.SIGSTOP)
            if member not in stopped:
                stopped.append(member)
        case "leave":
            member = source.choice(members.running)
            if member in stopped:
                stopped.remove(member)
            members.end(member)
        case "continue":
            os.kill(stopped.pop().pid, signal.SIGCONT)
