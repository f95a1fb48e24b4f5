"""Topics over the wire: made and deleted by today's requests, while the coordinator is killed, and after starts."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fastlog.kafka_codes import Code
from fastlog.workers.kafka import kinds
from tests.harness import raw_client as raw
from tests.harness import stored_batches, today
from tests.harness.broker import KEPT, Broker, wait_until
from tests.harness.coordinated import decoded, encoded
from tests.harness.timing import PATIENCE

ONE = raw.entry(b"one")
MESSAGE_TOO_LARGE = 10


class Today:
    """A connection that speaks today's protocol."""

    def __init__(self, broker: Broker) -> None:
        self._client = broker.connect()
        self._client.socket.settimeout(PATIENCE)
        today.asked(self._client.socket, today.API_VERSIONS, 0)

    def __enter__(self) -> Today:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    @property
    def socket(self) -> socket.socket:
        return self._client.socket

    def ask(self, key: int, version: int, /, **fields: Any) -> Any:
        """The decoded answer to a request.

        Raises:
            ConnectionError: the connection has been closed.
        """
        try:
            self.socket.sendall(today.framed(encoded(key, version, fields)))
            return decoded(key, version, today.answer_of(self.socket))
        except EOFError as error:
            raise ConnectionError from error

    def create(self, name: str, count: int = 1) -> int:
        """The error code of CREATE_TOPICS for one topic."""
        return int(self.ask(19, 7, **creation(name, count)).topics[0].error_code)

    def delete(self, name: str) -> int:
        """The error code of DELETE_TOPICS for one topic."""
        rows = [{"name": name, "topic_id": bytes(16)}]
        return int(self.ask(20, 6, topics=rows, timeout=30_000).responses[0].error_code)

    def delete_records(self, topic: str, offset: int, timeout: int = 30_000) -> tuple[int, int]:
        """Error code and low watermark of DELETE_RECORDS for partition 0 of a topic."""
        rows = [{"name": topic, "partitions": [{"partition_index": 0, "offset": offset}]}]
        (found,) = self.ask(21, 2, topics=rows, timeout=timeout).topics[0].partitions
        return int(found.error_code), found.low_watermark

    def produce(self, topic: str, batch: bytes) -> int:
        """The error code of a produce to partition 0, answered when it is flushed."""
        return int(self.produced(topic, batch).error_code)

    def produced(self, topic: str, batch: bytes, acks: int = -1) -> Any:
        """What PRODUCE answers about partition 0."""
        found = today.asked(self.socket, today.PRODUCE, 9, **today.produced((topic, 0, batch), acks=acks))
        return found.responses[0].partition_responses[0]

    def change(self, topic: str, settings: dict[str, str]) -> int:
        """The error code of INCREMENTAL_ALTER_CONFIGS for one topic."""
        configs = [{"name": name, "value": value, "config_operation": 0} for name, value in settings.items()]
        rows = [{"resource_type": 2, "resource_name": topic, "configs": configs}]
        return int(self.ask(44, 1, resources=rows, validate_only=False).responses[0].error_code)

    def topics(self) -> dict[str, int]:
        """The topics that METADATA tells of but the broker's own, and how many partitions each has."""
        asked = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}
        found = self.ask(3, 12, topics=None, **asked)
        return {topic.name: len(topic.partitions) for topic in found.topics if not topic.is_internal}


def creation(name: str, count: int, timeout: int = 30_000) -> dict[str, Any]:
    """The fields of CREATE_TOPICS for one topic."""
    row = {"name": name, "num_partitions": count, "replication_factor": -1, "assignments": (), "configs": ()}
    return {"topics": [row], "timeout": timeout, "validate_only": False}


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, processors=2) as made:
        yield made


def test_a_topic_is_made_seen_and_deleted(broker: Broker) -> None:
    with Today(broker) as client:
        assert client.create("t", 3) == Code.NONE
        assert client.topics() == {"t": 3}
        assert client.delete("t") == Code.NONE
        assert client.topics() == {}
        assert client.create("t", 2) == Code.NONE
        assert client.topics() == {"t": 2}


def test_every_version_that_is_offered_is_served(broker: Broker) -> None:
    """By the bytes of another implementation's schemas, in both directions."""
    topic = {"name": "none", "num_partitions": 1, "replication_factor": -1, "assignments": (), "configs": ()}
    member = {"group_id": "g", "member_id": "m", "group_instance_id": None, "generation_id": 1}
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    partition = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": 0, "committed_metadata": "x"}
    committed = [{"name": "none", "partitions": [partition]}]
    fetched = [{"name": "none", "partition_indexes": [0]}]
    fields: dict[int, dict[str, Any]] = {
        8: {**member, "generation_id_or_member_epoch": -1, "retention_time": -1, "topics": committed},
        9: {
            "group_id": "g",
            "topics": fetched,
            "groups": [{"group_id": "g", "topics": fetched}],
            "require_stable": True,
        },
        10: {"key": "g", "key_type": 0, "coordinator_keys": ["g"]},
        11: {
            **member,
            **protocol,
            "session_timeout": 10_000,
            "rebalance_timeout": 10_000,
            "protocols": [{"name": "range", "metadata": b""}],
            "reason": "none",
        },
        12: member,
        13: {**member, "members": [{"member_id": "m", "group_instance_id": None, "reason": "none"}]},
        14: {**member, **protocol, "assignments": [{"member_id": "m", "assignment": b"all"}]},
        15: {"groups": ["g"], "include_authorized_operations": True},
        16: {"states_filter": ["Stable"]},
        42: {"groups_names": ["g"]},
        44: {"resources": [{"resource_type": 2, "resource_name": "none", "configs": ()}], "validate_only": False},
        47: {"group_id": "g", "topics": committed},
        19: {"topics": [topic], "timeout": 100, "validate_only": True},
        20: {"topics": [{"name": "none", "topic_id": bytes(16)}], "topic_names": ["none"], "timeout": 100},
        21: {"topics": [{"name": "none", "partitions": [{"partition_index": 0, "offset": -1}]}], "timeout": 100},
        22: {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1},
        23: {
            "replica_id": -1,
            "topics": [
                {"topic": "none", "partitions": [{"partition": 0, "current_leader_epoch": 0, "leader_epoch": 0}]}
            ],
        },
        32: {
            "resources": [{"resource_type": 4, "resource_name": "0", "configuration_keys": None}],
            "include_synonyms": True,
            "include_documentation": True,
        },
        33: {
            "resources": [
                {"resource_type": 2, "resource_name": "none", "configs": [{"name": "flush.ms", "value": "5"}]}
            ],
            "validate_only": True,
        },
        35: {"topics": None},
        37: {
            "topics": [{"name": "none", "count": 3, "assignments": None}],
            "timeout": 100,
            "validate_only": False,
        },
        60: {"include_cluster_authorized_operations": True, "endpoint_type": 1},
    }
    assert set(fields) == set(kinds.FORWARDED)
    with Today(broker) as client:
        for key, api in kinds.FORWARDED.items():
            for version in range(api.first, api.last + 1):
                assert client.ask(key, version, **fields[key]) is not None


def test_a_connection_may_begin_with_what_the_coordinator_answers(broker: Broker) -> None:
    """A client that has the versions from another connection does not ask again; whatever its request's number is."""
    fields = {"group_id": "g", "protocol_type": None, "key": "g", "key_type": 0, "coordinator_keys": ["g"]}
    for version in range(5):
        with broker.connect() as client:
            client.socket.sendall(today.request(10, version, fields, correlation=1 << 30))
            correlation, found = today.decoded(10, version, today.answer_of(client.socket))
            assert correlation == 1 << 30
            assert (found.coordinators[0] if version == 4 else found).error_code == 0


def test_the_cluster_is_this_broker(broker: Broker) -> None:
    with Today(broker) as client:
        found = client.ask(60, 1, include_cluster_authorized_operations=False, endpoint_type=1)
        (node,) = found.brokers
        assert (node.host, node.port, found.controller_id) == ("127.0.0.1", broker.port, node.broker_id)
        text = (broker.log_dirs[0] / "meta.properties").read_text()
        assert f"cluster.id={found.cluster_id}\n" in text


def test_rubbish_behind_the_head_closes_the_connection_and_nothing_else(broker: Broker) -> None:
    with Today(broker) as good:
        for key in kinds.FORWARDED:
            version = kinds.FORWARDED[key].last
            with Today(broker) as client, contextlib.suppress(ConnectionError):
                client.socket.sendall(today.frame(key, version, b"\xff" * 40))
                assert client.socket.recv(1) == b""
        assert good.create("t") == Code.NONE


def test_a_killed_coordinator_closes_who_waits_for_it_and_is_back(broker: Broker) -> None:
    """Connections that ask it nothing, of either protocol, notice nothing."""
    with Today(broker) as asking, Today(broker) as resting, broker.connect() as old:
        assert resting.create("before") == Code.NONE
        assert old.produce_ack("old", 0, ONE).error == 0
        pid = broker.pause("coordinator")
        row = {"name": "t", "num_partitions": 1, "replication_factor": -1, "assignments": (), "configs": ()}
        asking.socket.sendall(today.framed(encoded(19, 7, {"topics": [row], "timeout": 9000, "validate_only": False})))
        time.sleep(0.1)
        assert resting.topics() == {"before": 1, "old": 1}
        broker.kill("coordinator")
        assert asking.socket.recv(1) == b""
        assert old.produce_ack("old", 0, ONE).error == 0
        broker.wait_replaced("coordinator", pid)
        assert resting.topics() == {"before": 1, "old": 1}
        assert resting.create("after") == Code.NONE
        assert resting.delete("before") == Code.NONE


def test_what_was_answered_is_there_whoever_is_killed(broker: Broker) -> None:
    """The rest is there as a whole, or not at all; and the next start says the same."""
    answered: dict[str, bool] = {}
    done = threading.Event()

    def work() -> None:
        number = 0
        while not done.is_set():
            number += 1
            name = f"t{number}"
            with contextlib.suppress(ConnectionError, OSError), Today(broker) as client:
                if client.create(name, 3) == Code.NONE:
                    answered[name] = True
                    if number % 2 and client.delete(name) == Code.NONE:
                        answered[name] = False
                    elif number % 2:
                        del answered[name]
            if number % 2 and answered.get(name):
                del answered[name]  # its deletion may have gone through

    working = threading.Thread(target=work)
    working.start()
    for number in range(6):
        before = len(answered)
        wait_until("something is answered", lambda before=before: len(answered) > before)  # type: ignore[misc]
        time.sleep(0.007 * number)
        pid = broker.pids()["coordinator"]
        broker.kill("coordinator")
        broker.wait_replaced("coordinator", pid)
    done.set()
    working.join(PATIENCE)
    check(broker, answered)
    broker.kill_all()
    broker.start()
    check(broker, answered)


def test_settings_of_a_topic_in_use_hold_from_the_next_batch_on(broker: Broker) -> None:
    with Today(broker) as client:
        filled(client, 2)
        assert client.change("t", {"segment.bytes": "14"}) == Code.NONE
        for _ in range(3):
            assert client.produce("t", stored_batches.batch(b"x")) == Code.NONE
        assert _bases(broker) == [0, 4, 5, 6]
        assert client.change("t", {"segment.bytes": "1000000", "segment.ms": "1"}) == Code.NONE
        time.sleep(0.002)
        assert client.produce("t", stored_batches.batch(b"x")) == Code.NONE
        assert _bases(broker)[-1] == 7
        assert client.change("t", {"max.message.bytes": "70", "segment.ms": "1000000"}) == Code.NONE
        assert client.produce("t", stored_batches.batch(bytes(100))) == MESSAGE_TOO_LARGE
        assert client.produce("t", stored_batches.batch(b"x")) == Code.NONE
        assert client.change("t", {"message.timestamp.type": "LogAppendTime"}) == Code.NONE
        assert client.produced("t", stored_batches.batch(b"x")).log_append_time is not None


@pytest.mark.parametrize("point", ["starts_file.write", "starts.kept", "starts.published", "retention.unlink"])
def test_records_that_are_gone_stay_gone_though_every_keeper_dies(tmp_path: Path, point: str) -> None:
    """Each at that point, and then the whole broker; nothing begins before what was answered."""
    faults = {"FASTLOG_FAULTS": f"keeper:{point}@1=kill"}
    settings = {"log.file.size": 150, **KEPT}
    with Broker(tmp_path, settings=settings, environment=faults) as broker:
        pid = broker.pids()["keeper"]
        with Today(broker) as client:
            filled(client, 10)
            code, low = client.delete_records("t", 13, timeout=1500)
        assert (code, low) == (
            (Code.REQUEST_TIMED_OUT, -1) if point in ("starts_file.write", "starts.kept") else (0, 13)
        )
        broker.wait_replaced("keeper", pid)
        broker.kill_all()
        broker.environment.clear()
        broker.start()
        with Today(broker) as client:
            start = 0 if point == "starts_file.write" else 13
            assert client.delete_records("t", 0) == (Code.NONE, start)
            assert client.delete_records("t", 17) == (Code.NONE, 17)
            assert client.produce("t", stored_batches.batch(b"more")) == Code.NONE
        wait_until("all below has gone", lambda: _bases(broker)[0] == 16)


def test_records_that_are_gone_stay_gone_under_kills(broker: Broker) -> None:
    """Keepers and coordinators in turn, while somebody deletes and asks, and then the whole broker."""
    answered = [0]
    done = threading.Event()

    def work() -> None:
        offset = 0
        while not done.is_set():
            with contextlib.suppress(ConnectionError, OSError), Today(broker) as client:
                while not done.is_set():
                    assert client.produce("t", stored_batches.batch(b"x")) == Code.NONE
                    offset += 1
                    code, low = client.delete_records("t", offset)
                    assert code == Code.NONE and low >= answered[-1]
                    answered.append(low)

    with Today(broker) as client:
        filled(client, 1)
    working = threading.Thread(target=work)
    working.start()
    for number in range(6):
        before = len(answered)
        wait_until("something is answered", lambda before=before: len(answered) > before + 3)  # type: ignore[misc]
        time.sleep(0.003 * number)
        name = ("keeper", "coordinator")[number % 2]
        pid = broker.pids()[name]
        broker.kill(name)
        broker.wait_replaced(name, pid)
    done.set()
    working.join(PATIENCE)
    assert not working.is_alive()
    broker.kill_all()
    broker.start()
    with Today(broker) as client:
        code, low = client.delete_records("t", 0)
    assert code == Code.NONE and low >= answered[-1] > 10


def filled(client: Today, batches: int) -> None:
    """A topic ``t`` with batches of two records."""
    assert client.create("t") == Code.NONE
    for number in range(batches):
        assert client.produce("t", stored_batches.batch(b"%d" % number, b"x")) == Code.NONE


def _bases(broker: Broker) -> list[int]:
    return sorted(int(path.stem) for path in (broker.log_dirs[0] / "t-0").glob("*.log"))


def check(broker: Broker, answered: dict[str, bool]) -> None:
    def whole() -> bool:
        with Today(broker) as client:
            found = client.topics()
            assert {name for name, is_there in answered.items() if is_there} <= set(found)
            assert not {name for name, is_there in answered.items() if not is_there} & set(found)
            return set(found.values()) <= {3}

    wait_until("every topic is whole", whole)


def test_a_creation_of_many_partitions_delays_nobody(tmp_path: Path) -> None:
    """METADATA on another connection is answered meanwhile, and a disk may be slow with 1000 directories."""
    with Broker(tmp_path, processors=1, settings={"max.partitions": "1200"}) as broker, Today(broker) as other:
        with Today(broker) as client:
            client.socket.sendall(today.framed(encoded(19, 7, creation("many", 1000, timeout=3_600_000))))
            asked = 0
            while not select.select([client.socket], [], [], 0)[0]:
                other.topics()
                asked += 1
            assert decoded(19, 7, today.answer_of(client.socket)).topics[0].error_code == Code.NONE
        assert asked > 5
        assert other.topics() == {"many": 1000}
