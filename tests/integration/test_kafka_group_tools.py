"""Apache Kafka's own tools and consumer with the groups of a broker of ours, and with the files that these are in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from fastlog.workers.coordinator.internal_log import DONE
from tests.harness import real_kafka
from tests.harness.broker import Broker, wait_until
from tests.harness.coordinated import Coordinated
from tests.harness.timing import PATIENCE
from tests.harness.today_members import produce

pytestmark = [real_kafka.is_there, pytest.mark.timeout(600)]

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DUMP = "kafka.tools.DumpLogSegments"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker(tmp_path, settings={"num.partitions": 2, "group.initial.rebalance.delay.ms": 0}) as running:
        produce(f"127.0.0.1:{running.port}", "t", 2, 10)
        yield running


def run(main: str, broker: Broker, *arguments: str) -> list[str]:
    """The lines that a tool prints."""
    return real_kafka.run(main, "--bootstrap-server", f"127.0.0.1:{broker.port}", *arguments).splitlines()


def rows(lines: list[str]) -> list[list[str]]:
    """The words of a table's lines, without its head."""
    found = [line.split() for line in lines if line.strip()]
    head = next(number for number, words in enumerate(found) if words[0] == "GROUP")
    return found[head + 1 :]


def member(broker: Broker, group: str) -> Consumer:
    settings = {"bootstrap.servers": f"127.0.0.1:{broker.port}", "group.id": group, "enable.auto.commit": False}
    return Consumer(settings | {"client.id": "us", "auto.offset.reset": "earliest"})


def test_a_group_is_described_reset_and_deleted(broker: Broker) -> None:
    reader = member(broker, "g")
    reader.subscribe(["t"])
    wait_until("it is assigned", lambda: reader.poll(0.1) is not None or len(reader.assignment()) == 2)
    reader.commit(offsets=[TopicPartition("t", 0, 4)], asynchronous=False)
    assert run(GROUPS, broker, "--list") == ["g"]
    found = {words[2]: words for words in rows(run(GROUPS, broker, "--describe", "--group", "g"))}
    assert found["0"][:6] == ["g", "t", "0", "4", "10", "6"] and found["1"][3] == "-"
    assert found["0"][8] == "us" and found["0"][7] == "/127.0.0.1"
    (state,) = rows(run(GROUPS, broker, "--describe", "--group", "g", "--state"))
    assert "Stable" in state and state[-1] == "1"
    (one,) = rows(run(GROUPS, broker, "--describe", "--group", "g", "--members"))
    assert one[-1] == "2"
    reader.close()
    words = ["--group", "g", "--topic", "t", "--reset-offsets", "--to-offset", "2", "--execute"]
    assert sorted(each[1:4] for each in rows(run(GROUPS, broker, *words))) == [["t", "0", "2"], ["t", "1", "2"]]
    reader = member(broker, "g")
    kept = reader.committed([TopicPartition("t", 0), TopicPartition("t", 1)], PATIENCE)
    assert [row.offset for row in kept] == [2, 2]
    run(GROUPS, broker, "--group", "g", "--topic", "t:1", "--delete-offsets")
    kept = reader.committed([TopicPartition("t", 0), TopicPartition("t", 1)], PATIENCE)
    assert [row.offset for row in kept] == [2, -1001]
    reader.close()
    assert "Deletion of requested consumer groups ('g') was successful." in run(
        GROUPS, broker, "--group", "g", "--delete"
    )
    assert [line for line in run(GROUPS, broker, "--list") if line] == []


def test_javas_consumer_reads_in_a_group_and_goes_on(broker: Broker) -> None:
    """Its two processes, one after the other, read each record once."""
    words = ["--topic", "t", "--group", "java", "--max-messages"]
    first = run(CONSUMER, broker, *words, "7", "--command-property", "auto.offset.reset=earliest")
    second = run(CONSUMER, broker, *words, "13")
    assert sorted(first + second) == sorted([str(number) for number in range(10)] * 2)


def test_the_files_are_kafkas(broker: Broker, tmp_path: Path) -> None:
    """Its own decoder reads groups and offsets, and passes over what is ours alone."""
    reader = member(broker, "g")
    reader.subscribe(["t"])
    wait_until("it is assigned", lambda: reader.poll(0.1) is not None or len(reader.assignment()) == 2)
    reader.commit(offsets=[TopicPartition("t", 1, 5, "so far")], asynchronous=False)
    reader.close()
    broker.stop()
    (segment,) = (broker.log_dirs[0] / "__consumer_offsets-0").glob("*.log")
    told = real_kafka.run(DUMP, "--offsets-decoder", "--files", str(segment))
    payloads = [line.partition(" payload: ")[2] for line in told.splitlines() if " payload: " in line]
    found = [json.loads(text) for text in payloads if text.startswith("{")]
    offsets = [each["data"] for each in found if "offset" in each["data"]]
    # confluent-kafka sends the end of its C string along
    assert [(each["offset"], each["metadata"].rstrip("\0")) for each in offsets] == [(5, "so far")]
    groups = [each["data"] for each in found if "protocolType" in each["data"]]
    assert groups and {each["protocolType"] for each in groups} == {"consumer"}
    assert [len(each["members"]) for each in groups][-2:] == [1, 0]
    broker.start()


def test_a_snapshot_is_read_as_the_records_it_repeats(tmp_path: Path) -> None:
    """Its beginning and its end are records of a kind that is not Kafka's, and no more than that."""
    with Coordinated(tmp_path / "log") as running:
        running.create("t")
        partition = {
            "partition_index": 0,
            "committed_offset": 7,
            "committed_leader_epoch": 0,
            "committed_metadata": "x",
        }
        who = {"group_id": "g", "member_id": "", "group_instance_id": None, "generation_id_or_member_epoch": -1}
        running.ask(8, 9, **who, topics=[{"name": "t", "partitions": [partition]}])
        shard = running.groups._shards[0]
        written = shard.log.snapshot(shard.parts())
        running.turn_until("it is written", lambda: written.value == DONE)
    _, segment = sorted((tmp_path / "log" / "__consumer_offsets-0").glob("*.log"))
    told = real_kafka.run(DUMP, "--offsets-decoder", "--files", str(segment))
    payloads = [line.partition(" payload: ")[2] for line in told.splitlines() if " payload: " in line]
    (found,) = [json.loads(text)["data"] for text in payloads if text.startswith("{")]
    assert (found["offset"], found["metadata"]) == (7, "x")
