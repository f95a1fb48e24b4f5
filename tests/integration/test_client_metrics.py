"""A program's page tells what its real clients have done."""

from __future__ import annotations

import asyncio
import shutil
import subprocess

from prometheus_client import CollectorRegistry, generate_latest

import fastlog
from fastlog import aio, metrics, testing
from tests.harness.metrics_page import MetricsPage


def test_what_clients_have_done_is_on_the_page() -> None:
    registry = CollectorRegistry()
    with testing.broker() as broker, fastlog.Producer(broker.address) as producer:
        metrics.watch(producer, "p", registry)
        producer.send("logs", [b"x" * 10] * 5)
        with fastlog.Consumer(brokers=broker.address, group_id="g") as consumer:
            metrics.watch(consumer, "c", registry)
            (stream,) = consumer.create_message_streams({"logs": 1})["logs"]
            assert [next(stream).payload for _ in range(5)] == [b"x" * 10] * 5
            text = generate_latest(registry).decode()
        asyncio.run(by_coroutines(broker.address, registry))
    page = MetricsPage(text)
    assert page.value("fastlog_producer_delivered_messages_total", client="p") == 5
    assert page.value("fastlog_producer_connections_total", client="p") == 1
    assert page.value("fastlog_consumer_group_state", client="c", state="assigned") == 1
    about = {"client": "c", "topic": "logs", "partition": "0-0"}
    assert page.value("fastlog_consumer_high_watermark", **about) == 100
    assert page.value("fastlog_consumer_lag_bytes", **about) == 20  # the last counts when the next is asked for
    promtool = shutil.which("promtool")
    if promtool:
        done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


async def by_coroutines(address: str, registry: CollectorRegistry) -> None:
    async with aio.Producer(address) as producer:
        metrics.watch(producer, "aio", registry)
        await producer.send_and_wait("logs", b"y")
        page = MetricsPage(generate_latest(registry).decode())
        assert page.value("fastlog_producer_delivered_messages_total", client="aio") == 1
