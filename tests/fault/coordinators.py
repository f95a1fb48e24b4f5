"""The coordinator is killed while topics are made, changed, deleted: what was answered is so, the rest whole or not."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

from fastlog.kafka_codes import Code
from tests.fault.registry import Outcome, scenario
from tests.harness import raw_client as raw
from tests.harness import today
from tests.harness.broker import Broker, wait_until
from tests.harness.coordinated import decoded, encoded
from tests.harness.timing import PATIENCE

CREATE, DELETE, DESCRIBE, ALTER, METADATA = 19, 20, 32, 44, 3
TOPIC, OF_TOPIC = 2, 1
RETENTION = "retention.bytes"
PARTITIONS = 5
WRITERS = 3
POINTS = (
    "topic.creating",
    "topic.made",
    "topic.deleting",
    "topic.gone",
    "topic.altered",
    "metadata.appended",
    "create.segment",
)
ONE = raw.entry(b"one")
OF_0_7 = "data"


class Client:
    """A connection that speaks today's protocol; a new one where the former was closed."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._client: raw.RawClient | None = None

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """The decoded answer; None when the connection was closed before it came."""
        try:
            if self._client is None:
                self._client = self._broker.connect()
                self._client.socket.settimeout(PATIENCE)
                today.asked(self._client.socket, today.API_VERSIONS, 0)
            self._client.socket.sendall(today.framed(encoded(key, version, fields)))
            return decoded(key, version, today.answer_of(self._client.socket))
        except (EOFError, OSError):
            self.close()
            return None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def create(self, name: str) -> int | None:
        row = {"name": name, "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": (), "configs": ()}
        found = self.ask(CREATE, 7, topics=[row], timeout=30_000, validate_only=False)
        return None if found is None else int(found.topics[0].error_code)

    def delete(self, name: str) -> int | None:
        found = self.ask(DELETE, 6, topics=[{"name": name, "topic_id": bytes(16)}], timeout=30_000)
        return None if found is None else int(found.responses[0].error_code)

    def alter(self, name: str, value: str) -> int | None:
        """Give a topic another ``retention.bytes``."""
        configs = [{"name": RETENTION, "value": value, "config_operation": 0}]
        rows = [{"resource_type": TOPIC, "resource_name": name, "configs": configs}]
        found = self.ask(ALTER, 1, resources=rows, validate_only=False)
        return None if found is None else int(found.responses[0].error_code)

    def retention(self, name: str) -> str | None:
        """What ``alter`` has given a topic; None: nothing."""
        rows = [{"resource_type": TOPIC, "resource_name": name, "configuration_keys": [RETENTION]}]
        found = self.ask(DESCRIBE, 4, resources=rows, include_synonyms=False, include_documentation=False)
        assert found is not None, "a topic could not be described"
        (row,) = found.results[0].configs
        return str(row.value) if row.config_source == OF_TOPIC else None

    def topics(self) -> dict[str, int]:
        unasked = {"include_cluster_authorized_operations": False, "include_topic_authorized_operations": False}
        found = self.ask(METADATA, 9, topics=None, allow_auto_topic_creation=False, **unasked)
        assert found is not None, "a request that the coordinator does not answer lost its connection"
        rows = [topic for topic in found.topics if not topic.is_internal and topic.name != OF_0_7]
        return {topic.name: len(topic.partitions) for topic in rows}


class Writer:
    """Makes and deletes topics of names that are nobody else's, and knows what was answered about each."""

    def __init__(self, broker: Broker, number: int, source: random.Random) -> None:
        self._client = Client(broker)
        self._source = source
        self._names = [f"w{number}-{name}" for name in range(4)]
        self.answered: dict[str, bool | None] = dict.fromkeys(self._names, False)
        """Whether it is there; None: nobody knows."""
        self.settings: dict[str, set[str | None]] = {name: {None} for name in self._names}
        """What the ``retention.bytes`` of each that is there may be: one value, or more that nobody knows about."""
        self.wrong: list[str] = []
        self.done = 0

    def run(self, over: threading.Event) -> None:
        """Until it is over."""
        while not over.is_set():
            name = self._source.choice(self._names)
            known = self.answered[name]
            if known and self._source.random() < 0.4:
                self._alter(name)
                continue
            makes = self._source.random() < 0.5 if known is None else not known
            code = self._client.create(name) if makes else self._client.delete(name)
            if code is None:
                self.answered[name] = None
            elif code == Code.NONE:
                self.answered[name] = makes
                self.settings[name] = {None}
                self.done += 1
            elif known is None:
                pass  # what was asked before may be under way, either way
            elif code != Code.COORDINATOR_LOAD_IN_PROGRESS:
                self.wrong.append(f"{'create' if makes else 'delete'} of {name} answered {code}, it was there: {known}")
            self._source.random()
        self._client.close()

    def _alter(self, name: str) -> None:
        value = str(self._source.randrange(10**9, 10**10))
        code = self._client.alter(name, value)
        if code == Code.NONE:
            self.settings[name] = {value}
            self.done += 1
        elif code is None:
            self.settings[name].add(value)
        elif code != Code.COORDINATOR_LOAD_IN_PROGRESS:
            self.wrong.append(f"a change of {name} answered {code}")


@scenario(
    "kill-coordinator",
    "kill -9 of the coordinator while topics are made, changed and deleted, also at each step, and of the whole broker",
    small=8,
    nightly=300,
    release=5000,
)
def kill_coordinator(count: int, seed: int, directory: Path) -> Outcome:
    """``count`` kills by the clock, half as many at named points; data requests must notice none of them."""
    outcome = Outcome()
    source = random.Random(seed)
    for number in range(max(1, count // 8)):
        _round(min(count, 8), source, directory / f"{number}-clock", "", outcome)
        point, turn = source.choice(POINTS), source.randrange(2, 6)
        faults = f"coordinator:{point}@{turn}=kill"
        _round(max(1, min(count, 8) // 2), source, directory / f"{number}-points", faults, outcome)
    return outcome


def _round(kills: int, source: random.Random, directory: Path, faults: str, outcome: Outcome) -> None:
    over = threading.Event()
    directory.mkdir(parents=True)
    with Broker(directory, processors=2, environment={"FASTLOG_FAULTS": faults} if faults else {}) as broker:
        writers = [Writer(broker, number, random.Random(source.random())) for number in range(WRITERS)]
        threads = [threading.Thread(target=writer.run, args=(over,)) for writer in writers]
        threads.append(threading.Thread(target=_produce, args=(broker, over, outcome)))
        for thread in threads:
            thread.start()
        for _ in range(kills):
            before, pid = sum(writer.done for writer in writers), broker.pids()["coordinator"]
            if not faults:  # else it kills itself when it has come so far
                wait_until("something is answered", lambda before=before: sum(w.done for w in writers) > before)  # type: ignore[misc]
                time.sleep(source.uniform(0, 0.05))
                broker.kill("coordinator")
            broker.wait_replaced("coordinator", pid)
            outcome.runs += 1
        over.set()
        for thread in threads:
            thread.join(2 * PATIENCE)
            outcome.expect(not thread.is_alive(), "a client hangs")
        for writer in writers:
            outcome.violations += writer.wrong
        if not faults:
            _look(broker, writers, outcome, "after the kills")
        broker.environment = {}
        broker.kill_all()
        broker.start()
        _look(broker, writers, outcome, "after another start")
        code = broker.stop()
        outcome.expect(code == 0, f"the stop ended with {code}")


def _produce(broker: Broker, over: threading.Event, outcome: Outcome) -> None:
    """A client of 0.7, on one connection all the time."""
    with broker.connect() as client:
        while not over.is_set():
            try:
                outcome.expect(client.produce_ack(OF_0_7, 0, ONE).error == 0, "a produce was refused")
            except (raw.ConnectionClosed, OSError) as error:
                outcome.violations.append(f"a produce noticed it: {error!r}")
                return
            time.sleep(0.002)


def _look(broker: Broker, writers: list[Writer], outcome: Outcome, when: str) -> None:
    client = Client(broker)

    def is_settled() -> bool:
        return set(client.topics().values()) <= {PARTITIONS} and client.ask(
            60, 0, include_cluster_authorized_operations=0
        )

    wait_until("every topic is whole", is_settled)
    found = client.topics()
    for writer in writers:
        for name, is_there in writer.answered.items():
            if is_there is not None:
                outcome.expect(
                    (name in found) == is_there, f"{when}: {name} is there: {name in found}, said: {is_there}"
                )
            if is_there and name in found:
                held, may = client.retention(name), writer.settings[name]
                outcome.expect(held in may, f"{when}: {RETENTION} of {name} is {held}, said: {may}")
    client.close()
