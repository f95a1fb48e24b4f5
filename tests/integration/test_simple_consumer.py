"""The simple consumer against a real broker: every form of the same real lines, processes that die, SIGINT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fastlog.codecs import GZIP, SNAPPY
from fastlog.consumer.simple import EARLIEST, LATEST, SimpleConsumer
from fastlog.errors import (
    ConsumerTimeout,
    MessageTooLargeError,
    OffsetOutOfRangeError,
    TransportError,
    WrongPartitionError,
)
from fastlog.message import encode_set
from tests.harness.broker import Broker
from tests.harness.raw_client import RawClient
from tests.harness.timing import sooner_than

ROOT = Path(__file__).resolve().parents[2]


def consumer_of(broker: Broker, **options: object) -> SimpleConsumer:
    return SimpleConsumer("127.0.0.1", broker.port, **{"timeout": 10.0, **options})  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize("local", ["off", "read", "map", "auto"])
def test_real_lines_come_back_in_every_form(
    broker: Broker, client: RawClient, topic: str, data_lines: tuple[bytes, ...], local: str
) -> None:
    """Plain, gzip and snappy sets in one partition; messages, lists, numpy and Arrow are equal."""
    lines = list(data_lines[:6000])
    for number, codec in enumerate((0, GZIP, SNAPPY, 0, GZIP, SNAPPY)):
        client.produce(topic, 0, encode_set(lines[number * 1000 : (number + 1) * 1000], codec))
    client.produce_ack(topic, 0, encode_set([b"last"]), acks=2)
    lines.append(b"last")
    with consumer_of(broker, local=local, fetch_bytes=50_000) as consumer:
        messages = list(consumer.messages(topic, 0))
        assert [message.payload for message in messages] == lines
        assert [payload for batch in consumer.batches(topic, 0) for payload in batch] == lines
        arrays = list(consumer.numpy_batches(topic, 0))
        assert [batch.payload(number) for batch in arrays for number in range(len(batch))] == lines
        assert [x for batch in arrays for x in batch.offsets.tolist()] == [message.offset for message in messages]
        tables = [batch.to_arrow() for batch in arrays]
        assert [payload for table in tables for payload in table.column("payload").to_pylist()] == lines
        assert messages[-1].next_offset == arrays[-1].next_offset
        assert consumer.get_offsets_before(topic, 0, LATEST) == [messages[-1].next_offset]
        half = messages[len(messages) // 2]
        rest = [message.payload for message in consumer.messages(topic, 0, half.next_offset)]
        assert rest == [m.payload for m in messages if m.next_offset > half.next_offset or m.offset >= half.next_offset]


def test_errors_of_a_real_broker(broker: Broker, client: RawClient, topic: str) -> None:
    client.produce_ack(topic, 0, encode_set([b"a"]), acks=2)
    with consumer_of(broker) as consumer:
        with pytest.raises(OffsetOutOfRangeError, match=f"{topic}, partition 0, offset 12, .*from 0 to 11"):
            consumer.fetch(topic, 0, 12)
        with pytest.raises(WrongPartitionError, match="partition 9999"):
            consumer.fetch(topic, 9999, 0)
        with pytest.raises(WrongPartitionError):
            consumer.get_offsets_before(topic, 9999, LATEST)
        parts = consumer.multifetch([(topic, 0, 0), (topic, 0, 12), (topic, 9999, 0)])
        assert parts[0].payloads() == [b"a"]
        assert [type(part.error) for part in parts[1:]] == [OffsetOutOfRangeError, WrongPartitionError]
        assert list(consumer.messages("nobody-wrote-this", 0)) == []
        assert consumer.get_offsets_before(topic, 0, EARLIEST) == [0]


def test_a_message_longer_than_the_fetch(broker: Broker, client: RawClient, topic: str) -> None:
    big = bytes(range(256)) * 3000
    client.produce_ack(topic, 0, encode_set([b"a", big, b"b"]), acks=2)
    for local in ("off", "read"):
        with consumer_of(broker, fetch_bytes=100, local=local) as consumer:
            assert [message.payload for message in consumer.messages(topic, 0)] == [b"a", big, b"b"]
        with consumer_of(broker, fetch_bytes=100, local=local, max_message_bytes=1000) as consumer:
            found = consumer.messages(topic, 0)
            assert next(found).payload == b"a"
            with pytest.raises(MessageTooLargeError, match=str(len(big) + 10)):
                next(found)


def test_a_held_fetch_returns_with_the_message(broker: Broker, client: RawClient, topic: str) -> None:
    """It waits without asking again, and comes because the message was sent."""
    client.produce_ack(topic, 0, encode_set([b"a"]), acks=2)
    with consumer_of(broker) as consumer:
        started = time.monotonic()
        assert not consumer.fetch(topic, 0, 11, wait=0.1)
        assert time.monotonic() - started >= 0.1
        timer = threading.Timer(0.05, lambda: client.produce(topic, 0, encode_set([b"b"])))
        timer.start()
        with sooner_than(20):
            assert consumer.fetch(topic, 0, 11, wait=25).payloads() == [b"b"]
        timer.join()


def test_what_was_acknowledged_is_read_even_if_not_flushed(start_broker: Callable[..., Broker], topic: str) -> None:
    """An iteration without a wait ends at the log end of its time, not at what happens to be visible."""
    settings = {"log.default.flush.interval.ms": 60_000, "log.flush.interval": 1_000_000}
    broker = start_broker(processors=1, settings=settings)
    with broker.connect() as client, consumer_of(broker) as consumer:
        for number in range(20):
            client.produce_ack(topic, 0, encode_set([b"%d" % number]), acks=1)
            assert sum(1 for _ in consumer.messages(topic, 0)) == number + 1


@pytest.mark.slow
def test_what_never_becomes_visible_is_not_waited_for_without_end(
    start_broker: Callable[..., Broker], topic: str
) -> None:
    broker = start_broker(processors=1)
    with broker.connect() as client, consumer_of(broker, timeout=0.5) as consumer:
        client.produce_ack(topic, 0, encode_set([b"seen"]), acks=2)
        broker.pause("flusher")
        client.produce_ack(topic, 0, encode_set([b"not seen"]), acks=1)
        payloads = consumer.payloads(topic, 0)
        assert next(payloads) == b"seen"
        with pytest.raises(ConsumerTimeout, match=rf"{topic}, partition 0: 18 bytes from offset 14 on .* not visible"):
            next(payloads)
        broker.signal("flusher", signal.SIGCONT)
        assert list(consumer.payloads(topic, 0)) == [b"seen", b"not seen"]


@pytest.mark.slow
def test_processors_may_die_while_it_reads(start_broker: Callable[..., Broker], topic: str) -> None:
    """Each death costs one connection; nothing is missing and nothing comes twice."""
    broker = start_broker(processors=2)
    lines = [b"line %06d" % number for number in range(20_000)]
    with broker.connect() as client:
        for start in range(0, len(lines), 1000):
            client.produce(topic, 0, encode_set(lines[start : start + 1000]))
        client.produce_ack(topic, 0, encode_set([b"end"]), acks=2)
    with consumer_of(broker, local="off", fetch_bytes=1000) as consumer:
        found = []
        for message in consumer.messages(topic, 0):
            if len(found) in (3000, 9000, 15_000):
                role = f"processor-{len(found) // 3000 % 2}"
                broker.wait_replaced(role, broker.kill(role))
            found.append(message.payload)
        assert found == [*lines, b"end"]
        broker.kill_all()
        with pytest.raises(TransportError, match=r"refused|reset"):
            list(consumer.messages(topic, 0))


PROGRAM = """
import signal, sys, time
from fastlog.consumer.simple import SimpleConsumer
consumer = SimpleConsumer("127.0.0.1", int(sys.argv[1]), timeout=30)
calls = {
    "fetch": lambda: consumer.fetch("t", 0, 0, wait=20),
    "fetch_numpy": lambda: consumer.fetch_numpy("t", 0, 0, wait=20),
    "messages": lambda: next(consumer.messages("t", 0, 0, wait=None)),
    "batches": lambda: next(consumer.batches("t", 0, 0, wait=30)),
}
# Python drops an interrupt that comes while it imports something, so all of it is loaded first
list(consumer.messages("t", 0))
consumer.fetch_numpy("t", 0, 0)
for name, call in calls.items():
    for _ in range(int(sys.argv[2])):
        try:
            print(name, flush=True)
            call()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
consumer.close()
"""


@pytest.mark.slow
def test_ctrl_c_at_any_moment(broker: Broker) -> None:
    """Each blocking call returns because of SIGINT, however early it comes."""
    rounds = 6
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(broker.port), str(rounds)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process, process.stdout:
        for turn in range(4 * rounds):
            assert process.stdout.readline().strip() in ("fetch", "fetch_numpy", "messages", "batches")
            time.sleep(0.002 + 0.01 * (turn % rounds))
            os.kill(process.pid, signal.SIGINT)
            with sooner_than(15):
                assert process.stdout.readline() == "interrupted\n"
        assert process.wait(30) == 0
