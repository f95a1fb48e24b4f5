"""``fastlog.metrics``: what a page of a program says of its producers and consumers."""

from __future__ import annotations

import gc
import sys
import time
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from fastlog import metrics
from fastlog._segment import pack
from fastlog.audit import LATENCY_BOUNDS_MS, Auditor
from fastlog.client.addresses import Address
from fastlog.consumer.feed import PartitionState, Phase
from fastlog.consumer.fetched import MessageSet
from fastlog.consumer.partitions import TopicPartition
from fastlog.consumer.status import GroupState
from fastlog.envelope import Envelope, wrap
from fastlog.errors import ArgumentError, MissingDependencyError
from fastlog.producer.producer import ProducerStats
from fastlog.zkpaths import PartitionId
from tests.harness.metrics_page import MetricsPage, documented_of_clients


class Sender:
    """A producer that says what it is told."""

    def __init__(self, *counts: int) -> None:
        self.counts = counts

    def stats(self) -> ProducerStats:
        return ProducerStats(*self.counts)


class Receiver:
    """A consumer that stands as it is told."""

    state = GroupState.ASSIGNED
    failed_commits = 3

    def __init__(self, **partitions: PartitionState) -> None:
        self.partitions = {
            TopicPartition(name, PartitionId(2, number)): state
            for number, (name, state) in enumerate(partitions.items())
        }


def state(consumed: int | None = 70, high_watermark: int | None = 100) -> PartitionState:
    return PartitionState(
        Phase.READING, Address("b", 1), "t", 90, consumed, high_watermark, 5, "socket", None, 6, None, 8
    )


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def page(registry: CollectorRegistry) -> MetricsPage:
    return MetricsPage(generate_latest(registry).decode())


def watch(client: Any, name: str, registry: CollectorRegistry) -> metrics.ClientMetrics:
    return metrics.watch(client, name, registry)


def test_the_families_are_the_documented_ones(registry: CollectorRegistry) -> None:
    sender, receiver = Sender(1, 2, 3, 4, 5, 6, 7, 8), Receiver(a=state())
    watch(sender, "s", registry)
    watch(receiver, "r", registry)
    auditor = counted(0)
    watch(auditor, "a", registry)
    assert page(registry).families == documented_of_clients()


def counted(*ages_ms: int) -> Auditor:
    """An auditor that has counted messages which were sent so long ago."""
    auditor = Auditor("load")
    now = time.time_ns() // 1_000_000
    for number, age in enumerate(ages_ms):
        identity = b"\x01" + (1).to_bytes(8, "big") + number.to_bytes(8, "big")
        auditor.count_run("t", pack([wrap(b"v", Envelope(now - age, 5, deduplication_id=identity))]))
    return auditor


def test_an_auditor(registry: CollectorRegistry) -> None:
    """How long messages took to be counted: cumulative, as a histogram is."""
    auditor = counted(20_000, 20_000, 3_000_000, 100_000_000)
    watch(auditor, "a", registry)
    labels = {"client": "a", "stage": "load", "topic": "t"}
    found = page(registry)

    def within(bound: str) -> float:
        return found.value("fastlog_audit_latency_seconds_bucket", le=bound, **labels)

    bounds = ["0.001", "10.0", "30.0", "1800.0", "7200.0", "+Inf"]
    assert [within(bound) for bound in bounds] == [0, 0, 2, 2, 3, 4]
    assert found.value("fastlog_audit_latency_seconds_count", **labels) == 4
    assert found.value("fastlog_audit_latency_seconds_sum", **labels) == pytest.approx(103_040, abs=20)
    assert auditor.latencies()["t"].total_seconds == pytest.approx(103_040, abs=20)
    del auditor
    gc.collect()
    assert page(registry).values == {}


def test_an_auditor_counts_ages_of_batches_too() -> None:
    """Of arrays and of sets, as consumers give them."""
    now = time.time_ns() // 1_000_000
    data = memoryview(pack([wrap(b"v", Envelope(now - 20_000, 5))]))
    for given in (MessageSet("t", 0, 0, data), MessageSet("t", 0, 0, data).to_numpy()):
        auditor = Auditor("load")
        auditor.count(given)
        counts, seconds = auditor.latencies()["t"]
        assert dict(zip([*LATENCY_BOUNDS_MS, None], counts, strict=True))[30_000] == sum(counts) == 1
        assert 20 <= seconds < 30


def test_a_producer(registry: CollectorRegistry) -> None:
    sender = Sender(1, 2, 3, 4, 5, 6, 7, 8)
    watch(sender, "orders", registry)
    assert page(registry).values == {
        (f"fastlog_producer_{name}", (("client", "orders"),)): value
        for name, value in {
            "queued_messages": 1,
            "in_flight_messages": 2,
            "accepted_messages_total": 3,
            "delivered_messages_total": 4,
            "failed_messages_total": 5,
            "dropped_messages_total": 6,
            "possible_duplicates_total": 7,
            "connections_total": 8,
        }.items()
    }


def test_a_consumer(registry: CollectorRegistry) -> None:
    receiver = Receiver(a=state(), b=state(consumed=None), c=state(high_watermark=None), d=state(120, 100))
    watch(receiver, "g", registry)
    found = page(registry)
    states = {labels: value for (name, labels), value in found.values.items() if name.endswith("group_state")}
    assert len(states) == len(GroupState) and sum(states.values()) == 1
    assert states[("client", "g"), ("state", "assigned")] == 1
    assert found.value("fastlog_consumer_failed_commits_total", client="g") == 3
    assert found.value("fastlog_consumer_consumed_offset", client="g", topic="a", partition="2-0") == 70
    assert found.value("fastlog_consumer_position", client="g", topic="a", partition="2-0") == 90
    assert found.value("fastlog_consumer_high_watermark", client="g", topic="a", partition="2-0") == 100
    assert found.value("fastlog_consumer_queued_pieces", client="g", topic="b", partition="2-1") == 5
    assert found.value("fastlog_consumer_fetch_failures", client="g", topic="b", partition="2-1") == 6
    assert found.value("fastlog_consumer_gaps_total", client="g", topic="b", partition="2-1") == 8
    lags = {dict(labels)["topic"]: value for (name, labels), value in found.values.items() if "lag" in name}
    assert lags == {"a": 30, "d": 0}  # what is not known is not told


def test_clients_are_told_apart_and_leave_when_they_are_gone(registry: CollectorRegistry) -> None:
    first, second = Sender(*[1] * 8), Sender(*[2] * 8)
    collector = watch(first, "first", registry)
    assert watch(second, "second", registry) is collector
    name = "fastlog_producer_accepted_messages_total"
    assert page(registry).value(name, client="first") == 1
    assert page(registry).value(name, client="second") == 2
    del first
    gc.collect()
    assert [labels for found, labels in page(registry).values if found == name] == [(("client", "second"),)]
    third = Sender(*[3] * 8)
    watch(third, "first", registry)
    assert page(registry).value(name, client="first") == 3
    del second, third
    gc.collect()
    assert page(registry).values == {}


def test_a_name_stands_for_one_client_of_its_kind(registry: CollectorRegistry) -> None:
    sender, receiver, other = Sender(*[1] * 8), Receiver(), Sender(*[1] * 8)
    watch(sender, "a", registry)
    watch(sender, "a", registry)
    watch(receiver, "a", registry)
    with pytest.raises(ArgumentError, match="another client called 'a'"):
        watch(other, "a", registry)
    for stranger in (object(), SimpleNamespace(partitions=lambda: []), SimpleNamespace(failed_commits=0)):
        with pytest.raises(ArgumentError, match="no Producer or Consumer"):
            watch(stranger, "b", registry)


def test_a_registry_of_ones_own_and_that_of_the_process(registry: CollectorRegistry) -> None:
    from prometheus_client import REGISTRY

    sender = Sender(*[1] * 8)
    collector = metrics.watch(sender)  # type: ignore[arg-type]
    try:
        assert 'fastlog_producer_connections_total{client="default"} 1.0' in generate_latest(REGISTRY).decode()
        assert watch(sender, "x", registry) is not collector
    finally:
        REGISTRY.unregister(collector)
        metrics._collectors.pop(REGISTRY)


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client.core", None)
    with pytest.raises(MissingDependencyError, match=r"pip install .*\[metrics\]"):
        metrics.watch(Sender(*[1] * 8))  # type: ignore[arg-type]
