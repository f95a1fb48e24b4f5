"""Members of one group, of several client libraries, killed, paused and started while the broker's processes die.

They are twenty, and all assign by range: whoever leads assigns for the others' libraries. Every record is
read by somebody, and nobody begins a partition below what had been committed, and answered, before it was assigned.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from tests.fault.registry import Outcome, scenario
from tests.harness import foreign_clients
from tests.harness.broker import Broker, wait_until
from tests.harness.ports import unused_port
from tests.harness.timing import PATIENCE
from tests.harness.today_member import SESSION_MS
from tests.harness.today_members import Members, produce

MEMBERS = 20
LIBRARIES = ("confluent", "kafka-python", "aiokafka")
OTHERS = ("franz-go", "sarama")
"""Where scripts/compat has built them."""
PARTITIONS = 24
STEP_RECORDS = 5
"""Of each partition, after each fault."""
PAUSE_SECONDS = 0.5
ROLES = ("coordinator", "coordinator", "processor-0", "processor-1", "flusher", "keeper", "acceptor")
SETTINGS = {"num.partitions": PARTITIONS, "group.initial.rebalance.delay.ms": 0, "log.file.size": 1_000_000}
READ_SECONDS = 20 * PATIENCE
"""A group of so many takes some rebalances of some sessions to come to rest, on a machine that is busy with it."""


@scenario(
    "member-storm",
    "20 members of one group, of all client libraries, killed, paused and started, and any process of the broker",
    small=8,
    nightly=400,
    release=5000,
)
def member_storm(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` faults on one group; four libraries or more where ``FASTLOG_CLIENTS`` says where the others are."""
    outcome = Outcome()
    source = random.Random(seed)
    kinds = [*LIBRARIES, *(kind for kind in OTHERS if foreign_clients.are_there(kind))]
    with Broker(directory, processors=2, settings=SETTINGS, port=unused_port()) as broker:
        address = f"127.0.0.1:{broker.port}"
        produce(address, "t", PARTITIONS, STEP_RECORDS)
        with Members(address, kinds[0], "t", directory / "members") as members:
            storm = _Storm(broker, members, kinds, source)
            for number in range(MEMBERS):
                members.start(kind=kinds[number % len(kinds)])
            wait_until("somebody reads", lambda: bool(members.seen()), READ_SECONDS)
            produced = STEP_RECORDS
            for _ in range(count):
                storm.fault()
                outcome.runs += 1
                produce(address, "t", PARTITIONS, STEP_RECORDS)
                time.sleep(source.uniform(0, PAUSE_SECONDS))
                produced += STEP_RECORDS
            storm.calm_down()
            for kind in set(kinds) - _assigned(members):  # those that there were may have been killed before they were
                members.start(kind=kind)
            expected = {(partition, offset) for partition in range(PARTITIONS) for offset in range(produced)}
            try:
                wait_until("all is read", lambda: expected <= members.seen(), READ_SECONDS, pause=0.2)
            except AssertionError:
                missing = sorted(expected - members.seen())
                outcome.violations.append(f"{len(missing)} records were read by nobody, the first {missing[:3]}")
            outcome.expect(members.seen() <= expected, "somebody has read what was not produced")
            try:
                wait_until(
                    "each library has partitions", lambda: _assigned(members) == set(kinds), READ_SECONDS, pause=0.2
                )
            except AssertionError:
                outcome.violations.append(f"only {sorted(_assigned(members))} have had partitions")
            outcome.violations += members.wrong()
        code = broker.stop()
        outcome.expect(code == 0, f"the stop ended with {code}")
    return outcome


def _assigned(members: Members) -> set[str]:
    """The libraries of which a member has had partitions."""
    return {members.kinds[number] for number, diary in enumerate(members.diaries()) if diary}


class _Storm:
    """Faults, one at a time, and who is paused until when."""

    def __init__(self, broker: Broker, members: Members, kinds: list[str], source: random.Random) -> None:
        self._broker, self._members, self._kinds, self._source = broker, members, kinds, source
        self._paused: list[tuple[float, subprocess.Popen[bytes]]] = []

    def fault(self) -> None:
        """One of them; members that were paused long enough go on."""
        now = time.monotonic()
        for until, member in [each for each in self._paused if each[0] <= now]:
            self._paused.remove((until, member))
            os.kill(member.pid, signal.SIGCONT)
        members, source = self._members, self._source
        while len(members.running) < MEMBERS - 2:
            members.start(kind=source.choice(self._kinds))
        match source.choice(("kill", "kill", "pause", "pause", "start", "leave", "process", "process", "broker")):
            case "kill":
                members.kill(self._awake())
            case "pause":
                member = self._awake()
                os.kill(member.pid, signal.SIGSTOP)
                # shorter than its session, or so long that it is dead to its group when it goes on
                self._paused.append((now + source.uniform(0.2, 2.5) * SESSION_MS / 1000, member))
            case "start":
                if len(members.running) < MEMBERS:
                    members.start(kind=source.choice(self._kinds))
            case "leave":
                members.end(self._awake())
            case "process":
                role = source.choice(ROLES)
                self._broker.wait_replaced(role, self._broker.kill(role), 2 * PATIENCE)
            case "broker":
                if source.random() < 0.3:
                    self._broker.kill_all()
                    self._broker.start()

    def _awake(self) -> subprocess.Popen[bytes]:
        paused = [member for _, member in self._paused]
        return self._source.choice([member for member in self._members.running if member not in paused])

    def calm_down(self) -> None:
        """Who is paused goes on."""
        for _, member in self._paused:
            os.kill(member.pid, signal.SIGCONT)
