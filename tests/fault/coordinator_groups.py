"""The coordinator and the broker are killed under members that commit: nothing that was answered goes back."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

from fastlog.kafka_codes import Code
from tests.fault.coordinators import Client
from tests.fault.registry import Outcome, scenario
from tests.harness.broker import Broker, wait_until
from tests.harness.timing import PATIENCE

COMMIT, FETCH, JOIN, HEARTBEAT, SYNC = 8, 9, 11, 12, 14
TOPIC, PARTITIONS = "data", 3
COMMITTERS = 4
TEXT = "x" * 4000
"""So that the log becomes long, and begins anew, in a run."""
POINTS = ("metadata.appended", "group.kept", "log.snapshot", "topic.creating", "topic.made")
RETRIED = {
    Code.REQUEST_TIMED_OUT, Code.COORDINATOR_LOAD_IN_PROGRESS, Code.COORDINATOR_NOT_AVAILABLE,
    Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS,
}  # fmt: skip


class Committer:
    """The only member of its group, or nobody's member; commits ever larger offsets and knows what was answered."""

    def __init__(self, broker: Broker, number: int, source: random.Random) -> None:
        self._client = Client(broker)
        self.group = f"g{number}"
        self._is_member = number % 2 == 0
        self._source = source
        self._member_id, self._generation = "", -1
        self._next = 1
        self.answered = dict.fromkeys(range(PARTITIONS), 0)
        self.tried = dict.fromkeys(range(PARTITIONS), 0)
        self.wrong: list[str] = []
        self.done = 0

    def run(self, over: threading.Event) -> None:
        """Until it is over."""
        while not over.is_set():
            if self._is_member and self._generation < 0 and not self._join():
                time.sleep(0.01)
                continue
            self._commit()
            if self._source.random() < 0.3:
                self.look("meanwhile")
        self.look("at the end")

    def close(self) -> None:
        self._client.close()

    def _join(self) -> bool:
        """Come to a generation; False: try again."""
        fields = {
            "group_id": self.group, "session_timeout": 60_000, "rebalance_timeout": 60_000,
            "member_id": self._member_id, "group_instance_id": None, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}], "reason": None,
        }  # fmt: skip
        found = self._client.ask(JOIN, 9, **fields)
        code = None if found is None else found.error_code
        if code == Code.MEMBER_ID_REQUIRED:
            self._member_id = found.member_id
        elif code == Code.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        elif code is not None and code not in (Code.NONE, *RETRIED):
            self.wrong.append(f"{self.group}: a join was answered {code}")
        if code != Code.NONE:
            return False
        if found.leader != found.member_id:
            self.wrong.append(f"{self.group}: somebody else leads")
        share = [{"member_id": found.member_id, "assignment": b"all"}]
        more = {"group_instance_id": None, "protocol_type": "consumer", "protocol_name": "range"}
        who = {"group_id": self.group, "generation_id": found.generation_id, "member_id": found.member_id}
        synced = self._client.ask(SYNC, 5, **who, assignments=share, **more)
        if synced is None or synced.error_code:
            return False
        if synced.assignment != b"all":
            self.wrong.append(f"{self.group}: was assigned {synced.assignment!r}")
        self._member_id, self._generation = found.member_id, found.generation_id
        return True

    def _commit(self) -> None:
        places = self._source.sample(range(PARTITIONS), self._source.randrange(1, PARTITIONS + 1))
        offset, self._next = self._next, self._next + 1
        rows = [
            {
                "partition_index": place,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": TEXT,
            }
            for place in places
        ]
        self.tried |= dict.fromkeys(places, offset)
        who = {
            "group_id": self.group,
            "member_id": self._member_id if self._is_member else "",
            "group_instance_id": None,
        }
        generation = self._generation if self._is_member else -1
        topics = [{"name": TOPIC, "partitions": rows}]
        found = self._client.ask(COMMIT, 9, **who, generation_id_or_member_epoch=generation, topics=topics)
        codes = set() if found is None else {row.error_code for row in found.topics[0].partitions}
        if codes == {Code.NONE}:
            self.answered |= dict.fromkeys(places, offset)
            self.done += 1
        elif codes - RETRIED:
            self.wrong.append(f"{self.group}: a commit was answered {codes}")
        if codes & {Code.ILLEGAL_GENERATION, Code.UNKNOWN_MEMBER_ID, Code.REBALANCE_IN_PROGRESS}:
            self._generation = -1

    def look(self, when: str) -> None:
        """What the broker tells is what was answered, or something later that was tried."""
        asked = [{"group_id": self.group, "topics": None}]
        found = self._client.ask(FETCH, 8, groups=asked, require_stable=False)
        if found is None or found.groups[0].error_code:
            return
        self.check(
            {row.partition_index: row.committed_offset for t in found.groups[0].topics for row in t.partitions}, when
        )

    def check(self, held: dict[int, int], when: str) -> None:
        for place, answered in self.answered.items():
            if not answered <= held.get(place, 0) <= self.tried[place]:
                known = f"answered {answered}, tried {self.tried[place]}"
                self.wrong.append(f"{self.group} {when}: partition {place} is at {held.get(place)}, {known}")

    def is_shown(self) -> bool:
        """Whether the broker answers at all; then it is looked at."""
        asked: Any = [{"group_id": self.group, "topics": None}]
        found = self._client.ask(FETCH, 8, groups=asked, require_stable=False)
        if found is None or found.groups[0].error_code:
            return False
        self.check(
            {row.partition_index: row.committed_offset for t in found.groups[0].topics for row in t.partitions},
            "afterwards",
        )
        return True


@scenario(
    "coordinator-groups",
    "kill -9 of the coordinator under committing members, also at each step, and of the whole broker",
    small=8,
    nightly=300,
    release=5000,
)
def coordinator_groups(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills by the clock, half as many at named points, and the broker after every round."""
    outcome = Outcome()
    source = random.Random(seed)
    for number in range(max(1, count // 8)):
        _round(min(count, 8), source, directory / f"{number}-clock", "", outcome)
        point, turn = source.choice(POINTS), source.randrange(1, 8)
        faults = f"coordinator:{point}@{1 if point.startswith('topic') else turn}=kill"
        _round(1, source, directory / f"{number}-points", faults, outcome)
    return outcome


def _round(kills: int, source: random.Random, directory: Path, faults: str, outcome: Outcome) -> None:
    over = threading.Event()
    directory.mkdir(parents=True)
    settings = {"group.initial.rebalance.delay.ms": "0"}
    with Broker(directory, processors=2, settings=settings) as broker:
        client = Client(broker)
        wait_until("the topic is there", lambda: client.create(TOPIC) in (Code.NONE, Code.TOPIC_ALREADY_EXISTS))
        client.close()
        if faults:  # from here on, so that they are met by groups
            broker.stop()
            broker.environment = {"FASTLOG_FAULTS": faults}
            broker.start()
        committers = [Committer(broker, number, random.Random(source.random())) for number in range(COMMITTERS)]
        threads = [threading.Thread(target=committer.run, args=(over,)) for committer in committers]
        for thread in threads:
            thread.start()
        for _ in range(kills):
            before, pid = sum(committer.done for committer in committers), broker.pids()["coordinator"]
            if faults:
                _give_it_time(broker, pid)
            else:
                wait_until("something is kept", lambda before=before: sum(c.done for c in committers) > before + 3)  # type: ignore[misc]
                time.sleep(source.uniform(0, 0.1))
                broker.kill("coordinator")
                broker.wait_replaced("coordinator", pid)
            outcome.runs += 1
        if source.random() < 0.5:
            broker.kill_all()
            broker.environment = {}
            broker.start()
            outcome.runs += 1
        over.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
            outcome.expect(not thread.is_alive(), "a client hangs")
        broker.environment = {}
        broker.kill_all()
        broker.start()
        for committer in committers:
            wait_until("it is answered", committer.is_shown)
            committer.close()
            outcome.violations += committer.wrong
        code = broker.stop()
        outcome.expect(code == 0, f"the stop ended with {code}")


def _give_it_time(broker: Broker, pid: int) -> None:
    """A point may not be reached in a short run; then nothing dies."""
    until = time.monotonic() + 5
    while time.monotonic() < until and broker.pids().get("coordinator") == pid:
        time.sleep(0.05)
