"""Memory grows with the bytes that came, not with what was announced, with connections, or with the backlog."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.sanitizer import about_memory

pytestmark = about_memory
MIB = 1 << 20
PER_PROCESS = 40 * MIB
PER_SLOW_CONNECTION = 32 << 10


def private_bytes(pid: int) -> int:
    """Memory that this process alone has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = (int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))
    return sum(kilobytes) * 1024


def processors(broker: Broker) -> dict[str, int]:
    return {role: private_bytes(pid) for role, pid in broker.pids().items() if role.startswith("processor")}


def grown(before: dict[str, int], broker: Broker) -> int:
    """By how much all processors together have grown."""
    return sum(processors(broker).values()) - sum(before.values())


@pytest.mark.slow
def test_an_announced_size_takes_no_memory(start_broker: Callable[..., Broker], topic: str) -> None:
    """Z-12, T-19: a hundred connections announce 100 MiB each and send a little; 10 GB are not reserved for them."""
    broker = start_broker()
    with contextlib.ExitStack() as stack:
        healthy = stack.enter_context(broker.connect())
        assert healthy.produce_ack(topic, 0, raw.entry(b"x")).error == 0
        before = processors(broker)
        limit = healthy.metadata([]).max_request_bytes
        begin = struct.pack(">ih", limit, raw.PRODUCE) + raw.place(topic, 0) + struct.pack(">i", limit - 100)
        clients = [stack.enter_context(broker.connect()) for _ in range(100)]
        for client in clients:
            client.send_raw(begin)
        for client in clients[:10]:
            client.send_raw(b"x" * 1000)
        healthy.metadata([])
        time.sleep(0.1)
        # a buffer of 128 kB each, of which only the pages with bytes in them are there
        assert grown(before, broker) <= 100 * PER_SLOW_CONNECTION
        assert healthy.produce_ack(topic, 0, raw.entry(b"x")).error == 0


@pytest.mark.slow
def test_many_slow_connections(start_broker: Callable[..., Broker], topic: str) -> None:
    """T-21: 200 connections with a part of a request each, and 20 that read no answer, disturb nobody."""
    broker = start_broker()
    data = raw.message_set([b"x" * 1000] * 100)
    with contextlib.ExitStack() as stack:
        healthy = stack.enter_context(broker.connect())
        for _ in range(20):
            assert healthy.produce_ack(topic, 0, data, raw.FLUSHED).error == 0
        healthy.fetch_ok(topic, 0, 0)
        before = processors(broker)
        clients = [stack.enter_context(broker.connect()) for _ in range(200)]
        frame = raw.produce_frame(topic, 0, data)
        for number, client in enumerate(clients):
            client.send_raw(frame[: 1 + number * 10])
        deaf = [stack.enter_context(broker.connect()) for _ in range(20)]
        for client in deaf:
            client.send_raw(raw.fetch_frame(topic, 0, 0, 10 * MIB) * 5)
        for number in range(50):
            assert healthy.produce_ack(topic, 0, raw.entry(b"%d" % number)).error == 0
        assert grown(before, broker) <= 220 * PER_SLOW_CONNECTION
        for client in clients:
            client.close()
        for client in deaf:
            client.close()
        wait_until("the memory is given back or kept for the next", lambda: grown(before, broker) <= 4 * MIB)


@pytest.mark.slow
def test_requests_in_flight_share_a_budget(start_broker: Callable[..., Broker], topic: str) -> None:
    """Large requests on many connections at once wait for each other instead of taking memory, and all arrive."""
    budget = 4 * MIB
    settings = {"request.memory.bytes": budget, "max.socket.request.bytes": 2 * MIB}
    broker = start_broker(processors=1, settings=settings)
    data = raw.message_set([b"x" * 1000] * 1900)
    frame = raw.produce_frame(topic, 0, data)
    count = 12
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(broker.connect())
        assert reader.produce_ack(topic, 0, raw.entry(b"first"), raw.FLUSHED).error == 0
        start = reader.log_end(topic, 0)
        before = processors(broker)
        clients = [stack.enter_context(broker.connect()) for _ in range(count)]
        senders = [threading.Thread(target=client.send_raw, args=(frame[:-1],)) for client in clients]
        for sender in senders:
            sender.start()
        time.sleep(0.2)
        # one connection may go over it, so that something always moves
        assert grown(before, broker) <= budget + 2 * 2 * MIB
        assert reader.log_end(topic, 0) == start
        assert reader.produce_ack(topic, 0, raw.entry(b"small")).error == 0
        finishers = [
            threading.Thread(target=_finish, args=(client, sender))
            for client, sender in zip(clients, senders, strict=True)
        ]
        for finisher in finishers:
            finisher.start()
        end = start + len(raw.entry(b"small")) + count * len(data)
        wait_until("all requests are in the log", lambda: reader.log_end(topic, 0) == end)
        for finisher in finishers:
            finisher.join()


def _finish(client: raw.RawClient, sender: threading.Thread) -> None:
    sender.join()
    client.send_raw(b"x")


@pytest.mark.slow
def test_processes_are_small_whatever_the_backlog(start_broker: Callable[..., Broker], topic: str) -> None:
    """Forty megabytes each at most, and no more with a backlog than without."""
    broker = start_broker(settings={"log.file.size": 8 * MIB})
    data = raw.message_set([b"x" * 1000] * 900)
    with broker.connect() as client:
        assert client.produce_ack(topic, 0, data, raw.FLUSHED).error == 0
        client.read_all(topic, 0)
        before = {role: private_bytes(pid) for role, pid in broker.pids().items()}
        for _ in range(100):
            client.produce(topic, 0, data)
        end = 101 * len(data)
        client.wait_visible(topic, 0, end)
        offset = 0
        while offset < end:
            offset += len(client.fetch_ok(topic, 0, offset, 1 << 20)) // 1010 * 1010
    sizes = broker.memory()
    assert max(sizes.values()) <= PER_PROCESS, sizes
    for role, pid in broker.pids().items():
        assert private_bytes(pid) - before[role] <= 3 * MIB, role


@pytest.mark.slow
def test_zookeeper_costs_the_keeper_alone(start_broker: Callable[..., Broker]) -> None:
    """What speaks to it is loaded by the keeper; the others are as large as without. There need be no ZooKeeper."""
    plain = start_broker()
    registering = start_broker(settings={"zk.connect": "127.0.0.1:1", "zk.connectiontimeout.ms": 100})
    registering.wait_log("no ZooKeeper answers")
    without = {role: private_bytes(pid) for role, pid in plain.pids().items()}
    sizes = {role: private_bytes(pid) for role, pid in registering.pids().items()}
    assert sizes.pop("keeper") <= PER_PROCESS
    for role, size in sizes.items():
        assert size - without[role] <= MIB, role
