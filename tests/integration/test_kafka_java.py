"""The console tools of Apache Kafka 4.2 against this broker: what Java's clients write and read."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import real_kafka
from tests.harness.broker import Broker

pytestmark = [real_kafka.is_there, pytest.mark.slow]
COUNT = 500


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Broker(tmp_path_factory.mktemp("java"), processors=2) as running:
        yield f"127.0.0.1:{running.port}"


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_javas_producer_writes_its_consumer_reads(address: str, codec: str) -> None:
    """The producer is an idempotent one, which is its default; the consumer needs no group for a partition."""
    topic = f"java-{codec}"
    settings = [f"bootstrap.servers={address}", f"compression.type={codec}"]
    records = ["--topic", topic, "--num-records", str(COUNT), "--record-size", "100", "--throughput", "-1"]
    said = real_kafka.run("org.apache.kafka.tools.ProducerPerformance", *records, "--producer-props", *settings)
    assert f"{COUNT} records sent" in said
    place = ["--bootstrap-server", address, "--topic", topic]
    for when, offset in (("-2", 0), ("-1", COUNT), ("0", 0)):
        said = real_kafka.run("org.apache.kafka.tools.GetOffsetShell", *place, "--time", when)
        assert said.strip().endswith(f"{topic}:0:{offset}")
    lines = real_kafka.run(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *place,
        *("--partition", "0", "--offset", "200", "--max-messages", str(COUNT - 200), "--timeout-ms", "60000"),
    ).splitlines()
    assert [len(line) for line in lines if len(line) == 100] == [100] * (COUNT - 200)
