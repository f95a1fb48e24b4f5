"""Idempotent producers of others behind a proxy that loses what it can, while processes die: each message once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from tests.harness.batch_load import Client, records_of
from tests.harness.broker import Broker
from tests.harness.lossy_proxy import LossyProxy
from tests.harness.timing import PATIENCE

SEED = 20261123
MESSAGES = 3000
RATE = 0.02

pytestmark = pytest.mark.slow


@pytest.fixture
def proxied(tmp_path: Path) -> Iterator[tuple[Broker, LossyProxy]]:
    """A broker that clients reach by a lossy proxy alone."""
    made: list[Broker] = []
    with LossyProxy(lambda: made[0].port if made else 0, rate=0.0, seed=SEED) as proxy:
        settings = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}", "num.partitions": 2}
        with Broker(tmp_path, processors=2, settings=settings) as broker:
            made.append(broker)
            client = Client(broker.port)
            assert client.make_topic("t") == 2
            client.close()
            yield broker, proxy


@pytest.mark.parametrize("kills", ["nobody", "processors", "the broker"])
def test_librdkafka(proxied: tuple[Broker, LossyProxy], kills: str) -> None:
    broker, proxy = proxied
    source = random.Random(SEED)
    errors: list[Any] = []
    told: dict[tuple[int, int], bytes] = {}

    def on_delivery(error: Any, message: Any) -> None:
        if error:
            errors.append(error)
        else:
            told[message.partition(), message.offset()] = message.value()

    settings = {
        "bootstrap.servers": f"127.0.0.1:{proxy.port}",
        "enable.idempotence": True,
        "linger.ms": 1,
        "batch.num.messages": 20,
        "reconnect.backoff.ms": 5,
        "reconnect.backoff.max.ms": 20,
        "retry.backoff.ms": 5,
        "message.timeout.ms": int(PATIENCE * 1000),
    }
    producer = Producer(settings)
    proxy.rate = RATE
    for number in range(MESSAGES):
        producer.produce("t", b"%d" % number, partition=number % 2, on_delivery=on_delivery)
        producer.poll(0)
        if number % 500 == 250:
            if kills == "processors":
                role = f"processor-{source.randrange(2)}"
                broker.wait_replaced(role, broker.kill(role))
            elif kills == "the broker" and number % 1000 == 250:
                broker.kill_all()
                broker.start()
    assert producer.flush(PATIENCE) == 0
    proxy.rate = 0.0
    assert not errors
    assert len(told) == MESSAGES
    assert broker.stop() == 0
    for partition in range(2):
        stored = records_of(
            b"".join(path.read_bytes() for path in sorted(broker.partition_directory("t", partition).glob("*.log")))
        )
        assert [value for _, value in stored] == [b"%d" % number for number in range(partition, MESSAGES, 2)]
        assert {offset: told[partition, offset] for offset, _ in stored} == dict(stored)
    assert sum(proxy.faults.values()) > 5
