"""Waiting costs nothing: held fetches make no system calls, and messages leave no Python objects behind."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness import raw_client as raw
from tests.harness.broker import Broker, wait_until
from tests.harness.calm import wait_calm
from tests.harness.processor import Processor, answered

HEARTBEATS_PER_SECOND = 4
SWITCHES_PER_SECOND = HEARTBEATS_PER_SECOND + 1
WATCH_SECONDS = 3.0
IDLE_SHARE = 0.03
BATCH = 50
FEW, MANY = 10_000, 1_000_000


def voluntary_switches(pid: int) -> int:
    """How often this process gave up the CPU to wait: every blocking system call of an idle process is one."""
    found = re.search(r"^voluntary_ctxt_switches:\s*(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1])


def only_beat(pids: dict[str, int]) -> bool:
    """Whether none of the processes wakes up more often than for its heartbeat, watched for a while."""
    begun = time.monotonic()
    before = {role: voluntary_switches(pid) for role, pid in pids.items()}
    time.sleep(WATCH_SECONDS)
    found = {role: voluntary_switches(pid) - before[role] for role, pid in pids.items()}
    return max(found.values()) <= SWITCHES_PER_SECOND * (time.monotonic() - begun) + 2


@pytest.mark.slow
def test_held_fetches_that_wait(start_broker: Callable[..., Broker], topic: str) -> None:
    """A hundred held fetches for some seconds: a processor does no more than tell that it lives."""
    broker = start_broker(settings={"num.partitions": 2})
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(100)]
        assert clients[0].produce_ack(topic, 0, raw.entry(b"first"), raw.FLUSHED).error == 0
        end = clients[0].log_end(topic, 0)
        # on a partition that is there, and on one that is not yet
        for number, client in enumerate(clients):
            body = raw.held_fetch_body(topic, number % 2, 0 if number % 2 else end, 1 << 16, 30_000, 1)
            client.send_raw(raw.own_frame(raw.HELD_FETCH, body))
        pids = {role: pid for role, pid in broker.pids().items() if role != "supervisor"}
        wait_calm(pids, IDLE_SHARE)
        wait_until("they only tell that they live", lambda: only_beat(pids), 4 * WATCH_SECONDS)
        with broker.connect() as producer:
            for partition in (0, 1):
                assert producer.produce_ack(topic, partition, raw.entry(b"news")).error == 0
        for client in clients:
            assert raw.decode_held(client.recv_own()[1]).messages == raw.entry(b"news")


@pytest.mark.slow
def test_an_idle_broker(start_broker: Callable[..., Broker], topic: str) -> None:
    """Connections and data cost nothing while nobody asks for anything, in no process."""
    broker = start_broker()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(broker.connect()) for _ in range(20)]
        for client in clients:
            assert client.produce_ack(topic, 0, raw.entry(b"data"), raw.FLUSHED).error == 0
        wait_calm(broker.pids(), IDLE_SHARE)


@pytest.fixture
def processor(tmp_path: Path) -> Iterator[Processor]:
    running = Processor(tmp_path)
    yield running
    running.close()


def blocks_used(work: Callable[[], object]) -> int:
    """How many more Python blocks exist after the work than before it."""
    gc.collect()
    before = sys.getallocatedblocks()
    work()
    gc.collect()
    return sys.getallocatedblocks() - before


@pytest.mark.slow
def test_messages_leave_no_python_objects(processor: Processor) -> None:
    """The count of allocated blocks is the same after ten thousand and after a million messages of one request size."""
    produce = raw.produce_frame("topic", 0, raw.message_set([b"x" * 20] * BATCH))
    acked = raw.own_frame(raw.PRODUCE_ACK, raw.produce_ack_body("topic", 0, raw.message_set([b"x" * 20] * BATCH)))
    fetch = raw.fetch_frame("topic", 0, 0)
    with processor.connect() as connection:

        def send(messages: int) -> None:
            for _ in range(messages // BATCH // 100):
                connection.sendall(produce * 98)
                # both answer once everything before them is in the log
                assert len(answered(connection, produce + acked)) == 30
                assert len(answered(connection, fetch)) == 6

        send(FEW)  # topic, descriptors and buffers are made here
        few = blocks_used(lambda: send(FEW))
        many = blocks_used(lambda: send(MANY))
    view = processor.arena.view(0)
    assert view.appended_messages == 2 * FEW + MANY
    assert abs(few) <= 20, few
    assert abs(many) <= 20, many
