"""Apache Kafka's own command-line tools, unchanged, against a broker of ours."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import real_kafka
from tests.harness.broker import Broker

pytestmark = [real_kafka.is_there, pytest.mark.timeout(600)]

TOPICS = "org.apache.kafka.tools.TopicCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
CONFIGS = "kafka.admin.ConfigCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
VERIFIABLE_PRODUCER = "org.apache.kafka.tools.VerifiableProducer"
VERIFIABLE_CONSUMER = "org.apache.kafka.tools.VerifiableConsumer"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
RECORDS = 500


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with Broker(tmp_path) as broker:
        yield f"127.0.0.1:{broker.port}"


def run(main: str, address: str, *arguments: str) -> list[str]:
    """The lines that a tool prints."""
    return real_kafka.run(main, "--bootstrap-server", address, *arguments).splitlines()


def test_a_topic_from_its_making_to_its_end(address: str) -> None:
    assert run(TOPICS, address, "--create", "--topic", "t", "--partitions", "3", "--config", "retention.ms=60000") == [
        "Created topic t."
    ]
    described = run(TOPICS, address, "--describe", "--topic", "t")
    assert "PartitionCount: 3" in described[0] and "Configs: retention.ms=60000" in described[0]
    assert [line.split("Partition: ")[1].split()[0] for line in described[1:]] == ["0", "1", "2"]
    run(TOPICS, address, "--alter", "--topic", "t", "--partitions", "4")
    assert run(OFFSETS, address, "--topic", "t") == [f"t:{partition}:0" for partition in range(4)]
    run(TOPICS, address, "--delete", "--topic", "t")
    assert "t" not in run(TOPICS, address, "--list")
    run(TOPICS, address, "--create", "--topic", "t", "--partitions", "1")
    assert run(OFFSETS, address, "--topic", "t") == ["t:0:0"]


def test_settings_are_changed(address: str) -> None:
    run(TOPICS, address, "--create", "--topic", "t", "--config", "retention.ms=60000")
    words = ["--entity-type", "topics", "--entity-name", "t"]
    assert run(
        CONFIGS, address, *words, "--alter", "--add-config", "segment.bytes=100000,cleanup.policy=[compact,delete]"
    ) == ["Completed updating config for topic t."]
    run(CONFIGS, address, *words, "--alter", "--delete-config", "retention.ms")
    described = "\n".join(run(CONFIGS, address, *words, "--describe"))
    assert "segment.bytes=100000" in described and "cleanup.policy=compact,delete" in described
    assert "retention.ms" not in described


def test_records_are_deleted(address: str, tmp_path: Path) -> None:
    command = real_kafka.command(PRODUCER, "--bootstrap-server", address, "--topic", "t")
    lines = "".join(f"line {number}\n" for number in range(RECORDS))
    subprocess.run(command, input=lines, text=True, check=True, capture_output=True, timeout=real_kafka.SECONDS)
    wanted = tmp_path / "wanted.json"
    wanted.write_text('{"partitions": [{"topic": "t", "partition": 0, "offset": 77}], "version": 1}')
    told = run(DELETE_RECORDS, address, "--offset-json-file", str(wanted))
    assert "partition: t-0\tlow_watermark: 77" in told
    assert run(OFFSETS, address, "--topic", "t", "--time", "earliest") == ["t:0:77"]
    words = ["--topic", "t", "--partition", "0", "--offset", "earliest", "--max-messages", "1"]
    assert run(CONSUMER, address, *words) == ["line 77"]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_one_console_writes_the_other_reads(address: str, codec: str) -> None:
    """With keys, and the end is where the last record was."""
    words = ["--topic", "t", "--compression-codec", codec]
    words += ["--reader-property", "parse.key=true", "--reader-property", "key.separator=:"]
    told = "".join(f"k{number}:line {number}\n" for number in range(RECORDS))
    command = real_kafka.command(PRODUCER, "--bootstrap-server", address, *words)
    subprocess.run(command, input=told, text=True, check=True, capture_output=True, timeout=real_kafka.SECONDS)
    assert run(OFFSETS, address, "--topic", "t") == [f"t:0:{RECORDS}"]
    words = ["--topic", "t", "--partition", "0", "--offset", "earliest", "--max-messages", str(RECORDS)]
    words += ["--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"]
    assert "\n".join(run(CONSUMER, address, *words)) + "\n" == told
    words = ["--topic", "t", "--partition", "0", "--offset", str(RECORDS - 2), "--max-messages", "2"]
    assert run(CONSUMER, address, *words) == [f"line {number}" for number in range(RECORDS - 2, RECORDS)]


def test_the_verifiable_producer_and_consumer(address: str) -> None:
    """Those of Kafka's own system tests: an idempotent producer, and a group that reads all of it once."""
    words = ["--topic", "t", "--max-messages", str(RECORDS), "--acks", "-1"]
    told = [json.loads(line) for line in run(VERIFIABLE_PRODUCER, address, *words)]
    sent = [each["value"] for each in told if each["name"] == "producer_send_success"]
    assert sorted(map(int, sent)) == list(range(RECORDS))
    assert [each for each in told if each["name"] == "producer_send_error"] == []
    words = ["--topic", "t", "--group-id", "g", "--max-messages", str(RECORDS), "--reset-policy", "earliest"]
    told = [json.loads(line) for line in run(VERIFIABLE_CONSUMER, address, *words, "--verbose")]
    read = [each for each in told if each["name"] == "record_data"]
    assert [(each["offset"], each["value"]) for each in read] == list(enumerate(sent))
    committed = [each for each in told if each["name"] == "offsets_committed"]
    assert committed and all(each["success"] for each in committed)
    assert committed[-1]["offsets"] == [{"topic": "t", "partition": 0, "offset": RECORDS}]


def test_log_directories_are_described(address: str) -> None:
    run(TOPICS, address, "--create", "--topic", "t", "--partitions", "2")
    lines = run(LOG_DIRS, address, "--describe", "--topic-list", "t")
    (told,) = [json.loads(line) for line in lines if line.startswith("{")]
    (broker,) = told["brokers"]
    (directory,) = broker["logDirs"]
    assert directory["error"] is None
    assert {(each["partition"], each["size"]) for each in directory["partitions"]} == {("t-0", 0), ("t-1", 0)}
